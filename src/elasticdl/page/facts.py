"""Facts about a job that the page shows but the event log lacks, such as settings and reports.

Callers: `outputs.py` reads them; `status.py` and `view.py` show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.job import Job


@dataclass(frozen=True)
class Facts:
    """What the page needs to know about a job besides its event log.

    Attributes:
        name: Name of the job on the page.
        output: URI of the output.
        definition: Contents of `job.json`; empty if it is missing or unreadable.
        job: The definition as a `Job`; None if it is missing, damaged or written by another version
            of ElasticDL.
        is_held: Whether a process that seems to be alive has locked the output, as a running job
            does.
        is_elsewhere: Whether that process is on another machine, so that its death may not have
            been noticed.
        holder: Description of the process that has locked the output; empty if there is none.
        is_local: Whether the output is on this machine.
        kept_steps: Steps of the checkpoints that are still stored.
        reports: Name of a report -> path of its HTML page.
        notes: Notices for the user, such as unreadable files.
    """

    name: str
    output: str
    definition: Mapping[str, Any] = field(default_factory=dict)
    job: Job | None = None
    is_held: bool = False
    is_elsewhere: bool = False
    holder: str = ""
    is_local: bool = True
    kept_steps: Sequence[int] = ()
    reports: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

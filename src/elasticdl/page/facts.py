"""What lies in the output of a job besides its log.

Callers: `outputs.py` reads it; `status.py` and `view.py` show it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.job import Job


@dataclass(frozen=True)
class Facts:
    """What lies in an output besides its log.

    Attributes:
        name: What the job is called on the page.
        output: Where it is.
        definition: `job.json`; empty if there is none that can be read.
        job: The same as a `Job`; None if there is none, or a newer version wrote it.
        is_held: Whether a process that may be alive works on it.
        is_elsewhere: It is on another machine, so that nobody knows whether it lives.
        holder: Which one, in words.
        is_local: Whether the output lies on this machine.
        kept_steps: Steps of the checkpoints that are there.
        reports: Name -> path of the pages of reports.
        notes: What a person should know of all this.
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

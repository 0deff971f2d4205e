"""The event log of an output folder, wherever the folder lies.

On this machine it is a file of the folder. An object store cannot append, so there the log is
written on this machine and put as a whole at the moments it is published: what a killed run has
written since the last one is lost with its machine. What events say is not looked at here.

Callers: the engines.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl import scratch
from elasticdl.events import EventLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.artifacts.folder import OutputFolder

EVENTS_FILE = "events.jsonl"


@contextmanager
def open_event_log(folder: OutputFolder) -> Iterator[EventLog]:
    """Yield the log of an output, to be appended to; it is published when the block ends.

    Args:
        folder: The output, held by a claim.

    Raises:
        OutputError: The log cannot be opened, or not be put where it belongs.

    Example:
        >>> from elasticdl.artifacts.folder import OutputFolder
        >>> from elasticdl.events import JobFinished
        >>> folder = OutputFolder("memory://doc-events")
        >>> with open_event_log(folder) as log:
        ...     log.write(JobFinished(step=3, time=0.0))
        >>> folder.read_bytes("events.jsonl").decode().strip()
        '{"event": "job_finished", "time": 0.0, "step": 3, "metrics": {}}'
    """
    path = folder.local_path(EVENTS_FILE)
    with ExitStack() as stack:
        if path is not None:
            log = EventLog(path)
        else:
            written = Path(
                stack.enter_context(tempfile.TemporaryDirectory(dir=scratch.folder())), EVENTS_FILE
            )
            if folder.exists(EVENTS_FILE):
                folder.fetch(EVENTS_FILE, written)
            log = EventLog(written, lambda file: folder.write_bytes(EVENTS_FILE, file.read_bytes()))
        yield stack.enter_context(log)

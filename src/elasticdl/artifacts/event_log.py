"""Event log of an output folder, on this machine or on an object store.

For an output on this machine, the log is a file in the folder. An object store cannot append to a
file: there, the log is written on this machine, and `EventLog.publish` uploads it as a whole. The
events since the last upload are lost if the machine is lost. The content of events is not
interpreted here.

Callers: the engines.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl import scratch
from elasticdl.event_file import EventLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.artifacts.folder import OutputFolder

EVENTS_FILE = "events.jsonl"


def log_file(folder: OutputFolder) -> Path:
    """Return the local file to which this process writes the event log of an output.

    Args:
        folder: The output. If it is on an object store, the local file exists only while the job
            runs on this machine.

    Raises:
        OSError: There is no writable folder for temporary files.
    """
    path = folder.local_path(EVENTS_FILE)
    if path is not None:
        return path
    # The page of a running job receives this path before the log is opened.
    name = hashlib.sha256(folder.uri.encode()).hexdigest()[:16]
    return scratch.folder() / f"log-{name}" / EVENTS_FILE


@contextmanager
def open_event_log(folder: OutputFolder) -> Iterator[EventLog]:
    """Context manager: open the event log of an output, to append events.

    A log on an object store is uploaded at the end of the block.

    Args:
        folder: The output, which this process has claimed (`claim.py`).

    Raises:
        OutputError: The log cannot be opened, or cannot be written to the output.

    Example:
        >>> from elasticdl.artifacts.folder import OutputFolder
        >>> from elasticdl.events import JobFinished
        >>> folder = OutputFolder("memory://doc-events")
        >>> with open_event_log(folder) as log:
        ...     log.write(JobFinished(step=3, time=0.0))
        >>> folder.read_bytes("events.jsonl").decode().strip()
        '{"event": "job_finished", "time": 0.0, "step": 3, "metrics": {}, "restored": ""}'
    """
    path = log_file(folder)
    with ExitStack() as stack:
        if folder.is_local:
            log = EventLog(path)
        else:
            try:
                path.parent.mkdir()
            except FileExistsError:
                # It belongs to a run in this process that lost its claim but may still write.
                path = Path(tempfile.mkdtemp(dir=scratch.folder()), EVENTS_FILE)
            stack.callback(shutil.rmtree, path.parent, ignore_errors=True)
            if folder.exists(EVENTS_FILE):
                folder.fetch(EVENTS_FILE, path)
            log = EventLog(path, lambda file: folder.write_bytes(EVENTS_FILE, file.read_bytes()))
        yield stack.enter_context(log)

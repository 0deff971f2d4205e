"""The event log of an output folder, wherever the folder lies.

On this machine it is a file of the folder. An object store cannot append, so there the log is
written on this machine and put as a whole at the moments it is published: what a killed run has
written since the last one is lost with its machine. What events say is not looked at here.

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
from elasticdl.events import EventLog

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.artifacts.folder import OutputFolder

EVENTS_FILE = "events.jsonl"


def log_file(folder: OutputFolder) -> Path:
    """Return the file of this machine that this process writes the log of an output to.

    Args:
        folder: The output. Of one on an object store the file exists while its job runs here.

    Raises:
        OSError: There is no place for temporary files.
    """
    path = folder.local_path(EVENTS_FILE)
    if path is not None:
        return path
    # The page of a running job is told this place before the log is opened.
    name = hashlib.sha256(folder.uri.encode()).hexdigest()[:16]
    return scratch.folder() / f"log-{name}" / EVENTS_FILE


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
    path = log_file(folder)
    with ExitStack() as stack:
        if folder.is_local:
            log = EventLog(path)
        else:
            try:
                path.parent.mkdir()
            except FileExistsError:
                # Of a run in this process that has lost its claim, and may still write.
                path = Path(tempfile.mkdtemp(dir=scratch.folder()), EVENTS_FILE)
            stack.callback(shutil.rmtree, path.parent, ignore_errors=True)
            if folder.exists(EVENTS_FILE):
                folder.fetch(EVENTS_FILE, path)
            log = EventLog(path, lambda file: folder.write_bytes(EVENTS_FILE, file.read_bytes()))
        yield stack.enter_context(log)

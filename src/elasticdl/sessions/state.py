"""State of a session: how far training, export and evaluation are, stored in its folder.

    queued --> running --> exported --> evaluated
                 |  ^
                 v  |  the same command resumes
        failed, killed, interrupted

The process that runs a session holds a lock, which the system releases when the process dies. If
the status file says `running` but the lock is free, the session was interrupted.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.lock import hold, is_held
from elasticdl.errors import OutputError

STATE_FILE = "session.json"
_LOCK_FILE = ".session.lock"
# Files that a session writes do not belong to the project's source.
_IGNORED = ("training/", "exported/", "reports/", STATE_FILE, _LOCK_FILE, ".gitignore")


class SessionState(StrEnum):
    """Phase or outcome that a session has reached; the module's picture shows the transitions."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"
    EXPORTED = "exported"
    EVALUATED = "evaluated"


@dataclass(frozen=True)
class SessionStatus:
    """Status of a session.

    Attributes:
        state: The state it has reached.
        since: When it reached the state, in seconds since 1970-01-01 UTC; 0 if it never ran.
        attempt: Number of starts.
        step: Number of updates, as last reported.
        epoch: Number of epochs trained.
        num_epochs: Number of epochs requested.
        commit: The commit of the project, with `-dirty` if it was changed since; empty outside of a
            repository.
        error: Error message if the state is `failed`; else empty.
        resume: How a resumed session finds its position in an epoch: `exact`, by batch number; or
            `replayed`, by reading all earlier batches again.
        metric: The metric that selects the best model.
        metrics: Metrics of the exported model.
        host: Machine that ran it.
        pid: Process that ran it.
    """

    state: SessionState = SessionState.NEW
    since: float = 0.0
    attempt: int = 0
    step: int = 0
    epoch: int = 0
    num_epochs: int = 0
    commit: str = ""
    error: str = ""
    resume: str = ""
    metric: str = ""
    metrics: dict[str, Any] | None = None
    host: str = ""
    pid: int = 0

    def now(self, state: SessionState, **changes: Any) -> SessionStatus:
        """Return a copy that has reached a state just now, with `changes` of other fields."""
        return replace(self, state=state, since=time.time(), **changes)


def read_status(folder: Path) -> SessionStatus:
    """Return the status of a session.

    Raises:
        OutputError: The status file cannot be read.
    """
    status = _read(folder)
    if status.state is SessionState.RUNNING and not _is_held(folder):
        return replace(status, state=SessionState.INTERRUPTED)
    return status


def write_status(folder: Path, status: SessionStatus) -> None:
    """Write the status of a session; the caller must have locked the session with `held`.

    Raises:
        OutputError: The status file cannot be written.
    """
    text = json.dumps(asdict(status), indent=2)
    OutputFolder(folder).write_bytes(STATE_FILE, text.encode())


@contextlib.contextmanager
def held(folder: Path, name: str) -> Iterator[SessionStatus]:
    """Context manager that locks a session for a run.

    On entry, this writes and yields the status `running`, with the attempt number incremented,
    removes unfinished files of a killed run, and makes git ignore the session's output.

    Args:
        folder: Folder of the session.
        name: Name of the session, for the error.

    Raises:
        OutputBusyError: Another process is running the session.
        OutputError: The status file cannot be read or written.
    """
    lock = hold(OutputFolder(folder), _LOCK_FILE, f"the session {name}")
    try:
        # Files that a killed run left half written.
        OutputFolder(folder).remove_stale()
        before = _read(folder)
        status = before.now(
            SessionState.RUNNING,
            attempt=before.attempt + 1,
            error="",
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("\n".join(f"/{name}" for name in _IGNORED) + "\n", encoding="utf-8")
        write_status(folder, status)
        yield status
    finally:
        lock.release()


def _read(folder: Path) -> SessionStatus:
    file = folder / STATE_FILE
    if not file.is_file():
        return SessionStatus()
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return SessionStatus(**{**values, "state": SessionState(values["state"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{file}: cannot be read ({type(error).__name__}: {error}). Delete it: training itself "
            "resumes from its checkpoints."
        ) from error


def _is_held(folder: Path) -> bool:
    return is_held(OutputFolder(folder), _LOCK_FILE)

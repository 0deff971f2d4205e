"""How far a session is, for people and for who runs it.

    queued --> running --> exported --> evaluated
                 |  ^
                 v  |  the same command goes on
        failed, killed, interrupted

`running` is a lease: whoever runs a session holds a lock that the system drops when he dies, so
a session whose file says `running` and whose lock is free was interrupted. What a state means for
the files beside it is not known here.
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
# What a session writes is no part of the project it belongs to.
_IGNORED = ("training/", "exported/", "reports/", STATE_FILE, _LOCK_FILE, ".gitignore")


class State(StrEnum):
    """What a session's last run came to."""

    NEW = "new"
    QUEUED = "queued"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    KILLED = "killed"
    EXPORTED = "exported"
    EVALUATED = "evaluated"


@dataclass(frozen=True)
class Status:
    """What is known of a session.

    Attributes:
        state: How far it is.
        since: When it got there, in seconds since 1970-01-01 UTC; 0 if it never ran.
        attempt: How often it was started.
        step: Updates made, as far as was told.
        epoch: Epochs trained.
        num_epochs: Epochs asked for.
        commit: The commit of the project, with `-dirty` if it was changed since; empty outside of
            a repository.
        error: The reason of `failed`.
        resume: What going on in the middle of an epoch means for it: `exact` or `replayed`.
        metric: The one that says which model is the best.
        metrics: Of the exported model.
        host: Machine that ran it.
        pid: Process that ran it.
    """

    state: State = State.NEW
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

    def now(self, state: State, **changes: Any) -> Status:
        """Return the status with another state, reached now."""
        return replace(self, state=state, since=time.time(), **changes)


def read_status(folder: Path) -> Status:
    """Return how far a session is.

    Raises:
        OutputError: Its file cannot be read.
    """
    status = _read(folder)
    if status.state is State.RUNNING and not _is_held(folder):
        return replace(status, state=State.INTERRUPTED)
    return status


def write_status(folder: Path, status: Status) -> None:
    """Write how far a session is; only who holds it, or has just queued it, may.

    Raises:
        OutputError: It cannot be written.
    """
    text = json.dumps(asdict(status), indent=2)
    OutputFolder(folder).write_bytes(STATE_FILE, text.encode())


@contextlib.contextmanager
def held(folder: Path, name: str) -> Iterator[Status]:
    """Hold a session for the time of a run; yields its status, an attempt further.

    Raises:
        OutputBusyError: Another process runs it.
    """
    lock = hold(OutputFolder(folder), _LOCK_FILE, f"the session {name}")
    try:
        # What a run that was killed had half written.
        OutputFolder(folder).remove_stale()
        before = _read(folder)
        status = before.now(
            State.RUNNING,
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


def _read(folder: Path) -> Status:
    file = folder / STATE_FILE
    if not file.is_file():
        return Status()
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
        return Status(**{**values, "state": State(values["state"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OutputError(
            f"{file}: cannot be read ({type(error).__name__}: {error}). Delete it: the training "
            "itself goes on from its checkpoints."
        ) from error


def _is_held(folder: Path) -> bool:
    return is_held(OutputFolder(folder), _LOCK_FILE)

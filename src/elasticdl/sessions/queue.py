"""Submission queue on disk: one folder per submission, with everything that belongs to it.

    HOME/
      .queue.lock  .runner.lock  runner.log  mlflow.db
      ID/submission.json     the request, and its progress (`submission.py`)
      ID/patch.diff          changes on top of the commit, if there were any
      ID/session.log         output of its process, over all starts
      ID/.process            a lock that its process holds as long as it lives
      ID/project/            the commit, checked out; the session writes to runs/NAME in it

A process that changes a submission briefly holds the queue's lock. A session's process inherits the
lock in `.process` when it is started, and the kernel releases it when the process ends. So the lock
shows whether the process is alive, even if the runner died before it could record the process ID.
"""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path

import platformdirs

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.artifacts.lock import start_of
from elasticdl.errors import OutputError, UsageError
from elasticdl.sessions.state import SessionState, SessionStatus, read_status
from elasticdl.sessions.submission import LOG_FILE, Submission

HOME_VARIABLE = "ELASTICDL_HOME"
_FILE = "submission.json"
_LOCK = ".queue.lock"
_PROCESS = ".process"
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_POLL_S = 0.1
_TAIL_BYTES = 4096


def default_home() -> Path:
    """Return the default home of the queue: this user's data folder."""
    return platformdirs.user_data_path("elasticdl") / "sessions"


class Queue:
    """The submissions in a folder on disk, the home of the queue.

    Args:
        home: Folder of the submissions; `default_home()` if None.

    Attributes:
        home: Absolute path of the home.
    """

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        self.home = Path(home or default_home()).expanduser().resolve()

    def make(self) -> None:
        """Create the home, readable only by this user, because it contains uncommitted code.

        Raises:
            OutputError: The home cannot be created.
        """
        with output_errors(self.home):
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Context manager that locks the queue against changes by other processes.

        Raises:
            OutputError: There is no home, or its disk does not support locks.
        """
        with self._descriptor() as descriptor:
            with output_errors(self.home):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield

    @property
    def changed(self) -> int:
        """When the queue was last changed, in nanoseconds; every change sets another value."""
        with self._descriptor() as descriptor:
            return os.fstat(descriptor).st_mtime_ns

    @contextlib.contextmanager
    def _descriptor(self) -> Iterator[int]:
        with output_errors(self.home):
            descriptor = os.open(self.home / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def folder(self, name: str) -> Path:
        """Return the folder of a submission."""
        return self.home / name

    def all(self) -> list[Submission]:
        """Return all submissions in queue order, the earliest first.

        Raises:
            OutputError: A submission's file cannot be read.
        """
        found = [self.read(file.parent.name) for file in self.home.glob(f"*/{_FILE}")]
        return sorted(found, key=lambda one: (one.submitted, one.id))

    def find(self, name: str) -> Submission:
        """Return the submission whose id is `name`, or else the only one whose id starts with it.

        Raises:
            UsageError: There is no such submission, or several ids start with it.
            OutputError: The submission's file cannot be read.
        """
        known = sorted(file.parent.name for file in self.home.glob(f"*/{_FILE}"))
        if name in known:
            return self.read(name)
        matching = [one for one in known if _ID.fullmatch(name) and one.startswith(name)]
        if len(matching) == 1:
            return self.read(matching[0])
        if matching:
            raise UsageError(f"{name} matches several submissions: {', '.join(matching)}.")
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"Did you mean {near[0]}?" if near else "`elasticdl session queue` lists them."
        raise UsageError(f"{name}: no submission with this name in {self.home}. {meant}")

    def read(self, name: str) -> Submission:
        """Return a submission as it was last written.

        Raises:
            OutputError: The submission's file is missing or cannot be read.
        """
        file = self.folder(name) / _FILE
        names = {field.name for field in fields(Submission)}
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            values = {key: value for key, value in values.items() if key in names}
            values |= {
                "state": SessionState(values["state"]),
                "settings": tuple(values["settings"]),
            }
            return Submission(**{**values, "id": name})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise OutputError(
                f"{file}: cannot be read ({type(error).__name__}: {error}). Submit the session "
                "again after moving its folder elsewhere."
            ) from error

    def write(self, submission: Submission) -> None:
        """Write a submission; the caller must hold the lock.

        Raises:
            OutputError: The submission's file cannot be written.
        """
        text = json.dumps(asdict(submission), indent=2)
        OutputFolder(self.folder(submission.id)).write_bytes(_FILE, text.encode())
        # Set from our own clock: the file system's advances only every few milliseconds.
        now = time.time_ns()
        os.utime(self.home / _LOCK, ns=(now, now))

    # --- processes ------------------------------------------------------------------------

    def new_process_lock(self, submission: Submission) -> int:
        """Create and lock the file `.process`, before a submission's process is started.

        The new process inherits the file descriptor, and with it the lock, which shows that the
        process is alive.

        Returns:
            The file descriptor. The caller passes it on and then closes its own copy.
        """
        path = self.folder(submission.id) / _PROCESS
        # A new file each time: a forked child that outlives its session keeps the old one.
        path.unlink(missing_ok=True)
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor

    def lives(self, submission: Submission) -> bool:
        """Return whether the process of a running submission is alive."""
        try:
            descriptor = os.open(self.folder(submission.id) / _PROCESS, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            # The start time distinguishes the process from a surviving child of it.
            start = submission.pid_start
            is_ours = submission.host == socket.gethostname()
            return not start or not is_ours or start_of(submission.pid) == start
        else:
            return False
        finally:
            os.close(descriptor)

    def settled(self, submission: Submission) -> Submission:
        """Return a submission with its actual state.

        The file of a submission may still say `running` although its process has ended. Its state
        is then derived from what the session wrote: a final state, or `interrupted`. The file is
        not changed.
        """
        if submission.state is not SessionState.RUNNING or self.lives(submission):
            return submission
        return submission.ended(None, self.status(submission))

    def status(self, submission: Submission) -> SessionStatus:
        """Return what the session of a submission last wrote about itself.

        If this cannot be read, for example before the first start, the status has the state `new`.
        """
        try:
            return read_status(submission.session_folder(self.folder(submission.id)))
        except OutputError:
            return SessionStatus()

    def cancel(self, name: str, *, at_once: bool = False) -> Submission:
        """Cancel a submission: a waiting one is not started, a running one is requested to stop.

        Args:
            name: Id of the submission.
            at_once: Kill its process instead of letting it write a last checkpoint.

        Raises:
            UsageError: The submission has already ended, or does not exist.
            OutputError: The submission's file cannot be read or written.
        """
        name = self.find(name).id
        with self.locked():
            submission = self.settled(self.read(name))
            if submission.has_ended:
                raise UsageError(f"{submission.id} is already {submission.state}.")
            if submission.is_waiting:
                submission = submission.now(SessionState.KILLED, cancelled=True, exit_code=143)
            else:
                submission = replace(submission, cancelled=True)
                self._signal(submission, at_once=at_once)
            self.write(submission)
            return submission

    def _signal(self, submission: Submission, *, at_once: bool) -> None:
        if submission.as_ray_job and at_once:
            raise UsageError(
                f"{submission.id} is a Ray job, which is stopped by a signal, and killed by Ray if "
                "that takes too long. Leave out --now."
            )
        if submission.host != socket.gethostname():
            raise UsageError(f"{submission.id} runs on {submission.host}; cancel it there.")
        status = self.status(submission)
        # Its runner may have died before it could record the process ID.
        is_its = status.since >= submission.since and not submission.as_ray_job
        pid = submission.pid or (status.pid if is_its else 0)
        if not pid:
            raise UsageError(f"{submission.id} is being started; try again in a second.")
        with contextlib.suppress(ProcessLookupError):
            if at_once:
                # The process leads its own process group, with the processes it has started.
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)

    # --- logs -----------------------------------------------------------------------------

    def log(self, submission: Submission) -> Path:
        """Return the log file of a submission's process."""
        return self.folder(submission.id) / LOG_FILE

    def log_size(self, submission: Submission) -> int:
        """Return the size of a submission's log in bytes; 0 if there is no log yet."""
        with contextlib.suppress(FileNotFoundError):
            return self.log(submission).stat().st_size
        return 0

    def last_words(self, submission: Submission) -> str:
        """Return the last error in a submission's log; without one, its last line or ""."""
        with contextlib.suppress(FileNotFoundError), self.log(submission).open("rb") as log:
            log.seek(max(0, self.log_size(submission) - _TAIL_BYTES))
            printed = log.read().decode(errors="replace").strip()
            _, marked, error = printed.rpartition("\nerror: ")
            return error if marked else printed.rpartition("\n")[2]
        return ""

    def read_log(self, submission: Submission, offset: int, *, follow: bool) -> Iterator[bytes]:
        """Yield the output of a submission's process, from a byte offset on.

        Args:
            submission: The submission.
            offset: Number of bytes to skip.
            follow: Whether to continue until the submission has ended. If so, empty bytes are
                yielded now and then, so that the caller can do other work.

        Raises:
            OutputError: The file of the submission cannot be read.
        """
        while True:
            # Read first, so that output printed before its end is shown.
            is_last = not follow or self.read(submission.id).has_ended
            with contextlib.suppress(FileNotFoundError), self.log(submission).open("rb") as log:
                log.seek(offset)
                while piece := log.read(1 << 16):
                    offset += len(piece)
                    yield piece
            if is_last:
                return
            yield b""
            time.sleep(_POLL_S)

"""Queue runner: runs queued sessions, up to N at a time, each in a new process; then exits.

    submit --> queue --> runner, one per home --> python -m elasticdl.cli.main session run ...

A home is the folder of a queue. A runner is a background process that outlives the command that
started it. If it is killed, its sessions continue. The next submit or list command starts a new
runner: it takes over the sessions whose process is alive, and restarts the other unfinished ones. A
runner exits only while it holds the queue's lock, after checking the queue once more. So if a
runner is alive after a process has queued a submission, that runner will start the submission.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.lock import Lock, hold, is_held, start_of
from elasticdl.errors import OutputBusyError, OutputError
from elasticdl.sessions.queue import Queue
from elasticdl.sessions.state import SessionState
from elasticdl.sessions.submission import PROJECT, Submission
from elasticdl.tracking.address import DATABASE_FILE

Command = Callable[[Submission, Path], Sequence[str]]

_LOCK = ".runner.lock"
_LOG_FILE = "runner.log"
_POLL_S = 0.1
_START_TIMEOUT_S = 60
_PACKAGES = Path(__file__).resolve().parents[2]
# Kept, so that Python does not warn about a process that is meant to continue.
_detached: list[subprocess.Popen[bytes]] = []


def session_command(submission: Submission, folder: Path) -> list[str]:
    """Return the command line that runs a submitted session, as a Ray job if that was requested.

    Args:
        submission: The submission.
        folder: Folder of the submission, which contains the checkout of its commit.
    """
    # -P: modules in the working folder must not shadow those of libraries.
    python = [submission.python or sys.executable, "-P", "-m"]
    session = [*python, "elasticdl.cli.main", *submission.arguments(folder)]
    if not submission.as_ray_job:
        return session
    where = [f"--address={submission.ray_address}", f"--folder={folder}"]
    return [*python, "elasticdl.sessions.ray_job", *where, "--", *session]


def is_alive(queue: Queue) -> bool:
    """Return whether a runner process is working on a queue."""
    return is_held(OutputFolder(queue.home), _LOCK)


def ensure(queue: Queue, slots: int = 1) -> None:
    """Start a runner process, unless one is running or all submissions have ended.

    Args:
        queue: The queue to work on.
        slots: Number of sessions that a new runner runs at a time. A runner that is already
            running keeps its own number.

    Raises:
        OutputError: The runner could not be started.
    """
    if is_alive(queue) or all(one.has_ended for one in queue.all()):
        return
    with (queue.home / _LOG_FILE).open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own program
            [
                *(sys.executable, "-P", "-m", "elasticdl.sessions.runner"),
                *(f"--home={queue.home}", f"--slots={slots}"),
            ],
            cwd=queue.home,
            env={**os.environ, "PYTHONPATH": _python_path(None)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C in the submitter's terminal, or closing it, must not affect the runner.
            start_new_session=True,
        )
    _detached.append(process)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while process.poll() is None and not is_alive(queue) and time.monotonic() < deadline:
        time.sleep(_POLL_S / 2)
    if process.poll():
        last_line = (queue.home / _LOG_FILE).read_text(errors="replace").strip().rpartition("\n")[2]
        raise OutputError(
            f"The submission is queued, but the runner did not start: {last_line}. See "
            f"{queue.home / _LOG_FILE}; run `elasticdl session queue` to try again."
        )


def work(queue: Queue, slots: int = 1, command: Command = session_command) -> None:
    """Run queued sessions until none is left.

    Args:
        queue: The queue to work on.
        slots: Number of concurrent sessions.
        command: Function (submission, its folder) -> command line that runs it.

    Raises:
        OutputBusyError: Another runner is working on this queue.
        OutputError: The file of a submission cannot be read or written.
    """
    lock = hold(OutputFolder(queue.home), _LOCK, f"the queue {queue.home}")
    try:
        _Runner(queue, slots, command, lock).run()
    finally:
        lock.release()


class _Runner:
    """Main loop of a runner: starts queued sessions in free slots, and records how they ended."""

    def __init__(self, queue: Queue, slots: int, command: Command, lock: Lock) -> None:
        self._queue = queue
        self._slots = slots
        self._command = command
        self._lock = lock
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._running: dict[str, Submission] = {}

    def run(self) -> None:
        seen = -1
        while True:
            if seen != self._queue.changed or any(map(self._is_over, self._running.values())):
                with self._queue.locked():
                    if self._turn():
                        self._lock.release()
                        return
                    seen = self._queue.changed
            time.sleep(_POLL_S)

    def _turn(self) -> bool:
        """Make one pass of the loop: record the sessions that ended, and start waiting ones.

        Returns:
            Whether nothing is left to do: no session is running after the pass.
        """
        submissions = self._queue.all()
        self._running = {}
        for number, one in enumerate(submissions):
            if one.state is SessionState.RUNNING and self._is_over(one):
                submissions[number] = self._settle(one)
            elif one.state is SessionState.RUNNING:
                self._running[one.id] = one
        for one in submissions:
            if one.is_waiting and len(self._running) < self._slots:
                self._start(one)
        return not self._running

    def _is_over(self, submission: Submission) -> bool:
        child = self._children.get(submission.id)
        return not self._queue.lives(submission) if child is None else child.poll() is not None

    def _settle(self, submission: Submission) -> Submission:
        child = self._children.pop(submission.id, None)
        code = None if child is None else child.returncode
        queue = self._queue
        ended = submission.ended(code, queue.status(submission), queue.last_words(submission))
        queue.write(ended)
        _print(f"{ended.id}: {ended.state}")
        return ended

    def _start(self, submission: Submission) -> None:
        queue, folder = self._queue, self._queue.folder(submission.id)
        # Written before the process exists: if this process dies in between, the lock shows it.
        started = submission.now(
            SessionState.RUNNING,
            starts=submission.starts + 1,
            host=socket.gethostname(),
            pid=0,
            pid_start="",
            exit_code=None,
        )
        queue.write(started)
        descriptor = queue.new_process_lock(started)
        try:
            with queue.log(started).open("ab") as log:
                child = subprocess.Popen(  # noqa: S603 - our own program; arguments are a list
                    self._command(started, folder),
                    cwd=folder / PROJECT,
                    env=_environment(queue, started),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=[descriptor],
                )
        except OSError as error:
            queue.write(
                started.now(SessionState.FAILED, exit_code=1, error=f"Not started: {error}.")
            )
            return
        finally:
            os.close(descriptor)
        self._children[started.id] = child
        started = replace(started, pid=child.pid, pid_start=start_of(child.pid) or "")
        queue.write(started)
        self._running[started.id] = started
        _print(f"{started.id}: started, process {child.pid}")


def _environment(queue: Queue, submission: Submission) -> dict[str, str]:
    """Return the environment variables for a session's process.

    They are those of this process, with three changes. `PYTHONPATH` has no folder inside the
    submission's repository. Python does not buffer its output. `MLFLOW_TRACKING_URI`, if the user
    has not set it, is a database in the queue's folder, so that its sessions can be compared.
    """
    path = _python_path(submission.repo.removeprefix("file://"))
    # Log readers see output as soon as it is printed.
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    # With a database in each checkout, sessions could not be compared.
    variables.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{queue.home / DATABASE_FILE}")
    return variables


def _python_path(but: str | None) -> str:
    """Return `PYTHONPATH` with absolute paths, without paths inside the folder `but`.

    A user who sets `PYTHONPATH=src` when submitting would otherwise train the code that is being
    edited there, not the committed code.
    """
    given = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    paths = [Path(part).resolve() for part in given]
    kept = [
        path
        for path in paths
        if but is None or path == _PACKAGES or not path.is_relative_to(Path(but))
    ]
    return os.pathsep.join(map(str, kept))


def _print(text: str) -> None:
    print(time.strftime("%Y-%m-%d %H:%M:%S"), text, flush=True)  # noqa: T201 - its log


def main(arguments: Sequence[str] | None = None, command: Command = session_command) -> None:
    """Entry point of the runner's process: work on a queue, unless it has a runner already.

    Args:
        arguments: `--home=FOLDER --slots=N`; None means those of the command line.
        command: Function (submission, its folder) -> command line that runs it.
    """
    parser = argparse.ArgumentParser(prog="python -m elasticdl.sessions.runner")
    parser.add_argument("--home", required=True)
    parser.add_argument("--slots", type=int, default=1)
    given = parser.parse_args(arguments)
    try:
        work(Queue(given.home), given.slots, command)
    except OutputBusyError:
        _print("a runner is already running")


if __name__ == "__main__":
    main()

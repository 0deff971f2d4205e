"""Runs submitters as processes that end together with the process that started them.

    running --stop, Ctrl-C--> SIGTERM (saves progress) --grace period--> SIGKILL (its group)

    run_process   shares the terminal: for the shell and `elasticdl sql`
    run_piped     passes the output on line by line: for the notebook and the server

A submitter is the generated program that runs one statement (`submitter.py`). Its standard input is
a pipe to which nothing is written. The pipe closes when the parent process ends, even if the parent
is killed; the submitter then stops.

Used by `execute.py`, the notebook and the server.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import IO

GRACE_S = 60.0
# Set for submitters that watch their standard input, and end when it closes.
WATCHED = "ELASTICDL_SUBMITTER_ENDS_WITH_STDIN"

_POLL_S = 0.1
_LONGEST_LINE = 1 << 16
_MAX_LINES = 1000


def run_process(path: Path, environment: Mapping[str, str]) -> int:
    """Run a submitter that prints to this process's terminal; return its exit code.

    Args:
        path: The program.
        environment: Environment of the process.
    """
    with subprocess.Popen(  # noqa: S603 - this very command, and a file that we wrote
        _command(path), env={**environment, WATCHED: "1"}, stdin=subprocess.PIPE
    ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            # The terminal sends Ctrl-C to the submitter as well, which first saves its progress.
            return process.wait()


def _command(path: Path) -> list[str]:
    # Without -P, a `csv.py` in the user's folder would shadow Python's own module.
    return [sys.executable, "-P", "-m", "elasticdl.cli.main", "sql", f"--run_submitter={path}"]


def run_piped(
    path: Path,
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    stop: threading.Event | None = None,
    grace_s: float = GRACE_S,
) -> int:
    """Run a submitter and return its exit code.

    Args:
        path: The program.
        environment: Environment of the process.
        on_line: Called in this thread with each line of its output, without the line break.
        stop: Event that ends the submitter when it is set.
        grace_s: Seconds that a stopped submitter has to save its progress before it is killed.

    Returns:
        Its exit code; a negative one is the signal that killed it.
    """
    process = subprocess.Popen(  # noqa: S603 - this very command, and a file that we wrote
        _command(path),
        env={**environment, WATCHED: "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # A Ctrl-C in this terminal must reach this process only, which stops the submitter.
        start_new_session=True,
    )
    output = _Output(process)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            while output.forward(on_line):
                if process.poll() is not None or (stop is not None and stop.is_set()):
                    break
        if not output.is_complete:
            _end(process, output, on_line, grace_s)
        return process.wait()
    finally:
        # Also after an exception in `on_line`.
        if process.poll() is None:
            _end(process, output, lambda _: None, grace_s)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


class _Output:
    """Output lines of a process, read in a thread so that waiting for a line can time out."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.is_complete = False
        self._lines: queue.Queue[bytes | None] = queue.Queue(_MAX_LINES)
        threading.Thread(target=self._read, args=(process.stdout,), daemon=True).start()

    def _read(self, stream: IO[bytes] | None) -> None:
        if stream is None:
            raise ValueError("The process was started without a pipe for its output.")
        with contextlib.suppress(ValueError, OSError):  # closed in the meantime
            while line := stream.readline(_LONGEST_LINE):
                self._lines.put(line)
        self._lines.put(None)

    def forward(self, on_line: Callable[[str], None]) -> bool:
        """Wait briefly for the next line, and pass it to `on_line`.

        Returns:
            Whether more lines can follow: False after the end of the output, True otherwise, even
            if no line arrived in time.
        """
        try:
            line = self._lines.get(timeout=_POLL_S)
        except queue.Empty:
            return True
        if line is None:
            self.is_complete = True
            return False
        on_line(line.decode("utf-8", "replace").rstrip("\r\n"))
        return True


def _end(
    process: subprocess.Popen[bytes],
    output: _Output,
    on_line: Callable[[str], None],
    grace_s: float,
) -> None:
    if process.poll() is None:
        process.terminate()
    deadline_s = time.monotonic() + grace_s
    while process.poll() is None and time.monotonic() < deadline_s:
        if output.is_complete:
            time.sleep(_POLL_S)
        else:
            output.forward(on_line)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Its last output; the wait is short, as a grandchild may keep the pipe open.
    deadline_s = time.monotonic() + 1
    while time.monotonic() < deadline_s and output.forward(on_line):
        pass


def end_with_stdin() -> None:
    """Watch standard input in a thread, and stop this submitter once its parent has ended."""
    if os.environ.get(WATCHED):
        threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    # The reader of its output is gone as well, and writing to the closed pipe would kill it.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)

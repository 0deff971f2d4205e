"""Runs a command, and ends it and all it started when whoever asked for it is gone.

    python keeper.py COMMAND ...      with a pipe as its standard input

The parent holds the other end of the pipe and never writes. When it closes it, or dies in whatever
way, the pipe ends: the command's process group is asked to end, and killed three seconds later.
If the keeper itself is killed, the kernel kills the command.

It imports nothing but a little of the standard library, so that it costs a process of 10 MB.

Callers: `processes.py`, by path.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys

_GRACE_S = 3.0
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes]) -> None:
    _signal(child, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
    # Of the group, some may be left whose first process has ended.
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def main(command: list[str]) -> int:
    """Run a command until it ends or standard input does; returns its exit code."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    child = subprocess.Popen(  # noqa: S603 - what our parent asked for
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 - this process has one thread
    )
    poll = select.poll()
    poll.register(sys.stdin, select.POLLHUP | select.POLLERR)
    while child.poll() is None:
        if asked or poll.poll(_POLL_S * 1000):
            break
    _end(child)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

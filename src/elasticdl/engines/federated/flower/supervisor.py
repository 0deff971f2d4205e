"""Supervisor: runs a command, and ends it and its children when the parent process is gone.

    python supervisor.py COMMAND ...      with a pipe as its standard input

The parent holds the other end of the pipe and never writes. When the parent closes it, or dies in
any way, the pipe ends: the command's process group receives SIGTERM, and SIGKILL three seconds
later. If the supervisor itself is killed, the kernel kills the command.

It imports only a little of the standard library, so that it needs only 10 MB of memory.

Callers: `commands.py`, by path.
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
    # Other processes of the group may outlive its first process.
    _signal(child, signal.SIGKILL)
    child.wait()


def _signal(child: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, number)


def main(command: list[str]) -> int:
    """Run a command until it ends or standard input is closed; return its exit code."""
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    child = subprocess.Popen(  # noqa: S603 - the command that our parent passed
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

"""Stops the process that holds an output, like Ctrl-C: the process first writes a checkpoint.

The lock of an output names the process that holds it. A process on this machine is sent SIGTERM.
It handles the signal between two steps (`engines/interrupts.py`), writes a checkpoint and releases
the lock. A process on another machine cannot be stopped from here.

Callers: `elasticdl job stop`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.holder import is_here, name_of, parse_holder, start_of
from elasticdl.artifacts.lock import is_held
from elasticdl.errors import OutputBusyError, OutputError, UnavailableError

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder

_POLL_S = 0.1


def stop_holder(folder: OutputFolder, lock_file: str, timeout_s: float) -> str | None:
    """Stop the process that holds a lock, and wait until it has released the lock.

    Args:
        folder: The folder that contains the lock.
        lock_file: Name of the lock file.
        timeout_s: How long to wait, in seconds.

    Returns:
        A description of the process; None if no process holds the lock.

    Raises:
        OutputBusyError: The process runs on another machine or belongs to another user.
        UnavailableError: The process did not exit in time.
    """
    if not is_held(folder, lock_file):
        return None
    try:
        holder = parse_holder(folder.read_bytes(lock_file))
    except OutputError:
        # It was released in the meantime.
        return None
    pid, name = holder.get("pid"), name_of(holder)
    if not isinstance(pid, int) or not is_here(holder):
        raise OutputBusyError(
            f"{folder.uri}: {name} is using it, on another machine. Run `elasticdl job stop "
            f"{folder.uri}` there, or send SIGTERM to process {pid} there."
        )
    try:
        _terminate(pid, holder)
    except ProcessLookupError:
        return name
    except PermissionError as error:
        raise OutputBusyError(
            f"{folder.uri}: {name} is using it and belongs to another user. That user can run "
            f"`elasticdl job stop {folder.uri}`."
        ) from error
    deadline = time.monotonic() + timeout_s
    while is_held(folder, lock_file):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"{folder.uri}: {name} received SIGTERM but did not exit within {timeout_s:g} s. "
                "It may be writing a large checkpoint; check with `elasticdl job show`. `kill -9 "
                f"{pid}` ends it immediately and loses the steps since its last checkpoint."
            )
        time.sleep(_POLL_S)
    return name


def _terminate(pid: int, holder: dict[str, Any]) -> None:
    """Send SIGTERM to the holder of a lock, but not to a later process that reuses its PID."""
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, signal.SIGTERM)
        return
    descriptor = os.pidfd_open(pid)
    try:
        if holder.get("started") not in {None, start_of(pid)}:
            raise ProcessLookupError
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)

"""Ends the process that holds an output, as Ctrl-C would: with a last checkpoint.

The lock of an output says which process holds it. On this machine it gets SIGTERM, which a run
answers between two steps (`engines/interrupts.py`); when it has written its checkpoint it releases
the lock. A process of another machine cannot be reached from here.

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
    """End the process that holds a lock, and wait until it has released it.

    Args:
        folder: Where the lock is.
        lock_file: Its name.
        timeout_s: How long to wait.

    Returns:
        The process in words; None if nobody held it.

    Raises:
        OutputBusyError: It is on another machine, or of another user.
        UnavailableError: It has not ended in time.
    """
    if not is_held(folder, lock_file):
        return None
    try:
        holder = parse_holder(folder.read_bytes(lock_file))
    except OutputError:
        # Released a moment ago.
        return None
    pid, name = holder.get("pid"), name_of(holder)
    if not isinstance(pid, int) or not is_here(holder):
        raise OutputBusyError(
            f"{folder.uri}: {name} works on it, and that is not on this machine. Run `elasticdl "
            f"job stop {folder.uri}` there, or send SIGTERM to process {pid} there."
        )
    try:
        _terminate(pid, holder)
    except ProcessLookupError:
        return name
    except PermissionError as error:
        raise OutputBusyError(
            f"{folder.uri}: {name} works on it, and belongs to another user. Have that user run "
            f"`elasticdl job stop {folder.uri}`."
        ) from error
    deadline = time.monotonic() + timeout_s
    while is_held(folder, lock_file):
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"{folder.uri}: {name} was told to end and has not within {timeout_s:g} s; it may "
                "be writing a large checkpoint. Ask with `elasticdl job show`; `kill -9 "
                f"{pid}` ends it at once, and costs the steps since its last checkpoint."
            )
        time.sleep(_POLL_S)
    return name


def _terminate(pid: int, holder: dict[str, Any]) -> None:
    """Send SIGTERM to the process itself, never to another one that has its number by now."""
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

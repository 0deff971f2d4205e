"""Which process holds a lock, as its file names it, and whether that process lives.

A process number means something on one machine and in one of its PID namespaces only: containers
on a host may share its name and number their processes from 1 each.

Callers: `lock.py`, `lease.py`; `sessions/` for the processes they start.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return what names this process in a lock's file."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "machine": _machine(),
        "claimed": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "started": start_of(os.getpid()),
    }


def _machine() -> str:
    """Return what tells machines, boots of one and PID namespaces apart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def start_of(pid: int) -> str | None:
    """Return when a process of this machine started, in its kernel's ticks.

    None if it is gone (one whose parent has not asked for its end yet counts as gone), and where
    the system does not say.
    """
    try:
        # The name in brackets may hold spaces and brackets of its own.
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return None


def parse_holder(text: bytes) -> dict[str, Any]:
    """Return what a lock's file says of its holder; empty if that cannot be read."""
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def name_of(holder: dict[str, Any]) -> str:
    """Return a holder in words."""
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on {holder.get('host')} (since {holder.get('claimed')})"


def is_dead(holder: dict[str, Any]) -> bool:
    """Return whether a holder is known to be dead; of one elsewhere that is never known."""
    pid = holder.get("pid")
    if not is_here(holder) or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # A number that was given out again is another process.
    return holder.get("started") != start_of(pid)


def is_here(holder: dict[str, Any]) -> bool:
    """Return whether a holder's process number means a process of this machine."""
    here = _machine()
    # Earlier versions wrote no machine.
    return holder.get("host") == socket.gethostname() and holder.get("machine", here) == here

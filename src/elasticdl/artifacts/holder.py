"""Holder of a lock: the process named in the lock's file, and whether that process is alive.

A process id is valid only in one PID namespace of one machine: containers may have the host name
of their machine, and each of them may number its processes from 1.

Callers: `lock.py`, `output_lease.py`; `sessions/` for the processes that it starts.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """Return the facts that identify this process (id, host, ...), to be written to a lock file."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "machine": _machine(),
        "claimed": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "started": start_of(os.getpid()),
    }


def _machine() -> str:
    """Return an id of this machine that differs after a reboot and in each PID namespace.

    A PID in a lock file is valid only for processes with the same id.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def start_of(pid: int) -> str | None:
    """Return the start time of a process on this machine, in clock ticks since the machine booted.

    The system may reuse the PID of an ended process; the start time tells the two apart. Returns
    None if the process has ended or the system does not report it. A zombie counts as ended.
    """
    try:
        # The name in parentheses may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return None


def parse_holder(text: bytes) -> dict[str, Any]:
    """Parse the content of a lock file into the holder's fields; empty if it is not valid."""
    try:
        holder = json.loads(text)
    except ValueError:
        return {}
    return holder if isinstance(holder, dict) else {}


def name_of(holder: dict[str, Any]) -> str:
    """Describe a holder for messages, such as "process 4711 on node3 (since TIME)"."""
    if "pid" not in holder:
        return "another process"
    return f"process {holder['pid']} on {holder.get('host')} (since {holder.get('claimed')})"


def is_dead(holder: dict[str, Any]) -> bool:
    """Return whether a holder is known to be dead; False if it is on another machine."""
    pid = holder.get("pid")
    if not is_here(holder) or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # A reused process id belongs to another process.
    return holder.get("started") != start_of(pid)


def is_here(holder: dict[str, Any]) -> bool:
    """Return whether a holder's PID is valid here.

    That is so if it ran on this machine, in this PID namespace, and since the last boot.
    """
    return (holder.get("host"), holder.get("machine")) == (socket.gethostname(), _machine())

"""Looks after the processes of a Ray of ours, whatever its driver is waiting for.

A process that is killed is seen at once. One that is stopped (SIGSTOP, a debugger, a frozen
container) answers nothing and does not die, and whoever asks it waits for minutes. So a thread
looks at their states, and kills one that has been stopped for `STOPPED_AFTER_S`: what follows is
then the same as after any death of it.

    running --stopped, seen for STOPPED_AFTER_S--> killed --> `why_lost` says so

For Linux, like all that is elastic. Callers: `ray_cluster.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

STOPPED_AFTER_S = 30.0
"""How long Ray's processes may sleep."""

_LOOK_INTERVAL_S = 1.0
# Seconds in which this process was stopped itself do not count, so looks are counted too.
_FEWEST_LOOKS = 15
_STOPPED = ("T", "t")
# They are called so by themselves, in place of their command.
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
_FORK_SERVER = "elasticdl.engines.elastic.fork_server"


class RayWatch:
    """Watches Ray's processes while its block runs; see the module.

    Args:
        processes: What Ray calls a process -> those of this name that it has started.
        stopped_after_s: How long one of them may be stopped.
    """

    def __init__(
        self,
        processes: Mapping[str, Sequence[subprocess.Popen[bytes]]],
        stopped_after_s: float = STOPPED_AFTER_S,
    ) -> None:
        self._processes = processes
        self._stopped_after_s = stopped_after_s
        self._stopped: dict[int, tuple[float, int]] = {}
        self._killed: str | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ray watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._thread.join()

    def why_lost(self) -> str | None:
        """Return in a sentence which process is dead; None if all of them live."""
        for name, processes in self._processes.items():
            if any(process.poll() is not None for process in processes):
                return self._killed or f"Ray's process {name} on this machine died."
        return None

    def kill_stopped(self) -> None:
        """Kill those that are stopped now: Ray asks each to end, and waits for its answer."""
        for _, pid in self._watched():
            if _state(pid) in _STOPPED:
                _kill(pid)

    def _watch(self) -> None:
        while not self._closing.wait(_LOOK_INTERVAL_S):
            now = time.monotonic()
            watched = {pid: name for name, pid in self._watched()}
            stopped = {pid for pid in watched if _state(pid) in _STOPPED}
            self._stopped = {
                pid: (since_s, looks + 1)
                for pid in stopped
                for since_s, looks in [self._stopped.get(pid, (now, 0))]
            }
            for pid, (since_s, looks) in self._stopped.items():
                enough = min(_FEWEST_LOOKS, self._stopped_after_s / _LOOK_INTERVAL_S)
                if now - since_s >= self._stopped_after_s and looks >= enough:
                    self._killed = (
                        f"Ray's process {watched[pid]} on this machine was stopped for "
                        f"{now - since_s:.0f} s and was killed."
                    )
                    _kill(pid)

    def _watched(self) -> Iterator[tuple[str, int]]:
        """Yield names and numbers of living processes: Ray's own, and the agents of its raylet."""
        for name, processes in self._processes.items():
            for process in processes:
                if process.poll() is None:
                    yield name, process.pid
                    agents = filter(_is_agent, _children(process.pid))
                    yield from (("agent", each) for each in agents)


def kill_fork_servers(folder: Path) -> None:
    """Kill the fork servers of a run whose workers have ended; one that is stopped never ends.

    Args:
        folder: The run's own; its servers have a folder within as an argument.
    """
    for entry in Path("/proc").glob("[0-9]*"):
        command = _command(int(entry.name))
        if _FORK_SERVER in command and any(each.startswith(f"{folder}/") for each in command):
            _kill(int(entry.name))


def _is_agent(pid: int) -> bool:
    return _command(pid)[0].startswith(_AGENTS)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _state(pid: int) -> str:
    try:
        # The name before it may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except OSError:
        return []


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]

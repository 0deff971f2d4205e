"""Ray watch: detects dead processes of the local Ray, and kills those that stay stopped.

A killed process is noticed at once. A stopped one (SIGSTOP, a debugger, a frozen container) neither
answers nor dies, and calls to it wait for minutes. So a thread, which runs even while the driver is
waiting, checks the states of Ray's processes and kills any that has been stopped for
`STOPPED_AFTER_S`. The killed process is then handled like any other dead one.

    running --stopped, seen for STOPPED_AFTER_S--> killed --> `why_lost` returns the reason

Linux only, like the rest of the elastic engine. Callers: `ray_cluster.py`.
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
from typing import Self

STOPPED_AFTER_S = 30.0
"""How long a Ray process may be stopped (SIGSTOP) before it is killed, in seconds."""

_LOOK_INTERVAL_S = 1.0
# The number of checks has a minimum as well, so that time when this process itself was stopped does
# not count.
_FEWEST_LOOKS = 15
_STOPPED = ("T", "t")
# The agents set these process titles in place of their command.
_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
_FORK_SERVER = "elasticdl.engines.elastic.fork_server"


class RayWatch:
    """Context manager that kills Ray processes which stay stopped, and detects dead ones.

    Args:
        processes: Ray's name for a kind of process -> the started processes of this kind.
        stopped_after_s: How long a process may be stopped (SIGSTOP) before it is killed.
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

    def __exit__(self, *details: object) -> None:
        self._closing.set()
        self._thread.join()

    def why_lost(self) -> str | None:
        """Return a sentence naming the dead Ray process; None if all processes are alive."""
        for name, processes in self._processes.items():
            if any(process.poll() is not None for process in processes):
                return self._killed or f"Ray's process {name} on this machine died."
        return None

    def kill_stopped(self) -> None:
        """Kill all processes that are stopped (SIGSTOP): Ray's shutdown would wait for them."""
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
        """Yield (name, PID) of each living Ray process, including the agents of its raylet."""
        for name, processes in self._processes.items():
            for process in processes:
                if process.poll() is None:
                    yield name, process.pid
                    agents = filter(_is_agent, _children(process.pid))
                    yield from (("agent", each) for each in agents)


def kill_fork_servers(folder: Path) -> None:
    """Kill (SIGKILL) a run's fork servers after its workers have ended.

    Servers suspended by SIGSTOP are killed too.

    Args:
        folder: The run's temporary folder. A server belongs to the run if its command line has a
            path below it.
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
        # The process name before the state may contain any characters.
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

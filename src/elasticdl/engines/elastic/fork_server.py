"""Fork server: imports the frameworks once and is forked for each new worker process.

    server = connect(folder, modules)           start the server of this machine, or connect to it
    fork(server, function, *arguments)          from now on, `server` connects to the new process
    how_ended(folder, process_id)               after its end: "killed by SIGKILL", "exit code 3"

Importing TensorFlow and PyTorch takes over six seconds of CPU time, which each replacement would
take away from the workers that train; forking takes 0.02 s. The server imports modules and does
nothing else: it has no session, no device and no Python threads, none of which would survive a
fork. (Python's own `multiprocessing.forkserver` serves the processes of one parent, but the parents
here may die.)

Once the forked process is gone, the caller of `fork` reads end-of-file from the connection. Once
the caller's end of the connection is closed, the kernel kills the forked process, even if it is
stopped or stuck.

Linux only, like the rest of the elastic engine. Callers: `worker_process.py`.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import os
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from elasticdl import scratch
from elasticdl.gc_tuning import collect_seldom
from elasticdl.training.create import quiet_frameworks

# Longer than a dead worker's replacement takes, but short, so that the server ends soon after the
# last worker.
_LINGER_S = 10.0
_LOOK_INTERVAL_S = 0.5
_BACKLOG = 128
_MAX_ATTEMPTS = 10
_SOCKET, _LOCK, _ENDED = "socket", "lock", "ended-"
# The server notes the end of a process some milliseconds after its connection is closed.
_NOTE_WITHIN_S = 0.3
# A Linux constant that Python does not define.
_F_SETSIG = 10


@dataclass(frozen=True)
class _ProcessEnvironment:
    """Environment of a process, apart from its imported modules.

    Attributes:
        environment: All environment variables.
        folder: The working directory.
        path: The module search path.
    """

    environment: dict[str, str]
    folder: str
    path: Sequence[str]

    @classmethod
    def ours(cls) -> _ProcessEnvironment:
        """Return the environment of this process, to be sent to the server for a forked process."""
        return cls(dict(os.environ), str(Path.cwd()), tuple(sys.path))

    def enter(self) -> None:
        """Give this process the environment variables, the folder and the path of this object."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path


def connect(folder: Path, modules: Sequence[str], *, linger_s: float = _LINGER_S) -> Connection:
    """Connect to the fork server whose socket is in a folder; start it if it is not running.

    Args:
        folder: Identifies the server; created if it does not exist. It contains the socket and the
            temporary folders of the server's processes, and is removed when the server ends.
        modules: Modules that the server imports; used only if this call starts the server. A
            missing module is skipped.
        linger_s: Seconds for which the server keeps running after its last forked process has
            ended; used only if this call starts the server.

    Returns:
        A connection for one call of `fork`.

    Raises:
        OSError, subprocess.SubprocessError: The server cannot be started.
    """
    for _ in range(_MAX_ATTEMPTS - 1):
        # The server may end, and remove its folder, at any moment.
        with contextlib.suppress(FileNotFoundError):
            return _connected(folder, modules, linger_s)
    return _connected(folder, modules, linger_s)


def _connected(folder: Path, modules: Sequence[str], linger_s: float) -> Connection:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(folder), socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(str(folder / _SOCKET))
        except (FileNotFoundError, ConnectionRefusedError):
            _start(folder, modules, linger_s)
            link.connect(str(folder / _SOCKET))
        return Connection(link.detach())


def fork(server: Connection, function: Callable[..., None], *arguments: Any) -> None:
    """Have the server fork a process that calls a function.

    Args:
        server: A connection to the server. From now on it leads to the new process, and serves only
            to receive its messages: anything sent on it kills the process.
        function: Called with the new process's end of the connection, then `arguments`. The process
            ends when it returns.
        arguments: Arguments of the function.
    """
    server.send(_ProcessEnvironment.ours())
    server.send((function, arguments))


def how_ended(folder: Path, process_id: int) -> str:
    """Return how a forked process ended, such as "killed by SIGKILL"; empty if that is unknown.

    Args:
        folder: The folder of its server.
        process_id: Id of the process, which must have closed its connection.
    """
    deadline = time.monotonic() + _NOTE_WITHIN_S
    while True:
        with contextlib.suppress(OSError, ValueError):
            return _in_words(int((folder / f"{_ENDED}{process_id}").read_text()))
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.005)


def _in_words(exit_code: int) -> str:
    """Describe an exit code, which is a negative number for a signal."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Context manager that holds a fork server's lock during its block.

    The lock is a file in the server's folder.

    Raises:
        FileNotFoundError: The folder was removed by the server, or by the run that it belongs to.
    """
    with (folder / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / _LOCK).stat()
        yield


def _start(folder: Path, modules: Sequence[str], linger_s: float) -> None:
    # On cluster machines nothing else removes the leftovers of killed runs.
    scratch.remove_leftovers(folder.parent)
    (folder / _SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / _SOCKET))
        # Connections made while it imports wait in the queue.
        listener.listen(_BACKLOG)
        fd = listener.fileno()
        subprocess.run(  # noqa: S603 - our own command
            # Without -P, a `csv.py` in the user's folder would run in place of Python's own.
            [sys.executable, "-P", "-m", __name__, str(folder), str(fd), str(linger_s), *modules],
            check=True,
            pass_fds=[fd],
            # Signals of the terminal and the end of a worker must not end the server.
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


# --- in the server ----------------------------------------------------------------------------


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """The fork server: forks a process for each connection, in which `_Handler` then runs."""

    timeout = _LOOK_INTERVAL_S
    max_children = sys.maxsize

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        super().__init__("", _Handler, bind_and_activate=False)
        self.socket.close()
        self.folder, self.socket = folder, listener
        self._inode = (folder / _SOCKET).stat().st_ino

    def is_reachable(self) -> bool:
        """Return whether the server's socket file still exists; a run deletes it when it ends."""
        try:
            return (self.folder / _SOCKET).stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def is_wanted(self) -> bool:
        """Return whether the server is needed: a forked process runs, or a client is waiting."""
        self.service_actions()
        return bool(self.active_children or select.select([self.socket], [], [], 0)[0])


class _Handler(socketserver.BaseRequestHandler):
    """Handler of one connection to the fork server, in the process that is forked for it."""

    server: _Server

    def handle(self) -> None:
        """Set up the process and call the requested function."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # With its own copy of the listening socket open, a caller could connect after the server's
        # death and wait forever.
        self.server.socket.close()
        link = Connection(os.dup(self.request.fileno()))
        surroundings: _ProcessEnvironment = link.recv()
        surroundings.enter()
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(dir=self.server.folder)
        # Received after the environment is applied, which may be needed to import it.
        function, arguments = link.recv()
        _die_with(link)
        function(*arguments, link)


def _die_with(link: Connection) -> None:
    """Have the kernel kill this process as soon as the peer closes the connection.

    Uses `F_SETSIG` of `fcntl(2)`. The signal is also sent when data arrives, so the peer must send
    nothing.

    Args:
        link: The connection. This process may send data on it.
    """
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(link, fcntl.F_SETFL, fcntl.fcntl(link, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(link, select.POLLRDHUP)
    if poll.poll(0):
        # It was closed before the signal was set up.
        os._exit(1)


def _serve(folder: Path, listener: socket.socket, modules: Sequence[str], linger_s: float) -> None:
    # Forked processes inherit this setting.
    collect_seldom()
    for module in modules:
        # A failed import is reported by the process that needs the module.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    # Pages of imported modules stay shared as long as the collector does not write to them.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, lambda *_: _note_ended(folder))
    server = _Server(folder, listener)
    wanted_s = time.monotonic()
    while True:
        server.handle_request()
        if server.is_wanted():
            wanted_s = time.monotonic()
        elif not server.is_reachable():
            # Locking would create the folder again, and its parent would be left behind.
            return
        elif time.monotonic() - wanted_s > linger_s:
            with contextlib.suppress(FileNotFoundError), _locked(folder):
                # Nothing can connect while the lock is held.
                if not server.is_wanted():
                    shutil.rmtree(folder, ignore_errors=True)
                    return


def _note_ended(folder: Path) -> None:
    """Write the exit code of each forked process that has ended to a file, and reap the process."""
    # No child is left, or the folder has been removed.
    with contextlib.suppress(ChildProcessError, OSError):
        while True:
            process_id, status = os.waitpid(-1, os.WNOHANG)
            if not process_id:
                return
            (folder / f"{_ENDED}{process_id}").write_text(str(os.waitstatus_to_exitcode(status)))


def _main(folder: str, listener: str, linger_s: str, *modules: str) -> None:
    if os.fork():
        # The starter waits for this process only, and is not the parent of the server.
        os._exit(0)
    # Until processes are forked, exit codes are not needed; ignoring the signal leaves no zombies.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Line buffering, so that the output of a process is visible even if it is killed.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    quiet_frameworks()
    # Owned as long as this process or one of its forks lives.
    scratch.own(Path(folder))
    _serve(Path(folder), socket.socket(fileno=int(listener)), modules, float(linger_s))


if __name__ == "__main__":
    _main(*sys.argv[1:])

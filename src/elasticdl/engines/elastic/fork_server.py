"""Processes that need not import anything: a server that has, and is forked for each of them.

    server = connect(folder, modules)           the machine's, started by who comes first
    fork(server, function, *arguments)          the connection is now the new process's own

Importing TensorFlow and PyTorch takes over six seconds of a core, which workers that train would
have to give up for each that is replaced; forking takes 0.02. The server imports modules and does
nothing else: no session, no device, no threads of Python's, none of which would survive a fork.
(Python's own `multiprocessing.forkserver` serves the processes of one parent, and those we fork for
may die.)

The caller reads the end of the stream once its process is gone; the kernel kills the process once
the caller's end is closed, even if the process is stopped or stuck.

For Linux, like all that is elastic. Callers: `worker_process.py`.
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
from elasticdl.garbage import collect_seldom
from elasticdl.training.create import quiet_frameworks

# A worker that dies is replaced sooner; after the last one nothing should stay for long.
_LINGER_S = 10.0
_LOOK_INTERVAL_S = 0.5
_BACKLOG = 128
_MAX_ATTEMPTS = 10
_SOCKET, _LOCK = "socket", "lock"
# Numbers of Linux that Python has no names for.
_F_SETSIG = 10


@dataclass(frozen=True)
class _Surroundings:
    """What a process finds itself in, besides what is imported.

    Attributes:
        environment: All variables.
        folder: Where it works.
        path: Where it looks for modules.
    """

    environment: dict[str, str]
    folder: str
    path: Sequence[str]

    @classmethod
    def ours(cls) -> _Surroundings:
        """Return those of this process."""
        return cls(dict(os.environ), str(Path.cwd()), tuple(sys.path))

    def enter(self) -> None:
        """Make them those of this process."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.path[:] = self.path


def connect(folder: Path, modules: Sequence[str], *, linger_s: float = _LINGER_S) -> Connection:
    """Return a connection to the server of a folder; if there is none, start it.

    Args:
        folder: For its socket, and the temporary folder of its processes; it goes with the server.
        modules: What the server imports. One that is not there is left out.
        linger_s: When the server ends, in seconds after the last of its processes.

    Raises:
        OSError, subprocess.SubprocessError: It cannot be started.
    """
    for _ in range(_MAX_ATTEMPTS - 1):
        # The server may go, and its folder, between two lines of ours.
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
    """Let a new process call a function with arguments, and with its end of the connection.

    Args:
        server: A connection to the server; from now on, from the new process: nothing more can be
            sent to it.
        function: What is called; the process ends when it returns.
        arguments: Of the function.
    """
    server.send(_Surroundings.ours())
    server.send((function, arguments))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a folder's lock.

    Raises:
        FileNotFoundError: The folder was removed: by the server, or by the run that it is in.
    """
    with (folder / _LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / _LOCK).stat()
        yield


def _start(folder: Path, modules: Sequence[str], linger_s: float) -> None:
    # On machines of a cluster nothing else looks for what killed runs left.
    scratch.remove_leftovers(folder.parent)
    (folder / _SOCKET).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / _SOCKET))
        # Who comes while it imports waits in the queue.
        listener.listen(_BACKLOG)
        fd = listener.fileno()
        subprocess.run(  # noqa: S603 - ourselves
            # Without -P, a `csv.py` in the user's folder would run in place of Python's own.
            [sys.executable, "-P", "-m", __name__, str(folder), str(fd), str(linger_s), *modules],
            check=True,
            pass_fds=[fd],
            # Neither what is typed at a terminal nor the end of a worker reaches it.
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


# --- in the server ----------------------------------------------------------------------------


class _Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks for each connection; what the new process does is the handler's."""

    timeout = _LOOK_INTERVAL_S
    max_children = sys.maxsize

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        super().__init__("", _Handler, bind_and_activate=False)
        self.socket.close()
        self.folder, self.socket = folder, listener
        self._inode = (folder / _SOCKET).stat().st_ino

    def is_reachable(self) -> bool:
        """Return whether its socket is still there; a run removes it with its own folder."""
        try:
            return (self.folder / _SOCKET).stat().st_ino == self._inode
        except FileNotFoundError:
            return False

    def is_wanted(self) -> bool:
        """Return whether there is a process, or somebody who waits for one."""
        self.service_actions()
        return bool(self.active_children or select.select([self.socket], [], [], 0)[0])


class _Handler(socketserver.BaseRequestHandler):
    """In the new process."""

    server: _Server

    def handle(self) -> None:
        """Become what was asked for."""
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Or who came after the server's death would wait in a queue that nobody looks at.
        self.server.socket.close()
        link = Connection(os.dup(self.request.fileno()))
        surroundings: _Surroundings = link.recv()
        surroundings.enter()
        tempfile.tempdir = os.environ["TMPDIR"] = tempfile.mkdtemp(dir=self.server.folder)
        # It may be found only now.
        function, arguments = link.recv()
        _die_with(link)
        function(*arguments, link)


def _die_with(link: Connection) -> None:
    """Let the kernel kill this process when the other end is closed: see `fcntl(2)`, `F_SETSIG`.

    That something is sent from there would kill it as well; from here, it would not.
    """
    fcntl.fcntl(link, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(link, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(link, fcntl.F_SETFL, fcntl.fcntl(link, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(link, select.POLLRDHUP)
    if poll.poll(0):
        # It was closed before that.
        os._exit(1)


def _serve(folder: Path, listener: socket.socket, modules: Sequence[str], linger_s: float) -> None:
    # What is forked inherits it.
    collect_seldom()
    for module in modules:
        # What cannot be imported is told by the process that needs it.
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    # Pages of what is imported stay shared if nobody counts references in them.
    gc.collect()
    gc.freeze()
    server = _Server(folder, listener)
    wanted_s = time.monotonic()
    while True:
        server.handle_request()
        if server.is_wanted():
            wanted_s = time.monotonic()
        elif not server.is_reachable():
            # Making the folder again to remove it would leave the one above it behind.
            return
        elif time.monotonic() - wanted_s > linger_s:
            with contextlib.suppress(FileNotFoundError), _locked(folder):
                # Under the lock nobody comes.
                if not server.is_wanted():
                    shutil.rmtree(folder, ignore_errors=True)
                    return


def _main(folder: str, listener: str, linger_s: str, *modules: str) -> None:
    if os.fork():
        # Who started it waits for this only, and is not its parent.
        os._exit(0)
    # Nobody asks what they ended with, so none stays as a zombie.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # What a process prints is seen even if it is killed.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    quiet_frameworks()
    # As long as this process or one that it forks is there.
    scratch.own(Path(folder))
    _serve(Path(folder), socket.socket(fileno=int(listener)), modules, float(linger_s))


if __name__ == "__main__":
    _main(*sys.argv[1:])

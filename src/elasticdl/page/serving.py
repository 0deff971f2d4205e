"""Serves the page of jobs: here until Ctrl-C, or in a process beside a training.

    elasticdl job page OUTPUT      serve()
    elasticdl train --page ...     PageProcess: python -m elasticdl.page OUTPUT --> prints its URL

A training's page is a process of its own, which reads the log as anybody may: it takes nothing of
the training's interpreter, nor its secrets where the output is on this machine. It ends with the
training, by the end of the pipe that it reads.

Callers: `cli/`, `__main__.py`.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import OutputError, UnavailableError, UsageError
from elasticdl.page.outputs import WatchedOutput, find_outputs
from elasticdl.page.security import is_loopback, new_token

if TYPE_CHECKING:
    from types import TracebackType

    from starlette.types import ASGIApp

DEFAULT_LISTEN = "127.0.0.1:0"

_HIGHEST_PORT = 65_535
_LAST_LOOK_S = 2.5
_POLL_S = 1.0
# Secrets of what the training talks to are no business of a page.
_KEPT_VARIABLES = {
    *("PATH", "HOME", "TMPDIR", "LANG", "TZ"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
}


def serve(uri: str, listen: str, tell: Callable[[str], None], *, must_exist: bool = True) -> None:
    """Serve the pages of the jobs at a place until the process is told to end.

    Args:
        uri: The output of a job, or a folder of outputs.
        listen: `HOST:PORT`; port 0 takes a free one.
        tell: Is called with the URL once it answers.
        must_exist: Whether a place without a job is refused; else it is waited for.

    Raises:
        UsageError: `listen` is no address.
        OutputError: There is no job at the place.
        UnavailableError: The port is taken, or the host is not this machine's.
    """
    import uvicorn  # noqa: PLC0415 - not for `--help`

    from elasticdl.page.server import create_app  # noqa: PLC0415 - as well

    host, port = parse_address(listen)
    known: dict[str, WatchedOutput] = {}

    def find() -> dict[str, WatchedOutput]:
        if must_exist:
            found = find_outputs(uri)
        else:
            name = uri.rstrip("/").rpartition("/")[2] or uri
            found = {name: OutputFolder(uri)}
        for name, folder in found.items():
            if name not in known:
                known[name] = WatchedOutput(folder, name)
        return {name: known[name] for name in found}

    find()
    token = new_token()
    app: ASGIApp = create_app(find, token, host)
    with _bound(host, port, listen) as bound:
        # A token in a URL must not be in a log.
        config = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", server_header=False
        )
        server = uvicorn.Server(config)
        # A browser keeps its stream open; nobody waits for it to close it.
        config.timeout_graceful_shutdown = 1
        shown = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104 - named by the user
        shown = f"[{shown}]" if ":" in shown else shown
        tell(f"http://{shown}:{bound.getsockname()[1]}/?token={token}")
        server.run(sockets=[bound])


def parse_address(listen: str) -> tuple[str, int]:
    """Return the host and the port of `HOST:PORT`.

    Raises:
        UsageError: It is none.

    Example:
        >>> parse_address("127.0.0.1:0"), parse_address("[::1]:8080")
        (('127.0.0.1', 0), ('::1', 8080))
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise UsageError(
            f"--listen={listen}: expected HOST:PORT, such as 127.0.0.1:8080; port 0 takes a free "
            "one."
        )
    return host.strip("[]"), int(port)


def warning_of(listen: str) -> str | None:
    """Return what a person should know who lets other machines reach the page; None if none can."""
    host, _ = parse_address(listen)
    if is_loopback(host):
        return None
    return (
        f"WARNING: --listen={listen} can be reached by other machines, without encryption: who "
        "reads the network reads the page and its token. Over SSH it needs none of that: "
        "ssh -L 8080:127.0.0.1:PORT HOST."
    )


def _bound(host: str, port: int, listen: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        # From here on it answers, if only a moment later.
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise UnavailableError(
            f"Cannot listen on {listen}: {error.strerror or error}. Is the port taken, or the host "
            "not of this machine? Name another --listen=HOST:PORT; port 0 takes a free one."
        ) from error
    return bound


class PageProcess:
    """The page of a training in a process beside it, until the `with` block ends.

    A page that does not start is told of, and the training goes on.

    Args:
        output: Of the training.
        tell: Is called with the URL, or with why there is none; in a thread.
    """

    def __init__(self, output: str, tell: Callable[[str], None]) -> None:
        self._output, self._tell = output, tell
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        # An object store is reached as the training reaches it.
        is_remote = "://" in self._output
        environment = {
            name: value
            for name, value in os.environ.items()
            if is_remote or name in _KEPT_VARIABLES
        }
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "elasticdl.page", self._output],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                text=True,
                # Ctrl-C is for the training; the page is to show how it ends.
                start_new_session=True,
            )
        except OSError as error:
            self._tell(f"There is no job page: {error.strerror or error}.")
            return self
        threading.Thread(target=self._announce, args=(self._process,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None  # noqa: S101 - a pipe, see above
            self._process.stdin.close()
        # It ends a moment later, when it has shown how the training ended: nobody waits for that.
        threading.Thread(target=self._process.wait, daemon=True).start()

    def _announce(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe, see above
        with process.stdout as told:
            line = told.readline().strip()
        if line.startswith("http://"):
            self._tell(f"Job page: {line}")
        elif line:
            self._tell(f"There is no job page: {line}")


def serve_beside(output: str) -> None:
    """Serve the page of an output whose job is about to begin, until standard input ends."""
    parent = os.getppid()

    def end_with_parent() -> None:
        # Nothing is ever written there: its end is the end of the training. A process that the
        # training forked may hold it open for longer.
        while os.getppid() == parent:
            ready, _, _ = select.select([sys.stdin], [], [], _POLL_S)
            if ready and not os.read(sys.stdin.fileno(), 1):
                break
        # What a browser has asked for a moment ago is answered: how the job ended.
        time.sleep(_LAST_LOOK_S)
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    # Where there are no cores to spare, the training has them.
    with contextlib.suppress(OSError):
        os.nice(10)
    try:
        serve(output, DEFAULT_LISTEN, lambda url: print(url, flush=True), must_exist=False)  # noqa: T201 - its parent reads it
    except (OutputError, UnavailableError, UsageError) as error:
        print(" ".join(str(error).split()), flush=True)  # noqa: T201 - as above

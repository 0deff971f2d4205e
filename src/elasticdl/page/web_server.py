"""Starts and stops the job page's server, and reports its URL. `web_app.py` answers the requests.

The server runs in this process until Ctrl-C, or in a separate process during a job:

    elasticdl job page OUTPUT      serve()
    elasticdl train --page ...     PageProcess: python -m elasticdl.page OUTPUT --> prints its URL
    the same in a cluster's pod    PageProcess with an `InPod`: prints nothing, see `forwarded.py`

The separate process only reads the log, so it does not slow down the job's Python interpreter. Of
the job's environment variables, which may contain secrets, it inherits only a few harmless ones, or
all of them if the output is on an object store. It exits when the job ends, which closes its
standard input.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from elasticdl.artifacts.event_log import log_file
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.errors import OutputError, UnavailableError, UsageError
from elasticdl.job import PAGE_TOKEN_VARIABLE
from elasticdl.page.outputs import WatchedOutput, find_outputs
from elasticdl.page.security import is_loopback, new_token

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

DEFAULT_LISTEN = "127.0.0.1:0"

_HIGHEST_PORT = 65_535
_LAST_LOOK_S = 2.5
_POLL_S = 1.0
# The page of a killed driver keeps its port for a moment longer.
_BIND_WITHIN_S = 15.0
# Secrets of services that the job uses are not passed to the page.
_KEPT_VARIABLES = {
    *("PATH", "HOME", "TMPDIR", "LANG", "TZ"),
    *("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"),
}


def serve(
    uri: str,
    listen: str,
    print_fn: Callable[[str], None],
    *,
    must_exist: bool = True,
    written: Path | None = None,
    token: str | None = None,
) -> None:
    """Serve the pages of the jobs at a URI until the process is interrupted or terminated.

    Args:
        uri: The output of a job, or a folder of outputs.
        listen: `HOST:PORT`; port 0 selects a free port.
        print_fn: Called with the URL once the server accepts connections.
        must_exist: Whether to raise an error if there is no job yet; otherwise, the page waits for
            one.
        written: Local file of a running job's log; see `LogReader`.
        token: The token that requests must carry. None: create a random one.

    Raises:
        UsageError: `listen` is not an address.
        OutputError: There is no job at the URI.
        UnavailableError: The port is in use, or the host is not an address of this machine.
    """
    from elasticdl.page.web_app import create_app  # noqa: PLC0415 - not for `--help`

    host, _ = parse_address(listen)
    known: dict[str, WatchedOutput] = {}

    def find() -> dict[str, WatchedOutput]:
        if must_exist:
            found = find_outputs(uri)
        else:
            name = uri.rstrip("/").rpartition("/")[2] or uri
            found = {name: OutputFolder(uri)}
        for name, folder in found.items():
            if name not in known:
                known[name] = WatchedOutput(folder, name, written)
        return {name: known[name] for name in found}

    found = find()
    if must_exist and len(found) == 1:
        # A viewer is about to open this page: read a long log in the meantime.
        for output in found.values():
            threading.Thread(target=output.refresh, daemon=True).start()
    token = token or new_token()
    serve_app(create_app(find, token, host), token, listen, print_fn)


def serve_app(
    app: ASGIApp,
    token: str,
    listen: str,
    print_fn: Callable[[str], None],
    until: threading.Event | None = None,
) -> None:
    """Serve an application until the process is interrupted or terminated.

    Args:
        app: An application that requires a token.
        token: The token, for the URL.
        listen: `HOST:PORT`; port 0 selects a free port.
        print_fn: Called with the URL once the server accepts connections.
        until: Event that stops the server when it is set.

    Raises:
        UsageError: `listen` is not an address.
        UnavailableError: The port is in use, or the host is not an address of this machine.
    """
    import uvicorn  # noqa: PLC0415 - not for `--help`

    host, port = parse_address(listen)
    with _bound(host, port, listen) as bound:
        # URLs contain the token, which must not be logged.
        config = uvicorn.Config(
            app,
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            ws="none",
        )
        server = uvicorn.Server(config)
        if until is not None:
            threading.Thread(target=_end, args=(server, until), daemon=True).start()
        # Browsers keep their event streams open; do not wait for them to close.
        config.timeout_graceful_shutdown = 1
        shown = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104 - named by the user
        shown = f"[{shown}]" if ":" in shown else shown
        print_fn(f"http://{shown}:{bound.getsockname()[1]}/?token={token}")
        server.run(sockets=[bound])


def _end(server: uvicorn.Server, until: threading.Event) -> None:
    until.wait()
    server.should_exit = True


def parse_address(listen: str) -> tuple[str, int]:
    """Parse `HOST:PORT` into host and port.

    Raises:
        UsageError: `listen` has another form.

    Example:
        >>> parse_address("127.0.0.1:0"), parse_address("[::1]:8080")
        (('127.0.0.1', 0), ('::1', 8080))
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > _HIGHEST_PORT:
        raise UsageError(
            f"--listen={listen}: expected HOST:PORT, such as 127.0.0.1:8080; port 0 selects a free "
            "one."
        )
    return host.strip("[]"), int(port)


def warning_of(listen: str) -> str | None:
    """Return a warning if other machines can reach the page at this address, else None."""
    host, _ = parse_address(listen)
    if is_loopback(host):
        return None
    return (
        f"WARNING: --listen={listen} makes the page reachable from other machines without "
        "encryption: anyone who can read the network traffic can read the page and its token. "
        "Use SSH instead: ssh -L 8080:127.0.0.1:PORT HOST."
    )


def _bound(host: str, port: int, listen: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        # From here on connections are accepted, though the response may take a moment.
        bound.listen(128)
    except OSError as error:
        bound.close()
        raise UnavailableError(
            f"Cannot listen on {listen}: {error.strerror or error}. The port may be in use, or the "
            "host may not be this machine. Use another --listen=HOST:PORT; port 0 selects a free "
            "port."
        ) from error
    return bound


@dataclass(frozen=True)
class InPod:
    """Port and token of a job's page in a pod on a cluster, from the pod's environment variables.

    Attributes:
        port: Port on the pod's loopback.
        token: The token that requests must carry.
    """

    port: int
    token: str


class PageProcess:
    """The page of a job, served by a separate process until the `with` block ends.

    If the page does not start, that is reported and the job continues.

    Args:
        output: Output of the job.
        print_fn: Called in a thread with the URL, or with the reason why there is no page.
        in_pod: Port and token to use in a pod; None outside of pods. In a pod, the URL is not
            reported, because a pod's output can be read by others.
    """

    def __init__(
        self, output: str, print_fn: Callable[[str], None], in_pod: InPod | None = None
    ) -> None:
        self._output, self._print_fn, self._in_pod = output, print_fn, in_pod
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        # An object store needs the job's credentials.
        is_remote = "://" in self._output
        environment = {
            name: value
            for name, value in os.environ.items()
            if is_remote or name in _KEPT_VARIABLES
        }
        environment.pop(PAGE_TOKEN_VARIABLE, None)
        listen = DEFAULT_LISTEN
        if self._in_pod is not None:
            listen = f"127.0.0.1:{self._in_pod.port}"
            # Command lines can be read by other processes.
            environment[PAGE_TOKEN_VARIABLE] = self._in_pod.token
        written = log_file(OutputFolder(self._output))
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [sys.executable, "-m", "elasticdl.page", self._output, str(written), listen],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                text=True,
                # Ctrl-C is meant for the job; the page must still show how it ends.
                start_new_session=True,
            )
        except OSError as error:
            self._print_fn(f"The job page did not start: {error.strerror or error}.")
            return self
        threading.Thread(target=self._announce, args=(self._process,), daemon=True).start()
        return self

    def __exit__(self, *details: object) -> None:
        if self._process is None:
            return
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None  # noqa: S101 - a pipe, see above
            self._process.stdin.close()
        # The page exits a moment later, after showing how the job ended. Do not wait for it.
        threading.Thread(target=self._process.wait, daemon=True).start()

    def _announce(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None  # noqa: S101 - a pipe, see above
        with process.stdout as lines:
            line = lines.readline().strip()
        if line.startswith("http://"):
            if self._in_pod is None:
                self._print_fn(f"Job page: {line}")
        elif line:
            self._print_fn(f"The job page did not start: {line}")


def serve_beside(output: str, written: str, listen: str) -> None:
    """Serve the page of an output whose job is about to start, until standard input is closed.

    Args:
        output: The output.
        written: Local file of the job's log.
        listen: `HOST:PORT`; a port other than 0 that is in use is retried for up to 15 s.
    """
    token = os.environ.pop(PAGE_TOKEN_VARIABLE, None)
    parent = os.getppid()

    def end_with_parent() -> None:
        # Nothing is written to standard input; it is closed when the job ends. A process that the
        # job forked may keep it open for longer.
        while os.getppid() == parent:
            ready, _, _ = select.select([sys.stdin], [], [], _POLL_S)
            if ready and not os.read(sys.stdin.fileno(), 1):
                break
        # Handle pending requests, so that browsers show how the job ended.
        time.sleep(_LAST_LOOK_S)
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    # The job takes priority if there are no spare cores.
    with contextlib.suppress(OSError):
        os.nice(10)
    given_up_s = time.monotonic() + (0 if listen == DEFAULT_LISTEN else _BIND_WITHIN_S)
    while True:
        try:
            serve(
                output,
                listen,
                lambda url: print(url, flush=True),  # noqa: T201 - its parent reads it
                must_exist=False,
                written=Path(written),
                token=token,
            )
        except UnavailableError as error:
            if time.monotonic() < given_up_s:
                time.sleep(_POLL_S)
                continue
            print(" ".join(str(error).split()), flush=True)  # noqa: T201 - as above
        except (OutputError, UsageError) as error:
            print(" ".join(str(error).split()), flush=True)  # noqa: T201 - as above
        return

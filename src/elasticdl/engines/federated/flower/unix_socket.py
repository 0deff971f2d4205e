"""Runs Flower's commands with their local interfaces on a unix socket instead of a TCP port.

    python -P -m elasticdl.engines.federated.flower.unix_socket COMMAND ARGUMENTS ...

A superlink serves control (to start runs of any code) and runtime (to fetch tasks and answer them);
a supernode serves runtime. Flower 1.41 can serve them only on TCP, where a caller from the same
machine needs no credentials: any user of the machine could start a run, or take a party's task.
Therefore this module changes Flower's processes (in parentheses: the attribute that it replaces):

1.  A server listens on the socket that `SOCKET` names, in a folder that only this user can enter,
    instead of the host and port of its command line (`uvicorn.Config`).
2.  Clients of the two interfaces connect to that socket (`ProtobufClient`). A supernode's own
    process connects to the aggregator, so it is not changed.
3.  A task's token is passed in the environment, because every user can read a command line
    (`SubprocessExecutor.launch`).
4.  An error that ends a thread of a supernode ends the supernode, which is then restarted
    (`threading.excepthook`). Its heartbeats come from such a thread, which any unexpected answer
    ends: the aggregator would consider the party gone, while the party considered itself connected.

Flower still requires a host and a port. It gets port 1 (`NOWHERE_PORT`), where other users cannot
listen: if another version of Flower bypassed 1 or 2, nothing would answer there, and the federation
would not start.

Callers: `commands.py` names it on command lines; `prefork_server.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import ssl
import stat
import sys
import threading
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.engines.federated.flower import prefork_client
from elasticdl.engines.federated.flower.protocol_constants import SOCKET

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

_SUPERNODE = "flower-supernode"
_SERVERS = {"flower-superlink", _SUPERNODE}
_EXECUTOR = "flower-superexec"


def patch_flower(command: str) -> None:
    """Patch Flower in this process to communicate over a unix socket instead of TCP.

    Args:
        command: Name of the Flower command that this process runs; it decides what to patch.

    Raises:
        PermissionError: Other users can enter the folder of the socket.
    """
    path = _socket()
    if command == _SUPERNODE:
        threading.excepthook = _end_with_a_thread
    if command in _SERVERS:
        _listen_at(path)
        return
    _connect_to(path)
    if command == _EXECUTOR:
        _hide_tokens()


def _socket() -> str:
    """Return the path of the socket.

    Raises:
        PermissionError: Other users can enter its folder.
    """
    path = os.environ[SOCKET]
    folder = Path(path).parent
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise PermissionError(
            f"{folder}: other users can access it (mode {stat.filemode(found.st_mode)}, user "
            f"{found.st_uid}). Anyone with access to the socket in it can start programs."
        )
    return path


def _listen_at(path: str) -> None:
    import uvicorn  # noqa: PLC0415 - clients do not need it

    original = uvicorn.Config.__init__

    @functools.wraps(original)
    def init(self: uvicorn.Config, *args: Any, **named: Any) -> None:
        # Flower passes everything except the app as keyword arguments.
        original(self, *args, **{**named, "uds": path})

    uvicorn.Config.__init__ = init  # type: ignore[method-assign]


def _connect_to(path: str) -> None:
    import httpx  # noqa: PLC0415 - servers do not need it
    from flwr.supercore.protobuf.client import ProtobufClient  # noqa: PLC0415

    original = ProtobufClient.__init__

    @functools.wraps(original)
    def init(
        self: ProtobufClient,
        base_url: str,
        *,
        verify: ssl.SSLContext | bool | str = True,
        timeout: float = 30.0,
        **named: Any,
    ) -> None:
        original(self, base_url, verify=verify, timeout=timeout, **named)
        self._client.close()
        # An explicit transport ignores the proxy variables of the environment.
        transport = httpx.HTTPTransport(verify=verify, uds=path)
        self._client = httpx.Client(transport=transport, timeout=timeout, follow_redirects=True)

    ProtobufClient.__init__ = init  # type: ignore[method-assign]


def _hide_tokens() -> None:
    from flwr.supercore.superexec.executor.subprocess_executor import (  # noqa: PLC0415
        SubprocessExecutor,
    )

    original = SubprocessExecutor.launch

    @functools.wraps(original)
    def launch(self: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
        os.environ[prefork_client.TOKEN] = spec.token
        try:
            return original(self, dataclasses.replace(spec, token=prefork_client.PLACEHOLDER))
        finally:
            del os.environ[prefork_client.TOKEN]

    SubprocessExecutor.launch = launch  # type: ignore[method-assign]


def _end_with_a_thread(found: threading.ExceptHookArgs) -> None:
    """Exception hook for threads: print the error and end this process at once."""
    threading.__excepthook__(found)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Run the Flower command that the command line names, with the arguments that follow it."""
    sys.argv[:] = prefork_client.with_token(sys.argv[1:])
    patch_flower(sys.argv[0])
    (command,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(command.load()())


if __name__ == "__main__":
    main()

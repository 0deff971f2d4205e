"""Flower's commands, with their interfaces for this machine on a unix socket and not on a port.

    python -P -m elasticdl.engines.federated.flower.local COMMAND ARGUMENTS ...

A superlink serves control (start a run of any code) and runtime (fetch a task and answer it); a
supernode serves runtime. Flower 1.41 can serve them on TCP alone, and a caller from the same
machine needs no credential there: any user of the machine could start a run, or take a party's
task. Therefore, in each process of Flower's:

1.  A server listens on the socket that `SOCKET` names, in a folder that only this user can enter,
    and not on the host and port of its command line (`uvicorn.Config`).
2.  Clients of the two interfaces connect to that socket (`ProtobufClient`). A supernode's own
    process connects to the aggregator, so it is left as it is.
3.  A task's token travels in the environment; every user can read a command line
    (`SubprocessExecutor.launch`).
4.  An error that ends a thread of a supernode ends the supernode, which is started again. Its
    heartbeats come from such a thread, and one answer that Flower does not expect ends that: the
    aggregator would count the party as gone, and the party would count itself as connected.

Flower wants a host and a port nevertheless. It gets port 1 (`NOWHERE_PORT`), where other users may
not listen: if another version of Flower evaded 1 or 2, nothing would answer there, and the
federation would not start.

Callers: `commands.py` names it on command lines; `messenger.py`.
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

from elasticdl.engines.federated.flower import errand
from elasticdl.engines.federated.flower.words import SOCKET

if TYPE_CHECKING:
    from flwr.supercore.protobuf.client import ProtobufClient
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

_SUPERNODE = "flower-supernode"
_SERVERS = {"flower-superlink", _SUPERNODE}
_EXECUTOR = "flower-superexec"


def enclose(command: str) -> None:
    """Take this process off the network of its machine, before it runs a command of Flower's.

    Args:
        command: Its name.

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
            f"{folder}: other users can enter it (mode {stat.filemode(found.st_mode)}, user "
            f"{found.st_uid}). Whoever reaches the socket in it can start programs."
        )
    return path


def _listen_at(path: str) -> None:
    import uvicorn  # noqa: PLC0415 - clients do without it

    original = uvicorn.Config.__init__

    @functools.wraps(original)
    def init(self: uvicorn.Config, *args: Any, **named: Any) -> None:
        # Flower gives all but the app by name.
        original(self, *args, **{**named, "uds": path})

    uvicorn.Config.__init__ = init  # type: ignore[method-assign]


def _connect_to(path: str) -> None:
    import httpx  # noqa: PLC0415 - servers do without it
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
        # With a transport of its own a client uses no proxy of the environment's.
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
        os.environ[errand.TOKEN] = spec.token
        try:
            return original(self, dataclasses.replace(spec, token=errand.PLACEHOLDER))
        finally:
            del os.environ[errand.TOKEN]

    SubprocessExecutor.launch = launch  # type: ignore[method-assign]


def _end_with_a_thread(found: threading.ExceptHookArgs) -> None:
    """End this process at once: what ends in order waits for its other threads."""
    threading.__excepthook__(found)
    sys.stderr.flush()
    os._exit(1)


def main() -> None:
    """Run the command that the command line names, with the arguments that follow it."""
    sys.argv[:] = errand.with_token(sys.argv[1:])
    enclose(sys.argv[0])
    (command,) = entry_points(group="console_scripts", name=sys.argv[0])
    sys.exit(command.load()())


if __name__ == "__main__":
    main()

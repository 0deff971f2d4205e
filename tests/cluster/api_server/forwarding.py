"""Port-forwards over a websocket, as kubelets do them with the protocol v4.channel.k8s.io.

    first byte of a message    0: data; 1: why the port could not be reached
    first message of each      the port, as two bytes, the lower one first

A port of a pod is one of this machine: of the same number, unless a test names another, or gives
`connect` to reach pods that have a network of their own.
"""

from __future__ import annotations

import contextlib
import select
import socket
from typing import TYPE_CHECKING

from tests.cluster.api_server.replies import bad_request
from tests.cluster.api_server.resources import PODS
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping
from wsproto.utilities import LocalProtocolError

if TYPE_CHECKING:
    from tests.cluster.api_server.answers import Handler
    from tests.cluster.api_server.paths import Request
    from tests.cluster.api_server.server import ApiServer

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _ERROR = b"\0", b"\1"


def forward(handler: Handler, api: ApiServer, asked: Request) -> None:
    """Pass bytes between a client and a port, until one of them ends the connection.

    Raises:
        Refusal: The pod is on no node, or the request is no upgrade.
    """
    pod = api.store.get(PODS, asked.namespace, asked.name)
    if not pod["spec"].get("nodeName"):
        raise bad_request(f"pod {asked.name} does not have a host assigned")
    if handler.headers.get("Upgrade", "").lower() != "websocket":
        raise bad_request("Upgrade request required")
    port = int(asked.query["ports"])
    client = _Client(handler)
    for channel in (_DATA, _ERROR):
        client.send(channel + port.to_bytes(2, "little"))
    try:
        if api.connect is not None:
            target = api.connect(asked.name, port)
        else:
            target = socket.create_connection(("127.0.0.1", api.ports.get(port, port)), timeout=5)
    except OSError as error:
        said = f"error forwarding port {port} to pod {asked.name}: {error.strerror}"
        client.send(_ERROR + said.encode())
        client.close()
        return
    with target:
        _pass(client, target)


def _pass(client: _Client, target: socket.socket) -> None:
    while True:
        ready = [client.socket] if client.socket.pending() else (
            select.select([client.socket, target], [], [])[0]
        )  # fmt: skip
        if target in ready:
            data = target.recv(65536)
            if not data:
                client.close()
                return
            client.send(_DATA + data)
        if client.socket in ready:
            received = client.receive()
            if received is None:
                return
            target.sendall(received)


class _Client:
    """The client's end of a websocket."""

    def __init__(self, handler: Handler) -> None:
        self.socket = handler.connection
        handler.close_connection = True
        self._websocket = WSConnection(ConnectionType.SERVER)
        headers = [(name.lower().encode(), text.encode())
                   for name, text in handler.headers.items()]  # fmt: skip
        self._websocket.initiate_upgrade_connection(headers, handler.path)
        list(self._websocket.events())
        self.socket.sendall(self._websocket.send(AcceptConnection(subprotocol=_PROTOCOL)))

    def send(self, message: bytes) -> None:
        self.socket.sendall(self._websocket.send(BytesMessage(message)))

    def close(self) -> None:
        with contextlib.suppress(OSError, LocalProtocolError):
            self.socket.sendall(self._websocket.send(CloseConnection(code=1000)))

    def receive(self) -> bytes | None:
        """Return what was sent to the port; None at the end."""
        data = self.socket.recv(65536)
        self._websocket.receive_data(data or None)
        received = b""
        for event in self._websocket.events():
            match event:
                case BytesMessage(data=message):
                    # A message may come in parts, of which only the first names the channel.
                    received += message[1:] if self._is_first else message
                    self._is_first = event.message_finished
                case Ping():
                    self.socket.sendall(self._websocket.send(event.response()))
                case CloseConnection():
                    self.close()
                    return None
        return received

    _is_first = True

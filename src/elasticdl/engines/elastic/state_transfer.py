"""Transport of a state from one worker to another: safetensors and JSON over HTTP, never pickle.

    healthy worker   publish(bytes)     ->  serves them, encrypted, at /SECRET until the next state
    joining worker   Fetch(...).read()  ->  the complete bytes, or an error

The path contains a random secret, and the bytes are encrypted and authenticated with the run's key
(`encryption.py`), which every worker receives from the driver. Nothing in the bytes is executed:
`decode` reads tensors and JSON values.

Callers: `worker.py` encodes and decodes; `allreduce.py` passes on the addresses.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import secrets
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from elasticdl.artifacts.checkpoint_files import encode_metadata
from elasticdl.artifacts.checkpoint_store import Checkpoint
from elasticdl.artifacts.tensors import encode_tensors, read_tensors
from elasticdl.engines.elastic.encryption import DecryptionError, decrypt, encrypt
from elasticdl.errors import OutputError

_LENGTH = struct.Struct("<QQ")


class TransportError(Exception):
    """Raised when a state was not received; the step fails and is retried."""


def encode(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as bytes: two lengths, then metadata as JSON, then the tensors."""
    metadata = encode_metadata(checkpoint)
    return b"".join(
        (_LENGTH.pack(len(metadata), checkpoint.step), metadata, encode_tensors(checkpoint.state))
    )


def decode(data: bytes, where: str) -> Checkpoint:
    """Decode a checkpoint from the bytes that `encode` returned.

    Args:
        data: The bytes.
        where: Where the bytes are from, for error messages.

    Raises:
        OutputError: The bytes were not written by `encode`.
    """
    try:
        num_metadata_bytes, step = _LENGTH.unpack_from(data)
        end = _LENGTH.size + num_metadata_bytes
        metadata = json.loads(data[_LENGTH.size : end])
    except (struct.error, ValueError) as error:
        raise OutputError(
            f"{where}: damaged checkpoint message: it does not start with lengths "
            f"and JSON: {error}."
        ) from error
    return Checkpoint(step=step, state=read_tensors(data[end:], where), metadata=metadata)


class StateServer:
    """HTTP server that sends one state at a time to peers that know its secret address.

    Args:
        host: Name or address under which others reach this machine.
        timeout_s: A connection that makes no progress for this many seconds is closed.
        key: The run's key, which encrypts the states.
    """

    def __init__(self, host: str, timeout_s: float, key: bytes) -> None:
        self._key = key
        self._state: tuple[int, bytes] | None = None
        self._published = threading.Condition()
        self._timeout_s = timeout_s
        secret = secrets.token_urlsafe(16)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            timeout = timeout_s

            def do_GET(self) -> None:
                path, _, step = self.path.lstrip("/").partition("/")
                data = outer._wait_for(int(step)) if path == secret and step.isdigit() else None
                if data is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                """Log nothing, because joining workers connect all the time."""

        self._server = _Server((host, 0), Handler)
        self.address = f"http://{host}:{self._server.server_address[1]}/{secret}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def publish(self, step: int, data: bytes) -> None:
        """Serve the state of a step to joining workers, in place of the previous one."""
        data = encrypt(data, self._key, step)
        with self._published:
            self._state = (step, data)
            self._published.notify_all()

    def withdraw(self) -> None:
        """Stop serving until the next state; running transfers are completed."""
        with self._published:
            self._state = None

    def close(self) -> None:
        """Shut down the server."""
        self._server.shutdown()
        self._server.server_close()

    def _wait_for(self, step: int) -> bytes | None:
        # A joining worker may request the state before it is copied, because both workers learn of
        # each other at the same moment.
        with self._published:
            self._published.wait_for(
                lambda: self._state is not None and self._state[0] >= step, self._timeout_s
            )
            return self._state[1] if self._state is not None and self._state[0] == step else None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    address_family = socket.AF_INET

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: the controller reports peers that die during a transfer."""


class Fetch:
    """Transfer of the state of a step from a peer to this worker.

    Args:
        address: Address of the peer's `StateServer`.
        step: The step.
        timeout_s: The transfer fails if nothing has arrived for this many seconds.
        key: The run's key, which decrypts the state.

    Raises:
        TransportError: The address is not that of a worker.
    """

    def __init__(self, address: str, step: int, timeout_s: float, key: bytes) -> None:
        scheme, _, rest = address.partition("://")
        where, _, self._secret = rest.partition("/")
        if scheme != "http" or not where:
            raise TransportError(f"{address!r}: expected the address of a worker.")
        self._step, self._key = step, key
        self._connection = http.client.HTTPConnection(where, timeout=timeout_s)

    def read(self) -> bytes:
        """Receive the state and decrypt it.

        Raises:
            TransportError: The peer is gone, is too slow, no longer serves that state, or belongs
                to another run.
        """
        try:
            self._connection.request("GET", f"/{self._secret}/{self._step}")
            answer = self._connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise TransportError(
                    f"The state of step {self._step} was not received: the peer answered "
                    f"{answer.status} {answer.reason}."
                )
            if answer.headers["Content-Length"] is None:
                # The peer died while sending the headers; without the length, partial data would be
                # mistaken for the whole state.
                raise http.client.IncompleteRead(b"")
            return decrypt(answer.read(), self._key, self._step)
        except (http.client.HTTPException, OSError, DecryptionError) as error:
            raise TransportError(
                f"The state of step {self._step} was not received: {error}"
            ) from error
        finally:
            self._connection.close()

    def cut(self) -> None:
        """Make a running `read` fail; call it from another thread."""
        connection: socket.socket | None = self._connection.sock
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

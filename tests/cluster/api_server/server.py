"""The server: its parts, its port, and the connections that clients have to it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any, Self

from tests.cluster.api_server.access import Access, Fault
from tests.cluster.api_server.admission import Schema
from tests.cluster.api_server.answers import Handler
from tests.cluster.api_server.certificate import server_context
from tests.cluster.api_server.resources import (
    BUILT_IN,
    CRDS,
    KUBERAY,
    NAMESPACES,
    RAYJOBS,
    Object,
    Resource,
    custom_resource_definition,
)
from tests.cluster.api_server.store import PodLog, Store


class ApiServer:
    """A Kubernetes API server on a port of this machine, as a context manager.

    Attributes:
        url: Where it listens.
        certificate: What clients have to trust, as PEM.
        token: The bearer token that it takes.
        store: Its objects; a controller of a test's own may read and write them there.
        access: Who may do what.
        faults: What goes wrong; a list that a test appends to.
        requests: What was asked for, as `verb resource`, in order.
        logs: Of pods, by namespace and name.
        ports: Port of a pod -> port of this machine that is forwarded instead.
        connect: (Pod, port of its loopback interface) -> connection; None: they are this machine's.
    """

    def __init__(self, rayjob_schema: Object | None, namespaces: tuple[str, ...] = ("default",)):
        """Make a server, without KubeRay if there is no schema of its RayJobs."""
        self.token = "good-token"
        self.users = {self.token: "tester"}
        self.store = Store()
        self.access = Access()
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.logs: dict[tuple[str, str], PodLog] = {}
        self.ports: dict[int, int] = {}
        self.connect: Callable[[str, int], socket.socket] | None = None
        self.resources = list(BUILT_IN)
        self.schemas: dict[Resource, Schema] = {}
        for name in namespaces:
            self.store.create(NAMESPACES, "", {"metadata": {"name": name}})
        if rayjob_schema is not None:
            self.resources += KUBERAY
            self.schemas[RAYJOBS] = Schema(RAYJOBS, rayjob_schema)
            for each in KUBERAY:
                self.store.create(CRDS, "", custom_resource_definition(each))
        # A watch ends when this is no longer what it was when it began.
        self.cuts = 0
        self._http = HttpServer(("127.0.0.1", 0), Handler)
        self._http.api = self
        self.certificate = self._http.certificate
        self.url = f"https://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_watches()
        self._http.shutdown()
        self._http.server_close()
        self._http.end_connections()

    def cut_watches(self) -> None:
        """Close the connections of all watches and of logs that are followed, in their middle."""
        with self.store.changed:
            self.cuts += 1
            self.store.changed.notify_all()

    def log(self, namespace: str, pod: str) -> PodLog:
        """Return the log of a pod, to be written or read."""
        return self.logs.setdefault((namespace, pod), PodLog(self.store.changed))

    def resource(self, group: str, version: str, plural: str) -> Resource | None:
        asked = (group, version, plural)
        found = (
            each for each in self.resources if (each.group, each.version, each.plural) == asked
        )
        return next(found, None)


class HttpServer(ThreadingHTTPServer):
    """A thread for each connection, over TLS."""

    api: ApiServer
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tls, self.certificate = server_context()
        self._connections: set[socket.socket] = set()

    def get_request(self) -> tuple[Any, Any]:
        connection, address = super().get_request()
        # The handshake is for the connection's own thread.
        wrapped = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        return wrapped, address

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        for each in list(self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave out what clients do that go away."""
        if not isinstance(sys.exception(), (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)

"""Forwards Ray's dashboard of a job on a cluster to a port of this machine.

    browser --> listener --port-forward through the API server--> port 8265 of the head's pod

Bytes are passed on unchanged, so Ray requires its token, which KubeRay stores in a secret. Each
connection looks up the head's pod: after a replacement of the head, a reload shows the new one.

Callers: `elasticdl job dashboard`.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.head import check_runs, running_head
from elasticdl.errors import ElasticDLError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.cluster.kubernetes_client import Kubernetes, Object

PORT = 8265
"""Port of Ray's dashboard in the head's pod."""

_CHUNK_BYTES = 1 << 16
_BETWEEN_TRIES_S = 2.0
_PROBE = b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
_RAY_CLUSTER = "ray.io/cluster"


def serve_dashboard(
    cluster: Kubernetes,
    name: str,
    port: int,
    print_fn: Callable[[str], None],
    on_state: Callable[[str], None],
) -> None:
    """Forward connections from a local port to the dashboard until the process is interrupted.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.
        port: Port on 127.0.0.1. 0: a free port.
        print_fn: Called with the URL, and with the login instructions, once the dashboard answers.
        on_state: Called with a description of each new state of the job, until the dashboard
            answers.

    Raises:
        UsageError: There is no such job, it has ended, or port forwarding is not allowed.
        UnavailableError: The port is in use.
    """
    try:
        server = _Listener(cluster, name, port)
    except OSError as error:
        raise UnavailableError(
            f"Cannot listen on 127.0.0.1:{port}: {error.strerror or error}. Use another --port; 0 "
            "selects a free one."
        ) from error
    with server, contextlib.suppress(KeyboardInterrupt):
        head = _wait(cluster, name, on_state)
        print_fn(f"Ray's dashboard: http://127.0.0.1:{server.server_address[1]}")
        print_fn(_login(cluster, head))
        server.serve_forever()


def _wait(cluster: Kubernetes, name: str, on_state: Callable[[str], None]) -> Object:
    """Wait until the dashboard in the head pod answers; return the head pod.

    While waiting, call `on_state` with each new state of the job.

    Raises:
        UsageError: There is no such job, it has ended, or port forwarding is not allowed.
        UnavailableError: The server does not answer.
    """
    reported = ""
    while True:
        state = check_runs(cluster, name)
        with contextlib.suppress(UnavailableError):
            head = running_head(cluster, name)
            if _answers(cluster.forward(head["metadata"]["name"], PORT)):
                return head
        if state != reported:
            on_state(state)
            reported = state
        threading.Event().wait(_BETWEEN_TRIES_S)


def _answers(link: Any) -> bool:
    with contextlib.closing(link), contextlib.suppress(OSError):
        link.settimeout(_BETWEEN_TRIES_S)
        link.sendall(_PROBE)
        return bool(link.recv(1))
    return False


def _login(cluster: Kubernetes, head: Object) -> str:
    """Return a sentence that tells the user which command prints the dashboard's token.

    The sentence does not contain the token itself.
    """
    ray_cluster = head["metadata"].get("labels", {}).get(_RAY_CLUSTER, "RAYCLUSTER")
    context = "" if cluster.context is None else f" --context={cluster.context}"
    return (
        f"The dashboard asks for a token, printed by: kubectl get secret {ray_cluster} "
        f"--namespace={cluster.namespace}{context} -o jsonpath='{{.data.auth_token}}' | base64 -d"
    )


class _Listener(socketserver.ThreadingTCPServer):
    """Server on a local port that handles each connection in its own thread."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, cluster: Kubernetes, name: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Connection)
        self.cluster, self.name = cluster, name

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore an error of a connection: the browser sees that it was closed, and retries."""


class _Connection(socketserver.BaseRequestHandler):
    server: _Listener

    def handle(self) -> None:
        """Pass bytes in both directions until one side closes the connection."""
        cluster = self.server.cluster
        try:
            head = running_head(cluster, self.server.name)
            link = cluster.forward(head["metadata"]["name"], PORT)
        except ElasticDLError as error:
            # An answer to any request, since browsers display it.
            body = f"{error}\n".encode()
            self.request.sendall(
                b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n"
                b"Content-Type: text/plain; charset=utf-8\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
            )
            return
        back = threading.Thread(target=_pass, args=(link, self.request), daemon=True)
        back.start()
        _pass(self.request, link)
        back.join()
        link.close()


def _pass(source: Any, target: Any) -> None:
    """Copy bytes until the source ends, then close both: HTTP needs no half-open connections."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK_BYTES):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)

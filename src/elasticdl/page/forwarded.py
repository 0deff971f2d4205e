"""Local proxy for the page of a job on a cluster: forwards requests to the head pod.

    browser --token of this machine--> proxy --port-forward, token of the pod--> page in the pod

The page in the pod reads the log directly from the job's disk, so it shows events that are not on
the object store yet. The proxy has its own token and URL, which stay the same when the head is
replaced and are not known in the cluster. It forwards only the path and the query of a request.

Callers: `api.py`, `cli/`.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from elasticdl.cluster.head import HeadPod, check_runs, connect, find_head
from elasticdl.errors import ElasticDLError, UnavailableError, UsageError
from elasticdl.page.security import new_token
from elasticdl.page.web_app import guarded
from elasticdl.page.web_server import DEFAULT_LISTEN, parse_address, serve_app

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from elasticdl.cluster.kubernetes_client import Kubernetes

_BETWEEN_TRIES_S = 2.0
# Longer than the keepalive interval of a page.
_SILENT_S = 60.0
_CHUNK_BYTES = 1 << 16
_KEPT = {"content-type", "content-security-policy"}
_PROBE = "/static/page.css"


class Forward:
    """HTTP client for the page in a job's head pod. Its methods are thread-safe.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.
    """

    def __init__(self, cluster: Kubernetes, name: str) -> None:
        self._cluster, self._name = cluster, name
        self._head: HeadPod | None = None

    def get(self, target: str) -> http.client.HTTPResponse:
        """Send a GET request and return the response, which the caller must close.

        Args:
            target: Path and query.

        Raises:
            UsageError: The job has no page, or port forwarding is not allowed.
            UnavailableError: The page does not respond now.
        """
        head = self._head or find_head(self._cluster, self._name)
        try:
            answer = self._answer(head, target)
        except Exception:
            # The head may have been replaced by another pod.
            self._head = None
            raise
        self._head = head
        return answer

    def answers(self) -> bool:
        """Return whether the page responds.

        Raises:
            UsageError: The job has no page, or port forwarding is not allowed.
        """
        try:
            with self.get(_PROBE) as answer:
                answer.read()
                return answer.status == http.client.OK
        except UnavailableError:
            return False

    def _answer(self, head: HeadPod, target: str) -> http.client.HTTPResponse:
        link = connect(self._cluster, head)
        connection = http.client.HTTPConnection("127.0.0.1", head.port)
        connection.sock = link
        try:
            link.settimeout(_SILENT_S)
            joint = "&" if "?" in target else "?"
            full = f"{target}{joint}{urlencode({'token': head.token})}"
            connection.request("GET", full, headers={"Connection": "close"})
            answer = connection.getresponse()
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            raise UnavailableError(
                f"The page in the pod {head.pod} does not answer. It answers only while the "
                "training runs."
            ) from error
        if answer.status == http.client.FORBIDDEN:
            # Another process listens there, or the pod has been replaced.
            answer.close()
            raise UnavailableError(
                f"The process that listens in the pod {head.pod} is not the job's page."
            )
        return answer


def create_proxy(forward: Forward, token: str, allowed_host: str = "") -> ASGIApp:
    """Create the ASGI application that forwards requests to the page.

    Args:
        forward: Sends the requests.
        token: The token that requests must carry.
        allowed_host: A host name that requests may have in their `Host` header, besides the names
            of this machine.
    """

    async def answer(request: Request) -> Response:
        query = [each for each in request.query_params.multi_items() if each[0] != "token"]
        target = quote(request.url.path) + (f"?{urlencode(query)}" if query else "")
        try:
            found = await run_in_threadpool(forward.get, target)
        except ElasticDLError as error:
            return PlainTextResponse(f"{error}\n", 503)
        headers = {name: text for name, text in found.getheaders() if name.lower() in _KEPT}
        return StreamingResponse(_chunks(found), found.status, headers)

    return guarded(Starlette(routes=[Route("/{path:path}", answer)]), token, allowed_host)


async def _chunks(answer: http.client.HTTPResponse) -> AsyncIterator[bytes]:
    """Yield the body of a response in chunks, as it arrives."""
    with contextlib.closing(answer):
        while True:
            try:
                chunk = await run_in_threadpool(answer.read1, _CHUNK_BYTES)
            except (http.client.HTTPException, OSError):
                # The pod is gone; browsers send a new request.
                return
            if not chunk:
                return
            yield chunk


def serve_forwarded(
    cluster: Kubernetes, name: str, listen: str, print_fn: Callable[[str], None],
    on_state: Callable[[str], None],
) -> None:  # fmt: skip
    """Serve the page of a job on a cluster until the process is interrupted or terminated.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.
        listen: `HOST:PORT` on this machine; port 0 selects a free port.
        print_fn: Called with the URL once the page responds.
        on_state: Called with the state of the job, in words, whenever it changes before the page
            responds.

    Raises:
        UsageError: `listen` is not an address, there is no such job, it has ended or has no page,
            or port forwarding is not allowed.
        UnavailableError: The port is in use, or the server does not answer.
    """
    host, _ = parse_address(listen)
    forward, reported = Forward(cluster, name), ""
    while True:
        state = check_runs(cluster, name)
        if forward.answers():
            break
        if state != reported:
            on_state(state)
            reported = state
        threading.Event().wait(_BETWEEN_TRIES_S)
    token = new_token()
    serve_app(create_proxy(forward, token, host), token, listen, print_fn)


class ForwardedPage:
    """The page of a job on a cluster, served in a thread until the `with` block ends.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.
        print_fn: Called in the thread with the URL once the page responds, or with the reason why
            there is none.
    """

    def __init__(self, cluster: Kubernetes, name: str, print_fn: Callable[[str], None]) -> None:
        self._forward, self._print_fn = Forward(cluster, name), print_fn
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="page", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        # The thread may be waiting for the server; it ends with the process.
        self._is_over.set()

    def _work(self) -> None:
        token = new_token()
        try:
            while not self._forward.answers():
                if self._is_over.wait(_BETWEEN_TRIES_S):
                    return
            app = create_proxy(self._forward, token)
            serve_app(app, token, DEFAULT_LISTEN, self._print_url, until=self._is_over)
        except (UnavailableError, UsageError) as error:
            self._print_fn(f"There is no job page: {error}")

    def _print_url(self, url: str) -> None:
        self._print_fn(f"Job page: {url}")

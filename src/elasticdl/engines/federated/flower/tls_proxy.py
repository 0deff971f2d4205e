"""TLS proxy: the only port of a federation that is reachable from outside.

    party  ==TLS==>  proxy  --TLS, on a socket of this user-->  superlink
                       |
                       '-- any path that is not a fleet route: 404

A superlink serves three interfaces on one port: fleet (for the parties), control (starts a run of
any code on all parties) and runtime. Flower's open-source version does not authenticate callers of
control. Therefore the superlink listens on a unix socket (`unix_socket.py`), and this proxy has an
exact list of the paths that it forwards. It sends the path from the list, never the requested one,
and no query.

It does not inspect bodies: they are streamed, and their size is limited. The superlink decides
which parties to accept, because it knows their keys; without keys, the proxy serves only processes
of this user.

It runs as a separate process: `python -m elasticdl.engines.federated.flower.tls_proxy`.

Callers: `superlink.py`.
"""

from __future__ import annotations

import argparse
import logging
import ssl
from collections.abc import AsyncIterator, Sequence

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from elasticdl.engines.federated.flower.same_user import restricted

# All routes that a supernode of Flower 1.41 uses.
FLEET = tuple(
    f"/v1/fleet/{name}"
    for name in (
        "register-node",
        "activate-node",
        "deactivate-node",
        "unregister-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)
HEALTH = "/health"
# Flower cuts arrays into objects of 5 MB, so only the JSON values can be larger.
MAX_BODY_BYTES = 128 * 2**20
# A supernode polls every 3 s, and a kept-alive connection saves a handshake each time.
_KEEP_ALIVE_S = 30
_UPSTREAM_S = 60.0
_MAX_CONNECTIONS = 1000
# These headers belong to one connection, and the superlink has another one.
_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
    *("transfer-encoding", "upgrade", "host", "server", "date"),
}

_log = logging.getLogger("elasticdl.front")


class _TooLargeError(Exception):
    pass


def application(upstream: httpx.AsyncClient, max_body_bytes: int = MAX_BODY_BYTES) -> Starlette:
    """Return the ASGI app that forwards fleet requests.

    Args:
        upstream: Client for the superlink, with its base URL.
        max_body_bytes: A longer body is refused with 413.
    """

    def passing(path: str) -> Route:
        async def pass_on(request: Request) -> Response:
            return await _pass_on(request, upstream, path, max_body_bytes)

        return Route(path, pass_on, methods=["POST"])

    async def health(_: Request) -> Response:
        try:
            answer = await upstream.get(HEALTH)
        except httpx.HTTPError:
            return PlainTextResponse("The superlink does not answer.", status_code=503)
        return PlainTextResponse("", status_code=answer.status_code)

    async def refuse(request: Request, _: Exception) -> Response:
        client = request.client.host if request.client else "?"
        # %r: a path may contain terminal control characters.
        _log.warning("refused %s %.200r from %s", request.method, request.url.path, client)
        return PlainTextResponse(
            "Only requests of the parties of a federation are served here.", status_code=404
        )

    app = Starlette(
        routes=[*map(passing, FLEET), Route(HEALTH, health, methods=["GET"])],
        exception_handlers={404: refuse, 405: refuse},
    )
    # No redirects: a path that differs by a trailing slash is not in the list.
    app.router.redirect_slashes = False
    return app


async def _pass_on(
    request: Request, upstream: httpx.AsyncClient, path: str, max_body_bytes: int
) -> Response:
    length = request.headers.get("content-length", "0")
    if not length.isdigit() or int(length) > max_body_bytes:
        return _too_large(max_body_bytes)
    onward = upstream.build_request(
        "POST",
        path,
        headers=[(name, value) for name, value in request.headers.raw if _passes(name)],
        content=_bounded(request, max_body_bytes),
    )
    try:
        answer = await upstream.send(onward, stream=True)
    except _TooLargeError:
        return _too_large(max_body_bytes)
    except ClientDisconnect:
        return Response(status_code=400)
    except httpx.HTTPError as error:
        _log.warning("the superlink does not answer: %s", type(error).__name__)
        # A supernode retries after status 503.
        return PlainTextResponse("The superlink does not answer.", status_code=503)
    passed = StreamingResponse(
        answer.aiter_raw(), status_code=answer.status_code, background=BackgroundTask(answer.aclose)
    )
    passed.raw_headers = [(name, value) for name, value in answer.headers.raw if _passes(name)]
    return passed


def _passes(name: bytes) -> bool:
    return name.decode("latin-1").lower() not in _HOP_BY_HOP


async def _bounded(request: Request, max_body_bytes: int) -> AsyncIterator[bytes]:
    num_bytes = 0
    async for piece in request.stream():
        num_bytes += len(piece)
        if num_bytes > max_body_bytes:
            raise _TooLargeError
        yield piece


def _too_large(max_body_bytes: int) -> Response:
    return PlainTextResponse(
        f"The request body exceeds the limit of {max_body_bytes} bytes.", status_code=413
    )


def serve(
    host: str,
    port: int,
    upstream: str,
    upstream_socket: str,
    *,
    ca: str | None,
    certificate: str | None,
    key: str | None,
    client_ca: str | None = None,
) -> None:
    """Run the proxy until the process receives a signal to end.

    Args:
        host: The address to listen on.
        port: The port to listen on.
        upstream: URL of the superlink, without a path: its scheme, and the host name in its
            certificate.
        upstream_socket: The superlink's unix socket.
        ca: Certificate of the authority that signed the superlink's certificate; None if the
            superlink speaks plain HTTP.
        certificate: The proxy's certificate. None: serve plain HTTP, and only to this user.
        key: Private key of the certificate.
        client_ca: If given, clients must present a certificate signed by this authority.
    """
    trusted = ssl.create_default_context(cafile=ca) if ca else False
    limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE_S)
    client = httpx.AsyncClient(
        base_url=upstream,
        # An explicit transport ignores the proxy variables of the environment.
        transport=httpx.AsyncHTTPTransport(verify=trusted, limits=limits, uds=upstream_socket),
        timeout=_UPSTREAM_S,
    )
    app = application(client)
    uvicorn.run(
        app if certificate else restricted(app),
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        ssl_ca_certs=client_ca,
        ssl_cert_reqs=ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        server_header=False,
        access_log=False,
        log_level="warning",
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the proxy with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m elasticdl.engines.federated.flower.tls_proxy")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--upstream_socket", required=True)
    for name in ("ca", "certificate", "key", "client_ca"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    serve(
        given.host,
        given.port,
        given.upstream,
        given.upstream_socket,
        ca=given.ca,
        certificate=given.certificate,
        key=given.key,
        client_ca=given.client_ca,
    )


if __name__ == "__main__":
    main()

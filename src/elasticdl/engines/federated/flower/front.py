"""The one port of a federation that is reachable from outside.

    party  ==TLS==>  front  --TLS, a socket of this user's-->  superlink
                       |
                       '-- whatever is no fleet route: 404

A superlink serves three interfaces on one port: fleet (what parties need), control (start a run of
any code on all parties) and runtime. Flower's open version does not ask who calls control. So the
superlink listens on a unix socket (`local.py`), and here is an exact list of what passes. What is
sent on is the path from the list, never the one that was asked for, and no query.

It looks into no body: bodies pass in pieces and are bounded. Who may be a party is the superlink's
business, which knows their keys; without keys, only this user's processes are served.

A process of its own: `python -m elasticdl.engines.federated.flower.front`. Callers: `superlink.py`.
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

# All that a supernode of Flower 1.41 asks for.
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
# Flower cuts arrays into objects of 5 MB; what is left are facts.
MAX_BODY_BYTES = 128 * 2**20
# A supernode asks every 3 s; connections that are kept save it a handshake each time.
_KEEP_ALIVE_S = 30
_UPSTREAM_S = 60.0
_MAX_CONNECTIONS = 1000
# They are about a connection, and there is another one behind this.
_HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
    *("transfer-encoding", "upgrade", "host", "server", "date"),
}

_log = logging.getLogger("elasticdl.front")


class _TooLargeError(Exception):
    pass


def application(upstream: httpx.AsyncClient, max_body_bytes: int = MAX_BODY_BYTES) -> Starlette:
    """Return the app that passes fleet requests on.

    Args:
        upstream: Its base URL is the superlink's.
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
        # %r: a path may hold what a terminal obeys.
        _log.warning("refused %s %.200r from %s", request.method, request.url.path, client)
        return PlainTextResponse("Only parties of a federation are served here.", status_code=404)

    app = Starlette(
        routes=[*map(passing, FLEET), Route(HEALTH, health, methods=["GET"])],
        exception_handlers={404: refuse, 405: refuse},
    )
    # A path that differs by a slash is another path.
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
        # A supernode tries again after this one.
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
    return PlainTextResponse(f"A body has at most {max_body_bytes} bytes.", status_code=413)


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
    """Serve until the process is told to end.

    Args:
        host: The address to listen on.
        port: The port to listen on.
        upstream: URL of the superlink, without a path: its scheme, and the name of its certificate.
        upstream_socket: Where it listens.
        ca: Who signed the superlink's certificate; None if it speaks plain HTTP.
        certificate: The server's certificate; None for plain HTTP, and for this user only.
        key: Its private key.
        client_ca: If given, a client must show a certificate that it has signed.
    """
    trusted = ssl.create_default_context(cafile=ca) if ca else False
    limits = httpx.Limits(max_connections=None, keepalive_expiry=_KEEP_ALIVE_S)
    client = httpx.AsyncClient(
        base_url=upstream,
        # With a transport of its own it uses no proxy of the environment's.
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
    """Serve what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m elasticdl.engines.federated.flower.front")
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

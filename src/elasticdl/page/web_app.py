"""Request handlers of the job page: what each URL returns. `web_server.py` starts the server.

    GET /            the page; sets a cookie from ?token=
    GET /jobs.json   one row per job, with its loss curve
    GET /state.json  ?job=NAME: all sections of a job's page
    GET /events      ?job=NAME: server-sent events; each has the sections that have changed
    GET /report      ?job=NAME&name=...: the page of an evaluation report
    GET /static/...  scripts and styles

The page is drawn in the browser by `static/page.js`, from the sections that `view.py` builds. The
server only reads. Processing a log uses CPU time, so it runs in threads, and only while the page
has a viewer. Callers: `web_server.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from elasticdl.errors import OutputError
from elasticdl.page.outputs import WatchedOutput
from elasticdl.page.redaction import shown_text
from elasticdl.page.security import HEADERS, REPORT_POLICY, is_own_host, is_token

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_INTERVAL_S = 1.0
# Keepalive interval: proxies close idle connections, and only a write detects a closed browser.
_KEEP_ALIVE_S = 15.0
_TYPES = {".css": "text/css", ".html": "text/html", ".js": "text/javascript"}

Outputs = Mapping[str, WatchedOutput]


def create_app(find: Callable[[], Outputs], token: str, allowed_host: str = "") -> ASGIApp:
    """Create the ASGI application of the job page.

    Args:
        find: Function () -> outputs to show, by name; called repeatedly to find new ones.
        token: The token that requests must carry.
        allowed_host: A host name that requests may have in their `Host` header, besides the names
            of this machine.
    """
    site = _Site(find)
    routes = [
        Route("/", site.page),
        Route("/jobs.json", site.jobs),
        Route("/state.json", site.state),
        Route("/events", site.events),
        Route("/report", site.report),
        Route("/static/{name}", site.static),
    ]
    return guarded(Starlette(routes=routes), token, allowed_host)


def guarded(app: ASGIApp, token: str, allowed_host: str = "") -> ASGIApp:
    """Wrap an application so that it rejects requests that `security.py` does not allow.

    Args:
        app: The application.
        token: The token that requests must carry.
        allowed_host: A host name that requests may have in their `Host` header, besides the names
            of this machine.
    """
    return _Guard(app, token, allowed_host)


class _Guard:
    """ASGI middleware that rejects unauthorized requests and adds headers to each response."""

    def __init__(self, app: ASGIApp, token: str, allowed_host: str) -> None:
        self._app, self._token, self._allowed_host = app, token, allowed_host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check a request and pass it on; implements the ASGI protocol."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from starlette.requests import Request  # noqa: PLC0415 - only its type is needed above

        request = Request(scope)
        refusal, cookie = self._refusal(request), ""
        if refusal is None and "token" in request.query_params:
            name = _cookie_name(request)
            cookie = f"{name}={self._token}; HttpOnly; SameSite=Strict; Path=/"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                has = {name.lower() for name, _ in message["headers"]}
                added = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [
                    *message["headers"],
                    *(pair for pair in added if pair[0] not in has),
                    *([(b"set-cookie", cookie.encode())] if cookie else []),
                ]
            await send(message)

        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        if not is_own_host(request.headers.get("host", ""), self._allowed_host):
            return PlainTextResponse(
                "This page is served only under this machine's own name or address. Open the URL "
                "shown in the terminal.\n",
                421,
            )
        given = request.query_params.get("token")
        if given is None:
            given = request.cookies.get(_cookie_name(request))
        if not is_token(given, self._token):
            return PlainTextResponse(
                "The token is missing or wrong. Open the complete URL shown in the terminal, "
                "including ?token=... at its end.\n",
                403,
            )
        return None


def _cookie_name(request: Request) -> str:
    # Cookies belong to a host, not to a port, so each page on this machine needs its own name.
    server = request.scope.get("server")
    return f"elasticdl_page_{server[1] if server else 0}"


class _Site:
    """Request handlers of the job page, one for each URL such as `/jobs.json` and `/events`.

    Args:
        find: Function () -> outputs to show, by name; called repeatedly to find new ones.
    """

    def __init__(self, find: Callable[[], Outputs]) -> None:
        self._find = find
        self._outputs: Outputs = {}

    async def page(self, request: Request) -> Response:
        """Handle `/`: the HTML page."""
        del request
        return _static("page.html")

    async def static(self, request: Request) -> Response:
        """Handle `/static`: a script or a style sheet."""
        return _static(request.path_params["name"])

    async def jobs(self, request: Request) -> Response:
        """Handle `/jobs.json`: one row per job."""
        del request
        return await run_in_threadpool(self._jobs)

    async def state(self, request: Request) -> Response:
        """Handle `/state.json`: all sections of a job."""
        output = await run_in_threadpool(self._output, request)
        if output is None:
            return _no_such_job()
        return _json(await run_in_threadpool(output.sections))

    async def report(self, request: Request) -> Response:
        """Handle `/report`: the HTML page of a report, with scripts disabled."""
        output = await run_in_threadpool(self._output, request)
        if output is None:
            return _no_such_job()
        try:
            name = request.query_params.get("name", "")
            data = await run_in_threadpool(output.read_report, name)
        except OutputError as error:
            return PlainTextResponse(f"{error}\n", 404)
        return Response(
            data, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY}
        )

    async def events(self, request: Request) -> Response:
        """Handle `/events`: stream the changes of a job until the client disconnects."""
        output = await run_in_threadpool(self._output, request)
        if output is None:
            return _no_such_job()
        return StreamingResponse(_changes(output), media_type="text/event-stream")

    def _jobs(self) -> Response:
        try:
            self._outputs = self._find()
        except OutputError as error:
            # All outputs were removed. Their pages show the last known state.
            if not self._outputs:
                return PlainTextResponse(f"{error}\n", 404)
        rows = [output.row() for output in self._outputs.values()]
        return _json({"jobs": rows, "now": time.time()})

    def _output(self, request: Request) -> WatchedOutput | None:
        if not self._outputs:
            with contextlib.suppress(OutputError):
                self._outputs = self._find()
        wanted = request.query_params.get("job")
        for name, output in self._outputs.items():
            # Browsers send the displayed name of a job.
            if wanted is None or wanted in {name, shown_text(name)}:
                return output
        return None


async def _changes(output: WatchedOutput) -> AsyncIterator[bytes]:
    """Yield server-sent events, each with the sections that changed since the previous one."""
    sent: dict[str, str] = {}
    sent_s = 0.0
    while True:
        texts = await run_in_threadpool(output.texts)
        changed = {name: text for name, text in texts.items() if sent.get(name) != text}
        if changed:
            # Sections are JSON already.
            body = ",".join(f"{json.dumps(name)}:{text}" for name, text in changed.items())
            yield f"data: {{{body}}}\n\n".encode()
            sent, sent_s = texts, time.monotonic()
        elif time.monotonic() - sent_s > _KEEP_ALIVE_S:
            yield b": still here\n\n"
            sent_s = time.monotonic()
        await asyncio.sleep(_INTERVAL_S)


def _static(name: str) -> Response:
    suffix = "." + name.rpartition(".")[2]
    source = files("elasticdl.page") / "static" / name
    names = {each.name for each in files("elasticdl.page").joinpath("static").iterdir()}
    if suffix not in _TYPES or name not in names:
        return PlainTextResponse("File not found.\n", 404)
    return Response(source.read_bytes(), media_type=_TYPES[suffix])


def _json(value: Any) -> Response:
    # ASCII: a name may have characters that UTF-8 cannot represent.
    return Response(json.dumps(value), media_type="application/json")


def _no_such_job() -> Response:
    return PlainTextResponse("There is no job with this name.\n", 404)

"""The HTTP side: paths and verbs to the store, lists and watches, logs."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.cluster.api_server import patches, replies
from tests.cluster.api_server.access import ANONYMOUS, Access, Fault
from tests.cluster.api_server.admission import Schema, check_metadata, encode_secret
from tests.cluster.api_server.certificate import server_context
from tests.cluster.api_server.resources import (
    ACCESS_REVIEWS,
    BUILT_IN,
    CRDS,
    KUBERAY,
    NAMESPACES,
    PODS,
    RAYJOBS,
    SECRETS,
    Object,
    Resource,
    custom_resource_definition,
    discovery,
)
from tests.cluster.api_server.selectors import selector
from tests.cluster.api_server.store import Admit, Change, PodLog, Store

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_BOOKMARKS_S = 1.0


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
        self._http = _HttpServer(("127.0.0.1", 0), _Handler)
        self._http.api = self
        self.certificate = self._http.certificate
        self.url = f"https://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> ApiServer:
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut_watches()
        self._http.shutdown()
        self._http.server_close()
        self._http.reset_connections()

    def cut_watches(self) -> None:
        """Reset the connections of all watches and logs that are followed."""
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


class _CutError(Exception):
    """The connection is to be reset."""


class _HttpServer(ThreadingHTTPServer):
    api: ApiServer
    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tls, self.certificate = server_context()
        self._connections: set[socket.socket] = set()
        # Those that are closed without saying so first.
        self.reset: set[socket.socket] = set()

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
        if request in self.reset:
            self.reset.discard(request)
            return self.close_request(request)
        return super().shutdown_request(request)

    def reset_connections(self) -> None:
        for each in list(self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave out what clients do that go away."""
        import sys

        if not isinstance(sys.exception(), (ConnectionError, ssl.SSLError)):
            super().handle_error(request, client_address)


@dataclass(frozen=True)
class _Request:
    """One request, as a rule of access would describe it."""

    resource: Resource
    verb: str
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun") == "All"

    @cached_property
    def matches(self) -> Callable[[Object], bool]:
        labels, fields = self.query.get("labelSelector", ""), self.query.get("fieldSelector", "")
        if self.verb == "watch" and self.name:
            fields = f"metadata.name={self.name}"
        return selector(self.resource, labels, fields)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Else the status line and each header are packets of their own.
    wbufsize = -1
    server: _HttpServer

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def _answer(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._warnings: list[str] = []
        try:
            self._dispatch(self.server.api)
        except replies.Refusal as refusal:
            self._reply(refusal.body, refusal.code, refusal.headers)
        except _CutError:
            # Closing it resets it, then.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.server.reset.add(self.connection)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _dispatch(self, api: ApiServer) -> None:
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query))
        authorization = self.headers.get("Authorization")
        user = ANONYMOUS
        if authorization is not None:
            user = api.users.get(authorization.removeprefix("Bearer "), "")
            if not user:
                raise replies.unauthorized()
        if self.command == "GET" and (found := discovery(api.resources, address.path)):
            return self._reply(found)
        request = _parsed(api, self.command, address.path, query)
        if request is None:
            return self._reply_text("404 page not found\n", 404)
        api.requests.append(f"{request.verb} {request.resource.qualified}")
        name = request.name
        if request.verb == "create":
            name = self._json().get("metadata", {}).get("name", "")
        for fault in api.faults:
            fault.strike(request.verb, request.resource, name)
        api.access.check(user, request.verb, request.resource, request.subresource,
                         request.namespace, request.name)  # fmt: skip
        return self._done(api, request)

    def _done(self, api: ApiServer, asked: _Request) -> None:
        store, where = api.store, (asked.resource, asked.namespace)
        if asked.subresource == "log":
            return self._send_log(api, asked)
        match asked.verb:
            case "create":
                body = self._json()
                if asked.resource is ACCESS_REVIEWS:
                    return self._reply({**body, "status": api.access.review(body["spec"])}, 201)
                self._check_body(asked, body)
                admit = self._admission(api, asked)
                return self._reply(store.create(*where, body, admit, dry_run=asked.dry_run), 201)
            case "get":
                return self._reply(store.get(*where, asked.name))
            case "list":
                return self._list(store, asked)
            case "watch":
                return self._watch(api, asked)
            case "deletecollection":
                found = store.list(*where, asked.matches)
                for each in found:
                    namespace = each["metadata"].get("namespace", "")
                    store.delete(asked.resource, namespace, each["metadata"]["name"],
                                 **self._deletion(asked))  # fmt: skip
                return self._reply(_listed(asked.resource, found, store.version))
            case "delete":
                found, is_gone = store.delete(*where, asked.name, **self._deletion(asked))
                if is_gone and asked.resource is not PODS:
                    uid = found["metadata"]["uid"]
                    found = replies.success(asked.resource, asked.name, uid)
                return self._reply(found)
            case _:
                admit = self._admission(api, asked)
                found = store.update(*where, asked.name, self._change(asked), admit,
                                     subresource=asked.subresource,
                                     dry_run=asked.dry_run)  # fmt: skip
                return self._reply(found)

    def _json(self) -> Any:
        if "json" not in self.headers.get("Content-Type", "json"):
            raise replies.unsupported_media_type(["application/json"])
        try:
            return json.loads(self._body or b"{}")
        except ValueError as error:
            raise replies.bad_request(f"the object provided is unrecognized: {error}") from None

    def _check_body(self, asked: _Request, body: Object) -> None:
        resource = asked.resource
        kind = (body.get("apiVersion", resource.api_version), body.get("kind", resource.kind))
        if kind != (resource.api_version, resource.kind):
            raise replies.bad_request(
                f"the API version in the data ({kind[0]}, Kind={kind[1]}) does not match the "
                f"expected API version ({resource.api_version}, Kind={resource.kind})"
            )
        name = body.get("metadata", {}).get("name", asked.name)
        if asked.name and name != asked.name:
            raise replies.bad_request(
                f"the name of the object ({name}) does not match the name on the URL ({asked.name})"
            )
        namespace = body.get("metadata", {}).get("namespace", asked.namespace)
        if namespace != asked.namespace:
            raise replies.bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )

    def _change(self, asked: _Request) -> Callable[[Object], Object]:
        """Return what a PUT or PATCH makes of an object."""
        if asked.verb == "update":
            whole = self._json()
            self._check_body(asked, whole)
            return lambda _: whole
        accepted = [patches.JSON, patches.MERGE]
        if not asked.resource.is_custom:
            accepted.append(patches.STRATEGIC)
        content_type = self.headers.get_content_type()
        if content_type not in accepted:
            raise replies.unsupported_media_type(accepted)
        body = self._json()

        def change(old: Object) -> Object:
            new = patches.patched(content_type, old, body)
            self._check_body(asked, new)
            return new

        return change

    def _admission(self, api: ApiServer, asked: _Request) -> Admit:
        schema = api.schemas.get(asked.resource)

        def admit(new: Object) -> None:
            if schema is not None:
                how = asked.query.get("fieldValidation", "Warn")
                self._warnings += schema.remove_unknown(new, how)
            check_metadata(asked.resource, new)
            if asked.resource is SECRETS:
                encode_secret(new)
            if schema is not None:
                schema.check(new)

        return admit

    def _deletion(self, asked: _Request) -> dict[str, Any]:
        options = {**asked.query, **self._json()}
        grace_s = options.get("gracePeriodSeconds")
        return {
            "propagation": options.get("propagationPolicy", "Background"),
            "grace_s": None if grace_s is None else int(grace_s),
            "preconditions": options.get("preconditions"),
            "dry_run": asked.dry_run or options.get("dryRun") == ["All"],
        }

    def _list(self, store: Store, asked: _Request) -> None:
        with store.changed:
            found = store.list(asked.resource, asked.namespace, asked.matches)
            version = store.version
        self._reply(_listed(asked.resource, found, version))

    def _watch(self, api: ApiServer, asked: _Request) -> None:
        store, cuts = api.store, api.cuts
        end = time.monotonic() + float(asked.query.get("timeoutSeconds", 1800))
        self._begin_stream("application/json")
        version = int(asked.query.get("resourceVersion") or 0)
        with store.changed:
            if version and version < store.oldest_version:
                error = {
                    "type": "ERROR",
                    "object": replies.gone(version, store.oldest_version).body,
                }
                self._send_event(error)
                return self._end_stream()
            found = []
            if not version:
                found = store.list(asked.resource, asked.namespace, asked.matches)
                version = store.version
        for each in found:
            self._send_event({"type": "ADDED", "object": each})
        bookmark = time.monotonic() + _BOOKMARKS_S
        while (left := end - time.monotonic()) > 0:
            until_bookmark = bookmark - time.monotonic()
            with store.changed:
                changes = store.changes(asked.resource, version, min(left, until_bookmark))
                version = store.version
            for change in changes:
                if (event := _event(change, asked)) is not None:
                    self._send_event(event)
            if api.cuts != cuts:
                raise _CutError
            if time.monotonic() >= bookmark:
                self._send_bookmark(asked, version)
                bookmark += _BOOKMARKS_S
        self._send_bookmark(asked, version)
        return self._end_stream()

    def _send_bookmark(self, asked: _Request, version: int) -> None:
        if asked.query.get("allowWatchBookmarks") == "true":
            body = {"kind": asked.resource.kind, "apiVersion": asked.resource.api_version,
                    "metadata": {"resourceVersion": str(version)}}  # fmt: skip
            self._send_event({"type": "BOOKMARK", "object": body})

    def _send_log(self, api: ApiServer, asked: _Request) -> None:
        pod = api.store.get(PODS, asked.namespace, asked.name)
        states = pod["status"].get("containerStatuses", [{}])
        waiting = states[0].get("state", {}).get("waiting", {}).get("reason")
        if waiting is not None or pod["status"]["phase"] == "Pending":
            container = pod["spec"]["containers"][0]["name"]
            why = waiting or "ContainerCreating"
            if why in {"ImagePullBackOff", "ErrImagePull"}:
                why = "trying and failing to pull image"
            raise replies.bad_request(
                f'container "{container}" in pod "{asked.name}" is waiting to start: {why}'
            )
        log, cuts = api.log(asked.namespace, asked.name), api.cuts
        with api.store.changed:
            start, end = 0, len(log.lines)
        if since := asked.query.get("sinceSeconds"):
            oldest = time.time() - float(since)
        else:
            since = asked.query.get("sinceTime")
            oldest = datetime.fromisoformat(since).timestamp() if since else 0.0
        while start < end and log.lines[start][0] < oldest:
            start += 1
        if "tailLines" in asked.query:
            start = max(start, end - int(asked.query["tailLines"]))
        with_times = asked.query.get("timestamps") == "true"
        if asked.query.get("follow") != "true":
            return self._reply_text(
                "".join(_line(*each, with_times) for each in log.lines[start:end])
            )
        self._begin_stream("text/plain")
        for moment, line in log.follow(start, lambda: api.cuts != cuts):
            self._send_chunk(_line(moment, line, with_times))
        if api.cuts != cuts:
            raise _CutError
        return self._end_stream()

    def _reply(self, body: Object, code: int = 200, headers: Mapping[str, str] = {}) -> None:
        headers = {**headers, "Content-Type": "application/json"}
        self._send(code, headers, json.dumps(body).encode())

    def _reply_text(self, text: str, code: int = 200) -> None:
        self._send(code, {"Content-Type": "text/plain"}, text.encode())

    def _send(self, code: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        for each in self._warnings:
            self.send_header("Warning", f"299 - {json.dumps(each)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _begin_stream(self, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _send_event(self, event: Object) -> None:
        self._send_chunk(json.dumps(event) + "\n")

    def _send_chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _end_stream(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


def _parsed(api: ApiServer, method: str, path: str, query: Mapping[str, str]) -> _Request | None:
    """Return what a path and a method ask for, or None if there is no such path."""
    match path.strip("/").split("/"):
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] != "status":
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", "", ""][:3]
    resource = api.resource(group, version, plural)
    if resource is None or len(rest) > 3:
        return None
    parts = {"status"} if resource.has_status else set()
    if subresource and subresource not in parts | ({"log"} if resource is PODS else set()):
        return None
    if method == "GET":
        is_watch = query.get("watch") in {"true", "True", "1"}
        verb = "watch" if is_watch else "get" if name else "list"
    else:
        verb = _VERBS[method]
        if verb == "delete" and not name:
            verb = "deletecollection"
    return _Request(resource, verb, namespace, name, subresource, query)


def _listed(resource: Resource, items: list[Object], version: int) -> Object:
    return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(version)}, "items": items}  # fmt: skip


def _event(change: Change, asked: _Request) -> Object | None:
    """Return what a watch is told of a change: what leaves its selection is deleted for it."""
    before, after = change.before, change.after
    shown = after or before
    if asked.namespace and shown["metadata"].get("namespace") != asked.namespace:
        return None
    was = before is not None and asked.matches(before)
    if after is None:
        return {"type": "DELETED", "object": before} if was else None
    if not asked.matches(after):
        version = after["metadata"]["resourceVersion"]
        last = (
            {**before, "metadata": {**before["metadata"], "resourceVersion": version}}
            if was
            else {}
        )
        return {"type": "DELETED", "object": last} if was else None
    return {"type": "MODIFIED" if was else "ADDED", "object": after}


def _line(moment: float, line: str, with_time: bool) -> str:
    if not with_time:
        return f"{line}\n"
    stamp = datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
    return f"{stamp} {line}\n"

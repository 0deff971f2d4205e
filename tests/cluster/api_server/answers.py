"""Verbs to the store, and what comes of it to HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from tests.cluster.api_server import forwarding, patches, replies, streams
from tests.cluster.api_server.access import ANONYMOUS
from tests.cluster.api_server.admission import check_metadata
from tests.cluster.api_server.paths import Request, parsed
from tests.cluster.api_server.resources import (
    ACCESS_REVIEWS,
    PODS,
    Object,
    Resource,
    discovery,
)

if TYPE_CHECKING:
    from tests.cluster.api_server.server import ApiServer, HttpServer
    from tests.cluster.api_server.store import Admit

_ONLY_METADATA = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1"


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection, one after another."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Else the status line and each header are packets of their own.
    wbufsize = -1
    server: HttpServer

    def log_message(self, *_: Any) -> None:
        """Be quiet."""

    def _answer(self) -> None:
        self._body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._warnings: list[str] = []
        try:
            self._dispatch(self.server.api)
        except replies.Refusal as refusal:
            self._reply(refusal.body, refusal.code, refusal.headers)
        except streams.CutError:
            # Without the last chunk: to a client the same as a reset, since TLS hides which it is.
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - as its base class wants

    def _dispatch(self, api: ApiServer) -> None:
        address = urlsplit(self.path)
        query = dict(parse_qsl(address.query))
        authorization = self.headers.get("Authorization")
        user = ANONYMOUS
        if authorization is not None:
            user = api.users.get(authorization.removeprefix("Bearer "), "")
            if not user:
                raise replies.unauthorized()
        self._user = user
        if self.command == "GET" and (found := discovery(api.resources, address.path)):
            return self._reply(found)
        request = parsed(api, self.command, address.path, query)
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
        return getattr(self, f"_{request.verb}")(api, request)

    def _create(self, api: ApiServer, asked: Request) -> None:
        body = self._json()
        if asked.resource is ACCESS_REVIEWS:
            return self._reply({**body, "status": api.access.review(body["spec"])}, 201)
        self._check_body(asked, body)
        admit = self._admission(api, asked)
        made = api.store.create(asked.resource, asked.namespace, body, admit,
                                dry_run=asked.dry_run)  # fmt: skip
        return self._reply(made, 201)

    def _get(self, api: ApiServer, asked: Request) -> None:
        if asked.subresource == "portforward":
            # Over a websocket it is a GET, and the right to create is asked for as well.
            api.access.check(self._user, "create", asked.resource, asked.subresource,
                             asked.namespace, asked.name)  # fmt: skip
            return forwarding.forward(self, api, asked)
        if asked.subresource != "log":
            found = api.store.get(asked.resource, asked.namespace, asked.name)
            if _ONLY_METADATA in self.headers.get("Accept", ""):
                found = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
                         "metadata": found["metadata"]}  # fmt: skip
            return self._reply(found)
        lines = streams.log(api, asked)
        if asked.query.get("follow") == "true":
            return self._stream(lines, "text/plain")
        return self._reply_text("".join(lines))

    def _list(self, api: ApiServer, asked: Request) -> None:
        with api.store.changed:
            found = api.store.list(asked.resource, asked.namespace, asked.matches)
            version = api.store.version
        self._reply(_listed(asked.resource, found, version))

    def _watch(self, api: ApiServer, asked: Request) -> None:
        # Refuses a wrong selector while it still can.
        _ = asked.matches
        lines = (f"{json.dumps(event)}\n" for event in streams.watch(api, asked))
        self._stream(lines, "application/json")

    def _update(self, api: ApiServer, asked: Request) -> None:
        admit = self._admission(api, asked)
        made = api.store.update(asked.resource, asked.namespace, asked.name, self._change(asked),
                                admit, subresource=asked.subresource,
                                dry_run=asked.dry_run)  # fmt: skip
        self._reply(made)

    _patch = _update

    def _delete(self, api: ApiServer, asked: Request) -> None:
        found, is_gone = api.store.delete(asked.resource, asked.namespace, asked.name,
                                          **self._deletion(asked))  # fmt: skip
        if is_gone and asked.resource is not PODS:
            found = replies.success(asked.resource, asked.name, found["metadata"]["uid"])
        self._reply(found)

    def _deletecollection(self, api: ApiServer, asked: Request) -> None:
        found = api.store.list(asked.resource, asked.namespace, asked.matches)
        for each in found:
            metadata = each["metadata"]
            api.store.delete(asked.resource, metadata.get("namespace", ""), metadata["name"],
                             **self._deletion(asked))  # fmt: skip
        self._reply(_listed(asked.resource, found, api.store.version))

    def _json(self) -> Any:
        if "json" not in self.headers.get("Content-Type", "json"):
            raise replies.unsupported_media_type(["application/json"])
        try:
            return json.loads(self._body or b"{}")
        except ValueError as error:
            raise replies.bad_request(f"the object provided is unrecognized: {error}") from None

    def _check_body(self, asked: Request, body: Object) -> None:
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

    def _change(self, asked: Request) -> Callable[[Object], Object]:
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

    def _admission(self, api: ApiServer, asked: Request) -> Admit:
        schema = api.schemas.get(asked.resource)

        def admit(new: Object) -> None:
            if schema is not None:
                how = asked.query.get("fieldValidation", "Warn")
                self._warnings += schema.remove_unknown(new, how)
            check_metadata(asked.resource, new)
            if schema is not None:
                schema.check(new)

        return admit

    def _deletion(self, asked: Request) -> dict[str, Any]:
        options = {**asked.query, **self._json()}
        grace_s = options.get("gracePeriodSeconds")
        return {
            "propagation": options.get("propagationPolicy", "Background"),
            "grace_s": None if grace_s is None else int(grace_s),
            "preconditions": options.get("preconditions"),
            "dry_run": asked.dry_run or options.get("dryRun") == ["All"],
        }

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

    def _stream(self, chunks: Iterable[str], content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for chunk in chunks:
            data = chunk.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def _listed(resource: Resource, items: list[Object], version: int) -> Object:
    return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version,
            "metadata": {"resourceVersion": str(version)}, "items": items}  # fmt: skip

"""What a path and a method ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from tests.cluster.api_server.resources import PODS, Object, Resource
from tests.cluster.api_server.selection import selector

if TYPE_CHECKING:
    from tests.cluster.api_server.server import ApiServer

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Request:
    """One request, in the words of a role: a verb and a resource."""

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


def parsed(api: ApiServer, method: str, path: str, query: Mapping[str, str]) -> Request | None:
    """Return a request, or None if there is no such path."""
    match path.strip("/").split("/"):
        case ["api", "v1", *rest]:
            group, version = "", "v1"
        case ["apis", group, version, *rest]:
            pass
        case _:
            return None
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", "", ""][:3]
    resource = api.resource(group, version, plural)
    if resource is None or len(rest) > 3:
        return None
    parts = {"log", "portforward"} if resource is PODS else set()
    if subresource not in {"", "status" * resource.has_status, *parts}:
        return None
    if method == "GET":
        is_watch = query.get("watch") in {"true", "True", "1"}
        verb = "watch" if is_watch else "get" if name else "list"
    else:
        verb = _VERBS[method] if name or method != "DELETE" else "deletecollection"
    return Request(resource, verb, namespace, name, subresource, query)

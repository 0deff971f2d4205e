"""Which objects a list or a watch asks for: `labelSelector` and `fieldSelector`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.cluster.api_server.replies import bad_request

if TYPE_CHECKING:
    from tests.cluster.api_server.resources import Object, Resource

Matches = Callable[["Object"], bool]
_KEY = r"([\w.\-/]+)"
_IN_SET = re.compile(rf"{_KEY}\s+(in|notin)\s+\(([^()]*)\)")
_EQUALS = re.compile(rf"{_KEY}\s*(==|=|!=)\s*([\w.\-]*)")
_EXISTS = re.compile(rf"(!?)\s*{_KEY}")


def selector(resource: Resource, labels: str, fields: str) -> Matches:
    """Return a function that says whether an object is selected."""
    wanted = [_label(part) for part in re.split(r",(?![^()]*\))", labels) if part.strip()]
    wanted += [_field(resource, part) for part in fields.split(",") if part]
    return lambda found: all(matches(found) for matches in wanted)


def _label(part: str) -> Matches:
    part = part.strip()
    if match := _IN_SET.fullmatch(part):
        key, operator, listed = match.groups()
        values = {each.strip() for each in listed.split(",")}
        return lambda found: (_labels(found).get(key) in values) == (operator == "in")
    if match := _EQUALS.fullmatch(part):
        key, operator, value = match.groups()
        return lambda found: (_labels(found).get(key) == value) == (operator != "!=")
    if match := _EXISTS.fullmatch(part):
        absent, key = match.groups()
        return lambda found: (key in _labels(found)) != bool(absent)
    raise bad_request(f"unable to parse requirement: found '{part}', expected: an operator")


def _labels(found: Object) -> dict[str, str]:
    return found["metadata"].get("labels") or {}


def _field(resource: Resource, part: str) -> Matches:
    match = re.fullmatch(r"([\w.]+)(==|=|!=)(.*)", part)
    if match is None:
        raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
    path, operator, value = match.groups()
    if path not in resource.selectable:
        raise bad_request(f"field label not supported: {path}")

    def matches(found: Object) -> bool:
        for name in path.split("."):
            found = found.get(name, {}) if isinstance(found, dict) else {}
        return ((found or "") == value) == (operator != "!=")

    return matches

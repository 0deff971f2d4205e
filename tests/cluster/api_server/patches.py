"""Patches of JSON values: a merge patch (RFC 7396) and JSON patch (RFC 6902)."""

from __future__ import annotations

import copy
from typing import Any

from tests.cluster.api_server.replies import Refusal, bad_request

JSON, MERGE = "application/json-patch+json", "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def patched(content_type: str, value: Any, patch: Any) -> Any:
    """Return a value with a patch applied.

    A strategic merge is done as a merge: lists are replaced, of which a real server merges some.
    """
    wants_list = content_type == JSON
    if isinstance(patch, list) != wants_list:
        got = "array" if isinstance(patch, list) else "object"
        target = "jsonpatch.Patch" if wants_list else "map[string]interface {}"
        raise bad_request(f"json: cannot unmarshal {got} into Go value of type {target}")
    if not wants_list:
        return merged(value, patch)
    value = copy.deepcopy(value)
    for operation in patch:
        value = _applied(value, operation)
    return value


def merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), change)
    return result


def _applied(value: Any, operation: dict[str, Any]) -> Any:
    kind, path = operation["op"], operation["path"]
    try:
        if kind == "test":
            if _get(value, path) != operation["value"]:
                raise KeyError(path)  # noqa: TRY301 - as a path that is not there
        elif kind == "add":
            _put(value, path, operation["value"])
        elif kind == "replace":
            _remove(value, path)
            _put(value, path, operation["value"])
        elif kind == "remove":
            _remove(value, path)
        else:
            raise bad_request(f"Unexpected kind: {kind}")  # move and copy are not done here
    except (KeyError, IndexError, TypeError, ValueError):
        message = "the server rejected our request due to an error in our request"
        raise Refusal(422, "Invalid", message) from None
    return value


def _keys(path: str) -> list[str]:
    return [each.replace("~1", "/").replace("~0", "~") for each in path.split("/")[1:]]


def _get(value: Any, path: str) -> Any:
    for key in _keys(path):
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


def _parent(value: Any, path: str) -> tuple[Any, str]:
    return _get(value, path.rpartition("/")[0]), _keys(path)[-1]


def _put(value: Any, path: str, new: Any) -> None:
    parent, key = _parent(value, path)
    if isinstance(parent, list):
        parent.insert(len(parent) if key == "-" else int(key), new)
    else:
        parent[key] = new


def _remove(value: Any, path: str) -> None:
    parent, key = _parent(value, path)
    del parent[int(key) if isinstance(parent, list) else key]

"""Answers that go on: the events of a watch, and the lines of a log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.cluster.api_server.replies import bad_request, gone
from tests.cluster.api_server.resources import PODS

if TYPE_CHECKING:
    from tests.cluster.api_server.paths import Request
    from tests.cluster.api_server.resources import Object
    from tests.cluster.api_server.server import ApiServer
    from tests.cluster.api_server.store import Change

_BOOKMARKS_S = 1.0


class CutError(Exception):
    """A test wants the connection to break."""


def watch(api: ApiServer, asked: Request) -> Iterator[Object]:
    """Yield what happens from `resourceVersion` on, for `timeoutSeconds`."""
    store, cuts = api.store, api.cuts
    end = time.monotonic() + float(asked.query.get("timeoutSeconds", 1800))
    bookmark = time.monotonic() + _BOOKMARKS_S
    version = int(asked.query.get("resourceVersion") or 0)
    if version and version < store.oldest_version:
        yield {"type": "ERROR", "object": gone(version, store.oldest_version).body}
        return
    if not version:
        with store.changed:
            found = store.list(asked.resource, asked.namespace, asked.matches)
            version = store.version
        yield from ({"type": "ADDED", "object": each} for each in found)
    while (left := end - time.monotonic()) > 0:
        with store.changed:
            changes = store.changes(asked.resource, version, min(left, bookmark - time.monotonic()))
            version = store.version
        yield from (event for each in changes if (event := _event(each, asked)) is not None)
        if api.cuts != cuts:
            raise CutError
        if min(bookmark, end) <= time.monotonic():
            bookmark += _BOOKMARKS_S
            if asked.query.get("allowWatchBookmarks") == "true":
                body = {"kind": asked.resource.kind, "apiVersion": asked.resource.api_version,
                        "metadata": {"resourceVersion": str(version)}}  # fmt: skip
                yield {"type": "BOOKMARK", "object": body}


def _event(change: Change, asked: Request) -> Object | None:
    """Return what a watch sees of a change: what leaves its selection is deleted for it."""
    before, after = change.before, change.after
    shown = after or before
    if asked.namespace and shown["metadata"].get("namespace") != asked.namespace:
        return None
    was = before is not None and asked.matches(before)
    if after is not None and asked.matches(after):
        return {"type": "MODIFIED" if was else "ADDED", "object": after}
    if not was:
        return None
    metadata = {**before["metadata"], "resourceVersion": str(change.version)}
    return {"type": "DELETED", "object": {**before, "metadata": metadata}}


def log(api: ApiServer, asked: Request) -> Iterator[str]:
    """Return the lines of a pod's log that are asked for, at once or as they are written.

    Raises:
        Refusal: The pod's container waits.
    """
    pod, query = api.store.get(PODS, asked.namespace, asked.name), asked.query
    [state, *_] = pod["status"].get("containerStatuses", [{}])
    waiting = state.get("state", {}).get("waiting", {}).get("reason")
    if waiting is not None or pod["status"]["phase"] == "Pending":
        container = pod["spec"]["containers"][0]["name"]
        why = waiting or "ContainerCreating"
        if why in {"ImagePullBackOff", "ErrImagePull"}:
            why = "trying and failing to pull image"
        raise bad_request(
            f'container "{container}" in pod "{asked.name}" is waiting to start: {why}'
        )
    found, cuts, oldest = api.log(asked.namespace, asked.name), api.cuts, 0.0
    if "sinceSeconds" in query:
        oldest = time.time() - float(query["sinceSeconds"])
    end = len(found.lines)
    start = sum(moment < oldest for moment, _ in found.lines)
    if "tailLines" in query:
        start = max(start, end - int(query["tailLines"]))
    if query.get("follow") == "true":
        lines = found.follow(start, lambda: api.cuts != cuts)
    else:
        lines = iter(found.lines[start:end])
    return _written(lines, api, cuts, with_times=query.get("timestamps") == "true")


def _written(
    lines: Iterator[tuple[float, str]], api: ApiServer, cuts: int, *, with_times: bool
) -> Iterator[str]:
    for moment, line in lines:
        stamp = datetime.fromtimestamp(moment, UTC).isoformat().replace("+00:00", "Z")
        yield f"{stamp} {line}\n" if with_times else f"{line}\n"
    if api.cuts != cuts:
        raise CutError

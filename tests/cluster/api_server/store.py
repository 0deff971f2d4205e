"""The objects and their history: metadata, versions, deletion, owners. No HTTP and no schemas.

Every write has a number, the object's resourceVersion, and is kept in the history, which watches
read. An object is never changed in place, so that what a watch is about to send stays as it was.
"""

from __future__ import annotations

import copy
import itertools
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.cluster.api_server import replies
from tests.cluster.api_server.admission import convert
from tests.cluster.api_server.resources import NAMESPACES, PODS

if TYPE_CHECKING:
    from tests.cluster.api_server.resources import Object, Resource

# Admission: may change the new object in place, and refuse it.
Admit = Callable[["Object"], None]
_FOREGROUND = "foregroundDeletion"
# Set by the server; what a client writes there is not looked at.
_KEPT = ("uid", "creationTimestamp", "namespace", "generation", "deletionTimestamp",
         "deletionGracePeriodSeconds", "resourceVersion")  # fmt: skip
_OVER = {"Succeeded", "Failed"}


@dataclass(frozen=True)
class Change:
    """One write. `before` is None for a creation, `after` for a removal."""

    version: int
    resource: Resource
    before: Object | None
    after: Object | None


def now(after_s: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=after_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def owned_by(owner: Object) -> Object:
    """Return the reference that controllers put into what they create."""
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"],
            "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
            "controller": True, "blockOwnerDeletion": True}  # fmt: skip


class Store:
    """All objects of a cluster. Methods may be called from any thread."""

    def __init__(self) -> None:
        # Notified at each write; logs of pods use it as well.
        self.changed = threading.Condition(threading.RLock())
        self.version = 1000
        self.oldest_version = self.version
        self._objects: dict[Resource, dict[tuple[str, str], Object]] = {}
        self._history: list[Change] = []
        self._is_collecting = False

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        with self.changed:
            found = self._objects.get(resource, {}).get((namespace, name))
        if found is None:
            raise replies.not_found(resource, name)
        return found

    def list(
        self, resource: Resource, namespace: str = "", matches: Callable[[Object], bool] = bool
    ) -> list[Object]:
        """Return objects by namespace and name; those of all namespaces if it is empty."""
        with self.changed:
            found = sorted(self._objects.get(resource, {}).items())
        return [each for (where, _), each in found
                if (not namespace or where == namespace) and matches(each)]  # fmt: skip

    def create(
        self,
        resource: Resource,
        namespace: str,
        body: Object,
        admit: Admit | None = None,
        *,
        dry_run: bool = False,
    ) -> Object:
        new = copy.deepcopy(body)
        new |= {"apiVersion": resource.api_version, "kind": resource.kind}
        metadata = new.setdefault("metadata", {})
        if metadata.get("resourceVersion"):
            raise replies.bad_request("resourceVersion should not be set on objects to be created")
        if resource.has_status and resource.is_custom:
            new.pop("status", None)
        convert(resource, new)
        if resource is PODS:
            new["status"] = {"phase": "Pending", "qosClass": "BestEffort"}
        if not metadata.get("name") and metadata.get("generateName"):
            letters = random.choices("bcdfghjklmnpqrstvwxz2456789", k=5)
            metadata["name"] = metadata["generateName"] + "".join(letters)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if resource.is_custom:
            metadata["generation"] = 1
        if resource.namespaced:
            metadata["namespace"] = namespace
        with self.changed:
            if resource.namespaced:
                self.get(NAMESPACES, "", namespace)
            if admit is not None:
                admit(new)
            key = (namespace, metadata["name"])
            if key in self._objects.get(resource, {}):
                raise replies.already_exists(resource, metadata["name"])
            return new if dry_run else self._write(resource, key, None, new)

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        admit: Admit | None = None,
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Replace an object by what `change` makes of a copy; of the status only, or all but it."""
        with self.changed:
            old = self.get(resource, namespace, name)
            new = change(copy.deepcopy(old))
            _check_same(resource, old, new.setdefault("metadata", {}))
            if subresource == "status":
                new = old | ({"status": new["status"]} if "status" in new else {})
            elif resource.has_status:
                new = {key: value for key, value in new.items() if key != "status"}
                new |= {"status": old["status"]} if "status" in old else {}
            kept = {key: old["metadata"][key] for key in _KEPT if key in old["metadata"]}
            new = {**new, "apiVersion": old["apiVersion"], "kind": old["kind"]}
            convert(resource, new)
            given = {key: each for key, each in new["metadata"].items() if key not in _KEPT}
            new["metadata"] = given | kept
            if admit is not None:
                admit(new)
            if new == old or dry_run:
                return new
            if resource.is_custom and _without_status(new) != _without_status(old):
                new["metadata"]["generation"] += 1
            return self._write(resource, (namespace, name), old, new)

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        propagation: str = "Background",
        grace_s: int | None = None,
        preconditions: Object | None = None,
        dry_run: bool = False,
    ) -> tuple[Object, bool]:
        """Return the object as it was last, and whether it is gone now."""
        with self.changed:
            old = self.get(resource, namespace, name)
            _check_preconditions(resource, old["metadata"], preconditions or {})
            metadata = copy.deepcopy(old["metadata"])
            finalizers = metadata.setdefault("finalizers", [])
            if propagation == "Foreground" and _FOREGROUND not in finalizers:
                finalizers.append(_FOREGROUND)
            grace_s = _grace(resource, old, grace_s)
            if (not finalizers and not grace_s) or dry_run:
                if not dry_run:
                    self._write(resource, (namespace, name), old, None)
                return old, True
            if not finalizers:
                del metadata["finalizers"]
            metadata.setdefault("deletionTimestamp", now(grace_s))
            metadata.setdefault("deletionGracePeriodSeconds", grace_s)
            if metadata == old["metadata"]:
                return old, False
            marked = self._write(resource, (namespace, name), old, {**old, "metadata": metadata})
            return marked, (namespace, name) not in self._objects[resource]

    def changes(self, resource: Resource, after: int, timeout_s: float) -> list[Change]:
        """Wait for any write after a version, or a notification; return those of a kind."""
        with self.changed:
            if after >= self.version and timeout_s > 0:
                self.changed.wait(timeout_s)
            # The numbers are consecutive.
            first = max(0, len(self._history) - (self.version - after))
            return [each for each in self._history[first:] if each.resource == resource]

    def forget_history(self) -> None:
        """Make every resourceVersion until now too old, as etcd's compaction does."""
        with self.changed:
            self.oldest_version = self.version

    def _write(
        self, resource: Resource, key: tuple[str, str], old: Object | None, new: Object | None
    ) -> Object:
        """Put an object into its place, or remove it; returns it with its version."""
        if new is not None and "deletionTimestamp" in new["metadata"]:
            metadata = new["metadata"]
            if not metadata.get("finalizers") and not metadata.get("deletionGracePeriodSeconds"):
                new = None
        self.version += 1
        last = copy.deepcopy(new or old or {})
        last["metadata"]["resourceVersion"] = str(self.version)
        if new is None:
            del self._objects[resource][key]
            # What watches see of the removal has the removal's version.
            self._history.append(Change(self.version, resource, last, None))
            self._collect_garbage()
        else:
            self._objects.setdefault(resource, {})[key] = last
            self._history.append(Change(self.version, resource, old, last))
            if _FOREGROUND in last["metadata"].get("finalizers", []):
                self._collect_garbage()
        self.changed.notify_all()
        return last

    def _everything(self) -> Iterator[tuple[Resource, Object]]:
        for resource, objects in list(self._objects.items()):
            yield from ((resource, each) for each in list(objects.values()))

    def _collect_garbage(self) -> None:
        """Delete what no owner is left of, and owners that waited for their dependents."""
        if self._is_collecting:
            return
        self._is_collecting = True
        try:
            while self._collect_one():
                pass
        finally:
            self._is_collecting = False

    def _collect_one(self) -> bool:
        owners = {each["metadata"]["uid"]: each for _, each in self._everything()}
        waiting = {uid for uid, each in owners.items()
                   if _FOREGROUND in each["metadata"].get("finalizers", [])}  # fmt: skip
        blocked = set()
        for resource, each in self._everything():
            metadata = each["metadata"]
            references = metadata.get("ownerReferences", [])
            mine = {reference["uid"] for reference in references}
            blocked |= {one["uid"] for one in references if one.get("blockOwnerDeletion")}
            if (
                mine
                and not (mine & owners.keys()) - waiting
                and "deletionTimestamp" not in metadata
            ):
                how = "Foreground" if mine & waiting else "Background"
                self.delete(resource, *_key(each), propagation=how)
                return True
        for resource, each in self._everything():
            metadata = each["metadata"]
            if metadata["uid"] in waiting - blocked:
                kept = [name for name in metadata["finalizers"] if name != _FOREGROUND]
                new = {**each, "metadata": {**metadata, "finalizers": kept}}
                self._write(resource, _key(each), each, new)
                return True
        return False


def _key(found: Object) -> tuple[str, str]:
    return found["metadata"].get("namespace", ""), found["metadata"]["name"]


def _check_same(resource: Resource, old: Object, given: Object) -> None:
    """Refuse metadata of another object, or of one as it was before."""
    metadata = old["metadata"]
    _check_preconditions(resource, metadata, {"uid": given.get("uid", metadata["uid"])})
    version = given.get("resourceVersion")
    if version is None and resource.is_custom:
        said = "Invalid value: 0: must be specified for an update"
        cause = replies.cause("Invalid", "metadata.resourceVersion", said)
        raise replies.invalid(resource, metadata["name"], [cause])
    if version not in {None, metadata["resourceVersion"]}:
        why = (
            "the object has been modified; please apply your changes to the latest version and try "
            "again"
        )
        raise replies.conflict(resource, metadata["name"], why)


def _check_preconditions(resource: Resource, metadata: Object, wanted: Object) -> None:
    for field, title in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        found = metadata[field]
        if wanted.get(field, found) != found:
            why = (
                f"Precondition failed: {title} in precondition: {wanted[field]}, {title} in object "
                f"meta: {found}"
            )
            raise replies.conflict(resource, metadata["name"], why)


def _without_status(found: Object) -> Object:
    return {key: value for key, value in found.items() if key not in {"metadata", "status"}}


def _grace(resource: Resource, found: Object, asked: int | None) -> int:
    """Return the seconds until a pod is removed: none unless it runs on a node."""
    running = found.get("status", {}).get("phase") not in _OVER
    if resource is not PODS or "nodeName" not in found["spec"] or not running:
        return 0
    return found["spec"].get("terminationGracePeriodSeconds", 30) if asked is None else asked


class PodLog:
    """What a pod has written, line by line with the time; read while it grows."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.lines: list[tuple[float, str]] = []
        self.is_complete = False

    def append(self, line: str) -> None:
        with self._changed:
            self.lines.append((time.time(), line))
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self.is_complete = True
            self._changed.notify_all()

    def follow(self, start: int, is_cut: Callable[[], bool]) -> Iterator[tuple[float, str]]:
        """Yield lines as they are written, until the pod has ended."""
        for number in itertools.count(start):
            with self._changed:
                while number >= len(self.lines):
                    if self.is_complete or is_cut():
                        return
                    self._changed.wait(1)
            yield self.lines[number]

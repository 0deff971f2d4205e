"""Queries for everything on a cluster besides jobs: operators, rights, quotas, nodes, classes.

Each method sends one query and waits a few seconds for the answer. "Forbidden" and "not found" are
valid answers too (`Unread`): a check reports them and continues.

Callers: `check.py`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

import kubernetes
from kubernetes.client import ApiException

from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes_client import Kubernetes

Object: TypeAlias = Mapping[str, Any]

# For each request: connect timeout and read timeout. Short, because the user waits for all of them.
_TIMEOUT_S = (3.0, 6.0)
_FORBIDDEN, _NOT_FOUND = 403, 404
# Requests the name and labels of a secret, without its values.
_ONLY_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"


class Unread(Enum):
    """Why a query returned no object: it does not exist, or reading it is forbidden."""

    FORBIDDEN = "forbidden"
    ABSENT = "absent"


class Inventory:
    """Queries to a cluster, with a user's credentials.

    A method that returns objects returns an `Unread` instead if they do not exist or the user may
    not read them. Every method raises `UnavailableError` if the server does not answer, and
    `UsageError` if the server rejects the credentials or the request.

    Args:
        cluster: The cluster, and the namespace to query.
    """

    def __init__(self, cluster: Kubernetes) -> None:
        self._cluster = cluster
        client = kubernetes.client
        # Any: the client's type hints are those of its models, but the raw JSON is read here.
        self._version: Any = client.VersionApi(cluster.client)
        self._core: Any = client.CoreV1Api(cluster.client)
        self._reviews: Any = client.AuthorizationV1Api(cluster.client)
        self._groups: Any = client.CustomObjectsApi(cluster.client)
        self._apis: Any = client.ApisApi(cluster.client)

    @property
    def address(self) -> str:
        """Address of the API server."""
        return str(self._cluster.client.configuration.host)

    def version(self) -> str:
        """Return the server's version, such as `v1.36.0`."""
        found = self._read("read the version", self._version.get_code)
        if found is Unread.ABSENT:
            raise self._foreign()
        return "" if isinstance(found, Unread) else str(found.get("gitVersion", ""))

    def may(self, verb: str, resource: str, group: str = "") -> bool:
        """Return whether this user is allowed an action in the namespace.

        Args:
            verb: The action as a Kubernetes verb, such as `create`.
            resource: Plural name of the resource; a subresource follows a slash (`pods/log`).
            group: API group of the resource; empty for the core group, such as that of pods.
        """
        name, _, part = resource.partition("/")
        attributes = {"verb": verb, "group": group, "resource": name, "subresource": part}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "namespace": self._cluster.namespace}},
        }
        with self._cluster.errors("ask for rights"):
            answer = self._reviews.create_self_subject_access_review(
                body, _preload_content=False, _request_timeout=_TIMEOUT_S
            )
        return bool((self._parsed(answer).get("status") or {}).get("allowed"))

    def served_versions(self, group: str, plural: str) -> Sequence[str] | Unread:
        """Return the API versions in which the server has a resource, in the server's order.

        This uses discovery, which every user may read; few users may read definitions (CRDs).
        """
        found = self._read("read API groups", self._apis.get_api_versions)
        if isinstance(found, Unread):
            return found
        groups = [each for each in _items(found, "groups") if each["name"] == group]
        versions = [each["version"] for known in groups for each in known["versions"]]
        served = []
        for version in versions:
            doing = "read API resources"
            kinds = self._read(doing, self._groups.get_api_resources, group, version)
            if any(each["name"] == plural for each in _items(kinds, "resources")):
                served.append(version)
        return served

    def namespace(self) -> Object | Unread:
        """Return the Namespace object of the namespace that jobs run in, or why it was not read."""
        return self._one("namespace", self._core.read_namespace, self._cluster.namespace)

    def deployments(self, namespace: str | None, **selectors: str) -> Sequence[Object] | Unread:
        """Return deployments, or why they were not read.

        Args:
            namespace: Namespace of the deployments. None: all namespaces.
            selectors: Parameters of the Kubernetes API, such as `label_selector`.
        """
        if namespace is None:
            return self._many(
                "deployments",
                self._groups.list_cluster_custom_object,
                *("apps", "v1", "deployments"),
                **selectors,
            )
        return self._many(
            "deployments",
            self._groups.list_namespaced_custom_object,
            *("apps", "v1", namespace, "deployments"),
            **selectors,
        )

    def quotas(self) -> Sequence[Object] | Unread:
        """Return the ResourceQuotas of the namespace, or why they were not read."""
        call = self._core.list_namespaced_resource_quota
        return self._many("resource quotas", call, self._cluster.namespace)

    def limit_ranges(self) -> Sequence[Object] | Unread:
        """Return the LimitRanges of the namespace, or why they were not read."""
        call = self._core.list_namespaced_limit_range
        return self._many("limit ranges", call, self._cluster.namespace)

    def nodes(self) -> Sequence[Object] | Unread:
        """Return the Nodes of the cluster, or why they were not read."""
        return self._many("nodes", self._core.list_node)

    def storage_classes(self) -> Sequence[Object] | Unread:
        """Return the StorageClasses of the cluster, or why they were not read."""
        return self._many(
            "storage classes",
            self._groups.list_cluster_custom_object,
            *("storage.k8s.io", "v1", "storageclasses"),
        )

    def secret(self, name: str) -> Object | Unread:
        """Return the metadata of a secret, or why it was not read; its values are not requested."""
        namespace = self._cluster.namespace
        self._cluster.client.set_default_header("Accept", _ONLY_METADATA)
        try:
            return self._one("secret", self._core.read_namespaced_secret, name, namespace)
        finally:
            del self._cluster.client.default_headers["Accept"]

    def service_account(self, name: str) -> Object | Unread:
        """Return a service account of the namespace, or why it was not read."""
        call = self._core.read_namespaced_service_account
        return self._one("service account", call, name, self._cluster.namespace)

    def object_of(
        self, group: str, version: str, plural: str, name: str, *, in_namespace: bool = False
    ) -> Object | Unread:
        """Return an object of any API group except the core group, or why it was not read.

        Args:
            group: API group of the object, such as `scheduling.k8s.io`.
            version: API version.
            plural: Plural name of its kind.
            name: Name of the object.
            in_namespace: Whether the object belongs to the namespace, not to the whole cluster.
        """
        if not in_namespace:
            call = self._groups.get_cluster_custom_object
            return self._one(plural, call, group, version, plural, name)
        call = self._groups.get_namespaced_custom_object
        return self._one(plural, call, group, version, self._cluster.namespace, plural, name)

    def _one(self, what: str, call: Callable[..., Any], *arguments: str) -> Object | Unread:
        return self._read(f"read {what}", call, *arguments)

    def _many(
        self, what: str, call: Callable[..., Any], *arguments: str, **selectors: str
    ) -> Sequence[Object] | Unread:
        found = self._read(f"list {what}", call, *arguments, **selectors)
        return found if isinstance(found, Unread) else _items(found, "items")

    def _read(
        self, doing: str, call: Callable[..., Any], *arguments: str, **selectors: str
    ) -> Object | Unread:
        with self._cluster.errors(doing):
            try:
                answer = call(
                    *arguments, **selectors, _preload_content=False, _request_timeout=_TIMEOUT_S
                )
            except ApiException as error:
                if error.status == _FORBIDDEN:
                    return Unread.FORBIDDEN
                if error.status == _NOT_FOUND:
                    return Unread.ABSENT
                raise
        return self._parsed(answer)

    def _parsed(self, answer: Any) -> Object:
        try:
            found = json.loads(answer.data)
        except ValueError:
            raise self._foreign() from None
        if not isinstance(found, Mapping):
            raise self._foreign()
        return found

    def _foreign(self) -> UsageError:
        return UsageError(
            f"{self.address} does not reply like a Kubernetes API server. Check the address, under "
            "clusters in the kubeconfig."
        )


def _items(found: Object | Unread, key: str) -> list[Object]:
    items: list[Object] = [] if isinstance(found, Unread) else list(found.get(key) or ())
    return items

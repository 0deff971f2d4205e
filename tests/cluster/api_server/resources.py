"""The kinds that the server has, and how clients discover them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_METADATA_FIELDS = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True)
class Resource:
    """A kind, by the names that paths, manifests and messages use.

    Attributes:
        fields: What `fieldSelector` may compare, besides name and namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    has_status: bool = False
    short_names: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name in messages and quotas: `rayjobs.ray.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def is_custom(self) -> bool:
        return self.group == "ray.io"

    @property
    def selectable(self) -> tuple[str, ...]:
        return _METADATA_FIELDS + self.fields


_INVOLVED = tuple(f"involvedObject.{each}" for each in ("kind", "name", "namespace", "uid"))
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False, short_names=("ns",))
PODS = Resource("", "v1", "pods", "Pod", has_status=True, short_names=("po",),
                fields=("spec.nodeName", "status.phase"))  # fmt: skip
EVENTS = Resource("", "v1", "events", "Event", fields=(*_INVOLVED, "reason", "type"))
SECRETS = Resource("", "v1", "secrets", "Secret", fields=("type",))
SERVICES = Resource("", "v1", "services", "Service", short_names=("svc",))
JOBS = Resource("batch", "v1", "jobs", "Job", has_status=True)
CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions",
                "CustomResourceDefinition", namespaced=False, short_names=("crd",))  # fmt: skip
RAYJOBS = Resource("ray.io", "v1", "rayjobs", "RayJob", has_status=True)
RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster", has_status=True)
ACCESS_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews",
                          "SelfSubjectAccessReview", namespaced=False)  # fmt: skip
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota", has_status=True)
LIMIT_RANGES = Resource("", "v1", "limitranges", "LimitRange")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False, has_status=True)
SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", has_status=True)
PRIORITY_CLASSES = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass",
                            namespaced=False)  # fmt: skip
STORAGE_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass",
                           namespaced=False)  # fmt: skip
# Of Kueue, which a server has only where a test adds it.
LOCAL_QUEUES = Resource("kueue.x-k8s.io", "v1beta1", "localqueues", "LocalQueue")

BUILT_IN = (
    NAMESPACES, PODS, EVENTS, SECRETS, SERVICES,
    QUOTAS, LIMIT_RANGES, NODES, SERVICE_ACCOUNTS, DEPLOYMENTS, JOBS, PRIORITY_CLASSES,
    STORAGE_CLASSES,
    Resource("", "v1", "configmaps", "ConfigMap"),
    Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim"),
    CRDS, ACCESS_REVIEWS,
)  # fmt: skip
KUBERAY = (RAYJOBS, RAYCLUSTERS)


def discovery(resources: list[Resource], path: str) -> Object | None:
    """Return the document at a path of discovery, or None if there is none."""
    parts = path.strip("/").split("/")
    groups = {each.group: each.version for each in resources if each.group}
    match parts:
        case ["version"]:
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
        case ["apis"]:
            made = [_group(name, version) for name, version in groups.items()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": made}
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, groups[group])}
        case ["api", "v1"]:
            return _resource_list("v1", [each for each in resources if not each.group])
        case ["apis", group, version] if groups.get(group) == version:
            mine = [each for each in resources if each.group == group]
            return _resource_list(f"{group}/{version}", mine)
        case _:
            return None


def _group(name: str, version: str) -> Object:
    only = {"groupVersion": f"{name}/{version}", "version": version}
    return {"name": name, "versions": [only], "preferredVersion": only}


def _resource_list(group_version: str, resources: list[Resource]) -> Object:
    listed = []
    for each in resources:
        entry = {"name": each.plural, "singularName": each.kind.lower(), "kind": each.kind,
                 "namespaced": each.namespaced, "shortNames": list(each.short_names),
                 "verbs": ["create"] if each is ACCESS_REVIEWS else VERBS}  # fmt: skip
        listed.append(entry)
        parts = ["status"] * each.has_status + ["log", "portforward"] * (each is PODS)
        listed += [{**entry, "name": f"{each.plural}/{part}", "verbs": ["get", "patch", "update"],
                    "shortNames": []} for part in parts]  # fmt: skip
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version,
            "resources": listed}  # fmt: skip


def custom_resource_definition(resource: Resource) -> Object:
    """Return a CRD as `cluster check` looks for it; without its schema, which is 1.4 MB."""
    names = {"plural": resource.plural, "singular": resource.kind.lower(), "kind": resource.kind,
             "listKind": f"{resource.kind}List"}  # fmt: skip
    version = {"name": resource.version, "served": True, "storage": True}
    return {
        "apiVersion": CRDS.api_version,
        "kind": CRDS.kind,
        "metadata": {"name": resource.qualified},
        "spec": {"group": resource.group, "names": names, "scope": "Namespaced",
                 "versions": [version]},
        "status": {"acceptedNames": names, "storedVersions": [resource.version],
                   "conditions": [{"type": "Established", "status": "True"}]},
    }  # fmt: skip

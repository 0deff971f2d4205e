"""Findings of a cluster check: judges the server's responses, with advice, one line per subject.

Pure: server responses in, findings out. `exit_code` derives from the findings whether a job could
be submitted.

Callers: `check.py`; `capacity.py` judges amounts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from elasticdl.errors import UnavailableError, UsageError

Object: TypeAlias = Mapping[str, Any]

# The first KubeRay whose RayJobs support authOptions, which protects Ray from other users.
_MIN_KUBERAY = (1, 5, 1)
_VERSION = "v1"
_HELM = "helm install kuberay-operator kuberay/kuberay-operator"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_ENFORCE = "pod-security.kubernetes.io/enforce"

# As listed in docs/guides/kubernetes.md: (verb, resource, group).
RIGHTS = (
    ("create", "rayjobs", "ray.io"),
    ("get", "rayjobs", "ray.io"),
    ("list", "rayjobs", "ray.io"),
    ("watch", "rayjobs", "ray.io"),
    ("delete", "rayjobs", "ray.io"),
    ("list", "pods", ""),
    ("list", "events", ""),
    ("get", "pods/log", ""),
    ("get", "pods/portforward", ""),
    ("create", "pods/portforward", ""),
)
# Without these nothing can be submitted; without the others a job cannot be followed or replaced.
_TO_SUBMIT = {"create rayjobs", "get rayjobs"}


class ClusterVerdict(StrEnum):
    """Outcome of the check of one subject.

    Attributes:
        OK: The check passed.
        WARNING: A job can be submitted, but may have a problem.
        MISSING: A job cannot be submitted, or would not start.
        UNKNOWN: The check was not possible: the user has no permission for it, or the registry of
            an image cannot be reached.
    """

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ClusterFinding:
    """The result of checking one subject, such as KubeRay or the quota, on a cluster.

    Attributes:
        subject: The subject, in one or two words.
        verdict: The outcome. `MISSING` prevents a job from being submitted or from starting.
        message: The result of the check, as a sentence.
        advice: How to fix it; empty if there is nothing to do.
        exit_code: Exit code that this finding gives the command; 0 unless something is missing.
    """

    subject: str
    verdict: ClusterVerdict
    message: str
    advice: str = ""
    exit_code: int = 0


def exit_code(findings: Sequence[ClusterFinding]) -> int:
    """Return the exit code of a cluster check: 0 if a job could be submitted.

    Otherwise, return the lowest code of the missing requirements. So a problem that the user has to
    solve takes precedence over a server that is unavailable only now (75).

    Example:
        >>> exit_code([ClusterFinding("server", ClusterVerdict.OK, "answers")])
        0
    """
    codes = {each.exit_code for each in findings} - {0}
    return min(codes, default=0)


def missing(subject: str, message: str, advice: str = "") -> ClusterFinding:
    """Build a finding about a missing requirement, a problem that remains until the user acts.

    Args:
        subject: The subject, in one or two words.
        message: What is missing, as a sentence.
        advice: How to fix it.
    """
    return ClusterFinding(subject, ClusterVerdict.MISSING, message, advice, UsageError.exit_code)


def unknown(subject: str, what: str, advice: str = "") -> ClusterFinding:
    """Build a finding about a subject that the user has no permission to check.

    Args:
        subject: The subject, in one or two words.
        what: The forbidden action, such as "list nodes".
        advice: What to do; may be empty.
    """
    return ClusterFinding(subject, ClusterVerdict.UNKNOWN, f"you may not {what}", advice)


def kuberay(versions: Sequence[str]) -> ClusterFinding:
    """Check whether the cluster supports RayJobs.

    Args:
        versions: API versions in which the cluster serves RayJobs.
    """
    if not versions:
        return missing(
            "RayJobs",
            "the cluster does not support them: KubeRay is not installed",
            f"Install it ({_HELM}), or choose another cluster with --context.",
        )
    served = ", ".join(versions)
    if _VERSION not in versions:
        return missing(
            "RayJobs",
            f"served as ray.io/{served}, but {_VERSION} is required: KubeRay is too old",
            f"Update KubeRay to {_dotted(_MIN_KUBERAY)} or newer.",
        )
    return ClusterFinding("RayJobs", ClusterVerdict.OK, f"served as ray.io/{served}")


def operator(deployments: Sequence[Object], namespace: str) -> ClusterFinding:
    """Check whether KubeRay's operator runs, is new enough, and watches a namespace.

    Args:
        deployments: Deployments on the cluster, from which KubeRay's are selected.
        namespace: Namespace of the jobs.
    """
    found = [each for each in deployments if _container(each)]
    if not found:
        return ClusterFinding(
            "operator",
            ClusterVerdict.MISSING,
            "KubeRay's operator is not running: a RayJob would wait forever",
            f"Install it: {_HELM}",
            UnavailableError.exit_code,
        )
    watching = [each for each in found if namespace in (_watched(each) or [namespace])]
    if not watching:
        looked_at = ", ".join(sorted({name for each in found for name in _watched(each)}))
        return missing(
            "operator",
            f"KubeRay's operator does not watch the namespace {namespace}, but {looked_at}",
            "Use a watched namespace (--namespace), or ask the cluster's owner.",
        )
    best = max(watching, key=_num_available)
    where = f"in the namespace {best['metadata']['namespace']}"
    if not _num_available(best):
        return ClusterFinding(
            "operator",
            ClusterVerdict.MISSING,
            f"KubeRay's operator {where} is not ready",
            f"Check it: kubectl describe deployment {best['metadata']['name']} "
            f"--namespace={best['metadata']['namespace']}",
            UnavailableError.exit_code,
        )
    version = _version_of(best)
    if version is None:
        return ClusterFinding(
            "operator",
            ClusterVerdict.UNKNOWN,
            f"KubeRay runs {where}; its version cannot be determined from its image",
            f"It must be {_dotted(_MIN_KUBERAY)} or newer.",
        )
    if version < _MIN_KUBERAY:
        return missing(
            "operator",
            f"KubeRay {_dotted(version)} runs {where}, but is too old",
            f"Update it to {_dotted(_MIN_KUBERAY)} or newer.",
        )
    return ClusterFinding("operator", ClusterVerdict.OK, f"KubeRay {_dotted(version)} runs {where}")


def rights(allowed: Mapping[str, bool]) -> ClusterFinding:
    """Check whether a user has the rights that jobs need.

    Args:
        allowed: A right such as `create rayjobs` -> whether it is granted.
    """
    denied = [right for right, is_allowed in allowed.items() if not is_allowed]
    if not denied:
        return ClusterFinding("rights", ClusterVerdict.OK, "you may submit, follow and stop jobs")
    message = f"you may not: {', '.join(denied)}"
    if _TO_SUBMIT & set(denied):
        return missing("rights", message, "Ask the cluster's owner for these rights.")
    if all(right.endswith("pods/portforward") for right in denied):
        return ClusterFinding(
            "rights",
            ClusterVerdict.WARNING,
            message,
            "You may submit, follow and stop jobs, but not view the page of a running job. Ask the "
            "cluster's owner for these rights.",
        )
    return ClusterFinding(
        "rights",
        ClusterVerdict.WARNING,
        message,
        "A job can be submitted with --detach, but following, stopping or replacing it is "
        "restricted. Ask the cluster's owner for these rights.",
    )


def storage(classes: Sequence[Object]) -> ClusterFinding:
    """Check for a default StorageClass, which volume claims without a class need."""
    names = [each["metadata"]["name"] for each in classes]
    default = [
        each["metadata"]["name"]
        for each in classes
        if (each["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    if default:
        return ClusterFinding("storage", ClusterVerdict.OK, f"default StorageClass {default[0]}")
    have = f"; available: {', '.join(names)}" if names else ""
    return ClusterFinding(
        "storage",
        ClusterVerdict.WARNING,
        f"no default StorageClass{have}",
        "This matters only for --volume=pvc:...: set a class in the claim, or use an object store.",
    )


def pod_security(namespace: Object) -> ClusterFinding:
    """Check whether the namespace's pod security level allows a job's pods."""
    level = (namespace["metadata"].get("labels") or {}).get(_ENFORCE, "privileged")
    # The pods of rayjob.py comply with the strictest level.
    return ClusterFinding(
        "pod security", ClusterVerdict.OK, f"level {level}, which a job's pods comply with"
    )


def missing_object(flag: str, kind: str, name: str) -> ClusterFinding:
    """Build the finding for an object that a flag names but that does not exist.

    Args:
        flag: Name of the flag without dashes, such as `image_pull_secret`.
        kind: Kind of the object, such as `secret`.
        name: Name of the object, the value of the flag.
    """
    return missing(kind, f"{name!r} does not exist", f"Create it, or change --{flag}.")


def _container(deployment: Object) -> Object | None:
    """Return the container that runs KubeRay's operator in a deployment; None if none does."""
    containers = deployment["spec"].get("template", {}).get("spec", {}).get("containers") or ()
    for each in containers:
        image = str(each.get("image", ""))
        if "kuberay-operator" in {each.get("name"), deployment["metadata"]["name"]} or (
            "kuberay" in image and "operator" in image
        ):
            found: Object = each
            return found
    return None


def _watched(deployment: Object) -> list[str]:
    """Return the namespaces in which KubeRay's operator runs jobs; empty if it runs them in all."""
    arguments = [str(each) for each in (_container(deployment) or {}).get("args") or ()]
    for number, each in enumerate(arguments):
        name, equals, value = each.lstrip("-").partition("=")
        if name == "watch-namespace":
            text = value if equals else "".join(arguments[number + 1 : number + 2])
            return [each for each in text.split(",") if each]
    return []


def _version_of(deployment: Object) -> tuple[int, ...] | None:
    labels = deployment["metadata"].get("labels") or {}
    image = str((_container(deployment) or {}).get("image", ""))
    for text in (image.partition("@")[0].rpartition(":")[2], labels.get("helm.sh/chart", "")):
        found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
        if found:
            return tuple(map(int, found.groups()))
    return None


def _num_available(deployment: Object) -> int:
    return int((deployment.get("status") or {}).get("availableReplicas") or 0)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))

"""What a check of a cluster finds: one line a subject, and what to do about it.

Pure: what the server answered in, findings out. Whether a job could be submitted is a function of
the findings (`exit_code`).

Callers: `check.py`; `room.py` judges amounts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from elasticdl.errors import UnavailableError, UsageError

Object: TypeAlias = Mapping[str, Any]

# The first KubeRay whose RayJobs know authOptions, with which Ray is closed to others.
_LEAST_KUBERAY = (1, 5, 1)
_VERSION = "v1"
_HELM = "helm install kuberay-operator kuberay/kuberay-operator"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_ENFORCE = "pod-security.kubernetes.io/enforce"

# What docs/kubernetes.md lists: (verb, resource, group).
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
# Without these nothing is submitted; without the others it is not followed or replaced.
_TO_SUBMIT = {"create rayjobs", "get rayjobs"}


class Verdict(StrEnum):
    """How a subject stands."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """What was found out about one subject.

    Attributes:
        subject: What it is about, in one or two words.
        verdict: How it stands. `MISSING` keeps a job from being submitted or from starting.
        message: What was found.
        advice: What to do; empty where there is nothing to do.
        exit_code: Which code a command ends with because of it; 0 unless something is missing.
    """

    subject: str
    verdict: Verdict
    message: str
    advice: str = ""
    exit_code: int = 0


def exit_code(findings: Sequence[Finding]) -> int:
    """Return the code to end with: 0 if a job could be submitted.

    Permanent problems come before those that may pass by themselves.

    Example:
        >>> exit_code([Finding("server", Verdict.OK, "answers")])
        0
    """
    codes = {each.exit_code for each in findings} - {0}
    return min(codes, default=0)


def missing(subject: str, message: str, advice: str = "") -> Finding:
    """Return a permanent finding: something is missing until a person adds it."""
    return Finding(subject, Verdict.MISSING, message, advice, UsageError.exit_code)


def unknown(subject: str, what: str, advice: str = "") -> Finding:
    """Return the finding that a user's rights do not reach far enough to tell."""
    return Finding(subject, Verdict.UNKNOWN, f"you may not {what}", advice)


def kuberay(versions: Sequence[str]) -> Finding:
    """Judge whether the cluster knows RayJobs.

    Args:
        versions: In which they are served.
    """
    if not versions:
        return missing(
            "RayJobs",
            "the cluster does not know them: KubeRay is not installed",
            f"Install it ({_HELM}), or name another cluster with --context.",
        )
    served = ", ".join(versions)
    if _VERSION not in versions:
        return missing(
            "RayJobs",
            f"served as ray.io/{served}, and {_VERSION} is needed: KubeRay is too old",
            f"Update KubeRay to {_dotted(_LEAST_KUBERAY)} or newer.",
        )
    return Finding("RayJobs", Verdict.OK, f"served as ray.io/{served}")


def operator(deployments: Sequence[Object], namespace: str) -> Finding:
    """Judge whether KubeRay's operator runs, is new enough, and looks at a namespace.

    Args:
        deployments: Of the whole cluster; those of KubeRay are found among them.
        namespace: Where jobs will be.
    """
    found = [each for each in deployments if _container(each)]
    if not found:
        return Finding(
            "operator",
            Verdict.MISSING,
            "KubeRay's operator is not running: a RayJob would wait forever",
            f"Install it: {_HELM}",
            UnavailableError.exit_code,
        )
    watching = [each for each in found if namespace in (_watched(each) or [namespace])]
    if not watching:
        looked_at = ", ".join(sorted({name for each in found for name in _watched(each)}))
        return missing(
            "operator",
            f"KubeRay's operator does not look at the namespace {namespace}, but at {looked_at}",
            "Use such a namespace (--namespace), or ask the cluster's owner.",
        )
    best = max(watching, key=_num_available)
    where = f"in the namespace {best['metadata']['namespace']}"
    if not _num_available(best):
        return Finding(
            "operator",
            Verdict.MISSING,
            f"KubeRay's operator {where} is not ready",
            f"Look at it: kubectl describe deployment {best['metadata']['name']} "
            f"--namespace={best['metadata']['namespace']}",
            UnavailableError.exit_code,
        )
    version = _version_of(best)
    if version is None:
        return Finding(
            "operator",
            Verdict.UNKNOWN,
            f"KubeRay runs {where}; its image does not tell its version",
            f"It has to be {_dotted(_LEAST_KUBERAY)} or newer.",
        )
    if version < _LEAST_KUBERAY:
        return missing(
            "operator",
            f"KubeRay {_dotted(version)} runs {where}, and is too old",
            f"Update it to {_dotted(_LEAST_KUBERAY)} or newer.",
        )
    return Finding("operator", Verdict.OK, f"KubeRay {_dotted(version)} runs {where}")


def rights(allowed: Mapping[str, bool]) -> Finding:
    """Judge what a user may do.

    Args:
        allowed: Such as `create rayjobs` -> whether it is allowed.
    """
    denied = [right for right, is_allowed in allowed.items() if not is_allowed]
    if not denied:
        return Finding("rights", Verdict.OK, "you may submit, follow and stop jobs")
    said = f"you may not: {', '.join(denied)}"
    if _TO_SUBMIT & set(denied):
        return missing("rights", said, "Ask the cluster's owner for these rights.")
    if all(right.endswith("pods/portforward") for right in denied):
        return Finding(
            "rights",
            Verdict.WARNING,
            said,
            "You may submit, follow and stop jobs, but not look at the page of one that runs. Ask "
            "the cluster's owner for these rights.",
        )
    return Finding(
        "rights",
        Verdict.WARNING,
        said,
        "A job can be submitted with --detach, but not be followed, stopped or replaced in full. "
        "Ask the cluster's owner for these rights.",
    )


def storage(classes: Sequence[Object]) -> Finding:
    """Judge whether claims get a volume by themselves."""
    names = [each["metadata"]["name"] for each in classes]
    default = [
        each["metadata"]["name"]
        for each in classes
        if (each["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    if default:
        return Finding("storage", Verdict.OK, f"default StorageClass {default[0]}")
    have = f"; there are {', '.join(names)}" if names else ""
    return Finding(
        "storage",
        Verdict.WARNING,
        f"no default StorageClass{have}",
        "That matters for --volume=pvc:... only: name a class in the claim, or use an object "
        "store.",
    )


def pod_security(namespace: Object) -> Finding:
    """Judge whether the namespace's pod security level lets a job's pods run."""
    level = (namespace["metadata"].get("labels") or {}).get(_ENFORCE, "privileged")
    # What rayjob.py makes is within the strictest level.
    return Finding("pod security", Verdict.OK, f"level {level}, which a job's pods keep")


def named(flag: str, kind: str, name: str) -> Finding:
    """Return the finding that something that was named is not there.

    Args:
        flag: That named it.
        kind: What it is.
        name: Its name.
    """
    return missing(kind, f"there is none called {name!r}", f"Create it, or change --{flag}.")


def _container(deployment: Object) -> Object | None:
    """Return the container of KubeRay's operator in a deployment, if there is one."""
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
    """Return the namespaces that an operator looks at; empty for all of them."""
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

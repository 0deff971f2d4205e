"""Checks whether a cluster has room for a job: quotas, limits of pods, and nodes.

    needs of all pods  <=  the free part of a quota
    each pod           <=  the LimitRange of the namespace
    a worker           <=  at least one node

Pure: server objects in, findings out. Amounts are Kubernetes quantities
(https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).

Callers: `check.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from elasticdl.cluster.findings import ClusterFinding, ClusterVerdict
from elasticdl.data.wording import counted
from elasticdl.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from elasticdl.cluster.options import ClusterOptions, Resources
    from elasticdl.job import Workers

Object: TypeAlias = Mapping[str, Any]
Amounts: TypeAlias = Mapping[str, Decimal]

GPUS = "nvidia.com/gpu"
_SUFFIXES = {
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "": Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)")
# Scopes that exclude our pods, which have requests (so not "best effort") and no deadline.
_OTHER_PODS = {"BestEffort", "Terminating", "CrossNamespacePodAffinity"}
_SMALLER = "Request less (--num_workers, --cpus_per_worker, --memory_per_worker, --gpus_per_worker)"


@dataclass(frozen=True)
class Pod:
    """Resource needs of one pod of a job.

    Attributes:
        name: Role of the pod: `head`, `worker` or `submitter`.
        requests: Resource -> amount: `cpu`, `memory`, and `nvidia.com/gpu` if it needs any.
        limits: Resource -> maximum amount.
    """

    name: str
    requests: Amounts
    limits: Amounts


# KubeRay's values for the pod that submits the command.
_SUBMITTER = Pod(
    "submitter",
    {"cpu": Decimal("0.5"), "memory": Decimal(200 * 1024**2)},
    {"cpu": Decimal(1), "memory": Decimal(1024**3)},
)


def amount(quantity: str) -> Decimal:
    """Parse a Kubernetes quantity into a number of cores, bytes or objects.

    Raises:
        ValueError: The string is not a quantity.

    Example:
        >>> amount("500m"), amount("2Gi"), amount("1e3")
        (Decimal('0.500'), Decimal('2147483648'), Decimal('1E+3'))
    """
    found = _QUANTITY.fullmatch(str(quantity).strip())
    if found is None or found[2] not in _SUFFIXES:
        raise ValueError(f"not a quantity: {quantity!r}")
    return Decimal(found[1]) * _SUFFIXES[found[2]]


def in_words(resource: str, number: Decimal) -> str:
    """Format an amount of a resource in Kubernetes notation.

    Example:
        >>> in_words("limits.memory", Decimal(1610612736)), in_words("cpu", Decimal("0.50"))
        ('1.5Gi', '0.5')
    """
    if "memory" not in resource and "storage" not in resource:
        return f"{number.normalize():f}"
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if abs(number) >= _SUFFIXES[unit]:
            return f"{float(number / _SUFFIXES[unit]):.4g}{unit}"
    return f"{number:f}"


def pods_of(options: ClusterOptions, workers: Workers) -> tuple[Pod, Pod, Pod]:
    """Return the resource needs of a job's three kinds of pods: head, worker and submitter.

    The head runs Ray's control store and the driver; the submitter runs the job's command.
    """
    gpus = {GPUS: Decimal(workers.gpus)} if workers.gpus else {}
    head, worker = _amounts(options.head), {**_amounts(options.worker), **gpus}
    return Pod("head", head, head), Pod("worker", worker, worker), _SUBMITTER


def quota_needs(pods: Sequence[Pod], num_workers: int) -> Amounts:
    """Sum up what a job with `num_workers` workers takes from the quotas of a namespace.

    Args:
        pods: The job's three kinds of pods, from `pods_of`.
        num_workers: Number of worker pods.

    Returns:
        Name of a resource in a ResourceQuota, such as `requests.cpu` or `count/pods` -> amount.
    """
    needs = dict.fromkeys(
        ("count/rayjobs.ray.io", "count/rayclusters.ray.io", "count/jobs.batch"), Decimal(1)
    )
    # The service of Ray's head, and the secret with Ray's token.
    needs |= dict.fromkeys(("services", "count/services", "secrets", "count/secrets"), Decimal(1))
    for pod in pods:
        number = num_workers if pod.name == "worker" else 1
        needs["pods"] = needs.get("pods", Decimal(0)) + number
        for prefix, asked in (("", pod.requests), ("requests.", pod.requests),
                              ("limits.", pod.limits)):  # fmt: skip
            for resource, each in asked.items():
                name = prefix + resource
                needs[name] = needs.get(name, Decimal(0)) + each * number
    return {**needs, "count/pods": needs["pods"]}


def quota(
    quotas: Sequence[Object], pods: Sequence[Pod], workers: Workers, priority_class: str | None
) -> ClusterFinding:
    """Check whether a namespace's quotas have room for a job.

    Args:
        quotas: The namespace's ResourceQuotas.
        pods: The job's three kinds of pods, from `pods_of`.
        workers: Minimum and maximum number of workers; the job needs room for the minimum.
        priority_class: PriorityClass of the pods; some quotas apply only to pods of some classes.
    """
    applying = [each for each in quotas if _applies(each, priority_class)]
    if not applying:
        return ClusterFinding(
            "quota", ClusterVerdict.OK, "no quota of the namespace limits these pods"
        )
    least = quota_needs(pods, workers.min)
    # Without autoscaling, the pods of all workers are requested at once.
    most = quota_needs(pods, workers.max + workers.spare)
    for needs, reads_used, kind in ((least, False, UsageError), (least, True, UnavailableError)):
        short = list(_shortages(applying, needs, reads_used=reads_used))
        if short:
            advice = "Wait until other jobs have ended, or request less" if reads_used else _SMALLER
            return ClusterFinding(
                "quota",
                ClusterVerdict.MISSING,
                f"no room for {counted(workers.min, 'worker')}: {'; '.join(short)}",
                f"{advice}; or ask the cluster's owner for a larger quota.",
                kind.exit_code,
            )
    short = list(_shortages(applying, most, reads_used=True))
    if short:
        return ClusterFinding(
            "quota",
            ClusterVerdict.WARNING,
            f"room for {counted(workers.min, 'worker')}, not for "
            f"{workers.max + workers.spare}: {'; '.join(short)}",
            "The job starts with fewer workers, and others join when there is room.",
        )
    names = ", ".join(each["metadata"]["name"] for each in applying)
    return ClusterFinding("quota", ClusterVerdict.OK, f"room for {_workers(workers)} in {names}")


def limits(limit_ranges: Sequence[Object], pods: Sequence[Pod]) -> ClusterFinding:
    """Check whether a namespace's LimitRanges allow the pods of a job.

    Args:
        limit_ranges: The namespace's LimitRanges.
        pods: The job's three kinds of pods, from `pods_of`.
    """
    wrong = [
        reason
        for each in limit_ranges
        for limit in each["spec"].get("limits") or ()
        # Each of our pods has one container.
        if limit.get("type") in {"Container", "Pod"}
        for pod in pods
        for reason in _outside(limit, pod)
    ]
    if wrong:
        return ClusterFinding(
            "limits",
            ClusterVerdict.MISSING,
            f"the namespace's LimitRange rejects pods: {'; '.join(wrong)}",
            "Change --cpus_per_worker, --memory_per_worker or --head_memory, or ask the cluster's "
            "owner.",
            UsageError.exit_code,
        )
    words = "the LimitRange allows its pods" if limit_ranges else "the namespace has no LimitRange"
    return ClusterFinding("limits", ClusterVerdict.OK, words)


def nodes(found: Sequence[Object], pods: Sequence[Pod]) -> ClusterFinding:
    """Check whether at least one node is large enough for a worker.

    The whole capacity of a node counts, even if pods that run there now use a part of it. If no
    node is large enough, this is only a warning, because the cluster may add nodes automatically.

    Args:
        found: The Nodes of the cluster.
        pods: The job's three kinds of pods, from `pods_of`; only the worker is checked.
    """
    worker = next(pod for pod in pods if pod.name == "worker")
    ready = [each for each in found if _is_ready(each)]
    fitting = [each for each in ready if _fits(worker, each)]
    asked = ", ".join(
        f"{resource} {in_words(resource, each)}" for resource, each in worker.requests.items()
    )
    if fitting:
        message = f"a worker ({asked}) fits on {len(fitting)} of {counted(len(found), 'node')}"
        return ClusterFinding("nodes", ClusterVerdict.OK, message)
    if GPUS in worker.requests and not any(_allocatable(each).get(GPUS) for each in ready):
        return ClusterFinding(
            "nodes",
            ClusterVerdict.WARNING,
            f"none of {counted(len(found), 'node')} has a GPU ({GPUS})",
            "Unless the cluster adds such nodes automatically, no worker can start: choose another "
            "--context, or leave --gpus_per_worker out.",
        )
    return ClusterFinding(
        "nodes",
        ClusterVerdict.WARNING,
        f"a worker ({asked}) fits on none of {counted(len(found), 'node')}",
        f"{_SMALLER}, unless the cluster adds larger nodes automatically.",
    )


def _amounts(resources: Resources) -> dict[str, Decimal]:
    return {"cpu": amount(resources.cpus), "memory": amount(resources.memory)}


def _applies(quota: Object, priority_class: str | None) -> bool:
    """Return whether a quota applies to the pods of a job.

    Args:
        quota: The ResourceQuota, whose scopes may restrict it to some pods.
        priority_class: PriorityClass of the job's pods; None if they have none.
    """
    spec = quota["spec"]
    if _OTHER_PODS & set(spec.get("scopes") or ()):
        return False
    for each in (spec.get("scopeSelector") or {}).get("matchExpressions") or ():
        if each.get("scopeName") in _OTHER_PODS:
            return False
        if each.get("scopeName") == "PriorityClass":
            operator, values = each.get("operator"), each.get("values") or ()
            matches = {
                "In": priority_class in values,
                "NotIn": priority_class not in values,
                "Exists": priority_class is not None,
                "DoesNotExist": priority_class is None,
            }
            if not matches.get(str(operator), True):
                return False
    return True


def _shortages(quotas: Sequence[Object], needs: Amounts, *, reads_used: bool) -> Iterator[str]:
    for each in quotas:
        hard = each["spec"].get("hard") or {}
        used = (each.get("status") or {}).get("used") or {}
        for resource, text in hard.items():
            if resource not in needs:
                continue
            allowed = amount(text)
            free = allowed - amount(used.get(resource, "0")) if reads_used else allowed
            if needs[resource] > free:
                of = f" of {in_words(resource, allowed)} free" if reads_used else " allowed"
                yield (
                    f"{resource}: {in_words(resource, needs[resource])} needed, "
                    f"{in_words(resource, max(free, Decimal(0)))}{of} ({each['metadata']['name']})"
                )


def _outside(limit: Object, pod: Pod) -> Iterator[str]:
    for bound, asked in (("max", pod.limits), ("min", pod.requests)):
        for resource, text in (limit.get(bound) or {}).items():
            if resource not in asked:
                continue
            allowed, has = amount(text), asked[resource]
            if (has > allowed) if bound == "max" else (has < allowed):
                word = "at most" if bound == "max" else "at least"
                yield (
                    f"{pod.name} requests {resource} {in_words(resource, has)}; {word} "
                    f"{in_words(resource, allowed)} is allowed"
                )


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    states = {each.get("type"): each.get("status") for each in conditions}
    return states.get("Ready") == "True" and not (node.get("spec") or {}).get("unschedulable")


def _allocatable(node: Object) -> Amounts:
    found = (node.get("status") or {}).get("allocatable") or {}
    return {name: amount(text) for name, text in found.items()}


def _fits(pod: Pod, node: Object) -> bool:
    has = _allocatable(node)
    return all(has.get(name, Decimal(0)) >= each for name, each in pod.requests.items())


def _workers(workers: Workers) -> str:
    most = workers.max + workers.spare
    return counted(most, "worker") if most == workers.min else f"{workers.min} to {most} workers"

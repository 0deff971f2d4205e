"""Checking a cluster before a first job: what is there, what is missing, what to do.

    kubeconfig -> server -> credentials -> namespace -> KubeRay, rights, room, names -> dry run

`inventory.py` and `registry.py` ask, `findings.py` and `room.py` judge. Where nothing more can be
asked, the findings end. Nothing is created: at the end the server checks a whole RayJob in a dry
run, which tells what no question tells, such as a webhook of the cluster's owner.

Callers: `api.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from elasticdl.cluster import findings, registry, room
from elasticdl.cluster.findings import RIGHTS, Finding, Verdict, missing, unknown
from elasticdl.cluster.inventory import Inventory, Unread
from elasticdl.cluster.kubernetes import AlreadyExistsError, Kubernetes
from elasticdl.cluster.rayjob import manifest
from elasticdl.errors import ElasticDLError, UnavailableError, UsageError

if TYPE_CHECKING:
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.job import Job, Workers

# Where KubeRay's documents and charts install it; asked where the whole cluster may not be listed.
_USUAL_NAMESPACES = ("default", "kuberay-operator", "kuberay-system", "ray-system")
_SEEN_LATER = "If a job waits because of it, elasticdl job show says so."
_UNAUTHORIZED = 401
_NOBODY = "system:anonymous"


@dataclass(frozen=True)
class Report:
    """What a check has found.

    Attributes:
        context: Of the kubeconfig; None if it is not known or the pod's own account is used.
        namespace: Where jobs would be; None if it is not known.
        findings: One a subject, in the order in which they were asked.
    """

    context: str | None
    namespace: str | None
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> int:
        """The code to end with: 0 if a job could be submitted."""
        return findings.exit_code(self.findings)


def check(
    job: Job, options: ClusterOptions, context: str | None = None, *, has_image: bool = True
) -> Report:
    """Find out whether a job could be submitted to a cluster; it takes some seconds.

    Args:
        job: Such as would be submitted.
        options: How.
        context: Of the kubeconfig; None is the current one.
        has_image: Whether the image of the options is meant; else it is not looked for.
    """
    try:
        cluster = Kubernetes(context, options.namespace)
    except UsageError as error:
        return Report(context, options.namespace, [missing("kubeconfig", str(error))])
    account = "the account of this pod" if cluster.context is None else f"context {cluster.context}"
    found = [Finding("kubeconfig", Verdict.OK, f"{account}, namespace {cluster.namespace}")]
    inventory = Inventory(cluster)
    assert job.workers is not None  # noqa: S101 - a job for a cluster has them
    try:
        for each in _asked(cluster, inventory, options, job.workers):
            found.append(each)  # noqa: PERF402 - those before an error count
        if has_image:
            found.append(registry.image(options.image))
        if not findings.exit_code(found):
            found.append(_dry_run(cluster, job, options))
    except UnavailableError as error:
        found.append(
            Finding("server", Verdict.MISSING, str(error), exit_code=UnavailableError.exit_code)
        )
    except UsageError as error:
        found.append(missing("server", str(error)))
    except _NothingMoreError as end:
        found.append(end.finding)
    return Report(cluster.context, cluster.namespace, found)


class _NothingMoreError(Exception):
    """Nothing more can be asked; the finding says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _asked(
    cluster: Kubernetes, inventory: Inventory, options: ClusterOptions, workers: Workers
) -> Iterator[Finding]:
    """Yield what questions to the API server find.

    Raises:
        UnavailableError: It does not answer.
        _NothingMoreError: It answers no further question.
    """
    pods = room.pods_of(options, workers)
    yield from _doors(cluster, inventory)
    yield from _kuberay(cluster, inventory)
    yield findings.rights(
        {f"{verb} {resource}": inventory.may(verb, resource, group)
         for verb, resource, group in RIGHTS}
    )  # fmt: skip
    quotas, ranges, nodes = inventory.quotas(), inventory.limit_ranges(), inventory.nodes()
    if isinstance(quotas, Unread):
        yield unknown("quota", "list the namespace's quotas", _SEEN_LATER)
    else:
        yield room.quota(quotas, pods, workers, options.priority_class)
    if isinstance(ranges, Unread):
        yield unknown("limits", "list the namespace's LimitRanges", _SEEN_LATER)
    else:
        yield room.limits(ranges, pods)
    if isinstance(nodes, Unread):
        yield unknown("nodes", "list nodes", _SEEN_LATER)
    else:
        yield room.nodes(nodes, pods)
    classes = inventory.storage_classes()
    if isinstance(classes, Unread):
        yield unknown("storage", "list StorageClasses")
    else:
        yield findings.storage(classes)
    yield from _named(inventory, options)


def _doors(cluster: Kubernetes, inventory: Inventory) -> Iterator[Finding]:
    """Yield whether the server lets this user in, and the namespace is there."""
    try:
        version = inventory.version()
    except UsageError as error:
        status = getattr(error.__cause__, "status", None)
        subject = "credentials" if status == _UNAUTHORIZED else "server"
        raise _NothingMoreError(missing(subject, str(error))) from error
    said = f"Kubernetes {version.removeprefix('v')}" if version else "its version is not told"
    yield Finding("server", Verdict.OK, f"{inventory.address} answers: {said}")
    try:
        inventory.may("get", "rayjobs", "ray.io")
    except UsageError as error:
        raise _NothingMoreError(_refused(cluster, error)) from error
    yield Finding("credentials", Verdict.OK, "the server accepts them")
    namespace = inventory.namespace()
    match namespace:
        case Unread.ABSENT:
            raise _NothingMoreError(
                missing(
                    "namespace",
                    f"there is no namespace {cluster.namespace!r}",
                    "Name another with --namespace, or create it: kubectl create namespace "
                    f"{cluster.namespace}",
                )
            )
        case Unread.FORBIDDEN:
            yield unknown("pod security", "read the namespace")
        case _:
            yield findings.pod_security(namespace)


def _refused(cluster: Kubernetes, error: UsageError) -> Finding:
    if _NOBODY not in str(error):
        return missing("credentials", str(error))
    return missing(
        "credentials",
        f"{cluster.name} has none: the server takes this machine for {_NOBODY}",
        "Log in with your cloud's command, which puts them into the kubeconfig, or name another "
        "context with --context.",
    )


def _kuberay(cluster: Kubernetes, inventory: Inventory) -> Iterator[Finding]:
    versions = inventory.served_versions("ray.io", "rayjobs")
    if isinstance(versions, Unread):
        yield unknown("RayJobs", "read the cluster's API groups")
        return
    yield findings.kuberay(versions)
    if not versions:
        return
    seen = inventory.deployments(None)
    if not isinstance(seen, Unread):
        yield findings.operator(seen, cluster.namespace)
        return
    asked = dict.fromkeys((cluster.namespace, *_USUAL_NAMESPACES))
    answers = [inventory.deployments(each) for each in asked]
    judged = [
        findings.operator(each, cluster.namespace)
        for each in answers
        if not isinstance(each, Unread) and each
    ]
    # An operator that was not found may be where this user may not look.
    sure = [each for each in judged if "is not running" not in each.message]
    if sure:
        yield min(sure, key=lambda each: each.verdict is not Verdict.OK)
    else:
        yield unknown(
            "operator",
            "list deployments of the cluster, so whether KubeRay's operator runs is not known",
            "If a job is waiting for KubeRay to take it up, it does not.",
        )


def _named(inventory: Inventory, options: ClusterOptions) -> Iterator[Finding]:
    """Yield whether what flags name is there."""
    asked: list[tuple[str, str, str, Any]] = []
    if options.priority_class is not None:
        where = ("scheduling.k8s.io", "v1", "priorityclasses", options.priority_class)
        asked.append(("priority_class", "PriorityClass", where[-1], inventory.object_of(*where)))
    if options.service_account is not None:
        name = options.service_account
        asked.append(("service_account", "account", name, inventory.service_account(name)))
    for flag, names in (
        ("env_from_secret", options.env_from_secrets),
        ("image_pull_secret", options.image_pull_secrets),
    ):
        asked += [(flag, "secret", name, inventory.secret(name)) for name in names]
    for flag, kind, name, answer in asked:
        if answer is Unread.ABSENT:
            yield findings.named(flag, kind, name)
        elif answer is Unread.FORBIDDEN:
            yield unknown(kind, f"read {name}", _SEEN_LATER)
        else:
            yield Finding(kind, Verdict.OK, f"{name} is there")
    if options.queue is not None:
        yield _queue(inventory, options.queue, options.scheduler)


def _queue(inventory: Inventory, name: str, scheduler: str) -> Finding:
    is_kueue = scheduler == "kueue"
    group, plural = (
        ("kueue.x-k8s.io", "localqueues") if is_kueue else ("scheduling.volcano.sh", "queues")
    )
    versions = inventory.served_versions(group, plural)
    if isinstance(versions, Unread):
        return unknown("queue", "read the cluster's API groups")
    if not versions:
        return missing(
            "queue",
            f"{scheduler.title()} is not installed",
            "Leave --queue out, or name another --scheduler.",
        )
    found = inventory.object_of(group, versions[0], plural, name, in_namespace=is_kueue)
    if found is Unread.ABSENT:
        return findings.named("queue", "queue", name)
    if isinstance(found, Unread):
        return unknown("queue", f"read {name}", "A job waits in it until it is admitted.")
    return Finding("queue", Verdict.OK, f"{scheduler.title()} has {name}")


def _dry_run(cluster: Kubernetes, job: Job, options: ClusterOptions) -> Finding:
    """Have the server check a RayJob without creating it."""
    made = manifest(job, replace(options, namespace=None))
    try:
        cluster.create(made, dry_run=True)
    except AlreadyExistsError:
        pass
    except UnavailableError:
        raise
    except ElasticDLError as error:
        return missing("dry run", str(error))
    return Finding("dry run", Verdict.OK, "the server takes a RayJob")

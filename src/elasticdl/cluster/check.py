"""Cluster check before the first job: finds what is missing and suggests how to fix it.

    kubeconfig -> server -> credentials -> namespace -> KubeRay, rights, room, objects -> dry run

`inventory.py` and `registry.py` send the requests, `findings.py` and `capacity.py` evaluate the
answers. The check ends early if no further request is possible. Nothing is created: at the end, the
server validates a complete RayJob in a dry run, which finds problems that no other request can,
such as a rejection by a webhook of the cluster's owner.

Callers: `api.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from elasticdl.cluster import capacity, findings, registry
from elasticdl.cluster.findings import RIGHTS, ClusterFinding, ClusterVerdict, missing, unknown
from elasticdl.cluster.inventory import Inventory, Unread
from elasticdl.cluster.kubernetes_client import AlreadyExistsError, Kubernetes
from elasticdl.cluster.rayjob import manifest
from elasticdl.errors import ElasticDLError, UnavailableError, UsageError

if TYPE_CHECKING:
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.job import Job, Workers

# Namespaces of KubeRay in its documentation and charts; tried if listing the cluster is forbidden.
_USUAL_NAMESPACES = ("default", "kuberay-operator", "kuberay-system", "ray-system")
_SEEN_LATER = "If a job waits because of it, elasticdl job show reports it."
_UNAUTHORIZED = 401
_NOBODY = "system:anonymous"


@dataclass(frozen=True)
class ClusterReport:
    """The result of a cluster check.

    Attributes:
        context: Context of the kubeconfig; None if it is unknown or the pod's own account is used.
        namespace: Namespace of the jobs; None if it is unknown.
        findings: The results of the check, one per subject, in the order of the checks.
    """

    context: str | None
    namespace: str | None
    findings: Sequence[ClusterFinding]

    @property
    def exit_code(self) -> int:
        """Exit code of the command: 0 if a job could be submitted; see `findings.exit_code`."""
        return findings.exit_code(self.findings)


def check(
    job: Job, options: ClusterOptions, context: str | None = None, *, has_image: bool = True
) -> ClusterReport:
    """Check whether a job could be submitted to a cluster; takes a few seconds.

    Args:
        job: A job like the one to submit.
        options: Cluster options of the job.
        context: Context of the kubeconfig. None: the current one.
        has_image: Whether the user named an image. If not, `options.image` is a placeholder, which
            is not looked for in a registry.
    """
    try:
        cluster = Kubernetes(context, options.namespace)
    except UsageError as error:
        return ClusterReport(context, options.namespace, [missing("kubeconfig", str(error))])
    account = "the account of this pod" if cluster.context is None else f"context {cluster.context}"
    found = [
        ClusterFinding("kubeconfig", ClusterVerdict.OK, f"{account}, namespace {cluster.namespace}")
    ]
    inventory = Inventory(cluster)
    assert job.workers is not None  # noqa: S101 - a cluster job always has workers
    try:
        for each in _check_subjects(cluster, inventory, options, job.workers):
            found.append(each)  # noqa: PERF402 - keeps the findings before an error
        if has_image:
            found.append(registry.image(options.image))
        if not findings.exit_code(found):
            found.append(_dry_run(cluster, job, options))
    except UnavailableError as error:
        found.append(
            ClusterFinding(
                "server", ClusterVerdict.MISSING, str(error), exit_code=UnavailableError.exit_code
            )
        )
    except UsageError as error:
        found.append(missing("server", str(error)))
    except _NothingMoreError as end:
        found.append(end.finding)
    return ClusterReport(cluster.context, cluster.namespace, found)


class _NothingMoreError(Exception):
    """Exception that ends the check early, because no further request is possible.

    Args:
        finding: The reason, which is the last finding of the report.
    """

    def __init__(self, finding: ClusterFinding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def _check_subjects(
    cluster: Kubernetes, inventory: Inventory, options: ClusterOptions, workers: Workers
) -> Iterator[ClusterFinding]:
    """Query the cluster; yield a finding for each subject, such as KubeRay, quotas and nodes.

    The caller checks the image and does the dry run.

    Args:
        cluster: Connection to the cluster, whose namespace is checked.
        inventory: Sends the queries.
        options: Cluster options of the job.
        workers: Workers of the job.

    Raises:
        UnavailableError: The server does not answer.
        _NothingMoreError: No further request is possible.
    """
    pods = capacity.pods_of(options, workers)
    yield from _check_access(cluster, inventory)
    yield from _kuberay(cluster, inventory)
    yield findings.rights(
        {f"{verb} {resource}": inventory.may(verb, resource, group)
         for verb, resource, group in RIGHTS}
    )  # fmt: skip
    quotas, ranges, nodes = inventory.quotas(), inventory.limit_ranges(), inventory.nodes()
    if isinstance(quotas, Unread):
        yield unknown("quota", "list the namespace's quotas", _SEEN_LATER)
    else:
        yield capacity.quota(quotas, pods, workers, options.priority_class)
    if isinstance(ranges, Unread):
        yield unknown("limits", "list the namespace's LimitRanges", _SEEN_LATER)
    else:
        yield capacity.limits(ranges, pods)
    if isinstance(nodes, Unread):
        yield unknown("nodes", "list nodes", _SEEN_LATER)
    else:
        yield capacity.nodes(nodes, pods)
    classes = inventory.storage_classes()
    if isinstance(classes, Unread):
        yield unknown("storage", "list StorageClasses")
    else:
        yield findings.storage(classes)
    yield from _check_named_objects(inventory, options)


def _check_access(cluster: Kubernetes, inventory: Inventory) -> Iterator[ClusterFinding]:
    """Check the server, the credentials and the namespace; yield a finding for each."""
    try:
        version = inventory.version()
    except UsageError as error:
        status = getattr(error.__cause__, "status", None)
        subject = "credentials" if status == _UNAUTHORIZED else "server"
        raise _NothingMoreError(missing(subject, str(error))) from error
    version_text = f"Kubernetes {version.removeprefix('v')}" if version else "unknown version"
    yield ClusterFinding(
        "server", ClusterVerdict.OK, f"{inventory.address} answers: {version_text}"
    )
    try:
        inventory.may("get", "rayjobs", "ray.io")
    except UsageError as error:
        raise _NothingMoreError(_refused(cluster, error)) from error
    yield ClusterFinding("credentials", ClusterVerdict.OK, "the server accepts them")
    namespace = inventory.namespace()
    match namespace:
        case Unread.ABSENT:
            raise _NothingMoreError(
                missing(
                    "namespace",
                    f"there is no namespace {cluster.namespace!r}",
                    "Choose another with --namespace, or create it: kubectl create namespace "
                    f"{cluster.namespace}",
                )
            )
        case Unread.FORBIDDEN:
            yield unknown("pod security", "read the namespace")
        case _:
            yield findings.pod_security(namespace)


def _refused(cluster: Kubernetes, error: UsageError) -> ClusterFinding:
    if _NOBODY not in str(error):
        return missing("credentials", str(error))
    return missing(
        "credentials",
        f"{cluster.name} has none: the server identifies this user as {_NOBODY}",
        "Log in with your cloud provider's command, which writes them into the kubeconfig, or "
        "choose another context with --context.",
    )


def _kuberay(cluster: Kubernetes, inventory: Inventory) -> Iterator[ClusterFinding]:
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
    # "Not running" is not certain: the operator may be in a namespace this user cannot read.
    sure = [each for each in judged if "is not running" not in each.message]
    if sure:
        yield min(sure, key=lambda each: each.verdict is not ClusterVerdict.OK)
    else:
        yield unknown(
            "operator",
            "list deployments of the cluster, so it is unknown whether KubeRay's operator is "
            "running",
            "If a job is waiting for KubeRay to process it, the operator is not running.",
        )


def _check_named_objects(inventory: Inventory, options: ClusterOptions) -> Iterator[ClusterFinding]:
    """Check that the objects that flags name, such as secrets, exist; yield a finding for each."""
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
            yield findings.missing_object(flag, kind, name)
        elif answer is Unread.FORBIDDEN:
            yield unknown(kind, f"read {name}", _SEEN_LATER)
        else:
            yield ClusterFinding(kind, ClusterVerdict.OK, f"{name} exists")
    if options.queue is not None:
        yield _queue(inventory, options.queue, options.scheduler)


def _queue(inventory: Inventory, name: str, scheduler: str) -> ClusterFinding:
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
            "Leave --queue out, or choose another --scheduler.",
        )
    found = inventory.object_of(group, versions[0], plural, name, in_namespace=is_kueue)
    if found is Unread.ABSENT:
        return findings.missing_object("queue", "queue", name)
    if isinstance(found, Unread):
        return unknown("queue", f"read {name}", "A job waits in it until it is admitted.")
    return ClusterFinding("queue", ClusterVerdict.OK, f"{scheduler.title()} has {name}")


def _dry_run(cluster: Kubernetes, job: Job, options: ClusterOptions) -> ClusterFinding:
    """Let the server validate the job's RayJob without creating it; return the finding."""
    made = manifest(job, replace(options, namespace=None))
    try:
        cluster.create(made, dry_run=True)
    except AlreadyExistsError:
        pass
    except UnavailableError:
        raise
    except ElasticDLError as error:
        return missing("dry run", str(error))
    return ClusterFinding("dry run", ClusterVerdict.OK, "the server accepts a RayJob")

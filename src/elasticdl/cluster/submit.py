"""Submits a job to a cluster exactly once, even if the command is repeated.

The RayJob has the id of the job as its name, so the same command finds it again. What is done
depends on the state of the RayJob that exists:

    none                           create it
    failed or stopped              delete it and create it again: the job resumes
    waiting, starting, running     keep it; the caller follows it
    succeeded                      keep it if it is a training job, else create it again

The server first validates the RayJob in a dry run, so that a rejected one leaves nothing behind.

Callers: `api.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.kubernetes_client import AlreadyExistsError
from elasticdl.cluster.rayjob import JOB_LABEL, manifest
from elasticdl.cluster.states import JobPhase, state_of
from elasticdl.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.cluster.kubernetes_client import Kubernetes, Object
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.job import Job

_DELETED_WITHIN_S = 120.0
_LOOK_S = 1.0


@dataclass(frozen=True)
class Submitted:
    """A submitted job.

    Attributes:
        name: Name of its RayJob.
        namespace: Namespace of the RayJob.
        is_new: Whether this call created the RayJob.
        is_done: Whether the job had succeeded before this call.
    """

    name: str
    namespace: str
    is_new: bool
    is_done: bool = False


def submit(
    job: Job, options: ClusterOptions, cluster: Kubernetes, patch: Mapping[str, Any] | None = None
) -> Submitted:
    """Submit a job to a cluster, unless it is running or is a training job that has succeeded.

    Args:
        job: The job.
        options: Cluster options of the job.
        cluster: The cluster.
        patch: Site-specific changes to the RayJob; see `rayjob.manifest`.

    Raises:
        UsageError: The server rejects it, or a RayJob of this name was not created by ElasticDL.
        UnavailableError: The server does not answer.
    """
    wanted = manifest(job, options, patch)
    name = wanted["metadata"]["name"]
    there = cluster.get(name)
    if there is not None:
        _check_is_ours(there, job)
        if _is_kept(there, job):
            is_done = state_of(there, ()).has_ended
            return Submitted(name, cluster.namespace, is_new=False, is_done=is_done)
        # Under another name, as the old one occupies its name; it stays if the new one is rejected.
        cluster.create(
            {**wanted, "metadata": {**wanted["metadata"], "name": f"{name}-x"}}, dry_run=True
        )
        _remove(cluster, there)
    try:
        if there is None:
            cluster.create(wanted, dry_run=True)
        cluster.create(wanted)
    except AlreadyExistsError:
        # The same command was run at the same time, and the other process created it first.
        return Submitted(name, cluster.namespace, is_new=False)
    return Submitted(name, cluster.namespace, is_new=True)


def is_kept(job: Job, cluster: Kubernetes) -> bool:
    """Return whether a job has a RayJob that `submit` would keep instead of creating a new one.

    It keeps a RayJob that is active, and that of a training job that has succeeded.

    Raises:
        UsageError: Reading RayJobs is not allowed, or a RayJob of this name was not created by
            ElasticDL.
        UnavailableError: The server does not answer.
    """
    there = cluster.get(job.id)
    if there is None:
        return False
    _check_is_ours(there, job)
    return _is_kept(there, job)


def stop(cluster: Kubernetes, name: str) -> None:
    """Stop a job that has not ended, and wait until its pods are gone.

    The driver writes a last checkpoint. This function returns when the pods have ended: before
    that, resubmitting the job would fail because its output is in use.

    Raises:
        UsageError: There is no such job.
        UnavailableError: The server does not answer, or the deletion takes too long.
    """
    there = cluster.get(name)
    if there is None:
        raise UsageError(f"There is no job {name!r} in the namespace {cluster.namespace}.")
    _remove(cluster, there)
    until_s = time.monotonic() + _DELETED_WITHIN_S
    while cluster.pods(f"{JOB_LABEL}={name}"):
        if time.monotonic() > until_s:
            raise UnavailableError(
                f"The RayJob {name} is deleted, but its pods have not ended after "
                f"{_DELETED_WITHIN_S:.0f} s: kubectl get pods -l {JOB_LABEL}={name}"
            )
        time.sleep(_LOOK_S)


def _is_kept(there: Object, job: Job) -> bool:
    """Return whether `submit` keeps an existing RayJob instead of replacing it.

    A training job that has succeeded has nothing left to do. A prediction or an evaluation may have
    new data.
    """
    state = state_of(there, ())
    return not state.has_ended or (state.phase is JobPhase.SUCCEEDED and job.command == "train")


def _check_is_ours(there: Object, job: Job) -> None:
    labels = there["metadata"].get("labels") or {}
    if labels.get(JOB_LABEL) != job.id:
        raise UsageError(
            f"The RayJob {there['metadata']['name']} already exists but was not created by "
            "ElasticDL. Delete it, or use another namespace."
        )


def _remove(cluster: Kubernetes, there: Object) -> None:
    """Delete a RayJob and wait until its name is free."""
    name, uid = there["metadata"]["name"], there["metadata"]["uid"]
    cluster.delete(name, uid)
    given_up_s = time.monotonic() + _DELETED_WITHIN_S
    while (found := cluster.get(name)) is not None and found["metadata"]["uid"] == uid:
        if time.monotonic() > given_up_s:
            raise UnavailableError(
                f"The RayJob {name} of the previous attempt is still being deleted after "
                f"{_DELETED_WITHIN_S:.0f} s. Check its finalizers: kubectl get rayjob {name} -o "
                "yaml"
            )
        time.sleep(_LOOK_S)

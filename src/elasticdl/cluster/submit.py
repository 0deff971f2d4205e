"""Submitting a job to a cluster: once, however often it is asked for.

The RayJob has the job's id for its name, so the same command finds it again:

    none, or it has failed or was stopped    create it (the old one goes first): it resumes
    waiting, starting, running               follow it
    succeeded                                it is done, if it is a training

The server checks the RayJob in a dry run first, so that nothing is left behind of one it refuses.

Callers: `api.py`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.kubernetes import AlreadyExistsError
from elasticdl.cluster.rayjob import JOB_LABEL, manifest
from elasticdl.cluster.states import Phase, state_of
from elasticdl.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.cluster.kubernetes import Kubernetes, Object
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.job import Job

_DELETED_WITHIN_S = 120.0
_LOOK_S = 1.0


@dataclass(frozen=True)
class Submitted:
    """A job on a cluster.

    Attributes:
        name: Of its RayJob.
        namespace: Where it is.
        is_new: It was created by this call; else it was there.
        is_done: It has succeeded before.
    """

    name: str
    namespace: str
    is_new: bool
    is_done: bool = False


def submit(
    job: Job, options: ClusterOptions, cluster: Kubernetes, patch: Mapping[str, Any] | None = None
) -> Submitted:
    """Have a cluster do a job.

    Args:
        job: What to do.
        options: With what.
        cluster: Where.
        patch: Changes of the cluster's owner; see `rayjob.manifest`.

    Raises:
        UsageError: The server refuses it, or a RayJob of this name is not this job's.
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
        # Another name: the old one has it until it is gone, and stays if the new one is refused.
        cluster.create(
            {**wanted, "metadata": {**wanted["metadata"], "name": f"{name}-x"}}, dry_run=True
        )
        _remove(cluster, there)
    try:
        if there is None:
            cluster.create(wanted, dry_run=True)
        cluster.create(wanted)
    except AlreadyExistsError:
        # The same command was run at the same time, and the other one created it first.
        return Submitted(name, cluster.namespace, is_new=False)
    return Submitted(name, cluster.namespace, is_new=True)


def is_kept(job: Job, cluster: Kubernetes) -> bool:
    """Return whether submitting a job would create nothing, because it runs or has succeeded.

    Raises:
        UsageError: RayJobs may not be read, or one of the job's name is not its own.
        UnavailableError: The server does not answer.
    """
    there = cluster.get(job.id)
    if there is None:
        return False
    _check_is_ours(there, job)
    return _is_kept(there, job)


def stop(cluster: Kubernetes, name: str) -> None:
    """End a job, if it has not ended, and free its machines.

    Its pods are told to end, and write a checkpoint first.

    Raises:
        UsageError: There is no such job.
        UnavailableError: The server does not answer, or the job takes too long to go.
    """
    there = cluster.get(name)
    if there is None:
        raise UsageError(f"There is no job {name!r} in the namespace {cluster.namespace}.")
    _remove(cluster, there)


def _is_kept(there: Object, job: Job) -> bool:
    """Return whether a RayJob is left as it is.

    A training that has succeeded has nothing left to do. There may be other data by now to predict
    or evaluate.
    """
    state = state_of(there, ())
    return not state.has_ended or (state.phase is Phase.SUCCEEDED and job.command == "train")


def _check_is_ours(there: Object, job: Job) -> None:
    labels = there["metadata"].get("labels") or {}
    if labels.get(JOB_LABEL) != job.id:
        raise UsageError(
            f"There is a RayJob {there['metadata']['name']} already that ElasticDL has not made. "
            "Delete it, or use another namespace."
        )


def _remove(cluster: Kubernetes, there: Object) -> None:
    """Delete a RayJob that has ended, and wait until its name is free."""
    name, uid = there["metadata"]["name"], there["metadata"]["uid"]
    cluster.delete(name, uid)
    given_up_s = time.monotonic() + _DELETED_WITHIN_S
    while (found := cluster.get(name)) is not None and found["metadata"]["uid"] == uid:
        if time.monotonic() > given_up_s:
            raise UnavailableError(
                f"The RayJob {name} of the attempt before is still being deleted after "
                f"{_DELETED_WITHIN_S:.0f} s. Look at its finalizers: kubectl get rayjob {name} "
                "-o yaml"
            )
        time.sleep(_LOOK_S)

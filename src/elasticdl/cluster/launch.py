"""Submits a job to a cluster and follows it to its end, with messages for the user.

Callers: `api.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.follow import follow
from elasticdl.cluster.states import JobPhase, RayJobState
from elasticdl.cluster.submit import submit
from elasticdl.errors import ClusterJobError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from elasticdl.cluster.kubernetes_client import Kubernetes
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.job import Job


def launch(
    job: Job,
    options: ClusterOptions,
    cluster: Kubernetes,
    *,
    patch: Mapping[str, Any] | None = None,
    detach: bool = False,
    print_fn: Callable[[str], None],
    beside: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext,
) -> RayJobState | None:
    """Submit a job and follow it to its end.

    Args:
        job: The job.
        options: Cluster options of the job.
        cluster: The cluster.
        patch: Site-specific changes to the RayJob; see `rayjob.manifest`.
        detach: Return right after the submission, without following the job.
        print_fn: Called with messages for the user.
        beside: Function (name of the job) -> context manager, which stays open while the job is
            followed; for example, to serve the job's page.

    Returns:
        The final state; None with `detach`.

    Raises:
        ClusterJobError: The job failed; the error has the exit code of its command.
        ElasticDLError: The job could not be submitted, or can no longer be followed.
    """
    done = submit(job, options, cluster, patch)
    where = f"{done.name} in {cluster.name}, namespace {done.namespace}"
    if done.is_done:
        print_fn(f"RayJob {where} has already finished: {job.output}")
        return RayJobState(JobPhase.SUCCEEDED, "finished", exit_code=0)
    print_fn(f"Submitted RayJob {where}." if done.is_new else f"RayJob {where} already exists.")
    if detach:
        print_fn(useful_commands(done.name, cluster))
        return None
    try:
        with beside(done.name):
            state = follow(cluster, done.name, lambda state: print_fn(shown(state)), print_fn)
    except KeyboardInterrupt:
        print_fn(
            f"\nThe job continues to run on the cluster.\n{useful_commands(done.name, cluster)}"
        )
        raise
    if state.phase is not JobPhase.SUCCEEDED:
        advice = f" {state.advice}" if state.advice else ""
        raise ClusterJobError(
            f"The job {done.name} {state.phase}: {state.message}.{advice}\n"
            f"  Its log: elasticdl job logs {done.name} {_flags(cluster)}",
            state.exit_code or TrainingError.exit_code,
        )
    print_fn(f"Done: {job.output}")
    return state


def shown(state: RayJobState) -> str:
    """Format a job's state, and advice if there is any, as one or two lines for the user."""
    return state.sentence + (f"\n  {state.advice}" if state.advice else "")


def useful_commands(name: str, cluster: Kubernetes) -> str:
    """Return a help text with the commands for following, inspecting and stopping a job."""
    flags = _flags(cluster)
    return "\n".join(
        [
            f"  follow it    elasticdl job logs {name} {flags}",
            f"  its state    elasticdl job show {name} {flags}",
            f"  its page     elasticdl job page {name} {flags}",
            f"  Ray          elasticdl job dashboard {name} {flags}",
            f"  stop it      elasticdl job stop {name} {flags}",
            f"  all jobs     elasticdl job list {flags}",
        ]
    )


def _flags(cluster: Kubernetes) -> str:
    context = "" if cluster.context is None else f" --context={cluster.context}"
    return f"--cluster=kubernetes{context} --namespace={cluster.namespace}"

"""A job on a cluster from its submission to its end, told in lines.

Callers: `api.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.follow import follow
from elasticdl.cluster.states import JobState, Phase
from elasticdl.cluster.submit import submit
from elasticdl.errors import ClusterJobError, TrainingError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from elasticdl.cluster.kubernetes import Kubernetes
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.job import Job


def launch(
    job: Job,
    options: ClusterOptions,
    cluster: Kubernetes,
    *,
    patch: Mapping[str, Any] | None = None,
    detach: bool = False,
    tell: Callable[[str], None],
    beside: Callable[[str], AbstractContextManager[object]] = contextlib.nullcontext,
) -> JobState | None:
    """Submit a job and follow it to its end.

    Args:
        job: What to do.
        options: With what.
        cluster: Where.
        patch: Changes of the cluster's owner; see `rayjob.manifest`.
        detach: Return when it is submitted.
        tell: Is given lines for people.
        beside: Is given the job's name; entered while the job is followed.

    Returns:
        How it ended; None if it was detached from.

    Raises:
        ClusterJobError: The job failed; it has the exit code of its command.
        ElasticDLError: It could not be submitted, or can no longer be followed.
    """
    done = submit(job, options, cluster, patch)
    where = f"{done.name} in {cluster.name}, namespace {done.namespace}"
    if done.is_done:
        tell(f"RayJob {where} is done already: {job.output}")
        return JobState(Phase.SUCCEEDED, "finished", exit_code=0)
    tell(f"Submitted RayJob {where}." if done.is_new else f"RayJob {where} is there already.")
    if detach:
        tell(useful_commands(done.name, cluster))
        return None
    try:
        with beside(done.name):
            state = follow(cluster, done.name, lambda state: tell(shown(state)), tell)
    except KeyboardInterrupt:
        tell(f"\nThe job goes on.\n{useful_commands(done.name, cluster)}")
        raise
    if state.phase is not Phase.SUCCEEDED:
        advice = f" {state.advice}" if state.advice else ""
        raise ClusterJobError(
            f"The job {done.name} {state.phase}: {state.message}.{advice}\n"
            f"  Its log: elasticdl job logs {done.name} {_flags(cluster)}",
            state.exit_code or TrainingError.exit_code,
        )
    tell(f"Done: {job.output}")
    return state


def shown(state: JobState) -> str:
    """Return a state as a line or two."""
    return f"{state.phase}: {state.message}" + (f"\n  {state.advice}" if state.advice else "")


def useful_commands(name: str, cluster: Kubernetes) -> str:
    """Return what a person may want to type next."""
    flags = _flags(cluster)
    return "\n".join(
        [
            f"  follow it    elasticdl job logs {name} {flags}",
            f"  its state    elasticdl job show {name} {flags}",
            f"  its page     elasticdl job page {name} {flags}",
            f"  Ray's        elasticdl job dashboard {name} {flags}",
            f"  stop it      elasticdl job stop {name} {flags}",
            f"  all jobs     elasticdl job list {flags}",
        ]
    )


def _flags(cluster: Kubernetes) -> str:
    context = "" if cluster.context is None else f" --context={cluster.context}"
    return f"--cluster=kubernetes{context} --namespace={cluster.namespace}"

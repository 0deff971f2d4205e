"""Follows a job on a cluster: reports its state and the output of its command.

Read-only: a job runs in the same way whether or not it is followed. A broken connection is retried
for up to ten minutes (`_GIVEN_UP_S`).

Callers: `launch.py`, `head.py`, and `elasticdl job logs`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from elasticdl.cluster import progress
from elasticdl.cluster.rayjob import JOB_LABEL, SUBMITTER
from elasticdl.cluster.states import JobPhase, RayJobState, state_of
from elasticdl.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.cluster.kubernetes_client import Kubernetes, Object
    from elasticdl.cluster.progress import Annotations

_WINDOW_S = 3
_GIVEN_UP_S = 600.0
_BETWEEN_TRIES_S = 2.0
# Enough to contain the progress, if the command prints at most ten lines a second.
_LAST_LINES = 200


def current(cluster: Kubernetes, name: str) -> tuple[Object, RayJobState]:
    """Return a job's RayJob and its state.

    Raises:
        UsageError: There is no such job, or reading it is not allowed.
        UnavailableError: The server does not answer.
    """
    found = cluster.get(name)
    if found is None:
        raise UsageError(f"There is no job {name!r} in the namespace {cluster.namespace}.")
    return found, _state(cluster, found)


def states(cluster: Kubernetes) -> list[tuple[Object, RayJobState]]:
    """Return the jobs of a namespace with their states, the newest first.

    Raises:
        UsageError: Listing them is not allowed.
        UnavailableError: The server does not answer.
    """
    found = cluster.rayjobs(JOB_LABEL)
    found.sort(key=lambda job: str(job["metadata"]["creationTimestamp"]), reverse=True)
    return [(job, _state(cluster, job)) for job in found]


def progress_of(cluster: Kubernetes, found: Object, state: RayJobState) -> Annotations:
    """Return the progress of a job, from its RayJob's annotations or else from its log.

    Args:
        cluster: Cluster of the job.
        found: RayJob of the job.
        state: State of the job; the log is read only if the job is running.

    Returns:
        The annotations; empty if there is no progress yet, or reading the log is not allowed.

    Raises:
        UnavailableError: The server does not answer.
    """
    annotations: Annotations = progress.annotations_of(found)
    if annotations or state.phase is not JobPhase.RUNNING:
        return annotations
    with contextlib.suppress(UsageError):
        for pod in _submitters(cluster, found["metadata"]["name"])[-1:]:
            lines = cluster.log_lines(pod["metadata"]["name"], SUBMITTER, last=_LAST_LINES)
            return progress.last_line(line for _, line in lines)
    return annotations


def follow(
    cluster: Kubernetes,
    name: str,
    on_state: Callable[[RayJobState], None],
    on_line: Callable[[str], None],
) -> RayJobState:
    """Report a job's states and output until it has ended; return its final state.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.
        on_state: Called with each new state.
        on_line: Called with each line that the job's command prints.

    Raises:
        UsageError: The job was deleted in the meantime, or reading it is not allowed.
        UnavailableError: The server has not answered for ten minutes.
    """
    log = _Log(cluster, name, on_line)
    reported: RayJobState | None = None
    answered_s = time.monotonic()
    while True:
        try:
            for found in cluster.watch(name, _WINDOW_S):
                answered_s = time.monotonic()
                if found is None:
                    raise UsageError(
                        f"The job {name} was deleted while its log was followed. Its saved "
                        "progress is in its output; run the same command to resume."
                    )
                state = _state(cluster, found)
                log.read(_submitters(cluster, name))
                if state != reported:
                    on_state(state)
                    reported = state
                if state.has_ended:
                    return state
        except UnavailableError:
            if time.monotonic() - answered_s > _GIVEN_UP_S:
                raise
            time.sleep(_BETWEEN_TRIES_S)


def _state(cluster: Kubernetes, found: Object) -> RayJobState:
    name = found["metadata"]["name"]
    ray_cluster = (found.get("status") or {}).get("rayClusterName")
    pods = cluster.pods(f"{JOB_LABEL}={name}")
    events: Sequence[Object] = ()
    state = state_of(found, pods)
    if state.phase in {JobPhase.WAITING, JobPhase.STARTING}:
        events = [*cluster.events("RayJob", name)]
        if ray_cluster:
            events = [*events, *cluster.events("RayCluster", ray_cluster)]
        state = state_of(found, pods, events)
    return state


def _submitters(cluster: Kubernetes, name: str) -> list[Object]:
    """Return the pods whose logs are the output of the job's command, the oldest first.

    There are several if the command was resubmitted.
    """
    found = cluster.pods(f"job-name={name}")
    return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))


class _Log:
    """Reader of the output of a job's command: passes each line to `on_line` once.

    Lines that only record the progress (`progress.line_of`) are skipped.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.
        on_line: Called with each line.
    """

    def __init__(self, cluster: Kubernetes, name: str, on_line: Callable[[str], None]) -> None:
        self._cluster, self._name, self._on_line = cluster, name, on_line
        # Pod -> time stamp of the last reported line.
        self._last: dict[str, str] = {}

    def read(self, pods: Sequence[Object]) -> None:
        """Report the lines that the pods of the command have printed since the last call."""
        for pod in pods:
            name = pod["metadata"]["name"]
            last = self._last.get(name, "")
            for stamp, line in self._cluster.log_lines(name, SUBMITTER, after=last):
                self._last[name] = stamp
                if not progress.is_line(line):
                    self._on_line(line)

"""Following a job on a cluster: what it does in words, and what its command prints.

It only looks. A connection that breaks is made again, for as long as `_GIVEN_UP_S`; the job runs on
whether anybody follows it or not.

Callers: `api.py`, and `elasticdl job logs`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from elasticdl.cluster import progress
from elasticdl.cluster.rayjob import JOB_LABEL, SUBMITTER
from elasticdl.cluster.states import JobState, Phase, state_of
from elasticdl.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.cluster.kubernetes import Kubernetes, Object
    from elasticdl.cluster.progress import Annotations

_WINDOW_S = 3
_GIVEN_UP_S = 600.0
_BETWEEN_TRIES_S = 2.0
# Progress is told in one of them, if a training prints no more than ten a second.
_LAST_LINES = 200


def current(cluster: Kubernetes, name: str) -> tuple[Object, JobState]:
    """Return a job and what it is doing.

    Raises:
        UsageError: There is no such job, or it may not be read.
        UnavailableError: The server does not answer.
    """
    found = cluster.get(name)
    if found is None:
        raise UsageError(f"There is no job {name!r} in the namespace {cluster.namespace}.")
    return found, _state(cluster, found)


def states(cluster: Kubernetes) -> list[tuple[Object, JobState]]:
    """Return the jobs of a namespace and what they are doing, the newest first.

    Raises:
        UsageError: They may not be listed.
        UnavailableError: The server does not answer.
    """
    found = cluster.rayjobs(JOB_LABEL)
    found.sort(key=lambda job: str(job["metadata"]["creationTimestamp"]), reverse=True)
    return [(job, _state(cluster, job)) for job in found]


def progress_of(cluster: Kubernetes, found: Object, state: JobState) -> Annotations:
    """Return how far a job is, as its RayJob's annotations tell, or else its log.

    Args:
        cluster: Where it is.
        found: Its RayJob.
        state: What it is doing; logs are read of a job that runs only.

    Returns:
        Empty if neither tells, or the log may not be read.

    Raises:
        UnavailableError: The server does not answer.
    """
    told: Annotations = progress.annotations_of(found)
    if told or state.phase is not Phase.RUNNING:
        return told
    with contextlib.suppress(UsageError):
        for pod in _submitters(cluster, found["metadata"]["name"])[-1:]:
            lines = cluster.log_lines(pod["metadata"]["name"], SUBMITTER, last=_LAST_LINES)
            return progress.last_line(line for _, line in lines)
    return told


def follow(
    cluster: Kubernetes,
    name: str,
    on_state: Callable[[JobState], None],
    on_line: Callable[[str], None],
) -> JobState:
    """Tell what a job does until it has ended; returns how.

    Args:
        cluster: Where it is.
        name: Of its RayJob.
        on_state: Is given each new state.
        on_line: Is given each line that the job's command prints.

    Raises:
        UsageError: The job was deleted meanwhile, or may not be read.
        UnavailableError: The server has not answered for ten minutes.
    """
    log = _Log(cluster, name, on_line)
    told: JobState | None = None
    answered_s = time.monotonic()
    while True:
        try:
            for found in cluster.watch(name, _WINDOW_S):
                answered_s = time.monotonic()
                if found is None:
                    raise UsageError(
                        f"The job {name} was deleted while it was followed. Progress that it has "
                        "saved is in its output; the same command resumes."
                    )
                state = _state(cluster, found)
                log.read(_submitters(cluster, name))
                if state != told:
                    on_state(state)
                    told = state
                if state.has_ended:
                    return state
        except UnavailableError:
            if time.monotonic() - answered_s > _GIVEN_UP_S:
                raise
            time.sleep(_BETWEEN_TRIES_S)


def _state(cluster: Kubernetes, found: Object) -> JobState:
    name = found["metadata"]["name"]
    ray_cluster = (found.get("status") or {}).get("rayClusterName")
    pods = cluster.pods(f"{JOB_LABEL}={name}")
    events: Sequence[Object] = ()
    state = state_of(found, pods)
    if state.phase in {Phase.WAITING, Phase.STARTING}:
        events = [*cluster.events("RayJob", name)]
        if ray_cluster:
            events = [*events, *cluster.events("RayCluster", ray_cluster)]
        state = state_of(found, pods, events)
    return state


def _submitters(cluster: Kubernetes, name: str) -> list[Object]:
    """Return the pods that print what the job's command prints, the oldest first."""
    found = cluster.pods(f"job-name={name}")
    return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))


class _Log:
    """The lines that a job's command has printed, each told once."""

    def __init__(self, cluster: Kubernetes, name: str, on_line: Callable[[str], None]) -> None:
        self._cluster, self._name, self._on_line = cluster, name, on_line
        # Pod -> time stamp of its last line that was told.
        self._last: dict[str, str] = {}

    def read(self, pods: Sequence[Object]) -> None:
        """Tell the lines since the last call."""
        for pod in pods:
            name = pod["metadata"]["name"]
            last = self._last.get(name, "")
            for stamp, line in self._cluster.log_lines(name, SUBMITTER, after=last):
                self._last[name] = stamp
                if not progress.is_line(line):
                    self._on_line(line)

"""Derives the state of a job, as a sentence for the user, from its RayJob and pods.

    RayJob.status + pods + events  ->  RayJobState

Pure: values in, values out. For a pod that cannot run, it states the cause and the remedy, for
users who do not know the status fields of pods.

Status fields: KubeRay 1.7, `ray.io/v1`. Callers: `follow.py`, and `elasticdl job show`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from elasticdl.cluster.rayjob import WORKERS_GROUP

Object: TypeAlias = Mapping[str, Any]

_EXIT_CODE = re.compile(r"exit code (\d+)")
_OUT_OF_MEMORY = "OOMKilled"
_FINISHED = "Complete"
_FAILED = {"Failed", "ValidationFailed"}
# Status of the command; KubeRay reports the end of the RayJob some seconds later.
_COMMAND_ENDED = {"SUCCEEDED", "FAILED"}


class JobPhase(StrEnum):
    """Phase of a job on a cluster; `SUCCEEDED`, `FAILED` and `STOPPED` are final."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class RayJobState:
    """The state of a job on a cluster, with an explanation for the user.

    Attributes:
        phase: Phase of the job.
        message: What the job is doing, or why it waits or failed: one or more sentences.
        num_workers: Number of running worker pods.
        exit_code: Exit code of its command, if it has ended and the cluster reports it.
        advice: What the user can do about a problem; may be empty.
    """

    phase: JobPhase
    message: str
    num_workers: int = 0
    exit_code: int | None = None
    advice: str = ""

    @property
    def sentence(self) -> str:
        """The phase and the message; the phase is not repeated if the message begins with it."""
        return (
            self.message if self.message.startswith(self.phase) else f"{self.phase}: {self.message}"
        )

    @property
    def has_ended(self) -> bool:
        """Whether the state is final: the job succeeded, failed or was stopped."""
        return self.phase in {JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.STOPPED}


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not run, or why its container was killed, and what to do about it.

    Attributes:
        pod: Name of the pod.
        cause: The cause in words, such as "out of memory: it used more than 4Gi".
        advice: What the user can do about it.
    """

    pod: str
    cause: str
    advice: str


def state_of(rayjob: Object, pods: Sequence[Object], events: Sequence[Object] = ()) -> RayJobState:
    """Derive the state of a job from its RayJob, pods and events.

    Args:
        rayjob: The RayJob, as JSON values from the server.
        pods: Pods of the job and of its Ray cluster. Pods older than the RayJob are ignored: they
            belong to an earlier job of the same name, and may still write its last checkpoint.
        events: Events of the job and its Ray cluster, the oldest first.
    """
    status = rayjob.get("status") or {}
    created = str(rayjob["metadata"].get("creationTimestamp", ""))
    pods = [
        pod for pod in pods if str(pod["metadata"].get("creationTimestamp", created)) >= created
    ]
    ended = _ended(status, pods)
    if ended is not None:
        return ended
    deployment = status.get("jobDeploymentStatus", "")
    is_suspended = not deployment and rayjob.get("spec", {}).get("suspend")
    if is_suspended or deployment in {"Suspended", "Suspending"}:
        queue = (rayjob["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name")
        where = f"in the queue {queue}" if queue else "because it is suspended"
        return RayJobState(JobPhase.WAITING, f"waiting {where}")
    return _going_on(rayjob, pods, events)


def _ended(status: Object, pods: Sequence[Object]) -> RayJobState | None:
    deployment, job = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
    if deployment == _FINISHED and job == "SUCCEEDED":
        return RayJobState(JobPhase.SUCCEEDED, "finished", exit_code=0)
    if job == "STOPPED":
        return RayJobState(JobPhase.STOPPED, "stopped; run the same command to resume")
    if deployment in _FAILED or (deployment == _FINISHED and job == "FAILED"):
        return _failed(status, pods)
    return None


def _going_on(rayjob: Object, pods: Sequence[Object], events: Sequence[Object]) -> RayJobState:
    status = rayjob.get("status") or {}
    workers = [pod for pod in pods if _label(pod, "ray.io/group") == WORKERS_GROUP]
    num_running = sum(map(_is_running, workers))
    trouble = next(filter(None, map(trouble_of, pods)), None)
    advice = "" if trouble is None else trouble.advice
    why = "" if trouble is None else f"{trouble.pod}: {trouble.cause}"
    if status.get("jobStatus") == "RUNNING":
        message = f"running on {num_running} of {_num_wanted(rayjob)} workers"
        return RayJobState(
            JobPhase.RUNNING, f"{message}; {why}" if why else message, num_running, advice=advice
        )
    if status.get("jobStatus") in _COMMAND_ENDED:
        return RayJobState(JobPhase.RUNNING, "its command has ended", num_running)
    why = why or _refused_pods(events)
    if not why and not status.get("jobDeploymentStatus"):
        return RayJobState(
            JobPhase.WAITING,
            "waiting for KubeRay to process it",
            advice="If this persists, check that the KubeRay operator is running: "
            "kubectl get pods -A | grep kuberay",
        )
    message = why or f"starting: {sum(map(_is_running, pods))} of {len(pods)} pods are running"
    return RayJobState(JobPhase.STARTING, message, num_running, advice=advice)


def trouble_of(pod: Object) -> Trouble | None:
    """Find a known problem of a pod: a lack of memory or nodes, a missing image, an eviction.

    A container that was killed for its use of memory counts even if it has been restarted.

    Returns:
        The cause and the remedy; None if the pod's status shows no known problem.
    """
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    if status.get("reason") == "Evicted":
        return Trouble(
            name,
            f"evicted by its node: {status.get('message', '')}".rstrip(": "),
            "Low on memory: request at least as much as the pod uses (--memory_per_worker). Low on "
            "disk: free space on the node.",
        )
    for container in _containers(status):
        waiting = container.get("state", {}).get("waiting") or {}
        problem = _of_waiting(waiting.get("reason", ""), waiting.get("message", ""), pod)
        if problem is not None:
            return Trouble(name, *problem)
        for moment in ("state", "lastState"):
            ended = container.get(moment, {}).get("terminated") or {}
            if ended.get("reason") == _OUT_OF_MEMORY:
                return Trouble(
                    name,
                    f"out of memory: it used more than {_memory_limit(pod, container)}",
                    "Raise --memory_per_worker, or lower --minibatch_size.",
                )
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            message = condition.get("message", "")
            return Trouble(
                name,
                f"no node has room for it: {message}",
                "Request less (--cpus_per_worker, --memory_per_worker, --gpus_per_worker), or add "
                "nodes to the cluster.",
            )
    return None


def _of_waiting(reason: str, message: str, pod: Object) -> tuple[str, str] | None:
    image = pod["spec"]["containers"][0].get("image", "")
    if reason in {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}:
        return (
            f"the image {image} cannot be pulled: {message or reason}",
            (
                "Check that it was pushed and that the cluster may pull it; set the credentials "
                "with --image_pull_secret."
            ),
        )
    if reason in {"CreateContainerConfigError", "CreateContainerError"}:
        return (
            f"it cannot be started: {message or reason}",
            "Check that the secret or volume exists.",
        )
    if reason == "CrashLoopBackOff":
        return f"it keeps crashing: {message}", "Read its log: elasticdl job logs"
    return None


def _failed(status: Object, pods: Sequence[Object]) -> RayJobState:
    message, reason = str(status.get("message") or ""), str(status.get("reason") or "")
    found = _EXIT_CODE.search(message)
    code = int(found[1]) if found else None
    if reason == "DeadlineExceeded":
        return RayJobState(JobPhase.FAILED, "it took longer than --deadline", exit_code=code)
    if reason in {"PreRunningDeadlineExceeded", "ValidationFailed", "SubmissionFailed"}:
        return RayJobState(JobPhase.FAILED, message or reason, exit_code=code)
    for trouble in filter(None, map(trouble_of, pods)):
        if "out of memory" in trouble.cause:
            return RayJobState(
                JobPhase.FAILED, f"{trouble.pod}: {trouble.cause}", 0, code, trouble.advice
            )
    if code is not None:
        return RayJobState(
            JobPhase.FAILED, f"its command ended with exit code {code}", exit_code=code
        )
    return RayJobState(
        JobPhase.FAILED, message or reason or "it failed without a message", exit_code=None
    )


def _refused_pods(events: Iterable[Object]) -> str:
    """Return why pods cannot be created, from the latest event about it; empty if there is none."""
    for event in reversed(list(events)):
        message = str(event.get("message", ""))
        if "exceeded quota" in message:
            return f"the namespace's quota does not allow more pods: {message}"
        if str(event.get("reason", "")).startswith(("FailedCreate", "FailedToCreate")):
            return f"its pods cannot be created: {message}"
    return ""


def _containers(status: Object) -> Iterable[Object]:
    yield from status.get("initContainerStatuses") or ()
    yield from status.get("containerStatuses") or ()


def _memory_limit(pod: Object, container: Object) -> str:
    for each in pod["spec"]["containers"]:
        if each["name"] == container.get("name"):
            limit = (each.get("resources") or {}).get("limits", {}).get("memory")
            return str(limit) if limit else "the node has"
    return "the node has"


def _is_running(pod: Object) -> bool:
    # A pod that is being deleted keeps its phase until its containers have ended.
    is_ending = "deletionTimestamp" in pod["metadata"]
    return (pod.get("status") or {}).get("phase") == "Running" and not is_ending


def _label(pod: Object, name: str) -> str | None:
    found: str | None = (pod["metadata"].get("labels") or {}).get(name)
    return found


def _num_wanted(rayjob: Object) -> int:
    groups = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return int(groups[0].get("maxReplicas") or 0)

"""What a RayJob and its pods are doing, in words.

    RayJob.status + pods + events  ->  JobState

Pure: values in, values out. Of a pod that cannot run it says the cause and what to do, for people
who have never read a pod's status.

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
# Of the command; KubeRay reports the end of the RayJob some seconds later.
_COMMAND_ENDED = {"SUCCEEDED", "FAILED"}


class Phase(StrEnum):
    """How far a job is."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class JobState:
    """What a job on a cluster is doing.

    Attributes:
        phase: How far it is.
        message: What it is doing or waiting for, or why it failed: one sentence or more.
        num_workers: Worker pods that are running.
        exit_code: Of its command, where it has ended and the cluster tells.
        advice: What to do about it; may be empty.
    """

    phase: Phase
    message: str
    num_workers: int = 0
    exit_code: int | None = None
    advice: str = ""

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.phase in {Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED}


@dataclass(frozen=True)
class Trouble:
    """Why a pod does not run.

    Attributes:
        pod: Its name.
        cause: In words.
        advice: What to do.
    """

    pod: str
    cause: str
    advice: str


def state_of(rayjob: Object, pods: Sequence[Object], events: Sequence[Object] = ()) -> JobState:
    """Return what a job is doing.

    Args:
        rayjob: As the server has it.
        pods: Those of the job, and of its Ray cluster.
        events: Of the job and its Ray cluster, the oldest first.
    """
    status = rayjob.get("status") or {}
    ended = _ended(status, pods)
    if ended is not None:
        return ended
    deployment = status.get("jobDeploymentStatus", "")
    is_suspended = not deployment and rayjob.get("spec", {}).get("suspend")
    if is_suspended or deployment in {"Suspended", "Suspending"}:
        queue = (rayjob["metadata"].get("labels") or {}).get("kueue.x-k8s.io/queue-name")
        where = f"in the queue {queue}" if queue else "because it is suspended"
        return JobState(Phase.WAITING, f"waiting {where}")
    return _going_on(rayjob, pods, events)


def _ended(status: Object, pods: Sequence[Object]) -> JobState | None:
    deployment, job = status.get("jobDeploymentStatus", ""), status.get("jobStatus", "")
    if deployment == _FINISHED and job == "SUCCEEDED":
        return JobState(Phase.SUCCEEDED, "finished", exit_code=0)
    if job == "STOPPED":
        return JobState(Phase.STOPPED, "stopped; the same command resumes")
    if deployment in _FAILED or (deployment == _FINISHED and job == "FAILED"):
        return _failed(status, pods)
    return None


def _going_on(rayjob: Object, pods: Sequence[Object], events: Sequence[Object]) -> JobState:
    status = rayjob.get("status") or {}
    workers = [pod for pod in pods if _label(pod, "ray.io/group") == WORKERS_GROUP]
    num_running = sum(map(_is_running, workers))
    trouble = next(filter(None, map(trouble_of, pods)), None)
    advice = "" if trouble is None else trouble.advice
    why = "" if trouble is None else f"{trouble.pod}: {trouble.cause}"
    if status.get("jobStatus") == "RUNNING":
        message = f"running on {num_running} of {_num_wanted(rayjob)} workers"
        return JobState(
            Phase.RUNNING, f"{message}; {why}" if why else message, num_running, advice=advice
        )
    if status.get("jobStatus") in _COMMAND_ENDED:
        return JobState(Phase.RUNNING, "its command has ended", num_running)
    why = why or _refused_pods(events)
    if not why and not status.get("jobDeploymentStatus"):
        return JobState(
            Phase.WAITING,
            "waiting for KubeRay to take it up",
            advice="If that lasts, its operator is not running: kubectl get pods -A | grep kuberay",
        )
    message = why or f"starting: {sum(map(_is_running, pods))} of {len(pods)} pods are running"
    return JobState(Phase.STARTING, message, num_running, advice=advice)


def trouble_of(pod: Object) -> Trouble | None:
    """Return why a pod does not run; None if it runs, is done, or is about to."""
    name, status = pod["metadata"]["name"], pod.get("status") or {}
    if status.get("reason") == "Evicted":
        return Trouble(
            name,
            f"evicted by its node: {status.get('message', '')}".rstrip(": "),
            "Ask for as much memory and disk as it uses (--memory_per_worker).",
        )
    for container in _containers(status):
        waiting = container.get("state", {}).get("waiting") or {}
        told = _of_waiting(waiting.get("reason", ""), waiting.get("message", ""), pod)
        if told is not None:
            return Trouble(name, *told)
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
            said = condition.get("message", "")
            return Trouble(
                name,
                f"no node has room for it: {said}",
                "Ask for less (--cpus_per_worker, --memory_per_worker, --gpus_per_worker), or let "
                "the cluster grow.",
            )
    return None


def _of_waiting(reason: str, message: str, pod: Object) -> tuple[str, str] | None:
    image = pod["spec"]["containers"][0].get("image", "")
    if reason in {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}:
        return (
            f"the image {image} cannot be pulled: {message or reason}",
            "Is it pushed, and may the cluster read it? --image_pull_secret names the credentials.",
        )
    if reason in {"CreateContainerConfigError", "CreateContainerError"}:
        return f"it cannot be started: {message or reason}", "Does the secret or volume exist?"
    if reason == "CrashLoopBackOff":
        return f"it ends again and again: {message}", "Read its log: elasticdl job logs"
    return None


def _failed(status: Object, pods: Sequence[Object]) -> JobState:
    message, reason = str(status.get("message") or ""), str(status.get("reason") or "")
    found = _EXIT_CODE.search(message)
    code = int(found[1]) if found else None
    if reason == "DeadlineExceeded":
        return JobState(Phase.FAILED, "it took longer than --deadline", exit_code=code)
    if reason in {"PreRunningDeadlineExceeded", "ValidationFailed", "SubmissionFailed"}:
        return JobState(Phase.FAILED, message or reason, exit_code=code)
    for trouble in filter(None, map(trouble_of, pods)):
        if "out of memory" in trouble.cause:
            return JobState(
                Phase.FAILED, f"{trouble.pod}: {trouble.cause}", 0, code, trouble.advice
            )
    if code is not None:
        return JobState(Phase.FAILED, f"its command ended with exit code {code}", exit_code=code)
    return JobState(Phase.FAILED, message or reason or "it failed without a word", exit_code=None)


def _refused_pods(events: Iterable[Object]) -> str:
    """Return why the cluster refuses to make pods; empty if it does not."""
    for event in reversed(list(events)):
        said = str(event.get("message", ""))
        if "exceeded quota" in said:
            return f"the namespace's quota does not allow more pods: {said}"
        if str(event.get("reason", "")).startswith(("FailedCreate", "FailedToCreate")):
            return f"its pods cannot be made: {said}"
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
    return (pod.get("status") or {}).get("phase") == "Running"


def _label(pod: Object, name: str) -> str | None:
    found: str | None = (pod["metadata"].get("labels") or {}).get(name)
    return found


def _num_wanted(rayjob: Object) -> int:
    groups = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return int(groups[0].get("maxReplicas") or 0)

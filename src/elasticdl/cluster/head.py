"""Finds the head pod of a job, where its page and Ray's dashboard listen, and connects to it.

    RayJob  --label-->  head pod: its env has the page's port, its uid is the page's token
                        <--port-forward through the API server--  this machine

The RayJob, its annotations and its log contain nothing that gives access to the page. So only users
who may read the pod and forward its ports can see the page.

Callers: `page/forwarded.py`, `dashboard.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.cluster.follow import current
from elasticdl.cluster.rayjob import JOB_LABEL
from elasticdl.errors import UnavailableError, UsageError
from elasticdl.job import PAGE_PORT_VARIABLE

if TYPE_CHECKING:
    from elasticdl.cluster.kubernetes_client import Kubernetes, Object

_HEADS = "ray.io/node-type=head"
_OUTPUT = "elasticdl.org/output"


@dataclass(frozen=True)
class HeadPod:
    """The head pod of a job, with the port and token of the job page in it.

    Attributes:
        pod: Name of the pod.
        port: Port of the job page, on the pod's loopback.
        token: Token that the page requires.
    """

    pod: str
    port: int
    token: str


def running_head(cluster: Kubernetes, name: str) -> Object:
    """Return the newest running head pod of a job.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.

    Raises:
        UnavailableError: No head pod is running now, or the server does not answer.
        UsageError: Listing pods is not allowed.
    """
    pods = cluster.pods(f"{JOB_LABEL}={name},{_HEADS}")
    running = [pod for pod in pods if _is_running(pod)]
    if not running:
        raise UnavailableError(
            f"The head pod of the job {name} is not running: it is starting or being replaced, or "
            "the job has ended."
        )
    return max(running, key=lambda each: str(each["metadata"].get("creationTimestamp")))


def find_head(cluster: Kubernetes, name: str) -> HeadPod:
    """Find a job's page: its head pod, the port, and the token.

    Args:
        cluster: Cluster of the job.
        name: Name of its RayJob.

    Raises:
        UnavailableError: No head pod is running now, or the server does not answer.
        UsageError: Listing pods is not allowed, or the job has no page.
    """
    pod = running_head(cluster, name)
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0].get("env", ())}
    port = str(env.get(PAGE_PORT_VARIABLE) or "")
    if not port.isdecimal():
        raise UsageError(
            f"The job {name} has no page: it is not a training job, or was submitted by an older "
            f"version. See its log: elasticdl job logs {name} --cluster=kubernetes"
        )
    return HeadPod(pod["metadata"]["name"], int(port), pod["metadata"]["uid"])


def connect(cluster: Kubernetes, head: HeadPod) -> Any:
    """Open a connection to the page in a head pod; the caller closes it.

    Raises:
        UsageError: Port forwarding is not allowed.
        UnavailableError: The pod is gone, or the server does not answer.
    """
    return cluster.forward(head.pod, head.port)


def check_runs(cluster: Kubernetes, name: str) -> str:
    """Check that a job whose page or dashboard is awaited has not ended; return its state.

    Returns:
        The state as a sentence, to show to the waiting user.

    Raises:
        UsageError: There is no such job, or it has ended.
        UnavailableError: The server does not answer.
    """
    found, state = current(cluster, name)
    if not state.has_ended:
        return state.sentence
    output = (found["metadata"].get("annotations") or {}).get(_OUTPUT, "OUTPUT")
    raise UsageError(
        f"The job {name} has ended ({state.sentence}), so its pods serve no page. "
        f"View its page from the output: elasticdl job page {output}"
    )


def _is_running(pod: Object) -> bool:
    is_going = "deletionTimestamp" in pod["metadata"]
    return pod["status"].get("phase") == "Running" and not is_going

"""The head's pod of a job, in which its page and Ray's dashboard listen, and connections to it.

    RayJob  --label-->  head's pod: env has the page's port, its uid is the page's token
                        <--port-forward through the API server--  this machine

Nothing that opens the page is in the RayJob, its annotations or its log: whoever may read the pod
and forward its ports sees the page.

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
    from elasticdl.cluster.kubernetes import Kubernetes, Object

_HEADS = "ray.io/node-type=head"
_OUTPUT = "elasticdl.org/output"


@dataclass(frozen=True)
class Head:
    """The head's pod of a job.

    Attributes:
        pod: Its name.
        port: Where its page listens, on its loopback.
        token: What the page asks for.
    """

    pod: str
    port: int
    token: str


def running_head(cluster: Kubernetes, name: str) -> Object:
    """Return the head's pod of a job, the newest one that runs.

    Args:
        cluster: Where the job is.
        name: Of its RayJob.

    Raises:
        UnavailableError: There is none that runs now, or the server does not answer.
        UsageError: Pods may not be listed.
    """
    pods = cluster.pods(f"{JOB_LABEL}={name},{_HEADS}")
    running = [pod for pod in pods if _is_running(pod)]
    if not running:
        raise UnavailableError(
            f"The head's pod of the job {name} does not run now: it is starting, is being "
            "replaced, or the job has ended."
        )
    return max(running, key=lambda each: str(each["metadata"].get("creationTimestamp")))


def find_head(cluster: Kubernetes, name: str) -> Head:
    """Return where the page of a job is: in its head's pod.

    Args:
        cluster: Where the job is.
        name: Of its RayJob.

    Raises:
        UnavailableError: There is none that runs now, or the server does not answer.
        UsageError: Pods may not be listed, or the job has no page.
    """
    pod = running_head(cluster, name)
    env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0].get("env", ())}
    port = str(env.get(PAGE_PORT_VARIABLE) or "")
    if not port.isdecimal():
        raise UsageError(
            f"The job {name} has no page: it is no training, or an older version submitted it. "
            f"See its log: elasticdl job logs {name} --cluster=kubernetes"
        )
    return Head(pod["metadata"]["name"], int(port), pod["metadata"]["uid"])


def connect(cluster: Kubernetes, head: Head) -> Any:
    """Return a connection to the page in a head's pod; its owner closes it.

    Raises:
        UsageError: Ports may not be forwarded.
        UnavailableError: The pod is gone, or the server does not answer.
    """
    return cluster.forward(head.pod, head.port)


def check_runs(cluster: Kubernetes, name: str) -> str:
    """Return what a job is doing, in words, if it has not ended.

    Raises:
        UsageError: There is no such job, or it has ended.
        UnavailableError: The server does not answer.
    """
    found, state = current(cluster, name)
    if not state.has_ended:
        return f"{state.phase}: {state.message}"
    output = (found["metadata"].get("annotations") or {}).get(_OUTPUT, "OUTPUT")
    raise UsageError(
        f"The job {name} has ended ({state.phase}: {state.message}), and its pods serve no page. "
        f"Read it from its output: elasticdl job page {output}"
    )


def _is_running(pod: Object) -> bool:
    is_going = "deletionTimestamp" in pod["metadata"]
    return pod["status"].get("phase") == "Running" and not is_going

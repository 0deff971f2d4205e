"""States of pods, as kubelet and scheduler report them: the status, and the event beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.cluster.api_server.store import now

_TIMES = {"running": "startedAt", "terminated": "finishedAt"}


@dataclass(frozen=True)
class PodState:
    """What a pod's status says, and its container's; `event` is its reason and message."""

    phase: str
    container: dict[str, Any] | None = None
    status: dict[str, Any] | None = None
    event: tuple[str, str] | None = None

    def of(self, container: dict[str, Any]) -> dict[str, Any]:
        """Return the status of a pod with this one container."""
        made: dict[str, Any] = {
            "phase": self.phase,
            "qosClass": "Guaranteed",
            **(self.status or {}),
        }
        if self.container is not None:
            image = container["image"]
            is_ready = "running" in self.container
            state = {
                kind: {**said, _TIMES[kind]: now()} if kind in _TIMES else said
                for kind, said in self.container.items()
            }
            made["containerStatuses"] = [{
                "name": container["name"], "image": image, "state": state,
                "imageID": image if is_ready else "", "ready": is_ready, "restartCount": 0,
            }]  # fmt: skip
        return made


CREATING = PodState("Pending", {"waiting": {"reason": "ContainerCreating"}})
RUNNING = PodState("Running", {"running": {}}, {"podIP": "127.0.0.1"})


def running_at(address: str) -> PodState:
    return PodState("Running", {"running": {}}, {"podIP": address})


def exited(code: int, reason: str | None = None) -> PodState:
    ended = {"exitCode": code, "reason": reason or ("Error" if code else "Completed")}
    return PodState("Failed" if code else "Succeeded", {"terminated": ended})


def image_pull_back_off(image: str = "registry.example/team/app:gone") -> PodState:
    said = f'Back-off pulling image "{image}": ErrImagePull: {image}: not found'
    waiting = {"reason": "ImagePullBackOff", "message": said}
    event = ("Failed", f'Failed to pull image "{image}": {image}: not found')
    return PodState("Pending", {"waiting": waiting}, event=event)


def unschedulable(why: str = "3 Insufficient nvidia.com/gpu") -> PodState:
    said = (
        f"0/3 nodes are available: {why}. preemption: 0/3 nodes are available: 3 No preemption "
        "victims found for incoming pod."
    )
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                 "message": said}  # fmt: skip
    return PodState("Pending", None, {"conditions": [condition]}, ("FailedScheduling", said))


def oom_killed() -> PodState:
    return exited(137, "OOMKilled")


def evicted() -> PodState:
    said = "The node was low on resource: memory. Threshold quantity: 100Mi, available: 80Mi."
    return PodState("Failed", None, {"reason": "Evicted", "message": said}, ("Evicted", said))

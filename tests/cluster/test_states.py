"""What a RayJob and its pods are doing, in words: from the status objects that KubeRay writes."""

from __future__ import annotations

import pytest

from elasticdl.cluster.states import JobPhase, RayJobState, state_of


def rayjob(deployment="", job="", *, spec=None, labels=None, **status):
    groups = [{"groupName": "workers", "minReplicas": 2, "maxReplicas": 4}]
    return {
        "metadata": {"name": "train-1", "labels": labels or {}},
        "spec": {"rayClusterSpec": {"workerGroupSpecs": groups}, **(spec or {})},
        "status": {"jobDeploymentStatus": deployment, "jobStatus": job, **status},
    }


def pod(name="worker-1", phase="Running", *, group="workers", **status):
    limits = {"limits": {"memory": "4Gi"}}
    return {
        "metadata": {"name": name, "labels": {"ray.io/group": group}},
        "spec": {"containers": [{"name": "ray-worker", "image": "r/app", "resources": limits}]},
        "status": {"phase": phase, **status},
    }


def container(state, **detail):
    return {"containerStatuses": [{"name": "ray-worker", "state": {state: detail}}]}


@pytest.mark.parametrize(
    ("job", "pods", "phase", "words"),
    [
        (rayjob(), [], JobPhase.WAITING, "waiting for KubeRay"),
        (
            rayjob(spec={"suspend": True}, labels={"kueue.x-k8s.io/queue-name": "team"}),
            [],
            JobPhase.WAITING,
            "in the queue team",
        ),
        (rayjob("Suspended"), [], JobPhase.WAITING, "because it is suspended"),
        (
            rayjob("Initializing"),
            [pod(), pod("worker-2", "Pending")],
            JobPhase.STARTING,
            "1 of 2 pods are running",
        ),
        (
            rayjob("Running", "RUNNING"),
            [pod(), pod()],
            JobPhase.RUNNING,
            "running on 2 of 4 workers",
        ),
        (rayjob("Running", "FAILED"), [pod()], JobPhase.RUNNING, "its command has ended"),
        (rayjob("Complete", "SUCCEEDED"), [], JobPhase.SUCCEEDED, "finished"),
        (rayjob("Complete", "STOPPED"), [], JobPhase.STOPPED, "run the same command to resume"),
        (
            rayjob("Failed", "FAILED", reason="DeadlineExceeded"),
            [],
            JobPhase.FAILED,
            "longer than --deadline",
        ),
        (
            rayjob("ValidationFailed", reason="ValidationFailed", message="no such version"),
            [],
            JobPhase.FAILED,
            "no such version",
        ),
    ],
)
def test_the_state_of_a_job_is_described(job, pods, phase, words):
    state = state_of(job, pods)

    assert state.phase is phase
    assert words in state.message


def test_the_exit_code_of_the_command_is_found():
    message = "Job entrypoint command failed with exit code 3, last available logs ..."

    state = state_of(rayjob("Failed", "FAILED", reason="AppFailed", message=message), [])

    assert (state.exit_code, state.message) == (3, "its command ended with exit code 3")


@pytest.mark.parametrize(
    ("status", "words", "advice"),
    [
        (
            container("waiting", reason="ImagePullBackOff", message="not found"),
            "the image r/app cannot be pulled: not found",
            "--image_pull_secret",
        ),
        (
            container("waiting", reason="CreateContainerConfigError", message='no secret "s3"'),
            'it cannot be started: no secret "s3"',
            "secret or volume",
        ),
        (
            container("terminated", reason="OOMKilled"),
            "out of memory: it used more than 4Gi",
            "--memory_per_worker",
        ),
        (
            {"reason": "Evicted", "message": "low on disk"},
            "evicted by its node: low on disk",
            "disk",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient memory.",
                    }
                ]
            },
            "no node has room for it: 0/3 nodes",
            "Request less",
        ),
    ],
)
@pytest.mark.parametrize("job", [rayjob("Initializing"), rayjob("Running", "RUNNING")])
def test_a_pod_that_cannot_run_is_reported_with_advice(job, status, words, advice):
    state = state_of(job, [pod(), pod("worker-2", "Pending", **status)])

    assert f"worker-2: {words}" in state.message
    assert advice in state.advice


def test_an_exceeded_quota_is_reported():
    events = [{"reason": "FailedToCreatePod", "message": "pods is forbidden: exceeded quota: q"}]

    state = state_of(rayjob("Initializing"), [], events)

    assert "quota does not allow more pods" in state.message


def test_a_job_that_ran_out_of_memory_is_described_as_such():
    killed = pod("head", "Failed", **container("terminated", reason="OOMKilled"))

    state = state_of(
        rayjob("Failed", "FAILED", reason="AppFailed", message="exit code 137"), [killed]
    )

    assert state.exit_code == 137
    assert "head: out of memory" in state.message


def test_pods_of_an_earlier_stopped_job_are_not_counted() -> None:
    def at(time, **more):
        made = pod()
        made["metadata"] |= {"creationTimestamp": time, **more}
        return made

    job = rayjob("Running", "RUNNING")
    job["metadata"]["creationTimestamp"] = "2026-11-26T10:00:00Z"
    old = at("2026-11-26T09:59:00Z", deletionTimestamp="2026-11-26T10:00:30Z")

    state = state_of(job, [old, at("2026-11-26T10:00:05Z"), at("2026-11-26T10:00:00Z")])

    assert state.num_workers == 2


def test_a_pod_being_deleted_does_not_count_as_running() -> None:
    ending = pod()
    ending["metadata"]["deletionTimestamp"] = "2026-11-26T10:00:30Z"

    assert state_of(rayjob("Running", "RUNNING"), [ending, pod()]).num_workers == 1


def test_the_phase_is_not_repeated_in_the_sentence() -> None:
    assert RayJobState(JobPhase.RUNNING, "running on 2 of 2 workers").sentence == (
        "running on 2 of 2 workers"
    )
    assert RayJobState(JobPhase.SUCCEEDED, "finished").sentence == "succeeded: finished"

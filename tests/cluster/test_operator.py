"""The stand-in for KubeRay's operator walks RayJobs through the states that the real one does."""

from __future__ import annotations

import signal
import time

import jsonschema
import pytest
from tests.cluster import pod_states
from tests.cluster.api_server.resources import EVENTS, PODS, RAYCLUSTERS, RAYJOBS, SECRETS
from tests.cluster.crd import rayjob_schema
from tests.cluster.test_api_server import TEMPLATE, rayjob

GROUP = {"groupName": "workers", "replicas": 2, "minReplicas": 1, "maxReplicas": 2,
         "rayStartParams": {}, "template": TEMPLATE}  # fmt: skip


def job(entrypoint="true", **spec):
    body = rayjob(entrypoint=entrypoint, shutdownAfterJobFinishes=True, **spec)
    body["spec"]["rayClusterSpec"]["workerGroupSpecs"] = [GROUP]
    return body


@pytest.fixture
def cluster(api_server, operator):
    return Cluster(api_server)


class Cluster:
    """What a client would see, read from the store."""

    def __init__(self, server):
        self.server, self.store = server, server.store

    def create(self, body):
        return self.store.create(RAYJOBS, "default", body)

    def change(self, **spec):
        return self.store.update(
            RAYJOBS, "default", "job", lambda old: {**old, "spec": {**old["spec"], **spec}}
        )

    @property
    def status(self):
        return self.store.get(RAYJOBS, "default", "job").get("status", {})

    def pods(self, role=None):
        found = self.store.list(PODS)
        return found if role is None else [
            each for each in found
            if each["metadata"]["labels"].get("ray.io/node-type", "submitter") == role
        ]  # fmt: skip

    def log(self):
        """Return what the submitters have written, line by line."""
        logs = [self.server.log("default", each["metadata"]["name"])
                for each in self.pods("submitter")]  # fmt: skip
        return [line for log in logs for _, line in log.lines]

    def wait(self, condition):
        """Wait until something holds, ten seconds at most."""
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, self.status
            time.sleep(0.02)

    def wait_for(self, state):
        self.wait(lambda: self.status.get("jobDeploymentStatus") == state)


def _is_running(pod):
    return pod["status"]["phase"] == "Running"


def test_a_job_that_succeeds_is_complete(cluster):
    cluster.create(job("echo $WORD", ttlSecondsAfterFinished=600))

    cluster.wait_for("Complete")

    seen = [each.after["status"] for each in cluster.store.changes(RAYJOBS, 1000, 0)
            if "status" in each.after]  # fmt: skip
    states = [(each["jobDeploymentStatus"], each.get("jobStatus")) for each in seen]
    assert states == [
        ("Initializing", None),
        ("Running", "PENDING"),
        ("Running", "RUNNING"),
        ("Running", "SUCCEEDED"),
        ("Complete", "SUCCEEDED"),
    ]
    name = cluster.status["rayClusterName"]
    assert cluster.status["dashboardURL"] == f"{name}-head-svc.default.svc.cluster.local:8265"


def test_the_reported_status_matches_the_schema(cluster):
    body = {**cluster.create(job()), "metadata": {}}
    cluster.wait_for("Complete")

    validator = jsonschema.Draft202012Validator(rayjob_schema())
    validator.validate({**body, "status": cluster.status})


def test_pods_have_the_labels_of_kuberay(cluster):
    cluster.create(job("sleep 60"))
    cluster.wait_for("Running")

    labels = [each["metadata"]["labels"] for each in cluster.pods()]
    cluster_name = cluster.status["rayClusterName"]
    assert sorted(each["ray.io/group"] for each in labels if "ray.io/group" in each) == [
        "headgroup",
        "workers",
        "workers",
    ]
    assert [each["job-name"] for each in labels if "job-name" in each] == ["job"]
    assert {each.get("ray.io/cluster", cluster_name) for each in labels} == {cluster_name}


def test_the_exit_code_and_the_last_lines_are_in_the_message(cluster):
    cluster.create(job("echo first; echo last; exit 3"))

    cluster.wait_for("Failed")

    status = cluster.status
    assert (status["jobStatus"], status["reason"]) == ("FAILED", "AppFailed")
    assert "exit code 3" in status["message"]
    assert status["message"].endswith("first\nlast")
    assert cluster.log() == ["first", "last"]


def test_an_entrypoint_has_the_environment_of_the_heads_container(cluster):
    cluster.store.create(SECRETS, "default", {"metadata": {"name": "s3"},
                                              "data": {"KEY": "YWJj"}})  # fmt: skip
    body = job("echo $WORD $KEY")
    container = {**TEMPLATE["spec"]["containers"][0], "env": [{"name": "WORD", "value": "hello"}],
                 "envFrom": [{"secretRef": {"name": "s3"}}]}  # fmt: skip
    body["spec"]["rayClusterSpec"]["headGroupSpec"]["template"] = {
        "spec": {"containers": [container]}
    }
    cluster.create(body)

    cluster.wait_for("Complete")

    assert cluster.log() == ["hello abc"]


def test_deleting_a_job_ends_its_process(cluster, tmp_path):
    ended = tmp_path / "ended"
    cluster.create(
        job(f"trap 'touch {ended}; exit' TERM; echo started; while true; do sleep 0.02; done")
    )
    cluster.wait(lambda: cluster.log() == ["started"])

    cluster.store.delete(RAYJOBS, "default", "job")

    cluster.wait(lambda: not cluster.pods())
    assert ended.exists()


def test_a_process_that_does_not_end_is_killed_after_the_grace_period(cluster):
    body = job("trap '' TERM; echo $$; while true; do sleep 0.02; done")
    head = body["spec"]["rayClusterSpec"]["headGroupSpec"]
    head["template"] = {"spec": {**TEMPLATE["spec"], "terminationGracePeriodSeconds": 1}}
    cluster.create(body)
    cluster.wait(cluster.log)

    started = time.monotonic()
    cluster.store.delete(RAYJOBS, "default", "job")
    cluster.wait(lambda: not cluster.pods())

    assert time.monotonic() - started > 1


def test_a_suspended_job_has_no_pods(cluster):
    cluster.create(job("sleep 60", suspend=True))
    cluster.wait_for("Suspended")
    assert cluster.pods() == []

    cluster.change(suspend=False)
    cluster.wait(lambda: cluster.status.get("jobStatus") == "RUNNING")
    cluster.change(suspend=True)
    cluster.wait_for("Suspended")
    assert cluster.pods() == []


def test_after_its_time_to_live_only_the_job_and_submitter_remain(cluster):
    cluster.create(job(ttlSecondsAfterFinished=0))

    cluster.wait_for("Complete")
    cluster.wait(lambda: not cluster.store.list(RAYCLUSTERS))

    cluster.wait(lambda: cluster.pods() == cluster.pods("submitter"))
    assert [each["status"]["phase"] for each in cluster.pods()] == ["Succeeded"]


def test_a_cluster_remains_for_the_time_to_live_of_its_job(cluster):
    cluster.create(job(ttlSecondsAfterFinished=600))

    cluster.wait_for("Complete")
    time.sleep(0.2)

    assert len(cluster.pods()) == 4


def test_a_job_past_its_deadline_fails(cluster):
    cluster.create(job("sleep 60", activeDeadlineSeconds=1))

    cluster.wait_for("Failed")

    assert cluster.status["reason"] == "DeadlineExceeded"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("job" * 16, {}, "no more than 47 characters"),
        ("job", {"ttlSecondsAfterFinished": 1, "shutdownAfterJobFinishes": False},
         "cannot have TTLSecondsAfterFinished"),
        ("job", {"rayClusterSpec": {**job()["spec"]["rayClusterSpec"], "rayVersion": "2.40.0",
                                    "authOptions": {"mode": "token"}}}, "minimum Ray version"),
    ],
)  # fmt: skip
def test_the_operator_validates_beyond_the_schema(cluster, name, change, words):
    body = job()
    cluster.create({**body, "metadata": {"name": name}, "spec": {**body["spec"], **change}})

    def status():
        return cluster.store.get(RAYJOBS, "default", name).get("status", {})

    cluster.wait(lambda: status().get("jobDeploymentStatus") == "ValidationFailed")
    assert words in status()["message"]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (pod_states.image_pull_back_off(), "Failed"),
        (pod_states.unschedulable(), "FailedScheduling"),
    ],
)
def test_pods_that_cannot_start_keep_a_job_from_running(cluster, operator, state, reason):
    operator.hold("worker", state)
    cluster.create(job())
    cluster.wait(lambda: cluster.store.list(EVENTS))

    assert cluster.status["jobDeploymentStatus"] == "Initializing"
    assert {each["reason"] for each in cluster.store.list(EVENTS)} == {reason}
    operator.release("worker")
    cluster.wait_for("Complete")


def test_pods_over_a_quota_are_reported_in_an_event(cluster, operator):
    operator.refuse_pods("worker", "exceeded quota: team-quota")
    cluster.create(job())
    cluster.wait(lambda: cluster.store.list(EVENTS))

    [event] = cluster.store.list(EVENTS)
    assert (event["reason"], event["involvedObject"]["kind"]) == (
        "FailedToCreateWorkerPod",
        "RayCluster",
    )
    assert event["message"].endswith("is forbidden: exceeded quota: team-quota")


@pytest.mark.parametrize("state", [pod_states.oom_killed(), pod_states.evicted()])
def test_a_lost_worker_is_replaced(cluster, operator, state):
    cluster.create(job("sleep 60"))
    cluster.wait(lambda: cluster.status.get("jobStatus") == "RUNNING")
    before = {each["metadata"]["name"] for each in cluster.pods("worker")}

    operator.lose("worker", state)

    cluster.wait(lambda: len(before & {each["metadata"]["name"] for each in
                                       cluster.pods("worker")}) == 1)  # fmt: skip
    cluster.wait(lambda: len([each for each in cluster.pods("worker") if _is_running(each)]) == 2)
    assert cluster.status["jobStatus"] == "RUNNING"


@pytest.mark.parametrize("is_deleted", [False, True])
def test_after_a_lost_head_the_job_is_submitted_to_the_new_one(
    cluster, operator, tmp_path, is_deleted
):
    marker = tmp_path / "second"
    command = f"test -e {marker} && echo resumed && exit; touch {marker}; echo begun; sleep 60"
    cluster.create(job(command, submitterConfig={"backoffLimit": 1}))
    cluster.wait(lambda: cluster.log() == ["begun"])

    if is_deleted:
        [head] = cluster.pods("head")
        cluster.store.delete(PODS, "default", head["metadata"]["name"])
    else:
        operator.lose("head", pod_states.exited(137))

    cluster.wait_for("Complete")
    phases = sorted(each["status"]["phase"] for each in cluster.pods("submitter"))
    assert phases == ["Failed", "Succeeded"]


def test_a_job_without_retries_fails_when_its_head_is_lost(cluster, operator):
    cluster.create(job("echo begun; sleep 60", submitterConfig={"backoffLimit": 0}))
    cluster.wait(lambda: cluster.log() == ["begun"])

    operator.lose("head", pod_states.exited(137))

    cluster.wait_for("Failed")
    assert f"exit code -{signal.SIGKILL.value}" in cluster.status["message"]

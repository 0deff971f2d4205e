"""A job on a stand-in cluster: submitted, followed, stopped, told in words."""

from __future__ import annotations

import threading
import time

import pytest
from click.testing import CliRunner
from tests.cluster.operator import Operator
from tests.cluster.pod_states import image_pull_back_off, unschedulable

from elasticdl import api, job_options
from elasticdl.cli.main import cli
from elasticdl.cluster.kubernetes_client import Kubernetes
from elasticdl.cluster.options import ClusterOptions
from elasticdl.errors import (
    ClusterJobError,
    MissingExtraError,
    UnavailableError,
    UsageError,
)

OPTIONS = ClusterOptions(
    image="registry.example/team/app@sha256:" + "4b" * 32, ray_version="2.60.0"
)
SAYS = "python3 -c \"print('epoch 1 is done')\""


@pytest.fixture
def job(monkeypatch, kubeconfig):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return job_options.training_job(
        model_def="mnist",
        data="s3://bucket/train/*.recordio",
        output="s3://bucket/my_model",
        num_workers="1..2",
    )


@pytest.fixture
def running(api_server):
    """Return a function that starts an operator, which runs this instead of an entrypoint."""
    operators = []

    def start(command):
        operators.append(Operator(api_server, rewrite=lambda _: command))
        return operators[-1].__enter__()

    yield start
    for operator in operators:
        operator.__exit__()


def run(job, **more):
    """Submit a job and follow it; returns what was told."""
    told = []
    api.run_on_cluster(job, OPTIONS, print_fn=told.append, **more)
    return "\n".join(told)


def test_a_job_is_followed_to_its_end_and_run_only_once(job, running):
    running(SAYS)

    told = run(job)

    assert f"Submitted RayJob {job.id} in good, namespace default." in told
    assert "running on 2 of 2 workers" in told
    assert "epoch 1 is done" in told
    assert told.endswith("Done: s3://bucket/my_model")
    assert "has already finished" in run(job)


def test_a_finished_prediction_is_run_again(job, running):
    running(SAYS)
    prediction = job_options.prediction_job(
        trained_model="s3://bucket/my_model",
        data="s3://bucket/new/*.recordio",
        output="s3://bucket/predicted",
        num_workers=2,
    )

    for _ in range(2):
        told = run(prediction)
        assert "Submitted RayJob" in told
        assert told.endswith("Done: s3://bucket/predicted")


def test_a_failed_job_ends_with_the_exit_code_of_its_command_and_resumes(job, running):
    running("python3 -c \"import os; os._exit(3 if not os.path.exists('/nowhere') else 0)\"")

    for _ in range(2):
        with pytest.raises(ClusterJobError, match="ended with exit code 3") as caught:
            run(job)
        assert caught.value.exit_code == 3


def test_simultaneous_submissions_follow_one_job(job, api_server, running):
    running(SAYS)
    told = []
    both = [threading.Thread(target=lambda: told.append(run(job))) for _ in range(2)]
    for each in both:
        each.start()
    for each in both:
        each.join()

    assert sum("Submitted" in text for text in told) == 1
    assert all(text.endswith("Done: s3://bucket/my_model") for text in told)


def test_a_job_created_by_another_before_the_dry_run_is_followed(job, running, monkeypatch):
    running(SAYS)
    create = Kubernetes.create

    def create_after_another(self, manifest, *, dry_run=False):
        if dry_run:
            create(self, manifest)
        return create(self, manifest, dry_run=dry_run)

    monkeypatch.setattr(Kubernetes, "create", create_after_another)

    told = run(job)

    assert "already exists" in told
    assert told.endswith("Done: s3://bucket/my_model")


def test_detaching_prints_the_next_commands(job, operator):
    told = run(job, detach=True)

    assert f"elasticdl job logs {job.id} --cluster=kubernetes --context=good" in told


def test_a_broken_connection_is_reestablished(job, api_server, running):
    running("sleep 2")
    cut = threading.Timer(1, api_server.cut_watches)
    cut.start()

    assert run(job).endswith("Done: s3://bucket/my_model")


@pytest.mark.parametrize(
    ("role", "state", "words"),
    [
        ("worker", image_pull_back_off(), "cannot be pulled"),
        ("worker", unschedulable(), "no node has room for it"),
        ("head", image_pull_back_off(), "--image_pull_secret"),
    ],
)
def test_a_pod_that_cannot_run_is_reported_while_waiting(job, running, role, state, words):
    operator = running(SAYS)
    operator.hold(role, state)
    told = []

    def print_fn(line):
        told.append(line)
        if words in line:
            operator.release(role)

    api.run_on_cluster(job, OPTIONS, print_fn=print_fn)

    assert any(words in line for line in told)


def test_an_exceeded_quota_is_reported_verbatim(job, running):
    operator = running("sleep 30")
    operator.refuse_pods("worker", "exceeded quota: compute, requested: pods=1, used: pods=4")
    told = []

    def print_fn(line):
        told.append(line)
        if "quota" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        api.run_on_cluster(job, OPTIONS, print_fn=print_fn)

    assert any("does not allow more pods" in line for line in told)
    assert "The job continues to run on the cluster." in told[-1]


@pytest.mark.parametrize(
    ("context", "kind", "words"),
    [
        ("wrong-token", UsageError, "rejected the credentials"),
        ("unreachable", UnavailableError, "does not answer"),
        ("untrusted", UsageError, "is not trusted by the kubeconfig"),
        ("none", UsageError, "has no context 'none'; it has good"),
    ],
)
def test_unauthorized_users_get_the_reason(job, context, kind, words):
    with pytest.raises(kind, match=words):
        run(job, context=context)


def test_without_a_kubeconfig_one_clear_error_is_raised(job, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))

    with pytest.raises(UsageError, match="no usable kubeconfig"):
        run(job)


def test_a_job_refused_by_the_server_leaves_nothing_behind(job, api_server):
    with pytest.raises(UsageError, match="strict decoding error"):
        run(job, patch={"spec": {"entrypoints": "typo"}})

    assert api.connect_cluster().rayjobs("elasticdl.org/job") == []


def test_jobs_are_listed_shown_and_stopped_by_commands(job, running):
    running("sleep 60")
    run(job, detach=True)
    on = ["--cluster=kubernetes"]

    def command(*arguments):
        result = CliRunner().invoke(cli, ["job", *arguments, *on], catch_exceptions=False)
        assert result.exit_code == 0
        return result.output

    until = time.monotonic() + 20
    while "running on 2 of 2" not in command("show", job.id):
        assert time.monotonic() < until
        time.sleep(0.1)
    assert job.id in command("list")
    assert "is stopped" in command("stop", job.id)
    # The same job may be submitted again at once.
    assert api.connect_cluster().pods(f"elasticdl.org/job={job.id}") == []
    assert "No jobs found" in command("list")
    with pytest.raises(UsageError, match="There is no job"):
        command("show", job.id)


def test_an_image_that_would_lack_the_storage_of_the_data_is_not_built(job, monkeypatch):
    def absent(uri):
        raise MissingExtraError("s3fs", "s3", uri)

    monkeypatch.setattr("elasticdl.data.stored_file.filesystem", absent)
    monkeypatch.setattr(api, "build_image", lambda *_: pytest.fail("an image was built"))

    with pytest.raises(MissingExtraError, match=r"s3://bucket/train.*elasticdl\[s3\]"):
        api.run_on_cluster(job, OPTIONS, build=object(), print_fn=lambda _: None)

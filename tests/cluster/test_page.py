"""The page of a job on a cluster: a real training's, through a port-forward of the API server."""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import socket
import subprocess
import sys
import threading

import pytest
from tests.cluster.api_server.resources import PODS, RAYJOBS
from tests.cluster.operator import Operator
from tests.cluster.pod_states import exited
from tests.cluster.test_launch import OPTIONS
from tests.cluster.test_progress import training, wait_until
from tests.page.test_web_app import Client

from elasticdl import api, job_options
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.cluster.rayjob import PAGE_PORT

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def job(monkeypatch, kubeconfig, s3, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    return job_options.training_job(
        model_def="line",
        data="s3://honest/train/*.recordio",
        output=f"s3://honest/{tmp_path.name}",
        num_workers=1,
    )


class World:
    """An operator whose head's pod runs a real training, which waits while there is a file.

    It is there at first.
    """

    def __init__(self, api_server, job, folder):
        self.server, self.job = api_server, job
        self.hold = folder / "hold"
        options = {**training(folder, sleep_s=0.25), "output": job.output, "checkpoint_steps": 100}
        self.hold.touch()
        flags = [f"--{name}={value}" for name, value in options.items()]
        command = shlex.join([sys.executable, "-m", "elasticdl.cli.main", "train", *flags])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        api_server.ports[PAGE_PORT] = port
        # All pods share the loopback of this machine, and so may several tests.
        env = {"ELASTICDL_PAGE_PORT": str(port)}
        self.operator = Operator(api_server, env, rewrite=lambda _: command)

    def head(self):
        """Return the head's pod."""
        [found] = [each for each in self.server.store.list(PODS)
                   if each["metadata"]["labels"].get("ray.io/node-type") == "head"]  # fmt: skip
        return found

    def submit(self):
        api.run_on_cluster(self.job, OPTIONS, detach=True, print_fn=lambda _: None)


@pytest.fixture
def world(api_server, job, tmp_path):
    made = World(api_server, job, tmp_path / "zoo")
    with made.operator:
        yield made


class Followed:
    """A job that is followed in a thread, as `elasticdl train --cluster --page` does."""

    def __init__(self, job):
        self.told = []
        self._thread = threading.Thread(
            target=lambda: api.run_on_cluster(
                job, OPTIONS, with_page=True, print_fn=self.told.append
            ),
            daemon=True,
        )
        self._thread.start()

    def page(self):
        """Return a client of its page."""
        wait_until(lambda: any("ob page: " in line for line in self.told))
        [line] = [line for line in self.told if "ob page: " in line]
        assert line.startswith("Job page: http://127.0.0.1:"), line
        return Client(line.removeprefix("Job page: "))

    def end(self):
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture
def follow(world, job):
    """Return a function that follows the job; it ends with the test."""
    followed = []

    def follow():
        followed.append(Followed(job))
        return followed[-1]

    yield follow
    world.hold.unlink(missing_ok=True)
    for each in followed:
        each.end()


def step_of(client):
    answer, body = client.get("/state.json")
    return json.loads(body)["head"]["step"] if answer.status == 200 else 0


def test_following_a_job_shows_its_page_while_it_runs(world, follow, job):
    followed = follow()
    client = followed.page()
    world.hold.unlink()
    wait_until(lambda: step_of(client) >= 2)
    world.hold.touch()

    state = client.json("/state.json")

    assert state["head"]["state"] == "running"
    # What it shows is not on the object store yet.
    assert not OutputFolder(job.output).exists("events.jsonl")
    assert not any("object store" in note for note in state["head"]["notes"])
    with client.events("/events") as events:
        step = next(events)["head"]["step"]
        world.hold.unlink()
        wait_until(lambda: next(events).get("head", {}).get("step", 0) > step)
    followed.end()
    assert followed.told[-1] == f"Done: {job.output}"


def test_tokens_are_not_readable_by_others(world, follow, api_server, job):
    followed = follow()
    client = followed.page()
    uid = world.head()["metadata"]["uid"]
    world.hold.unlink()
    followed.end()

    printed = [line for log in api_server.logs.values() for _, line in log.lines]
    rayjob = json.dumps(api_server.store.get(RAYJOBS, "default", job.id))
    seen = "\n".join([*printed, rayjob, *[line for line in followed.told if "token" not in line]])
    assert client.token not in seen
    assert uid not in seen
    assert not any("page" in line.lower() for line in printed)
    # Nor has anything in the cluster that of this machine.
    assert client.token not in json.dumps(api_server.store.list(PODS))


def test_the_page_requires_the_token_of_this_machine(world, follow):
    followed = follow()
    client = followed.page()

    for token in ("", "wrong", world.head()["metadata"]["uid"]):
        answer, said = client.get(f"/state.json?token={token}", token=False)
        assert (answer.status, "token is missing or wrong" in said) == (403, True)
    answer, _ = client.get("/state.json", host="evil.example")
    assert answer.status == 421


def test_the_page_in_a_pod_requires_the_uid_of_the_pod(world, follow, api_server, job):
    followed = follow()
    followed.page()
    address = f"http://127.0.0.1:{api_server.ports[PAGE_PORT]}/?token="

    assert Client(f"{address}{job.id}").get("/")[0].status == 403
    assert Client(address + world.head()["metadata"]["uid"]).get("/")[0].status == 200


def test_the_url_is_kept_when_the_head_is_replaced(world, follow, job):
    followed = follow()
    client = followed.page()
    world.hold.unlink()
    wait_until(lambda: step_of(client) >= 2)
    world.hold.touch()

    world.operator.lose("head", exited(137))

    wait_until(lambda: client.get("/state.json")[0].status == 503)
    world.hold.unlink()
    wait_until(lambda: client.get("/state.json")[0].status == 200)
    followed.end()
    assert followed.told[-1] == f"Done: {job.output}"


@contextlib.contextmanager
def command(*arguments):
    """Run `elasticdl job page`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticdl.cli.main", "job", "page", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)


def test_the_page_of_a_job_is_found_by_its_name(world, job):
    world.submit()

    with command(job.id, "--cluster=kubernetes") as process:
        line = process.stdout.readline()
        assert line.startswith("Job page: http://127.0.0.1:"), process.stderr.read()
        client = Client(line.strip().removeprefix("Job page: "))
        world.hold.unlink()
        wait_until(lambda: step_of(client) >= 1)


def test_a_job_is_followed_even_if_its_page_cannot_be_reached(world, follow, api_server, job):
    api_server.access.forbid("create", "pods/portforward")
    world.hold.unlink()
    followed = follow()
    followed.end()

    [line] = [line for line in followed.told if "ob page" in line]
    assert line.startswith("There is no job page: ")
    assert "not allowed to forward a port of pod" in line
    assert 'cannot create resource "pods/portforward"' in line
    assert followed.told[-1] == f"Done: {job.output}"


def page(*arguments):
    """Return the exit code and the last line of the errors of `elasticdl job page`."""
    ended = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "job", "page", *arguments],
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return ended.returncode, ended.stderr


def test_a_job_that_has_ended_names_the_command_that_shows_it(job, api_server):
    with Operator(api_server, rewrite=lambda _: "true"):
        api.run_on_cluster(job, OPTIONS, print_fn=lambda _: None)

        code, said = page(job.id, "--cluster=kubernetes")

    assert (code, "has ended" in said) == (2, True)
    assert f"elasticdl job page {job.output}" in said


def test_only_existing_trainings_have_a_page(job, api_server):
    code, said = page("none", "--cluster=kubernetes")
    assert (code, "There is no job 'none'" in said) == (2, True)
    prediction = job_options.prediction_job(
        trained_model="s3://honest/model", data="s3://honest/a", output="s3://honest/b",
        num_workers=1,
    )  # fmt: skip
    with Operator(api_server, rewrite=lambda _: "sleep 60"):
        api.run_on_cluster(prediction, OPTIONS, detach=True, print_fn=lambda _: None)

        code, said = page(prediction.id, "--cluster=kubernetes")

    assert (code, "it is not a training" in said) == (2, True)


def test_cluster_options_require_a_cluster():
    code, said = page("my_model", "--namespace=team")
    assert (code, "need --cluster=kubernetes" in said) == (2, True)

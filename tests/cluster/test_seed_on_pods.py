"""The seed's command line, with pods that are containers of the image it has built and pushed.

A real engine and registry, a real Ray in the pods, a stand-in for the API server, KubeRay's
operator and the kubelet (`operator.py`, `pod_containers.py`), and an S3 server for data and models.

It is one story, whose chapters are fixtures: a training, whose worker is killed on the way, and a
prediction from what it left on the object store, when the zoo and the engine's images are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.api_server import ApiServer, write_kubeconfig
from tests.cluster.api_server.resources import PODS, RAYJOBS, SECRETS
from tests.cluster.containers import BASE, Containers, NoContainersError, import_base
from tests.cluster.crd import rayjob_schema
from tests.cluster.operator import Operator
from tests.cluster.pod_containers import PodContainers

for package in ("docker", "s3fs", "moto"):
    pytest.importorskip(package)
# `test_launch.py` has the same road with processes as pods, `test_image_containers.py` trains in
# the image. A test may be the first to ask for all chapters.
pytestmark = [
    pytest.mark.containers, pytest.mark.exhaustive, pytest.mark.ray, pytest.mark.slow,
    pytest.mark.timeout(600),
]  # fmt: skip

_PATIENCE_S = 240
# Slow, so that it lasts as long as the test needs; quick, as soon as there is an object `hurry`.
_SLOW = """
import os
import time
import urllib.error
import urllib.request

from iris import Flowers


class SlowFlowers(Flowers):
    def default_input(self, records):
        if "label" in records[0] and not hurry():
            time.sleep(2)
        return super().default_input(records)


def hurry():
    try:
        urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL"] + "/honest/hurry").close()
    except urllib.error.HTTPError:
        return False
    return True
"""


class World:
    """A cluster of one node, a registry and an object store, as a user reaches them."""

    def __init__(self, folder: Path, undo: contextlib.ExitStack) -> None:
        self.folder = folder
        containers = undo.enter_context(Containers())
        self.engine = containers.client()
        import_base(self.engine)
        self.pods = undo.enter_context(PodContainers(self.engine))
        self.registry = containers.registry()
        self._start_store(undo)
        self.server = undo.enter_context(ApiServer(rayjob_schema(), namespaces=("default",)))
        data = {key: b64encode(value.encode()).decode() for key, value in self._aws.items()}
        self.server.store.create(SECRETS, "default", {"metadata": {"name": "s3"}, "data": data})
        undo.enter_context(Operator(self.server, containers=self.pods))
        self.environment = {
            **os.environ, **self._aws, "DOCKER_HOST": containers.host,
            "KUBECONFIG": str(write_kubeconfig(folder / "kubeconfig", self.server)),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip

    def _start_store(self, undo: contextlib.ExitStack) -> None:
        server = undo.enter_context(
            subprocess.Popen(
                [sys.executable, Path(__file__).parents[1] / "s3_server.py", self.pods.gateway],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        )  # fmt: skip
        undo.callback(server.kill)
        self._store = f"http://{self.pods.gateway}:{int(server.stdout.readline())}"
        self._aws = {
            "AWS_ENDPOINT_URL": self._store, "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
        }  # fmt: skip

    def put(self, name: str, content: bytes) -> None:
        """Write an object of the bucket."""
        self._ask("PUT", name, content)

    def delete(self, name: str) -> None:
        """Delete an object of the bucket, if it is there."""
        self._ask("DELETE", name)

    def _ask(self, method: str, name: str, content: bytes | None = None) -> None:
        request = urllib.request.Request(
            f"{self._store}/honest/{name}", content, method=method,
            headers={"Content-Type": "application/octet-stream"},
        )  # fmt: skip
        urllib.request.urlopen(request).close()

    @contextlib.contextmanager
    def command(self, *arguments: str) -> Any:
        """Run `elasticdl` as a user does; yields a `Command`."""
        log = self.folder / f"{arguments[0]}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", *arguments],
                stdout=output, stderr=subprocess.STDOUT, env=self.environment, cwd=self.folder,
            )  # fmt: skip
        try:
            yield Command(process, log)
        finally:
            process.kill()
            process.wait()

    def image_of(self, command: str) -> str:
        """Return the image that the RayJob of a command names for its workers."""
        [found] = [each for each in self.server.store.list(RAYJOBS)
                   if f"elasticdl {command} " in each["spec"]["entrypoint"]]  # fmt: skip
        [group] = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
        [container] = group["template"]["spec"]["containers"]
        image: str = container["image"]
        return image

    def workers(self) -> list[str]:
        """Return the names of the worker pods that run."""
        return sorted(
            each["metadata"]["name"] for each in self.server.store.list(PODS)
            if each["metadata"]["labels"].get("ray.io/node-type") == "worker"
            and each["status"]["phase"] == "Running"
            and "deletionTimestamp" not in each["metadata"]
        )  # fmt: skip

    def images_of_pods(self) -> set[str]:
        """Return the images that pods of Ray are containers of."""
        return {self.pods.container(name).attrs["Config"]["Image"] for name in self.workers()}


@dataclass(frozen=True)
class Command:
    """A command that runs, and what it has printed."""

    process: subprocess.Popen
    log: Path

    def wait_for(self, condition: Any, what: str) -> None:
        """Return when something is so, while the command runs."""
        until = time.monotonic() + _PATIENCE_S
        while not condition():
            assert self.process.poll() is None, f"It ended before {what}:\n{self.text()}"
            assert time.monotonic() < until, f"Waited in vain for {what}:\n{self.text()}"
            time.sleep(0.1)

    def text(self, first: int = 0) -> str:
        """Return what it has printed, from a line on."""
        return "\n".join(self.log.read_text().splitlines()[first:])

    def num_lines(self) -> int:
        return len(self.log.read_text().splitlines())

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda: text in self.log.read_text(), repr(text))

    def wait_for_the_end(self) -> str:
        """Return what it has printed, when it has ended well."""
        code = self.process.wait(_PATIENCE_S)
        assert code == 0, self.text()
        return self.log.read_text()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with contextlib.ExitStack() as undo:
        try:
            yield World(tmp_path_factory.mktemp("world"), undo)
        except NoContainersError as error:
            pytest.skip(str(error))


# --- the chapters -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Training:
    """What a training has printed, and the pods it had."""

    image: str
    images_of_pods: set
    workers_before: list
    workers_after: list
    log: str


@pytest.fixture(scope="module")
def training(world, iris, repository):
    """It is given as in the seed, with places of ours; a worker is killed on the way."""
    # At a second try they may be there.
    world.delete("hurry")
    zoo = world.folder / "zoo"
    zoo.mkdir(exist_ok=True)
    shutil.copy(repository / "examples/iris.py", zoo)
    (zoo / "slow.py").write_text(_SLOW)
    for part in ("train", "test"):
        for file in (iris / part).iterdir():
            world.put(f"{part}/{file.name}", file.read_bytes())
    with world.command(
        "train", f"--model_zoo={zoo}", "--model_def=slow.SlowFlowers", "--minibatch_size=12",
        "--num_epochs=10", "--data=s3://honest/train/*.recordio", "--output=s3://honest/my_model",
        "--num_workers=1..2", "--cluster=kubernetes", "--env_from_secret=s3",
        f"--docker_image_repository={world.registry}/team/fintech", f"--base_image={BASE}",
    ) as command:  # fmt: skip
        command.wait_for_text("workers 2/2")
        before, images = world.workers(), world.images_of_pods()
        world.pods.kill(before[0])
        command.wait_for_text("died")
        command.wait_for(lambda: len(set(world.workers()) - set(before)) == 1, "a new pod")
        after = world.workers()
        num_lines = command.num_lines()
        command.wait_for(lambda: "workers 2/2" in command.text(num_lines), "2 workers again")
        world.put("hurry", b"")
        log = command.wait_for_the_end()
    return Training(world.image_of("train"), images, before, after, log)


@dataclass(frozen=True)
class Prediction:
    """What a prediction has printed, and the pods it had."""

    image: str
    images_of_pods: set
    log: str


@pytest.fixture(scope="module")
def prediction(world, training):
    """It is given the model's place and nothing else of it; the pods' image comes by its digest."""
    shutil.rmtree(world.folder / "zoo")
    world.engine.images.remove(training.image, force=True)
    with world.command(
        "predict", "--trained_model=s3://honest/my_model", "--data=s3://honest/test/*.recordio",
        "--output=s3://honest/predicted/", "--num_workers=1", "--cluster=kubernetes",
        "--env_from_secret=s3",
    ) as command:  # fmt: skip
        command.wait_for(world.workers, "a worker")
        images = world.images_of_pods()
        log = command.wait_for_the_end()
    return Prediction(world.image_of("predict"), images, log)


# --- what is true of them -----------------------------------------------------------------------


def test_the_image_is_built_pushed_and_run_by_its_digest(world, training):
    assert re.fullmatch(rf"{world.registry}/team/fintech@sha256:[0-9a-f]{{64}}", training.image)
    assert training.images_of_pods == {training.image}


def test_a_pod_that_is_killed_is_replaced_and_the_others_go_on(training):
    [killed, other] = training.workers_before
    assert killed not in training.workers_after
    assert other in training.workers_after
    assert len(training.workers_after) == 2


def test_the_model_is_on_the_object_store_and_each_record_has_counted_once(world, training):
    with world.command("job", "audit", "s3://honest/my_model", "--json") as audit:
        report = json.loads(audit.wait_for_the_end())
    assert report["wrong"] == []
    assert len(report["epochs"]) == 10
    assert training.log.endswith("Done: s3://honest/my_model\n")


def test_a_prediction_from_the_model_alone_starts_from_the_recorded_digest(training, prediction):
    assert prediction.image == training.image
    assert prediction.images_of_pods == {training.image}
    assert prediction.log.endswith("Done: s3://honest/predicted/\n")

"""The seed's command line, with pods that are containers of the image it has built and pushed.

The cluster, the registry and the object store are those of `world.py`.

It is one story, whose chapters are fixtures: a training, whose worker is killed on the way, and a
prediction from what it left on the object store, when the zoo and the engine's images are gone.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from dataclasses import dataclass

import pytest
from tests.cluster.containers import BASE, NoContainersError
from tests.cluster.world import World

for package in ("docker", "s3fs", "moto"):
    pytest.importorskip(package)
# `test_launch.py` has the same road with processes as pods, `test_image_containers.py` trains in
# the image. A test may be the first to ask for all chapters.
pytestmark = [
    pytest.mark.containers, pytest.mark.exhaustive, pytest.mark.ray, pytest.mark.slow,
    pytest.mark.timeout(600),
]  # fmt: skip

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


def test_a_killed_pod_is_replaced_while_the_others_continue(training):
    [killed, other] = training.workers_before
    assert killed not in training.workers_after
    assert other in training.workers_after
    assert len(training.workers_after) == 2


def test_the_model_is_stored_and_each_record_counted_once(world, training):
    with world.command("job", "audit", "s3://honest/my_model", "--json") as audit:
        report = json.loads(audit.wait_for_the_end())
    assert report["wrong"] == []
    assert len(report["epochs"]) == 10
    assert training.log.endswith("Done: s3://honest/my_model\n")


def test_a_prediction_from_the_model_alone_starts_from_the_recorded_digest(training, prediction):
    assert prediction.image == training.image
    assert prediction.images_of_pods == {training.image}
    assert prediction.log.endswith("Done: s3://honest/predicted/\n")

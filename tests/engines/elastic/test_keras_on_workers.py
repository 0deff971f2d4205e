"""A Keras model on two workers: the files of its callbacks, its warnings, what is published.

It is one training, which several tests look at, and the same in one process.
"""

import contextlib
import csv
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.engines.conftest import MODEL, write_records
from tests.engines.test_in_process import weights
from tests.notes import Notes

import elasticdl
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

# An average is published, and where the training stops early the best weights, averages too. The
# peak is neither a mean nor a sum, which is warned of.
AVERAGES_AND_BEST = """
import time
from pathlib import Path


class Peak(keras.layers.Layer):
    def build(self, shape):
        self.peak = self.add_weight(shape=(), initializer="zeros", trainable=False, name="peak")

    def call(self, inputs, training=False):
        if training:
            self.peak.assign(keras.ops.maximum(self.peak, keras.ops.max(inputs)))
        return inputs


def custom_model():
    return keras.Sequential([keras.Input((4,)), Peak(), keras.layers.Dense(3)])


def optimizer():
    return keras.optimizers.SGD(-0.01, use_ema=True, ema_momentum=0.9)


class Slow(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        # The other worker is done in the meantime.
        if "save_weights" not in vars(self.model):
            time.sleep(5)
        self.model.save_weights("{folder}/last.weights.h5", overwrite=True)


def callbacks():
    stops = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
    files = [
        keras.callbacks.CSVLogger("log.csv"),
        keras.callbacks.ModelCheckpoint("{folder}/{{epoch}}.keras"),
        Slow(),
    ]
    return [*([stops] if {stops} else []), *(files if Path("{folder}").exists() else [])]
"""


@dataclass(frozen=True)
class Trained:
    """What came of it.

    Attributes:
        alone: Output of the training in one process.
        workers: Output of the one on workers.
        files: Folder of the files that the callbacks of the one on workers wrote.
        model: The model file.
        notes_alone: What the user is shown of the training in one process.
        notes_on_workers: What the user is shown of the one on workers.
        warnings: What was logged where the command for workers was given.
    """

    alone: Path
    workers: Path
    files: Path
    model: Path
    notes_alone: list[str]
    notes_on_workers: list[str]
    warnings: list[str]


class _Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Return a function that trains the model, in one process and on two workers."""

    def run(*, stops):
        folder = tmp_path_factory.mktemp("keras")
        zoo, files = folder / "zoo", folder / "files"
        zoo.mkdir()
        model = zoo / "small.py"
        model.write_text(MODEL + AVERAGES_AND_BEST.format(folder=files, stops=stops))
        data = write_records(folder / "train.recordio", 150)
        options = {
            "model_zoo": str(zoo), "model_def": "small", "data": str(data), "num_epochs": 3,
            "minibatch_size": 10, "global_batch_size": 150, "shuffle": False,
        }  # fmt: skip
        alone, workers = Notes(), Notes()
        elasticdl.train(**options, output=str(folder / "alone"), reporter=alone)
        files.mkdir()
        kept = _Kept()
        logger = logging.getLogger("elasticdl")
        logger.addHandler(kept)
        # The workers of a Ray that is started for the job share its directory.
        with contextlib.chdir(files):
            elasticdl.train(
                **options, output=str(folder / "workers"), num_workers=2, reporter=workers
            )
        logger.removeHandler(kept)
        notes = (alone.texts, workers.texts)
        return Trained(folder / "alone", folder / "workers", files, model, *notes, kept.texts)

    return run


@pytest.fixture(scope="module")
def stopping(train):
    return train(stops=True)


def test_a_job_ends_when_the_worker_that_writes_has_written(stopping):
    assert sorted(path.name for path in stopping.files.iterdir()) == [
        "1.keras",
        "2.keras",
        "last.weights.h5",
        "log.csv",
    ]
    rows = csv.DictReader((stopping.files / "log.csv").read_text().splitlines())
    assert [row["epoch"] for row in rows] == ["0", "1"]


def test_why_a_training_ended_is_shown_as_in_one_process(stopping):
    of_callbacks = stopping.notes_on_workers[-2:]

    assert of_callbacks == stopping.notes_alone[-2:]
    assert of_callbacks[0] == "A callback ended the training after epoch 2 of 3, at step 2."
    assert of_callbacks[1].startswith("EarlyStopping has restored the weights of epoch 1 (loss ")


def test_a_warning_of_two_workers_is_printed_once(stopping):
    (found,) = [text for text in stopping.warnings if "neither like a mean" in text]

    before, _, _ = stopping.model.read_text().rpartition("def custom_model")
    line = before.count("\n") + 1
    assert found.startswith(f"{stopping.model}:{line}: ")


def assert_same_published(trained):
    alone, workers = weights(trained.alone), weights(trained.workers)
    last = CheckpointStore(OutputFolder(trained.workers)).latest().checkpoint.state
    changed = [path for path in alone if "peak" not in path]
    assert changed
    for path in changed:
        np.testing.assert_allclose(workers[path], alone[path], rtol=1e-4, atol=1e-5)
        assert np.abs(last[f"model/{path}"] - workers[path]).max() > 1e-6


def test_workers_publish_the_same_as_one_process(stopping):
    assert_same_published(stopping)


@pytest.mark.exhaustive  # Where training stops early, the best weights are averages too.
def test_workers_publish_the_same_averages_as_one_process(train):
    assert_same_published(train(stops=False))

"""A session that is killed and started again ends with the bits of one that was not."""

import functools
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, Evaluated, JobStarted, StepCommitted

STORM = Path(__file__).parent / "session_storm.py"
# Number of kills -> which sessions are killed so often.
FLAVOURS = {1: ("generator", "sequence"), 3: ("generator", "tf")}
NUM_EPOCHS = 3  # as in session_storm.py
# 38 examples in batches of 4: ten steps an epoch, the last one short.
PROJECT = """
import itertools
import os
import random
import signal

import keras
import numpy as np
import tensorflow as tf

from abstractions import DataLoaderBase, ModelBuilderBase, PreprocessorBase

N = 38
X = np.random.default_rng(1).normal(size=(N, 4)).astype("float32")
Y = np.arange(N) % 3


class Pairs(keras.utils.PyDataset):
    def __init__(self, *, shuffled):
        super().__init__()
        self.order, self.shuffled = np.arange(N), shuffled

    def __len__(self):
        return -(-N // 4)

    def __getitem__(self, i):
        rows = self.order[4 * i : 4 * i + 4]
        noise = np.random.normal(size=(len(rows), 1)) * 0.1 * self.shuffled
        return (X[rows] + noise).astype("float32"), Y[rows], np.ones(len(rows), "float32")

    def on_epoch_end(self):
        if self.shuffled:
            np.random.shuffle(self.order)


class Loader(DataLoaderBase):
    def _set_defaults(self):
        self.flavour = "generator"

    def _load_params(self, config):
        self.flavour = config.flavour

    def create_training_generator(self):
        return self._generator(shuffled=True), N

    def create_validation_generator(self):
        return self._generator(shuffled=False), N

    def create_test_generator(self):
        return iter(()), 0

    def _generator(self, *, shuffled):
        if self.flavour == "sequence":
            return Pairs(shuffled=shuffled)
        if self.flavour == "generator":
            return endless(shuffled)
        dataset = tf.data.Dataset.from_tensor_slices((X, Y, np.ones(N, "float32")))
        if not shuffled:
            return dataset
        return dataset.shuffle(N).map(
            lambda x, y, w: (x + tf.random.normal([4], stddev=0.1), y, w), tf.data.AUTOTUNE
        )


def endless(shuffled):
    order = list(range(N))
    while True:
        if shuffled:
            random.shuffle(order)
        for i in order:
            yield X[i] + np.float32(np.random.normal() * 0.1 * shuffled), Y[i], np.float32(1)


class Preprocessor(PreprocessorBase):
    def _set_defaults(self): ...
    def _load_params(self, config): ...

    def add_image_preprocess(self, generator):
        return generator

    add_label_preprocess = add_image_preprocess

    def batchify(self, generator, n):
        if isinstance(generator, tf.data.Dataset):
            return generator.batch(4).repeat().prefetch(2), -(-n // 4)
        if isinstance(generator, keras.utils.PyDataset):
            return generator, len(generator)
        return self._batches(generator), -(-n // 4)

    def _batches(self, generator):
        while True:
            yield tuple(map(np.stack, zip(*itertools.islice(generator, 4))))


class Builder(ModelBuilderBase):
    def _set_defaults(self): ...
    def _load_params(self, config): ...

    def get_compiled_model(self):
        layers = keras.layers
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, activation="relu"), layers.BatchNormalization(),
             layers.Dropout(0.5), layers.Dense(3)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer="adam", loss=loss, metrics=["accuracy"])
        return model

    def get_callbacks(self):
        return [Killing()]

    def get_class_weight(self):
        return {2: 2.0}


class Killing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        last = os.environ.get("KILL_AFTER_STEP")
        if last and int(self.model.optimizer.iterations) >= int(last):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Return what trains sessions, killed after some steps and undisturbed; gives both outputs.

    All of a number of kills are trained by one process: it imports the frameworks once.
    """
    folder = tmp_path_factory.mktemp("storm")
    (folder / "session.py").write_text(PROJECT)

    @functools.cache
    def storm(num_kills):
        runs = []
        for flavour in FLAVOURS[num_kills]:
            output = folder / f"{flavour}_{num_kills}"
            steps = ",".join(map(str, steps_of(flavour, num_kills)))
            runs += [f"{flavour}:{output}_killed={steps}", f"{flavour}:{output}"]
        return subprocess.run(
            [sys.executable, STORM, folder, *runs],
            check=False,
            capture_output=True,
            text=True,
            timeout=200,
        )

    def train(flavour, num_kills):
        done = storm(num_kills)
        assert done.returncode == 0, done.stderr
        name = f"{flavour}_{num_kills}"
        return folder / f"{name}_killed", folder / name

    return train


def steps_of(flavour, num_kills):
    """Return the steps after which a session is killed."""
    return sorted(random.Random(flavour).sample(range(6, 10 * NUM_EPOCHS), num_kills))


def final(output):
    last = CheckpointStore(OutputFolder(output)).latest().checkpoint
    return {path: array.tobytes() for path, array in last.state.items()}, last.metadata["progress"]


def history(output, kind):
    """Return what happened; what was done again after a kill is there once."""
    return [e for e in read_events(output / "events.jsonl") if isinstance(e, kind)]


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("flavour", "num_kills"),
    [
        pytest.param(name, number, marks=[pytest.mark.chaos] if number > 1 else [])
        for number, names in FLAVOURS.items()
        for name in names
    ],
)
def test_kills_leave_no_trace_in_weights_or_history(train, flavour, num_kills):
    steps = steps_of(flavour, num_kills)

    killed, undisturbed = train(flavour, num_kills)

    assert final(killed) == final(undisturbed)
    begun = [e.resumed_from_step for e in history(killed, JobStarted)]
    assert len(begun) == num_kills + 1
    assert all(0 < start <= step for start, step in zip(begun[1:], steps, strict=True))
    rows = [row for e in history(killed, StepCommitted) for row in e.rows]
    batches = Counter((epoch, n) for epoch, _, _, first, stop in rows for n in range(first, stop))
    assert batches == Counter((epoch, n) for epoch in range(NUM_EPOCHS) for n in range(10))
    for kind in (Evaluated, EpochFinished):
        assert [(e.step, e.metrics) for e in history(killed, kind)] == [
            (e.step, e.metrics) for e in history(undisturbed, kind)
        ]
    assert [e.step for e in history(killed, EpochFinished)] == [10, 20, 30]

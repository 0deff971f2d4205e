"""A session on workers: each batch of its pipeline is trained on once, whoever dies."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.sessions.conftest import in_this_process  # noqa: F401 - a fixture

from elasticdl import api, job_options
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.engines.progress_bar import Silent
from elasticdl.event_file import read_events
from elasticdl.events import Evaluated, WorkerJoined, WorkerLeft
from elasticdl.sessions import run as sessions_run
from elasticdl.sessions.project import open_session

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]
PATIENCE_S = 200.0
COMPONENTS = """
import keras
import numpy as np
import tensorflow as tf

from abstractions import DataLoaderBase, ModelBuilderBase, PreprocessorBase

N = 402
X = np.random.default_rng(1).normal(size=(N, 4)).astype("float32")
Y = np.arange(N) % 3


class Loader(DataLoaderBase):
    def _set_defaults(self): ...
    def _load_params(self, config): ...

    def create_training_generator(self):
        parts = (X, Y, np.ones(N, "float32"))
        return tf.data.Dataset.from_tensor_slices(parts).shuffle(N), N

    def create_validation_generator(self):
        return tf.data.Dataset.from_tensor_slices((X, Y, np.ones(N, "float32"))), N

    def create_test_generator(self):
        return tf.data.Dataset.from_tensor_slices((X, Y, np.arange(N))), N


class Preprocessor(PreprocessorBase):
    def _set_defaults(self): ...
    def _load_params(self, config): ...

    def add_image_preprocess(self, generator):
        return generator

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n):
        return generator.batch(4).repeat(), -(-n // 4)


class Builder(ModelBuilderBase):
    def _set_defaults(self): ...
    def _load_params(self, config): ...

    def get_compiled_model(self):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model
"""
CONFIG = """
src_code_path: src
data_loader_class: components.Loader
preprocessor_class: components.Preprocessor
model_builder_class: components.Builder
epochs: 4
batch_size: 4
export: {metric: val_loss, mode: min}
"""


def loss_of(evaluated):
    return evaluated.metrics["loss"]


def joined(log):
    if not log.exists():
        return []
    return [e for e in read_events(log) if isinstance(e, WorkerJoined)]


def kill_one_of_two(log):
    deadline = time.monotonic() + PATIENCE_S
    while len(joined(log)) < 2:
        assert time.monotonic() < deadline, "there were never two workers"
        time.sleep(0.1)
    os.kill(joined(log)[0].pid, signal.SIGKILL)


@pytest.mark.usefixtures("in_this_process", "exported")
def test_a_session_survives_its_workers_and_uses_each_batch_once(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "components.py").write_text(COMPONENTS)
    run = tmp_path / "runs" / "small"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(CONFIG)
    log = run / "training" / "events.jsonl"
    session = open_session("small", project_root=str(tmp_path), data_dir=str(tmp_path))

    with ThreadPoolExecutor(1) as beside:
        killed = beside.submit(kill_one_of_two, log)
        status = sessions_run.run(
            session, workers=job_options.workers(2), tracked=False, reporter=Silent()
        )
        killed.result()

    assert [e for e in read_events(log) if isinstance(e, WorkerLeft)]
    report = api.audit(str(run / "training"))
    assert all(epoch.clean for epoch in report.epochs)
    assert len(report.epochs) == 4
    # The loss goes down to the end: the best is the last, which no later commit confirms.
    best = min((e for e in read_events(log) if isinstance(e, Evaluated)), key=loss_of)
    assert CheckpointStore(OutputFolder(run / "training")).best_step() == best.step
    assert status.state == "evaluated"

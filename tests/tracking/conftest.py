"""A small model that trains as long as a test wants, and what trackers show of it."""

import numpy as np
import pytest

from elasticdl.data import recordio
from elasticdl.data.example import encode

MODEL = """
import os
import time

import keras
import numpy as np


def custom_model(units=8):
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(units), keras.layers.Dense(3)])


def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    x = np.stack([r["x"] for r in records]) * float(os.environ.get("SCALE", "1"))
    return x.astype("float32"), np.stack([r["label"] for r in records])


def loss(output, labels):
    return keras.ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels.flatten(), output, from_logits=True)
    )


def optimizer(learning_rate=0.05):
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    return {"accuracy@1": keras.metrics.SparseCategoricalAccuracy()}


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(float(os.environ.get("SLEEP_S", "0")))


def callbacks():
    return [Slow()]
"""


@pytest.fixture(scope="module", autouse=True)
def weights_only(weights_only):
    """Export nothing here."""
    return weights_only


@pytest.fixture
def job(tmp_path):
    """The options of a job of 10 steps an epoch, whose checkpoints lie within epochs."""
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "small.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    centres = np.eye(3, 4) * 3
    for name, num_records in {"train": 150, "test": 40}.items():
        with recordio.Writer(str(tmp_path / f"{name}.recordio")) as writer:
            for _ in range(num_records):
                label = rng.integers(3)
                x = (centres[label] + rng.normal(size=4)).astype("float32")
                writer.write(encode({"x": x, "label": np.int64([label])}))
    return {
        "model_zoo": str(zoo),
        "model_def": "small",
        "data": str(tmp_path / "train.recordio"),
        "validation_data": str(tmp_path / "test.recordio"),
        "output": str(tmp_path / "out"),
        "minibatch_size": 16,
        "num_epochs": 6,
        "checkpoint_steps": 7,
    }


@pytest.fixture
def runs_in():
    """Return a function: database and experiment -> its runs, each with its whole history."""

    def read(database, experiment):
        from mlflow.entities import ViewType
        from mlflow.tracking import MlflowClient

        client = MlflowClient(f"sqlite:///{database}")
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return []
        runs = client.search_runs([found.experiment_id], run_view_type=ViewType.ACTIVE_ONLY)
        for run in runs:
            run.history = {
                key: [
                    (item.step, item.value)
                    for item in client.get_metric_history(run.info.run_id, key)
                ]
                for key in run.data.metrics
            }
        return runs

    return read


@pytest.fixture
def curves_in():
    """Return a function: output -> what TensorBoard draws, as part/tag -> (step, value)s."""

    def read(output):
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        curves = {}
        for part in output.glob("logs/*"):
            accumulator = EventAccumulator(str(part), size_guidance={"scalars": 0})
            accumulator.Reload()
            for tag in accumulator.Tags()["scalars"]:
                points = [(item.step, item.value) for item in accumulator.Scalars(tag)]
                curves[f"{part.name}/{tag}"] = points
        return curves

    return read

"""A small model and records to train it on."""

import textwrap

import numpy as np
import pytest

from elasticdl.data import recordio
from elasticdl.data.example import encode

MODEL = """
import keras
import numpy as np


def custom_model(units=8):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(units, activation="relu"),
         keras.layers.BatchNormalization(), keras.layers.Dropout(0.1), keras.layers.Dense(3)]
    )


def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    return np.stack([r["x"] for r in records]), np.stack([r["label"] for r in records])


def loss(output, labels):
    return keras.ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels.flatten(), output, from_logits=True)
    )


def optimizer(learning_rate=0.05):
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
"""


@pytest.fixture(scope="module", autouse=True)
def weights_only(weights_only):
    """Export nothing here."""
    return weights_only


@pytest.fixture
def zoo(tmp_path):
    """A folder with one model file; `zoo(more)` adds code to it."""
    folder = tmp_path / "zoo"
    folder.mkdir()

    def write(more=""):
        (folder / "small.py").write_text(MODEL + textwrap.dedent(more))
        return folder

    write()
    return write


def write_records(path, num_records, seed=0, fields=("x", "label")):
    rng = np.random.default_rng(seed)
    centres = np.eye(3, 4) * 3
    with recordio.Writer(str(path)) as writer:
        for _ in range(num_records):
            label = rng.integers(3)
            record = {
                "x": (centres[label] + rng.normal(size=4)).astype("float32"),
                "label": np.int64([label]),
            }
            writer.write(encode({name: record[name] for name in fields}))
    return path


@pytest.fixture
def data(tmp_path):
    return write_records(tmp_path / "train.recordio", 150)


@pytest.fixture
def train(zoo, data, tmp_path):
    """Train the small model; options as of `elasticdl.train`."""
    import elasticdl
    from elasticdl.engines.progress_bar import Silent

    def run(**options):
        return elasticdl.train(
            **{
                "model_zoo": str(tmp_path / "zoo"),
                "model_def": "small",
                "data": str(data),
                "output": str(tmp_path / "out"),
                "minibatch_size": 16,
                "reporter": Silent(),
                **options,
            }
        )

    return run

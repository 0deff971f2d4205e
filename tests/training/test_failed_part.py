"""An error in a loss or a metric names the user's line, also if it is raised in a framework."""

import numpy as np
import pytest

import elasticdl
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import UserCodeError

KERAS = """
import keras
import numpy as np

def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x, x[:, :1]

def custom_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])

def optimizer():
    return keras.optimizers.SGD(0.1)
"""
TORCH = """
import numpy as np
import torch

def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x, x[:, :1]

def custom_model():
    return torch.nn.Linear(2, 3)

def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)
"""
METRIC_OF_KERAS = """
loss = "mae"
def eval_metrics_fn():
    return {"a": keras.metrics.CategoricalCrossentropy()}
"""
METRIC_OF_TORCH = """
import torchmetrics
def loss(labels, predictions):
    return ((predictions - labels) ** 2).mean()
def eval_metrics_fn():
    return {"a": torchmetrics.classification.BinaryAccuracy()}
"""
FUNCTION = """
def loss(labels, outputs):
    return torch.nn.functional.cross_entropy(outputs, labels)
"""
CASES = {
    "a loss of Keras": (KERAS, "loss = keras.losses.CategoricalCrossentropy()", "loss ="),
    "the name of a loss": (KERAS, "loss = 'categorical_crossentropy'", "loss ="),
    "a metric of Keras": (KERAS, METRIC_OF_KERAS, "def eval_metrics_fn"),
    "a loss of PyTorch": (TORCH, "loss = torch.nn.CrossEntropyLoss()", "loss ="),
    "an imported loss": (TORCH, "from torch.nn.functional import cross_entropy as loss", "from"),
    "no gradient": (TORCH, "def loss(labels, outputs): return labels.mean()", "def loss"),
    "a function": (TORCH, FUNCTION, "    return torch.nn.functional"),
    "a metric of TorchMetrics": (TORCH, METRIC_OF_TORCH, "def eval_metrics_fn"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_users_line_is_named(tmp_path, case):
    text, more, named = CASES[case]
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "fails.py").write_text(text + more + "\n")
    lines = (text + more).splitlines()
    line = max(number for number, each in enumerate(lines, 1) if each.startswith(named))
    data = {"x": np.ones((8, 2), np.float32)}

    with pytest.raises(UserCodeError, match=rf"fails\.py:{line}: the model, its loss or its metr"):
        elasticdl.train(
            model_zoo=str(tmp_path / "zoo"), model_def="fails", data=data, validation_data=data,
            output=str(tmp_path / "out"), minibatch_size=4, reporter=Silent(),
        )  # fmt: skip

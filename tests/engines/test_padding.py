"""Jobs whose input functions pad labels to the longest record of a minibatch."""

from __future__ import annotations

import textwrap

import pytest

PADDED = """
    def input_fn(records):
        x = np.stack([r["x"] for r in records])
        lengths = [1 + abs(int(10 * r["x"][0])) % 5 for r in records]
        x = np.repeat(x[:, None], max(lengths), 1)
        for row, length in zip(x, lengths):
            row[length:] = 0
        return x, np.abs(x).sum(2, keepdims=True)
"""
KERAS = (
    PADDED
    + """
    def custom_model():
        layers = [keras.layers.Masking(), keras.layers.GRU(3, return_sequences=True)]
        return keras.Sequential([keras.Input((None, 4)), *layers[{first}:], keras.layers.Dense(1)])


    loss = keras.losses.MeanSquaredError()
    del eval_metrics_fn
"""
)
TORCH = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional


def data_schema():
    return [{"name": "x", "shape": [4], "dtype": "float32"}]

def custom_model():
    return nn.Linear(4, 1, bias=False)


def loss(outputs, labels):
    return RESULT


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""
UPDATES_OF_FOUR = {"minibatch_size": 4, "global_batch_size": 16, "max_steps": 4}


def warnings_of(caplog) -> list[str]:
    return [message for message in caplog.messages if "padding changes the loss" in message]


@pytest.mark.parametrize(("is_masked", "num_warnings"), [(False, 1), (True, 0)])
def test_padding_that_counts_in_a_keras_loss_is_reported(
    zoo, train, caplog, is_masked, num_warnings
) -> None:
    zoo(KERAS.replace("{first}", "0" if is_masked else "1"))

    train(**UPDATES_OF_FOUR)

    assert len(warnings_of(caplog)) == num_warnings


def test_padding_in_updates_of_one_minibatch_is_not_reported(zoo, train, caplog) -> None:
    zoo(KERAS.replace("{first}", "1"))

    train(minibatch_size=16, global_batch_size=16, max_steps=4)

    assert not warnings_of(caplog)


@pytest.mark.parametrize(
    ("result", "num_warnings"),
    [
        ("functional.mse_loss(outputs, labels)", 1),
        ("((outputs - labels) ** 2).sum((1, 2)) / (labels != 0).sum((1, 2))", 0),
    ],
)
def test_padding_that_counts_in_a_pytorch_loss_is_reported(
    zoo, train, caplog, result, num_warnings
) -> None:
    folder = zoo()
    (folder / "padded.py").write_text(TORCH.replace("RESULT", result) + textwrap.dedent(PADDED))

    train(model_def="padded", **UPDATES_OF_FOUR)

    assert len(warnings_of(caplog)) == num_warnings


POOLED = """
import numpy as np
import torch
from torch import nn
from torch.nn import functional


def data_schema():
    return [{"name": "x", "shape": [4], "dtype": "float32"}]


def input_fn(records):
    x = np.stack([r["x"] for r in records])
    lengths = np.array([1 + abs(int(10 * r["x"][0])) % 5 for r in records])
    x = np.repeat(x[:, None], max(lengths), 1)
    for row, length in zip(x, lengths):
        row[length:] = 0
    return {"x": x, "lengths": lengths}, 100 + np.abs(x).sum((1, 2))


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(4, 4, batch_first=True), nn.Linear(4, 1)
        self.to(DTYPE)

    def forward(self, x, lengths):
        steps = self.gru(x.to(DTYPE))[0]
        mask = (torch.arange(x.shape[1]) < lengths[:, None])[:, :, None]
        return self.head(RESULT).squeeze(1).float()


def custom_model():
    torch.manual_seed(0)
    return Pooled()


def loss(outputs, labels):
    return functional.mse_loss(outputs, labels)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=1e-5)
"""
MASKED = "((steps * mask).sum(1) / mask.sum(1)).to(DTYPE)"


@pytest.mark.parametrize(
    ("result", "dtype", "num_warnings"),
    [
        ("steps.mean(1)", "float32", 1),
        ("steps.amax(1)", "float32", 1),
        ("steps.mean(1)", "bfloat16", 1),
        (MASKED, "float32", 0),
        (MASKED, "bfloat16", 0),
        ("torch.where(mask, steps, -torch.inf).amax(1)", "float32", 0),
        ("steps[torch.arange(x.shape[0]), lengths - 1]", "float16", 0),
    ],
)
def test_padding_that_a_pooling_layer_counts_is_reported(
    zoo, train, caplog, result, dtype, num_warnings
) -> None:
    folder = zoo()
    source = POOLED.replace("RESULT", result).replace("DTYPE", f"torch.{dtype}")
    (folder / "pooled.py").write_text(source)

    train(model_def="pooled", **UPDATES_OF_FOUR)

    assert len(warnings_of(caplog)) == num_warnings


POOLED_KERAS = (
    PADDED.replace(
        "np.abs(x).sum(2, keepdims=True)", "100 + np.abs(x).sum((1, 2), keepdims=True)[:, 0]"
    )
    + """
    def custom_model():
        keras.config.set_dtype_policy("{policy}")
        layers = [keras.layers.Masking(), keras.layers.GRU(3, return_sequences=True)]
        layers += [keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(1)]
        return keras.Sequential([keras.Input((None, 4)), *layers[{first}:]])


    loss = keras.losses.MeanSquaredError()
    del eval_metrics_fn
"""
)


@pytest.mark.parametrize(
    ("policy", "is_masked", "num_warnings"),
    [("float32", False, 1), ("float32", True, 0), ("mixed_bfloat16", True, 0)],
)
def test_padding_that_a_pooling_layer_of_keras_counts_is_reported(
    zoo, train, caplog, policy, is_masked, num_warnings
) -> None:
    import keras

    first = "0" if is_masked else "1"
    zoo(POOLED_KERAS.replace("{first}", first).replace("{policy}", policy))

    try:
        train(**UPDATES_OF_FOUR)
    finally:
        keras.config.set_dtype_policy("float32")

    assert len(warnings_of(caplog)) == num_warnings

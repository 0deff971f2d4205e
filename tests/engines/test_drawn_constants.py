"""Constants that a model draws when it is created are those of its training in all uses of it."""

import numpy as np
import pytest

import elasticdl

INPUT = """
import numpy as np

def data_schema():
    return [
        {"name": "x", "shape": [4], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]

def input_fn(records):
    return np.stack([r["x"] for r in records]), np.stack([r["y"] for r in records])
"""
MODELS = {
    # An embedding of constant positions becomes a constant of the graph.
    "keras": """
import keras
from keras import layers, ops

def custom_model():
    x = keras.Input((4,))
    positions = layers.Embedding(4, 1, embeddings_initializer="normal")(ops.arange(4))
    hidden = layers.Activation("tanh")(x + 10 * ops.reshape(positions, (4,)))
    return keras.Model(x, layers.Dense(1)(hidden))

loss = keras.losses.MeanSquaredError()

def optimizer():
    return keras.optimizers.SGD(0.05)
""",
    "torch": """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.frequencies = torch.randn(4, 8)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        return self.out(torch.sin(x @ self.frequencies))

def custom_model():
    return Net()

loss = nn.MSELoss()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.05)
""",
}


@pytest.mark.parametrize("framework", MODELS)
def test_evaluation_and_prediction_use_values_drawn_in_training(framework, tmp_path) -> None:
    (tmp_path / "model.py").write_text(INPUT + MODELS[framework])
    rng = np.random.default_rng(0)
    data = {
        "x": rng.normal(size=(24, 4)).astype("float32"),
        "y": rng.normal(size=(24, 1)).astype("float32"),
    }
    output = tmp_path / "trained"

    trained = elasticdl.train(
        model_zoo=str(tmp_path),
        model_def="model",
        data=data,
        validation_data=data,
        output=str(output),
        minibatch_size=8,
        seed=7,
    )
    evaluated = elasticdl.evaluate(trained_model=str(output), data=data, minibatch_size=8)
    elasticdl.predict(trained_model=str(output), data=data, output=str(tmp_path / "p.csv"))

    assert evaluated.metrics["loss"] == pytest.approx(trained.metrics["val_loss"], rel=1e-5)
    rows = np.genfromtxt(tmp_path / "p.csv", delimiter=",", names=True)
    outputs = rows[rows.dtype.names[-1]]
    assert np.mean((outputs - data["y"][:, 0]) ** 2) == pytest.approx(
        trained.metrics["val_loss"], rel=1e-4
    )

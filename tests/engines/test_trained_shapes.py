"""An error of a trained model on data of another shape than in training has advice on the data."""

from pathlib import Path

import numpy as np
import pytest

import elasticdl
from elasticdl.errors import DataError, UserCodeError

MODEL = """
import torch

def custom_model():
    return torch.nn.Linear(4, 3)

loss = torch.nn.CrossEntropyLoss()

def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)
"""
INPUT = """
def input_fn(records, mode):
    import numpy as np

    x = np.stack([record["x"] for record in records]).reshape(-1, 4)
    if (x < 0).any():
        raise ValueError("negative")
    return x, np.array([record["y"].item() for record in records if "y" in record])
"""
X, Y = np.ones((16, 4), np.float32), np.arange(16) % 3


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    def train(code: str = MODEL) -> str:
        Path("m.py").write_text(code)
        options = {"model_def": "m", "model_zoo": ".", "output": "out", "quiet": True}
        return elasticdl.train(data=(X, Y), **options).output

    return train


@pytest.mark.parametrize("do", ["predict", "evaluate", "load"])
def test_other_shapes_than_in_training_are_named(trained, do: str) -> None:
    model = trained()

    with pytest.raises(DataError) as caught:
        if do == "predict":
            elasticdl.predict(trained_model=model, data=X[:, :3], output="p.csv", quiet=True)
        elif do == "evaluate":
            elasticdl.evaluate(trained_model=model, data=(X[:, :3], Y), quiet=True)
        else:
            elasticdl.load(model).predict(X[:, :3])

    first, *others = str(caught.value).splitlines()
    assert first == (
        f"data: {model} cannot take these records: 'x' has the shape [3], and [4] in the training "
        "data. Convert the data as the training data was converted, or train a model on data of "
        "this shape."
    )
    assert len(others) == 2
    assert "mat1 and mat2 shapes cannot be multiplied" in others[1]


def test_a_single_example_needs_an_axis(trained) -> None:
    with pytest.raises(DataError, match=r"One example needs .* such as x\[None\]\."):
        elasticdl.load(trained()).predict(X[0])


def test_another_mistake_in_data_of_the_same_shape_is_reported_as_it_is(trained) -> None:
    with pytest.raises(UserCodeError, match="negative"):
        elasticdl.predict(trained_model=trained(MODEL + INPUT), data=-X, output="p.csv", quiet=True)


def test_another_shape_that_the_input_function_converts_is_accepted(trained) -> None:
    model = trained(MODEL + INPUT)

    assert elasticdl.load(model).predict(X.reshape(-1, 2, 2)).shape == (16, 3)

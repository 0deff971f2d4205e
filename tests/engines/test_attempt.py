"""A trained model whose checkpoints were deleted is not replaced without a word."""

import shutil

import pytest
from tests.notes import Notes

import elasticdl
from elasticdl.errors import DefinitionError

MODEL = """
import numpy as np, torch

def data_schema():
    return [{"name": "label", "shape": [1], "dtype": "int64"}]

def input_fn(records):
    labels = np.stack([record["label"] for record in records]).astype("float32")
    return labels, labels

loss = torch.nn.MSELoss()

def custom_model():
    return torch.nn.Linear(1, 1)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.01)
"""


@pytest.fixture
def train(tmp_path, iris):
    (tmp_path / "model.py").write_text(MODEL)

    def train(**options):
        notes = Notes()
        elasticdl.train(
            model_zoo=str(tmp_path), model_def="model", data=str(iris / "test"),
            output=str(tmp_path / "out"), reporter=notes, **options,
        )  # fmt: skip
        return [note for note in notes.texts if "Starting from the beginning" in note]

    return train


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_a_training_that_replaces_a_trained_model_says_so(train, tmp_path, num_epochs) -> None:
    out = tmp_path / "out"
    assert train() == []
    shutil.rmtree(out / "checkpoints")

    (note,) = train(num_epochs=num_epochs)
    assert note == (
        f"Starting from the beginning: {out} has no checkpoints to resume from. When the training "
        "ends, its model replaces the trained model in the folder. To keep that one, use another "
        "output=."
    )
    assert train(num_epochs=num_epochs + 1) == []


def test_a_failed_start_keeps_the_job_of_a_trained_model(train, tmp_path) -> None:
    out = tmp_path / "out"
    train()
    (out / "checkpoints").rename(tmp_path / "checkpoints")
    (tmp_path / "model.py").write_text("nothing = 1\n")
    with pytest.raises(DefinitionError):
        train(num_epochs=2)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "checkpoints").rename(out / "checkpoints")

    assert train(num_epochs=2) == []
    assert elasticdl.load(str(out)) is not None

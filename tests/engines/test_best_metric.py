"""The direction of a metric by its name."""

import numpy as np
import pytest

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.training.metric_direction import direction_by_name


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("loss", "min"),
        ("digit_loss", "min"),
        ("root_mean_squared_error", "min"),
        ("acc", "max"),
        ("binary_accuracy", "max"),
        ("auc_1", "max"),
        ("f1_score", "max"),
        ("dice@0.5", "max"),
        ("top5", "max"),
        ("top5_error", "min"),
        ("accuracy_loss", None),
        ("spread", None),
    ],
)
def test_a_metric_name_may_imply_its_direction(name, direction):
    assert direction_by_name(name) == direction


MAXIMIZES = """
import torch

def custom_model():
    return torch.nn.Linear(2, 2)

def loss(outputs, labels):
    return torch.distributions.Categorical(logits=outputs).log_prob(labels).mean()

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.5, maximize=True)
"""


def test_the_highest_loss_is_the_best_if_the_optimizer_maximizes_it(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MAXIMIZES)
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    data = (x, (x[:, 0] > 0).astype(np.int64))

    outcome = elasticdl.train(
        data=data, validation_data=data, model_zoo=str(tmp_path), model_def="model",
        output=str(tmp_path / "out"), num_epochs=3, restore_best_weights=True,
    )  # fmt: skip

    assert load_trained_model(outcome.output).description.step == outcome.step
    assert "is the one with the highest val_loss" in " ".join(capsys.readouterr().err.split())


def test_a_note_says_that_no_best_weights_can_be_restored_without_validation(tmp_path, capsys):
    (tmp_path / "model.py").write_text(MAXIMIZES)
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)

    def notes_with(name, **options):
        elasticdl.train(
            data=(x, (x[:, 0] > 0).astype(np.int64)), model_zoo=str(tmp_path), model_def="model",
            output=str(tmp_path / name), restore_best_weights=True, **options,
        )  # fmt: skip
        return " ".join(capsys.readouterr().err.split())

    note = "there is no validation data, so no val_loss to find the best weights by"
    assert note in notes_with("default")
    assert note not in notes_with("loss", best_metric="loss", best_mode="min")

"""Every prebuilt model trains on the sample data it is for, by its name alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import elasticdl
from elasticdl.zoo import catalogue

if TYPE_CHECKING:
    from pathlib import Path

# Model -> sample, options, and what must be reached: at least, or at most where it is negative.
RUNS = {
    "mnist": ("digits", {"num_epochs": 5}, ("val_accuracy", 0.95)),
    "cifar10": ("patches", {"num_epochs": 1, "max_steps": 10}, ("val_accuracy", 0.05)),
    "classifier.DNN": (
        "iris",
        {"num_epochs": 20, "params": "num_classes=3, learning_rate=0.01"},
        ("val_accuracy", 0.8),
    ),
    "wide_and_deep.Classifier": (
        "wine",
        {"num_epochs": 20, "params": "num_classes=3, learning_rate=0.01"},
        ("val_accuracy", 0.8),
    ),
    "regressor.DNN": (
        "diabetes",
        {"num_epochs": 20, "params": "label_mean=150, label_scale=80, learning_rate=0.01"},
        ("val_mean_absolute_error", -60.0),
    ),
    "wide_and_deep.Regressor": (
        "diabetes",
        {"num_epochs": 20, "params": "label_mean=150, label_scale=80, learning_rate=0.01"},
        ("val_mean_absolute_error", -60.0),
    ),
}


def test_every_prebuilt_model_is_tried() -> None:
    assert sorted(RUNS) == [entry.name for entry in catalogue.entries()]


@pytest.mark.slow
@pytest.mark.parametrize("model_def", RUNS)
def test_prebuilt_model_learns(model_def: str, tmp_path: Path, request) -> None:
    sample, options, (metric, bound) = RUNS[model_def]
    data = request.getfixturevalue(sample)

    outcome = elasticdl.train(
        model_def=model_def,
        data=f"{data}/train",
        validation_data=f"{data}/test",
        output=str(tmp_path / "trained"),
        **options,
    )

    value = outcome.metrics[metric]
    assert value >= bound if bound > 0 else value <= -bound

"""The direction of a metric by its name."""

import pytest

from elasticdl.engines.best_metric import direction_by_name


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

"""WITH sets the model, the training and the prediction; every name and value is checked."""

from __future__ import annotations

import pytest

from elasticdl.sql.parse import parse
from elasticdl.sql.settings import (
    PredictSettings,
    TrainSettings,
    explain_options,
    for_rows,
    predict_settings,
    train_settings,
)
from elasticdl.sql.statements import StatementError


def training(clause: str) -> TrainSettings:
    program = f"SELECT 1 TO TRAIN m WITH {clause} INTO x"
    return train_settings(parse(program)[0].attributes, {"units", "rate"}, program)


def predicting(clause: str) -> PredictSettings:
    program = f"SELECT 1 TO PREDICT t.c WITH {clause} USING x"
    return predict_settings(parse(program)[0].attributes, program)


def test_prefixes_determine_what_is_set() -> None:
    assert training(
        "units=[1], model.rate=0.5, train.batch_size=8, train.epoch=2, train.num_workers='2..3', "
        "validation.select='SELECT 2', validation.fraction=0.1"
    ) == TrainSettings(
        {"units": [1], "rate": 0.5},
        {"minibatch_size": 8, "num_epochs": 2, "num_workers": "2..3"},
        "SELECT 2",
        0.1,
    )


def test_a_prediction_has_its_own_options() -> None:
    assert predicting("predict.minibatch_size=8, predict.probability=p") == PredictSettings(
        {"minibatch_size": 8}, "p"
    )


@pytest.mark.parametrize(
    ("clause", "problem"),
    [
        ("unit=1", "did you mean 'units'?"),
        ("num_epochs=1", "is not a parameter of the model; did you mean 'train.num_epochs'?"),
        ("batch_size=1", "did you mean 'train.batch_size'?"),
        ("model.seed=1", "did you mean 'train.seed'?"),
        ("train.num_epoch=1", "did you mean 'num_epochs'?"),
        ("train.num_epochs=0", "at least 1"),
        ("train.num_epochs=1.5", "expected a whole number"),
        ("train.num_workers=many", "the number of training processes"),
        ("train.heartbeat_timeout=-1", "more than 0"),
        ("train.best_mode=big", "expected one of"),
        ("validation.fraction=1", "from 0 to less than 1"),
        ("validation.select=3", "must be a string"),
        ("predict.x=1", "begins with one of: model., train., validation."),
    ],
)
def test_a_wrong_name_or_value_is_refused(clause, problem) -> None:
    with pytest.raises(StatementError, match=problem) as caught:
        training(clause)

    assert caught.value.column == len("SELECT 1 TO TRAIN m WITH ") + 1


def test_options_of_an_explanation_are_counts() -> None:
    program = "SELECT 1 TO EXPLAIN m WITH explain.repeats=0"
    with pytest.raises(StatementError, match="at least 1"):
        explain_options(parse(program)[0].attributes, program)


def test_many_rows_use_large_minibatches_by_default() -> None:
    assert for_rows({}, 4096) == {}
    assert for_rows({"num_workers": 2}, 4097) == {"num_workers": 2, "minibatch_size": 2048}
    assert for_rows({"minibatch_size": 16}, 10**6) == {"minibatch_size": 16}

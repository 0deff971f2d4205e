"""Modes are compared with their names, and with nothing else."""

import copy
import pickle

import pytest

from elasticdl.definition import Mode


def test_a_mode_equals_its_name_and_no_other() -> None:
    assert Mode.TRAINING == "training" != Mode.EVALUATION
    assert Mode.TRAINING != "prediction"
    assert Mode.TRAINING in {"training", "prediction"}
    assert {Mode.TRAINING: 1}["training"] == 1
    assert Mode.TRAINING != None  # noqa: E711 - a user may write this


@pytest.mark.parametrize(
    "compare",
    [
        lambda mode: mode == "train",
        lambda mode: mode != "fit",
        lambda mode: mode in ("infer", "predict"),
    ],
)
def test_a_comparison_with_another_name_is_an_error(compare) -> None:
    with pytest.raises(ValueError, match=r"the modes are 'evaluation', 'prediction', 'training'"):
        compare(Mode.TRAINING)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_a_mode_is_the_same_object(copied) -> None:
    assert copied(Mode.TRAINING) is Mode.TRAINING

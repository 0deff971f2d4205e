"""A checkpoint is judged by what was finite when the training began."""

import ml_dtypes
import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.engines.feed import TrainingBatch
from elasticdl.engines.finite import StateCheck, check_losses
from elasticdl.errors import NonFiniteLossError

MASK = np.float32([0, -np.inf, np.nan])


def check(before, after):
    StateCheck(before).check(after, step=7, last_good=5)


def test_an_initial_mask_of_infinities_is_accepted():
    check({"model/mask": MASK}, {"model/mask": MASK.copy()})


def test_numbers_that_become_finite_are_accepted():
    check({"model/mask": MASK}, {"model/mask": np.float32([0, 1, np.nan])})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"w": np.float32([0, 1])}, {"w": np.float32([0, np.nan])}),
        ({"w": MASK}, {"w": np.float32([np.inf, -np.inf, np.nan])}),
        ({}, {"w": np.float32([np.inf])}),
        ({"w": np.zeros(2, ml_dtypes.bfloat16)}, {"w": np.array([1, np.nan], ml_dtypes.bfloat16)}),
    ],
)
def test_a_number_that_becomes_infinite_ends_the_training(before, after):
    with pytest.raises(NonFiniteLossError, match="w contains NaN or infinity at step 7"):
        check(before, after)


def test_integers_and_overflowing_sums_count_as_finite():
    check({}, {"n": np.array([1]), "w": np.full(4, 3e38, np.float32)})


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64, np.complex64])
def test_infinity_is_detected_in_every_float_type(dtype):
    with pytest.raises(NonFiniteLossError, match="model/kernel contains NaN or infinity at step 7"):
        check({}, {"model/kernel": np.array([1, np.inf], dtype)})


def test_callback_state_may_be_infinite():
    check({}, {"callbacks/0/Best/best": np.array(np.inf)})


class Doubling:
    """A trainer of a model that doubles."""

    def predict(self, features):
        return features


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (
            {"age": np.float32([1, np.nan, np.nan]), "sex": np.array([0, 1, 1])},
            np.array([0, 1, 1]),
            "That batch has NaN in its features, in 'age', in 2 examples of 3: correct or",
        ),
        (np.float32([[1, 2], [np.inf, 2], [1, 1]]), None, "has infinity in its features, in 1 ex"),
        (np.ones((3, 1)), np.float32([1, np.nan, 2]), "has NaN in its labels, in 1 example of 3"),
        (np.float32([0, -np.inf, 0]), None, "Lower the learning rate, or check for NaN and"),
        (np.ones((3, 1)), np.ones(3), "Lower the learning rate, or check for NaN and very large"),
    ],
)
def test_data_that_are_not_finite_are_named(features, labels, message):
    at = TrainingBatch(0, 0, 4, Batch(features, labels, 3), finished=False)

    with pytest.raises(NonFiniteLossError) as caught:
        check_losses(np.float64([np.nan]), [at], Doubling(), step=7, last_good=5)

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("where", "shard", "place"),
    [
        (lambda: "a.csv, records 3 to 5", 4, r"\(epoch 2: a\.csv, records 3 to 5\)"),
        (None, 0, r"\(epoch 2, shard 0, batch 7\)"),
        (None, 4, r"\(epoch 2, shard 4, batch 7\)"),
    ],
)
def test_a_bad_loss_is_placed_by_its_records(where, shard, place):
    batch = Batch(np.ones((3, 1)), np.zeros(3), 3, where=where)
    at = TrainingBatch(1, shard, 7, batch, finished=False)

    with pytest.raises(NonFiniteLossError, match=f"loss is nan at step 1 {place}. Training") as e:
        check_losses(np.float32([np.nan]), [at], Doubling(), step=1, last_good=0)
    assert str(e.value).count("records") == (where is not None)

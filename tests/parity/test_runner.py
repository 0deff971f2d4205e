"""What the runner takes for equal, and what it calls a difference."""

import numpy as np
import pytest
from tests.parity import records
from tests.parity.features import Feature, Promise
from tests.parity.runner import (
    DifferenceError,
    Numbers,
    check_differs,
    check_refused,
    compare,
)

from elasticdl.errors import DefinitionError

EQUAL = Promise("equal")


def numbers(weights, *losses):
    return Numbers([{"loss": loss} for loss in losses], {"kernel": np.float32(weights)})


def test_rounding_is_not_a_difference():
    compare(numbers([1.0, 1e-9], 0.5), numbers([1.000001, 0.0], 0.5), EQUAL)


def test_the_first_loss_that_differs_is_shown_before_any_weight():
    with pytest.raises(DifferenceError, match=r"loss of epoch 2 is 0.4, expected 0.3 .*0.1"):
        compare(numbers([1.0], 0.5, 0.4), numbers([2.0], 0.5, 0.3), EQUAL)


def test_a_weight_that_differs_is_named():
    with pytest.raises(DifferenceError, match="kernel"):
        compare(numbers([1.0, 0.1]), numbers([1.0, 0.1001]), EQUAL)


def test_values_are_compared_exactly_without_a_tolerance():
    same_bits = Promise("equal", tolerance=0.0)

    compare(numbers([1.0, np.nan]), numbers([1.0, np.nan]), same_bits)
    with pytest.raises(DifferenceError):
        compare(numbers([1.0]), numbers([np.nextafter(np.float32(1.0), 2)]), same_bits)


def test_a_metric_only_of_the_script_is_a_difference():
    measured = Numbers([{"loss": 0.5, "val_mae": 0.1}], {})

    with pytest.raises(DifferenceError, match="val_mae"):
        compare(Numbers([{"loss": 0.5}], {}), measured, EQUAL)


def test_a_different_number_of_epochs_is_a_difference():
    with pytest.raises(DifferenceError, match="2 epochs, expected 1"):
        compare(numbers([1.0], 0.5, 0.4), numbers([1.0], 0.5), EQUAL)


def test_a_stated_difference_must_exist():
    check_differs(numbers([1.0]), numbers([2.0]))
    with pytest.raises(DifferenceError, match="those of the plain script"):
        check_differs(numbers([1.0]), numbers([1.0]))


def test_weights_must_match_if_only_reports_differ():
    check_differs(numbers([1.0], 0.5), numbers([1.0], 0.4), same_weights=True)
    with pytest.raises(DifferenceError, match="kernel"):
        check_differs(numbers([1.0], 0.5), numbers([2.0], 0.4), same_weights=True)


def test_a_stated_difference_does_not_excuse_nan():
    with pytest.raises(AssertionError):
        check_differs(numbers([np.nan]), numbers([2.0]))


class Raising:
    def __init__(self, error):
        self.error = error

    def numbers(self, place):
        if self.error is not None:
            raise self.error


FEATURE = Feature("keras", "one", "One", "Some", {}, "train_step", {})


def test_a_refusal_names_the_feature():
    check_refused(FEATURE, "resumed", Raising(DefinitionError("has a train_step")))
    with pytest.raises(DifferenceError, match="other words"):
        check_refused(FEATURE, "resumed", Raising(DefinitionError("does not fit")))
    with pytest.raises(DifferenceError, match="without a word"):
        check_refused(FEATURE, "resumed", Raising(None))


def test_a_crash_is_not_a_refusal():
    with pytest.raises(TypeError):
        check_refused(FEATURE, "resumed", Raising(TypeError("train_step")))


def test_two_workers_get_the_halves_of_each_batch():
    train = list(range(records.NUM_RECORDS))

    by_halves = records.for_two_workers(train)

    first, second = by_halves[:24], by_halves[24:]
    assert first[:4] + second[:4] == train[:8]
    # The last batch is of six: one worker has four of them, the other two.
    assert first[-4:] + second[-2:] == train[-6:]

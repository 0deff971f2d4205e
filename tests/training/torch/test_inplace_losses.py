"""A loss that changes its arguments in place is called again with copies of them."""

import numpy as np
import pytest
from tests.training.torch.conftest import batch_of, definition_of, trainer_of
from torch.nn import functional

from elasticdl.data.batch import Batch


def hot(labels):
    return functional.one_hot(labels, 3).float()


def of_probabilities(outputs, labels):
    return functional.binary_cross_entropy(outputs.sigmoid(), hot(labels))


def of_probabilities_in_place(outputs, labels):
    return functional.binary_cross_entropy(outputs.sigmoid_(), hot(labels))


def of_rows_in_place(outputs, labels):
    return -(outputs.sigmoid_().clamp_min(1e-6).log() * hot(labels)).sum(1).mean()


def of_rows(outputs, labels):
    return -(outputs.sigmoid().clamp_min(1e-6).log() * hot(labels)).sum(1).mean()


def of_scaled_labels(outputs, labels):
    return functional.mse_loss(outputs, labels / 10)


def of_labels_scaled_in_place(outputs, labels):
    return functional.mse_loss(outputs, labels.div_(10))


def batch_for(loss):
    batch = batch_of(8)
    if "labels" not in loss.__name__:
        return batch
    rows = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    return Batch(batch.features, rows, 8)


PAIRS = [
    (of_probabilities_in_place, of_probabilities),
    (of_rows_in_place, of_rows),
    (of_labels_scaled_in_place, of_scaled_labels),
]


@pytest.mark.parametrize(("in_place", "plain"), PAIRS)
def test_results_per_example_are_those_of_the_same_loss_with_copies(in_place, plain):
    expected = trainer_of(definition_of(loss=plain), batch_for(plain)).evaluate_per_example(
        batch_for(plain)
    )

    found = trainer_of(definition_of(loss=in_place), batch_for(in_place)).evaluate_per_example(
        batch_for(in_place)
    )

    np.testing.assert_array_equal(found.outputs, expected.outputs)
    np.testing.assert_allclose(found.values["loss"], expected.values["loss"], rtol=1e-6)


@pytest.mark.parametrize(("in_place", "plain"), PAIRS)
def test_gradients_are_summed_over_workers_as_for_the_same_loss_with_copies(in_place, plain):
    expected, _ = trainer_of(definition_of(loss=plain), batch_for(plain)).gradients(
        batch_for(plain)
    )

    found, _ = trainer_of(definition_of(loss=in_place), batch_for(in_place)).gradients(
        batch_for(in_place)
    )

    np.testing.assert_allclose(found.buffer, expected.buffer, rtol=1e-5, atol=1e-7)

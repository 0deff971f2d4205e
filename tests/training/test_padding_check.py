"""Which losses are changed by padding minibatches to their longest record, and what is said."""

from __future__ import annotations

import numpy as np
import pytest
from tests.data.test_padding import of_lengths, padded

from elasticdl.data.batch import Batch
from elasticdl.definition import Origin
from elasticdl.training.padding_check import MeasuredLoss, PaddingCheck

ORIGIN = Origin("keras_class", "model.py", 7, "loss", "zoo")
UPDATE_SIZE = 6


def mean_of_all(batch: Batch) -> MeasuredLoss:
    return MeasuredLoss(float(batch.labels.mean()), batch.num_examples, [()], 1e-4)


def mean_of_labels(batch: Batch) -> MeasuredLoss:
    there = np.count_nonzero(batch.labels)
    return MeasuredLoss(float(batch.labels.sum() / there), there, [()], 1e-4)


def sum_of_steps(batch: Batch) -> MeasuredLoss:
    value = batch.labels.sum(1).mean()
    return MeasuredLoss(float(value), batch.num_examples, [()], 1e-4)


def checked(measure, *batches, update_size=UPDATE_SIZE) -> None:
    check = PaddingCheck(ORIGIN, "ignore it")
    for batch in batches:
        check.check(batch, update_size, measure)


def test_a_loss_that_counts_padding_is_named_once(caplog) -> None:
    checked(mean_of_all, of_lengths(2, 4, 3), of_lengths(1, 5, 3))

    (message,) = caplog.messages
    assert message.startswith(
        "model.py:7: padding changes the loss. The input function made labels"
    )
    assert "shape [3, 4] from 3 records, [1, 2] from the first 1 of them and [2, 4]" in message
    # (4 + 16 + 9) / 12, and (1 * 2 + 2 * 25 / 8) / 3
    assert "of all is 2.41667; the losses of the parts combine to 2.75" in message
    assert message.endswith("not padding: ignore it.")


@pytest.mark.parametrize("measure", [mean_of_labels, sum_of_steps])
def test_a_loss_that_padding_does_not_change_is_not_named(measure, caplog) -> None:
    checked(measure, of_lengths(2, 4, 3), of_lengths(1, 5, 3))

    assert not caplog.messages


def test_batches_of_equal_lengths_are_compared_more_than_once(caplog) -> None:
    def largest(batch: Batch) -> MeasuredLoss:
        value = float(batch.features.max(1).sum())
        return MeasuredLoss(value / batch.num_examples, batch.num_examples, [()], 1e-4)

    def padded_with_two(records, seed):
        made = features_only(records, seed)
        features = np.where(made.features == 0, 2.0, made.features)
        return Batch(features, made.labels, made.num_examples)

    # The padding is the maximum of records of length 1, which consist of ones.
    batches = [of_lengths(*lengths, make=padded_with_two) for lengths in ((3, 4, 4), (1, 4, 4))]
    checked(largest, *batches)

    assert len(caplog.messages) == 1


def test_an_update_of_one_minibatch_is_not_compared(caplog) -> None:
    # The last minibatch of an epoch is smaller, and still all of its update.
    checked(mean_of_all, of_lengths(2, 4, 3), of_lengths(1, 5), update_size=3)

    assert not caplog.messages


def test_minibatches_of_one_record_are_joined(caplog) -> None:
    checked(mean_of_all, of_lengths(4), of_lengths(2), update_size=2)

    assert len(caplog.messages) == 1


def features_only(records, seed):
    return Batch(padded(records).labels, np.ones(len(records)), len(records))


def test_padded_features_that_the_model_does_not_mask_are_named(caplog) -> None:
    def mean_of_features(batch: Batch) -> MeasuredLoss:
        return MeasuredLoss(float(batch.features.mean()), batch.num_examples, [()], 1e-4)

    checked(mean_of_features, of_lengths(2, 4, 3, make=features_only))

    (message,) = caplog.messages
    assert "made features of shape [3, 4] from 3 records" in message
    assert message.endswith(
        "or mask the padding in the model, so that it has no effect on the outputs."
    )


def test_changed_outputs_are_found_below_large_labels(caplog) -> None:
    def pooled(batch: Batch) -> MeasuredLoss:
        outputs = batch.features.mean(1)
        loss = float(((outputs - 1000) ** 2).mean())
        return MeasuredLoss(loss, batch.num_examples, [()], 0.01, outputs=[outputs])

    checked(pooled, of_lengths(2, 4, 3, make=features_only))

    (message,) = caplog.messages
    # The first: 4 / 2 and 4 / 4
    assert "Outputs for the same examples differ by up to 1." in message


def test_changed_outputs_that_the_loss_ignores_are_not_named(caplog) -> None:
    def ignoring(batch: Batch) -> MeasuredLoss:
        return MeasuredLoss(1.0, batch.num_examples, [()], 1e-4, outputs=[batch.features.mean(1)])

    checked(ignoring, of_lengths(2, 4, 3, make=features_only))

    assert not caplog.messages


@pytest.mark.parametrize("is_random", [False, True])
def test_padded_features_that_the_model_masks_are_not_named(is_random, caplog) -> None:
    def sum_of_features(batch: Batch) -> MeasuredLoss:
        value = float(batch.features.sum(1).mean())
        return MeasuredLoss(value, batch.num_examples, [()], 1e-4, is_random=is_random)

    checked(sum_of_features, of_lengths(2, 4, 3, make=features_only))

    assert not caplog.messages


def test_outputs_per_step_without_labels_per_step_are_compared(caplog) -> None:
    def features(records, seed):
        return Batch(padded(records).labels, np.ones(len(records)), len(records))

    def reconstruction(batch: Batch) -> MeasuredLoss:
        lengths = [batch.features.shape[1:]]
        return MeasuredLoss(float(batch.features.mean()), batch.num_examples, lengths, 1e-4)

    checked(reconstruction, of_lengths(2, 4, 3, make=features))

    assert "The input function made features of shape [3, 4]" in caplog.text


def test_a_random_loss_over_padded_labels_may_change(caplog) -> None:
    def random(batch: Batch) -> MeasuredLoss:
        return MeasuredLoss(1.0, batch.num_examples, [()], 1e-4, is_random=True)

    checked(random, of_lengths(2, 4, 3))

    assert "padding may change the loss" in caplog.text
    assert "The loss is random" in caplog.text

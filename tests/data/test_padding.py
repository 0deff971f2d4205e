"""Parts of a batch are padded by the input function, as minibatches are."""

from __future__ import annotations

import numpy as np

from elasticdl.data.batch import Batch, Record, Remake
from elasticdl.data.padding import padded_parts


def padded(records, seed=0):
    """Return a batch whose labels are padded to the longest of the records."""
    longest = max(len(record["y"]) for record in records)
    labels = np.stack([np.pad(record["y"], (0, longest - len(record["y"]))) for record in records])
    return Batch(np.ones((len(records), 2)), labels, len(records))


def of_lengths(*lengths: int, make=padded) -> Batch:
    records: list[Record] = [{"y": np.full(length, float(length))} for length in lengths]
    return Batch(None, None, len(records), remake=Remake(records, make))


def test_parts_are_padded_to_their_own_longest_record() -> None:
    found = padded_parts(of_lengths(2, 4, 3))

    assert found is not None
    assert found.of_labels
    assert found.whole.labels.shape == (3, 4)
    assert [part.labels.tolist() for part in found.parts] == [
        [[2.0, 2.0]],
        [[4.0, 4.0, 4.0, 4.0], [3.0, 3.0, 3.0, 0.0]],
    ]


def test_parts_of_equal_lengths_are_not_compared() -> None:
    assert padded_parts(of_lengths(4, 2, 4)) is None


def test_a_batch_of_one_record_is_joined_with_the_one_before() -> None:
    found = padded_parts(of_lengths(3), of_lengths(5))

    assert found is not None
    assert found.whole.labels.shape == (2, 5)
    assert [part.labels.shape for part in found.parts] == [(1, 5), (1, 3)]
    assert padded_parts(of_lengths(3)) is None


def test_padded_features_are_not_padded_labels() -> None:
    def features(records, seed):
        made = padded(records)
        return Batch(made.labels, np.ones(len(records)), len(records))

    found = padded_parts(of_lengths(2, 4, 3, make=features))

    assert found is not None
    assert not found.of_labels


def test_parts_of_a_random_function_are_cut_from_the_whole() -> None:
    def noisy(records, seed):
        made = padded(records)
        draws = np.random.default_rng(seed).random(made.labels.shape)
        return Batch(made.features, made.labels + draws, made.num_examples)

    found = padded_parts(of_lengths(2, 4, 3, make=noisy))

    assert found is not None
    one, other = found.parts
    np.testing.assert_array_equal(one.labels, found.whole.labels[:1, :2])
    np.testing.assert_array_equal(other.labels, found.whole.labels[1:])


def test_a_function_that_raises_on_a_part_is_not_compared() -> None:
    def needs_three(records, seed):
        if len(records) < 3:
            raise ValueError
        return padded(records)

    assert padded_parts(of_lengths(2, 4, 3, make=needs_three)) is None

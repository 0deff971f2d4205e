"""Splits a padded batch into parts, to test whether padding changes a model's results.

Where each batch is padded to its longest record, a record may get more or less padding in another
batch.

Callers: `engines/input_checks.py`, and the trainers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from elasticdl.data.batch import Batch, leaves, map_arrays


@dataclass(frozen=True, eq=False)
class PaddedParts:
    """A batch and its two parts, at least one of which is padded less than the batch.

    Attributes:
        whole: The batch.
        parts: Its first examples, and the other ones.
        of_labels: Whether also the labels or the sample weights of a part are padded to another
            length. If not, only its features are.
    """

    whole: Batch
    parts: tuple[Batch, Batch]
    of_labels: bool


def padded_parts(batch: Batch, before: Batch | None = None) -> PaddedParts | None:
    """Split a batch in two, with each part padded by itself, to see whether padding has an effect.

    The user's input function is called for the records of each part. The caller compares the
    model's loss for the batch with that for the parts.

    Args:
        batch: The batch, whose `remake` makes the parts.
        before: The previous batch; None if there is none. It is used only if `batch` has a single
            record, which cannot be split. The records of the two batches then form the whole, and
            those of each batch form one part.

    Returns:
        The batch and its parts. None if there is nothing to compare: the parts are padded to the
        same lengths as the batch, or they cannot be made.
    """
    if batch.remake is None:
        return None
    records, make = list(batch.remake.records), batch.remake.make
    first = max(1, len(records) // 3)
    if len(records) == 1:
        if before is None or before.remake is None:
            return None
        first = len(before.remake.records)
        records = [*before.remake.records, *records]
    try:
        whole, again = (make(records, seed) for seed in (0, 1))
        one, other = (make(some, 0) for some in (records[:first], records[first:]))
    except Exception:  # noqa: BLE001 - if a real minibatch has it too, it is reported
        return None
    pieces = [one, other]
    if whole.num_examples != len(records) or any(
        len(arrays_of(piece)) != len(arrays_of(whole)) for piece in pieces
    ):
        return None
    if all(lengths_of(piece) == lengths_of(whole) for piece in pieces):
        return None
    if not is_same(whole, [again]):
        # Random numbers for a part would differ from those for the whole.
        pieces = [
            _cut(whole, slice(None, first), one),
            _cut(whole, slice(first, None), other),
        ]
    of_labels = any(
        lengths_of(replace(piece, features=None)) != lengths_of(replace(whole, features=None))
        for piece in pieces
    )
    return PaddedParts(whole, (pieces[0], pieces[1]), of_labels)


def arrays_of(batch: Batch) -> list[np.ndarray[Any, Any]]:
    """Return the features, labels and sample weights of a batch as one list of arrays."""
    return leaves((batch.features, batch.labels, batch.weights))


def lengths_of(batch: Batch) -> list[tuple[int, ...]]:
    """Return the shape of each array of a batch, without the axis of the examples.

    The shapes of batches differ if each batch is padded to its longest record.
    """
    return [array.shape[1:] for array in arrays_of(batch)]


def is_same(batch: Batch, parts: Sequence[Batch]) -> bool:
    """Return whether a batch has the same values as its parts together, apart from padding.

    If not, the input function is random, or makes examples that depend on other records.
    """
    whole, *others = (arrays_of(each) for each in (batch, *parts))
    if any(len(arrays) != len(whole) for arrays in others):
        return False
    return all(_are_rows(array, pieces) for array, *pieces in zip(whole, *others, strict=True))


def _cut(whole: Batch, rows: slice, like: Batch) -> Batch:
    """Return examples of `whole` with less padding: each array is cut to its shape in `like`.

    Args:
        whole: The batch.
        rows: Positions of the examples in the batch.
        like: A batch of the same examples, padded by themselves.
    """
    shapes = iter(arrays_of(like))

    def cut(array: Any) -> Any:
        shape = next(shapes).shape[1:]
        return array[(rows, *(slice(length) for length in shape))]

    features, labels, weights = map_arrays(cut, [whole.features, whole.labels, whole.weights])
    return Batch(features, labels, like.num_examples, weights)


def _are_rows(array: np.ndarray[Any, Any], pieces: Sequence[np.ndarray[Any, Any]]) -> bool:
    first = 0
    for piece in pieces:
        rows = array[first : first + len(piece)]
        first += len(piece)
        if rows.ndim != piece.ndim or len(rows) != len(piece):
            return False
        common = tuple(slice(min(a, b)) for a, b in zip(rows.shape, piece.shape, strict=True))
        if not _is_near(rows[common], piece[common]):
            return False
    return first == len(array)


def _is_near(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    if one.dtype.kind in "fc" and other.dtype.kind in "fc":
        # With a tolerance, because sums may be computed in another order.
        return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
    return np.array_equal(one, other)

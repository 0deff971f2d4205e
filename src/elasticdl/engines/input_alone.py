"""Logs what an input function does that a script would not see: it gets one minibatch at a time.

A script often makes all of its examples at once. There, `x - x.mean(0)`, `np.unique(labels)` or a
maximum is of all records; here it is of those in a minibatch, and on workers of fewer still. So the
first minibatch is made once more, in two parts: what an input function does to each record comes
out the same. One that draws random numbers is not judged, and padding to the longest is no
difference.

Callers: `record_data.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elasticdl.data.batch import Batch, Record, leaves

_log = logging.getLogger("elasticdl")

# Where input functions are that were compared, or told of their number of examples.
_compared: set[str] = set()
_counted: set[str] = set()


def look(
    where: str, records: Sequence[Record], batch: Batch, make: Callable[[Sequence[Record]], Batch]
) -> None:
    """Log once what a script with all records would have made otherwise.

    Args:
        where: The input function, for people.
        records: Those of a minibatch.
        batch: What the function made of them.
        make: Calls it again.
    """
    size = len(records)
    if batch.num_examples != size and where not in _counted:
        _counted.add(where)
        _log.warning(
            "%s: the input function made %d examples of %d records. A minibatch is what it makes "
            "of --minibatch_size records, where a script that cuts all examples into batches has "
            "batches of one size.",
            where,
            batch.num_examples,
            size,
        )
    if where in _compared or size == 1 or batch.num_examples != size:
        # Examples that are added may come in another order.
        return
    _compared.add(where)
    first = max(1, size // 3)
    try:
        again, one, other = (make(_copies(records[at])) for at in _parts(first))
    except Exception:  # noqa: BLE001 - a minibatch like that will say why, where it is one
        return
    if _is_same(batch, [again]) and not _is_same(batch, [one, other]):
        _log.warning(
            "%s: what the input function makes of a record depends on the other records that it "
            "gets: examples of %d records differ from those of the first %d and the last %d. It "
            "gets the records of one minibatch, so a mean, a maximum or the classes that occur "
            "are not those of all data. Compute them before, and write them into the file.",
            where,
            size,
            first,
            size - first,
        )


def _copies(records: Sequence[Record]) -> list[Record]:
    """Return records that a function may work on in place, as it may have on those of the batch."""
    return [{name: np.copy(value) for name, value in record.items()} for record in records]


def _parts(first: int) -> list[slice]:
    return [slice(None), slice(None, first), slice(first, None)]


def _is_same(batch: Batch, parts: Sequence[Batch]) -> bool:
    """Return whether parts, one after the other, are a batch, but for how far they are padded."""
    whole, *others = (_arrays(each) for each in (batch, *parts))
    if any(len(arrays) != len(whole) for arrays in others):
        return False
    return all(_are_rows(array, pieces) for array, *pieces in zip(whole, *others, strict=True))


def _arrays(batch: Batch) -> list[np.ndarray[Any, Any]]:
    return leaves((batch.features, batch.labels, batch.weights))


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
        # Sums in another order.
        return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
    return np.array_equal(one, other)

"""Input checks: warn about an input function whose result for a record depends on other records.

A script often computes all of its examples at once. There, `x - x.mean(0)`, `np.unique(labels)` or
a maximum covers all records; here it covers the records of one minibatch, and on workers even
fewer. So the first minibatch is computed again in two parts: a function that handles each record by
itself gives the same result. A function that draws random numbers is not checked, and padding to
the longest record does not count as a difference.

Callers: `record_data.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from elasticdl.data.batch import Batch, Record, leaves

_log = logging.getLogger("elasticdl")

# Locations of input functions that were compared, or whose number of examples was logged.
_compared: set[str] = set()
_counted: set[str] = set()


def check(
    where: str, records: Sequence[Record], batch: Batch, make: Callable[[Sequence[Record]], Batch]
) -> None:
    """Warn if an input function gives other results when it is called on fewer records.

    Args:
        where: Location of the input function, for messages; a function is checked only once.
        records: The records of a minibatch.
        batch: The batch that the function made from them.
        make: Function (part of the records) -> batch that the input function makes of it.
    """
    size = len(records)
    if batch.num_examples != size and where not in _counted:
        _counted.add(where)
        _log.warning(
            "%s: the input function made %d examples from %d records. A minibatch is the result "
            "for --minibatch_size records, so the batch size varies, unlike in a script that "
            "splits all examples into batches.",
            where,
            batch.num_examples,
            size,
        )
    if where in _compared or size == 1 or batch.num_examples != size:
        # With another number of examples, their order may differ.
        return
    _compared.add(where)
    first = max(1, size // 3)
    try:
        again, one, other = (make(_copies(records[at])) for at in _parts(first))
    except Exception:  # noqa: BLE001 - if a real minibatch has it too, it is reported
        return
    if _is_same(batch, [again]) and not _is_same(batch, [one, other]):
        _log.warning(
            "%s: the result of the input function for a record depends on the other records in the "
            "call: the examples of %d records differ from those of the first %d and the last %d. "
            "The function is called with the records of one minibatch, so a mean, a maximum or the "
            "set of classes is not that of all data. Compute such values beforehand and write them "
            "into the file.",
            where,
            size,
            first,
            size - first,
        )


def _copies(records: Sequence[Record]) -> list[Record]:
    """Return copies of the records, because the function may change them in place."""
    return [{name: np.copy(value) for name, value in record.items()} for record in records]


def _parts(first: int) -> list[slice]:
    return [slice(None), slice(None, first), slice(first, None)]


def _is_same(batch: Batch, parts: Sequence[Batch]) -> bool:
    """Return whether the parts, concatenated, equal the batch, apart from padding."""
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
        # With a tolerance, because sums may be computed in another order.
        return bool(np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True))
    return np.array_equal(one, other)

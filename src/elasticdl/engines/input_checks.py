"""Input checks: warn about an input function whose results are probably not what the user means.

Two mistakes are found: a result for a record that depends on other records, and a comparison of a
text field, which is bytes, with a `str`, which is never true.

A script often computes all of its examples at once. There, `x - x.mean(0)`, `np.unique(labels)` or
a maximum covers all records; here it covers the records of one minibatch, and on workers even
fewer. So the first minibatch is computed again in two parts: a function that handles each record by
itself gives the same result. A function that draws random numbers is not checked, and padding to
the longest record does not count as a difference. Whether padding changes the loss depends on the
loss function, so the trainer checks that (`training/padding_check.py`).

Callers: `input_calls.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import leaves
from elasticdl.data.padding import is_same, lengths_of

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch, Record

_log = logging.getLogger("elasticdl")

# Locations of input functions that were compared, or whose number of examples was logged.
_compared: set[str] = set()
_counted: set[str] = set()
# Location of an input function -> the shapes of its first batch, without the number of examples.
_lengths: dict[str, list[tuple[int, ...]]] = {}
# Locations of input functions that were seen to make arrays of several lengths.
_varying: set[str] = set()


def check(
    where: str, records: Sequence[Record], batch: Batch, make: Callable[[Sequence[Record]], Batch]
) -> None:
    """Warn if an input function's result for a record depends on the other records.

    The function is called again on parts of the minibatch, and the results are compared.

    Args:
        where: Location of the input function, such as `model.py:12`. A function whose location was
            passed before is not checked again.
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
    _warn_of_text(where, records, batch, make)
    first = max(1, size // 3)
    try:
        again, one, other = (make(copies(records[at])) for at in _parts(first))
    except Exception:  # noqa: BLE001 - if a real minibatch has it too, it is reported
        return
    if any(lengths_of(part) != lengths_of(batch) for part in (one, other)):
        _varying.add(where)
    if is_same(batch, [again]) and not is_same(batch, [one, other]):
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


def _warn_of_text(
    where: str, records: Sequence[Record], batch: Batch, make: Callable[[Sequence[Record]], Batch]
) -> None:
    """Warn if a comparison of bytes with `str` makes a feature or label equal in all records.

    With text in place of the bytes, its values then differ. The arguments are those of `check`.
    """
    if not any(_is_bytes(value) for value in records[0].values()):
        return
    as_text = [{name: _as_text(value) for name, value in record.items()} for record in records]
    try:
        other = make(as_text)
    except Exception:  # noqa: BLE001 - a function that decodes the bytes itself
        return
    trees = (("features", batch.features, other.features), ("labels", batch.labels, other.labels))
    for name, mine, others in trees:
        pairs = zip(leaves(mine), leaves(others), strict=False)
        if any(
            np.shape(ours) == np.shape(theirs) and (_varies(theirs) & ~_varies(ours)).any()
            for ours, theirs in pairs
        ):
            _log.warning(
                "%s: the %s that the input function makes are equal in all %d records, but differ "
                "if text is str. Text fields are bytes, which never equal a str: compare with "
                'bytes, as in record["kind"] == b"cat", or decode them first: '
                'record["kind"].item().decode().',
                where,
                name,
                len(records),
            )


def _is_bytes(value: np.ndarray[Any, Any]) -> bool:
    return value.dtype == object and all(isinstance(each, bytes) for each in value.flat)


def _as_text(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array with its byte strings as text; others are copied."""
    if not _is_bytes(value):
        return np.copy(value)
    return np.array([each.decode(errors="replace") for each in value.flat], str).reshape(
        value.shape
    )


def _varies(array: Any) -> np.ndarray[Any, Any]:
    """Return for each column of an array [n, ...] whether its values differ."""
    flat = np.asarray(array)
    flat = flat.reshape(len(flat), -1)
    varies: np.ndarray[Any, Any] = (flat != flat[0]).any(axis=0)
    return varies


def has_varying_lengths(where: str, batch: Batch) -> bool:
    """Return whether an input function pads each batch to its longest record.

    Then the batches that it makes differ in the shapes of their examples. The caller lets the
    trainer check whether the padding changes the loss.

    Args:
        where: Location of the input function, by which its earlier batches are found.
        batch: The latest batch that it made.
    """
    if lengths_of(batch) != _lengths.setdefault(where, lengths_of(batch)):
        _varying.add(where)
    return where in _varying


def copies(records: Sequence[Record]) -> list[Record]:
    """Return copies of the records, because an input function may change its records in place."""
    return [{name: np.copy(value) for name, value in record.items()} for record in records]


def _parts(first: int) -> list[slice]:
    return [slice(None), slice(None, first), slice(first, None)]

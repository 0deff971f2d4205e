"""Numbers of classes and ids that a model has no place for: looked for once a step has failed.

A label of 7 where a model has 5 outputs is an index that is out of range to a framework. To a
person it is a mistake in the data, or too small a model, so they read the label, the number of
outputs and the records.

Callers: the trainers, after an error of their framework's; `engines/finite.py`, after a NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elasticdl.data.batch import Arrays, Batch, leaves
from elasticdl.errors import DataError

_MOST_SHOWN = 5


def label_mistake(batches: Sequence[Batch], num_outputs: int, where: object) -> DataError | None:
    """Return the error for labels that are no number of an output; None if all of them are.

    Args:
        batches: Those of the steps that failed.
        num_outputs: Scores that the model gives an example.
        where: `file:line` of the loss.
    """
    for batch in batches:
        wrong = out_of_range(batch.labels, num_outputs)
        if wrong:
            return DataError(
                f"{where}: {in_words(wrong, num_outputs)}{_on(batch)}.\n  Correct the labels, or "
                "give the model an output for each class."
            )
    return None


def id_mistake(
    batches: Sequence[Batch], num_rows: int, where: object, layer: str = "an embedding"
) -> DataError | None:
    """Return the error for ids among the features that an embedding has no row for, or None.

    Args:
        batches: Those of the steps that failed.
        num_rows: Rows of the embedding.
        where: `file:line` of the model.
        layer: What the user calls the embedding.
    """
    for batch in batches:
        features = batch.features
        named = features.items() if isinstance(features, Mapping) else [("the features", features)]
        for name, arrays in named:
            wrong = out_of_range(arrays, num_rows)
            if wrong:
                return DataError(
                    f"{where}: id {_listed(wrong)} in {name}, {layer} has {num_rows} rows "
                    f"(expected 0 to {num_rows - 1}){_on(batch)}.\n  Correct the ids, or give the "
                    "embedding a row for each of them."
                )
    return None


def out_of_range(arrays: Arrays, stop: int) -> list[int]:
    """Return the whole numbers that are not within 0 .. stop - 1, each once, in order."""
    found: set[int] = set()
    for array in leaves(arrays):
        values = np.asarray(array)
        if values.dtype.kind == "f" and np.isfinite(values).all() and (values % 1 == 0).all():
            # Some input functions make floats of all that they return.
            values = values.astype(np.int64)
        if values.dtype.kind in "iu":
            found.update(int(value) for value in np.unique(values[(values < 0) | (values >= stop)]))
    return sorted(found)


def num_scores(outputs: Sequence[int], labels: Arrays) -> int:
    """Return how many scores an example has, of which its label is one; 0 if it is not clear.

    Args:
        outputs: Shape of the model's outputs, examples first. Scores are the last axis or, as
            PyTorch's losses have them, the second one.
        labels: Of as many examples, or of others.
    """
    arrays = leaves(labels)
    if len(arrays) != 1:
        return 0
    shape, scores = np.shape(arrays[0])[1:], tuple(outputs)[1:]
    if not scores:
        return 0
    for rest, number in ((scores[:-1], scores[-1]), (scores[1:], scores[0])):
        if shape in {rest, (*rest, 1)} and number > 1:
            return number
    return 0


def in_words(wrong: Sequence[int], num_outputs: int) -> str:
    """Return which labels are wrong, and what was expected."""
    return (
        f"label {_listed(wrong)}, the model has {num_outputs} outputs "
        f"(expected 0 to {num_outputs - 1})"
    )


def _listed(numbers: Sequence[int]) -> str:
    more = len(numbers) - _MOST_SHOWN
    shown = ", ".join(str(number) for number in numbers[:_MOST_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def _on(batch: Batch) -> str:
    return "" if batch.where is None else f", in {batch.where()}"

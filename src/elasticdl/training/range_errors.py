"""Finds labels and ids that are out of range for a model, after a step has failed.

A framework reports a label of 7 in a model with 5 outputs as an index out of range. The cause is
a mistake in the data, or a model that is too small, so the error here names the label, the number
of outputs and the records.

Callers: the trainers, after an error from their framework; `engines/finite.py`, after a NaN;
`dialects/keras_objects.py` and `saved_models/compile_options.py`, for the name of a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from elasticdl.data.batch import Arrays, Batch, leaves
from elasticdl.data.class_names import no_label_advice
from elasticdl.data.wording import counted, listed
from elasticdl.errors import DataError

_MAX_SHOWN = 5


def unclear_crossentropy(name: str) -> str:
    """Return advice if a name of a Keras loss depends on the shape of the labels; else "".

    `compile` replaces "crossentropy" and "ce" by one of three losses when it sees a batch.
    """
    if name.lower() not in {"crossentropy", "ce"}:
        return ""
    return (
        f"{name!r} depends on the shape of the labels in Keras. Name one: "
        "sparse_categorical_crossentropy for class numbers, categorical_crossentropy for one-hot "
        "labels, or binary_crossentropy for one output."
    )


def label_mistake(
    batches: Sequence[Batch],
    num_outputs: int,
    where: object,
    *,
    binary_loss: str,
    classes: Sequence[str] = (),
) -> DataError | None:
    """Return the error for labels that are not the index of an output; None if all are valid.

    Args:
        batches: The batches of the failed steps.
        num_outputs: Number of scores per example that the model returns.
        where: `file:line` of the loss.
        binary_loss: Name of the framework's loss for one output and two classes, for advice:
            "BCEWithLogitsLoss()".
        classes: Names of the classes, if they are known.
    """
    for batch in batches:
        if rows := _without_number(batch.labels):
            names = batch.names_of(rows)
            return DataError(
                f"{where}: the labels have NaN in {counted(len(rows), 'example')} of "
                f"{batch.num_examples}{f' ({names})' if names else ''}, but this loss needs class "
                "numbers. Leave out these records, or correct them."
            )
        wrong = out_of_range(batch.labels, num_outputs)
        if not wrong:
            continue
        too_few = ""
        if len(classes) > num_outputs:
            names = listed(classes[:_MAX_SHOWN]) + ", ..." * (len(classes) > _MAX_SHOWN)
            too_few = f" There are {len(classes):,} classes ({names})."
        # With all classes at hand, one record is enough to see which of them has no output.
        records = _found_in(batch, batch.labels, num_outputs, most=1 if too_few else None)
        advice = _advice_on_labels(wrong, num_outputs, len(classes))
        if num_outputs == 1 and wrong == [1]:
            advice = (
                f"For two classes, 0 and 1, one output needs another loss: {binary_loss}. Or give "
                "the model an output for each class."
            )
        return DataError(
            f"{where}: the data have {in_words(wrong, num_outputs)}.{too_few}{records}\n  {advice}"
        )
    return None


def id_mistake(
    batches: Sequence[Batch], num_rows: int, where: object, layer: str = "an embedding"
) -> DataError | None:
    """Return the error for feature ids without a row in an embedding; None if there are none.

    Args:
        batches: The batches of the failed steps.
        num_rows: Rows of the embedding.
        where: `file:line` of the model.
        layer: The user's name for the embedding.
    """
    for batch in batches:
        features = batch.features
        named = features.items() if isinstance(features, Mapping) else [("the features", features)]
        for name, arrays in named:
            wrong = out_of_range(arrays, num_rows)
            if wrong:
                return DataError(
                    f"{where}: the data have {_numbered('id', wrong)} in {name}, but {layer} has "
                    f"{counted(num_rows, 'row')}, for {_range('id', num_rows)}."
                    f"{_found_in(batch, arrays, num_rows)}\n"
                    f"  Correct the ids{_or_give(wrong, num_rows, 'the embedding', 'row')}."
                )
    return None


def _without_number(arrays: Arrays) -> list[int]:
    """Return the rows of the examples with NaN in an array, such as those of labels."""
    masks = [
        np.isnan(values).reshape(len(values), -1).any(axis=1)
        for values in map(np.asarray, leaves(arrays))
        if values.dtype.kind == "f" and values.ndim
    ]
    return np.flatnonzero(np.any(masks, axis=0)).tolist() if masks else []


def out_of_range(arrays: Arrays, stop: int) -> list[int]:
    """Return the distinct integers outside 0 .. stop - 1, sorted."""
    found: set[int] = set()
    for values in _integers(arrays):
        found.update(int(value) for value in np.unique(values[(values < 0) | (values >= stop)]))
    return sorted(found)


def _integers(arrays: Arrays) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays whose values are all integers; floating-point ones are converted."""
    for array in leaves(arrays):
        values = np.asarray(array)
        if values.dtype.kind == "f" and np.isfinite(values).all() and (values % 1 == 0).all():
            # Some input functions convert everything to floats.
            values = values.astype(np.int64)
        if values.dtype.kind in "iu":
            yield values


def num_classes(outputs: Sequence[int], labels: Arrays) -> int:
    """Return the number of classes that a classifier's outputs distinguish, by their shape.

    Args:
        outputs: Shape of the model's outputs, examples first. The axis of the scores is the last
            one or, as in PyTorch's losses, the second one.
        labels: Class numbers; only their shape matters, so they may be those of other examples.

    Returns:
        The number of scores for each label; 0 if the outputs do not have the shape of the labels
        plus an axis of two or more scores.
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
    """Return a phrase for an error: "label 7, but the model has 5 outputs, for labels 0 to 4".

    Args:
        wrong: The distinct labels that are out of range.
        num_outputs: Number of scores per example that the model returns.
    """
    return (
        f"{_numbered('label', wrong)}, but the model has {counted(num_outputs, 'output')}, for "
        f"{_range('label', num_outputs)}"
    )


def _advice_on_labels(wrong: Sequence[int], num_outputs: int, num_classes: int) -> str:
    if num_classes > num_outputs:
        return f"Correct the labels, or give the model {num_classes:,} outputs, one for each class."
    or_give = _or_give(wrong, num_outputs, "the model", "output")
    if [*wrong] == [-1]:
        return no_label_advice()
    return f"Correct the labels (class numbers begin at 0){or_give}."


def _or_give(wrong: Sequence[int], stop: int, what: str, each: str) -> str:
    """Return advice that ends a sentence, such as ", or give the model at least 8 outputs (...)".

    The result is empty if all wrong numbers are negative: a larger model would not help.

    Args:
        wrong: The labels or ids that are out of range.
        stop: Number of outputs or rows that there are now.
        what: What should be larger: "the model" or "the embedding".
        each: What it has too few of: "output" or "row".
    """
    if max(wrong) < stop:
        return ""
    number = "label" if each == "output" else "id"
    least = counted(max(wrong) + 1, each)
    return f", or give {what} at least {least} (the highest {number} + 1)"


def _numbered(word: str, numbers: Sequence[int]) -> str:
    return f"{word}{'s' if len(numbers) > 1 else ''} {_listed(numbers)}"


def _range(word: str, stop: int) -> str:
    return f"{word}s 0 to {stop - 1}" if stop > 1 else f"{word} 0"


def _listed(numbers: Sequence[int]) -> str:
    more = len(numbers) - _MAX_SHOWN
    shown = ", ".join(str(number) for number in numbers[:_MAX_SHOWN])
    return f"{shown} and {more} more" if more > 0 else shown


def _found_in(batch: Batch, arrays: Arrays, stop: int, *, most: int | None = None) -> str:
    """Return " Found in ..." with the records that have wrong values, to append to an error.

    The result is empty if the records are unknown.

    Args:
        batch: The batch.
        arrays: Its labels or features.
        stop: Integers from 0 to below `stop` are valid.
        most: Maximum number of records to name before "and N more"; None: no limit here.
    """
    if batch.where is None:
        return ""
    wrong = np.zeros(batch.num_examples, np.bool_)
    for values in _integers(arrays):
        is_wrong = (values < 0) | (values >= stop)
        wrong |= is_wrong.reshape(batch.num_examples, -1).any(axis=1)
    rows = np.flatnonzero(wrong).tolist()
    names = batch.names_of(rows[:most])
    if not names:
        return ""
    rest = len(rows) - len(rows[:most])
    if rest and batch.names_each:
        names += f", and {counted(rest, 'more record')}"
    not_checked = " (other minibatches were not checked)" if len(rows) > 1 else ""
    return f" Found in {names}{not_checked}."

"""Extends errors that user code raises in validation: adds this fact and the names of the records.

A model may accept the training data but not the validation data, because their shapes differ. This
is found on the first validation batch, before training, and reported as an error about the data.

Callers: `loop.py`, `training_context.py`, `elastic/committer.py`.
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import describe, map_arrays
from elasticdl.errors import DataError, ElasticDLError, UserCodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.training.trainer import MetricStates, Trainer


@contextlib.contextmanager
def in_validation(batch: Batch) -> Iterator[None]:
    """Context manager that adds to an error of user code that it happened in validation.

    Args:
        batch: The batch that the block evaluates; the error also names its records.

    Raises:
        UserCodeError: The error that the block raised, extended.
    """
    try:
        yield
    except UserCodeError as error:
        records = "" if batch.where is None else f": {batch.where()}"
        error.args = (f"{error}\n  This happened in validation{records}.",)
        raise


def evaluate_first(trainer: Trainer, batch: Batch, example: Callable[[], Batch]) -> MetricStates:
    """Return the metric states of the first validation batch, evaluated before training as a check.

    Args:
        trainer: The trainer.
        batch: The batch.
        example: Function () -> a batch of the training data, to compare the features in an error.

    Raises:
        DataError: The model cannot take the features, which differ in shape or type from those of
            the training data.
        UserCodeError: The model, its loss or its metrics raised for another reason.
    """
    try:
        with in_validation(batch):
            return trainer.evaluate(batch)
    except UserCodeError as error:
        training = example()
        if _feature_specs(batch) == _feature_specs(training) or _is_taken(trainer, batch.features):
            raise
        raise DataError(
            "The model cannot take the validation data, because its features differ in shape or "
            "type from those of the training data:\n"
            f"  {_describe_batch(batch, 'the validation data')}\n"
            f"  {_describe_batch(training, 'the training data')}\n"
            "  Convert the validation data in the same way as the training data"
            f"{_conversion_phrase(batch, training)}."
        ) from error


def _is_taken(trainer: Trainer, features: Arrays) -> bool:
    try:
        trainer.predict(features)
    except ElasticDLError:
        return False
    return True


def _feature_specs(batch: Batch) -> Any:
    """Return the names, dtypes and shapes of one example's features, to compare two batches."""
    return map_arrays(lambda array: (array.dtype.name, array.shape[1:]), batch.features)


def _describe_batch(batch: Batch, otherwise: str) -> str:
    """Describe a batch for an error, such as `float32[28, 28] in a.csv, record 0`.

    Args:
        batch: The batch; the shape of one of its examples is shown.
        otherwise: Shown in place of the records' location if that is unknown.
    """
    # An array of the shape of one example, without its memory.
    one = map_arrays(
        lambda array: np.broadcast_to(np.empty((), array.dtype), array.shape[1:]), batch.features
    )
    return f"{describe(one)} in {otherwise if batch.where is None else batch.where()}"


def _conversion_phrase(batch: Batch, training: Batch) -> str:
    """Return a phrase with code that converts a batch's features to those of a training batch.

    For example, `, such as x.reshape(-1, 784)`, for an error message. The phrase is empty if no
    conversion of shape and dtype keeps the order of the values.
    """
    given, wanted = batch.features, training.features
    if not (isinstance(given, np.ndarray) and isinstance(wanted, np.ndarray)):
        return ""
    steps = []
    if (shape := given.shape[1:]) != (like := wanted.shape[1:]):
        is_flat = len(shape) <= 1 or len(like) <= 1
        if math.prod(shape) != math.prod(like) or not (
            is_flat or _squeezed(shape) == _squeezed(like)
        ):
            return ""
        steps.append(f"reshape({', '.join(map(str, (-1, *like)))})")
    if given.dtype != wanted.dtype:
        steps.append(f'astype("{wanted.dtype.name}")')
    return f", such as x.{'.'.join(steps)}"


def _squeezed(shape: tuple[int, ...]) -> list[int]:
    """Return a shape without its axes of size 1."""
    return [size for size in shape if size != 1]

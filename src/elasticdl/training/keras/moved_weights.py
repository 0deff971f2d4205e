"""Finds trained weights that a model sets when it is called; rejects those set from examples.

Spectral normalization sets its kernel in each call, to the same value on all workers, because it
depends on the kernel alone. Such a change is sent with the statistics (`statistics.py`), as a mean
over examples, and applied once for each update, before the gradients. A weight that is set from the
examples (by the first batch, or as a running mean) or from random numbers would differ on each
worker, and gradients of different models would be summed. Such a weight is therefore rejected.

Callers: `trainer.py`, `split_checks.py`, `model_calls.py`, where gradients are summed.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.definition import Origin
    from elasticdl.training.keras.loss_part_checks import ExampleBatch


@contextlib.contextmanager
def restored(variables: Sequence[Any]) -> Iterator[None]:
    """Context manager: on exit, restores the values that the variables had on entry."""
    before = [tf.identity(variable.value) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


@contextlib.contextmanager
def assigned(variables: Sequence[Any]) -> Iterator[list[Any]]:
    """Context manager: records which of some Keras variables the code in its block assigns to.

    If TensorFlow traces a function in the block, assignments in all branches of the function count.

    Args:
        variables: The variables to watch.

    Yields:
        A list to which each of these variables is added at its first assignment.
    """
    found: list[Any] = []

    def assign(variable: Any, original: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if all(variable is not each for each in found):
            found.append(variable)
        return original(*args, **options)

    # A variable of a loaded SavedModel belongs to TensorFlow; no Python code assigns to it.
    of_keras = [v for v in variables if isinstance(v, keras.Variable) and "assign" not in vars(v)]
    for variable in of_keras:
        vars(variable)["assign"] = functools.partial(assign, variable, variable.assign)
    try:
        yield found
    finally:
        for variable in of_keras:
            del vars(variable)["assign"]


def check_alike(
    call: Callable[[ExampleBatch, int], None],
    batch: ExampleBatch,
    trained: Sequence[Any],
    others: Sequence[Any],
    origin: Origin,
    *,
    is_early: bool = True,
) -> list[Any]:
    """Check that calling the model changes no trained weight in a way that depends on examples.

    Args:
        call: Function (examples, rank): calls the model in training mode, with the random numbers
            of the worker with this rank.
        batch: Examples; two parts of it are compared.
        trained: The trained weights.
        others: The other variables that a call may change.
        origin: Prefix for error messages.
        is_early: Whether to make both calls in any case. False: if the first one sets no weight,
            the second is not made.

    Returns:
        The trained weights that a call sets, in the order of `trained`.

    Raises:
        DefinitionError: A trained weight has different values after calls on two parts of the
            batch.
    """
    size = batch.num_examples
    parts = [batch.rows(np.arange(size // 2 or 1)), batch.rows(np.arange(size // 2, size))]
    before = [np.array(variable.numpy()) for variable in trained]
    ends, found = [], []
    for rank, part in enumerate(parts):
        with restored([*trained, *others]):
            with assigned(trained) as by_python:
                call(part, rank)
            found += by_python
            ends.append([np.array(variable.numpy()) for variable in trained])
        if not is_early and not found and all(map(_is_equal, before, ends[0])):
            return []
    for variable, one, other in zip(trained, *ends, strict=True):
        if not np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise DefinitionError(
                f"{origin}: the model changes its weight {variable.path} when it is called in "
                "training, and the change depends on the examples. So each worker would train a "
                "different model. It can be trained in one process, without --global_batch_size. "
                "On workers, set a weight that is trained in build() or in the model file, such as "
                "an initial value from the statistics of some examples; make a statistic, which "
                "needs no gradient, a weight that is not trained: add_weight(..., "
                "trainable=False)."
            )
    return [
        variable
        for variable, old, one in zip(trained, before, ends[0], strict=True)
        if not _is_equal(old, one) or any(variable is v for v in found)
    ]


def _is_equal(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    return np.array_equal(one, other, equal_nan=True)

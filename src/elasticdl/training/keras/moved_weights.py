"""Rejects models that change a trained weight when called, differently on each worker.

Spectral normalization sets its kernel in each call, to the same value on all workers, because it
depends on the kernel alone. A weight that is set from the examples (by the first batch, or as a
running mean) or from random numbers would differ on each worker. The gradients to be summed would
then be those of different models.

Callers: `trainer.py`, before the first gradients that are summed.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.definition import Origin
    from elasticdl.training.keras.loss_part_checks import ExampleBatch


@contextlib.contextmanager
def restored(variables: Sequence[Any]) -> Iterator[None]:
    """Restore the present values of variables after the block."""
    before = [tf.identity(variable.value) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def check_alike(
    call: Callable[[ExampleBatch, int], None],
    batch: ExampleBatch,
    trained: Sequence[Any],
    others: Sequence[Any],
    origin: Origin,
) -> None:
    """Check that calling the model changes no trained weight in a way that depends on examples.

    Args:
        call: Calls the model in training mode on some examples, with the random numbers of the
            worker whose rank is the second argument.
        batch: Examples; two parts of it are compared.
        trained: The trained weights.
        others: The other variables that a call may change.
        origin: Prefix of errors.

    Raises:
        DefinitionError: The trained weights differ.
    """
    size = batch.num_examples
    parts = [batch.rows(np.arange(size // 2 or 1)), batch.rows(np.arange(size // 2, size))]
    ends = []
    for rank, part in enumerate(parts):
        with restored([*trained, *others]):
            call(part, rank)
            ends.append([np.array(variable.numpy()) for variable in trained])
    for variable, one, other in zip(trained, *ends, strict=True):
        if not np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise DefinitionError(
                f"{origin}: the model changes its weight {variable.path} when it is called in "
                "training, and the change depends on the examples. So each worker would train a "
                "different model. It can be trained in one process, without --global_batch_size. "
                "On workers, make it a weight that is not trained: add_weight(..., "
                "trainable=False)."
            )

"""Trained weights that a model itself changes when it is called in training.

Spectral normalization sets its kernel in each call, to the same on all workers: it depends on the
kernel alone. What depends on the examples (a first batch that initializes, a running mean in a
weight that is trained) or on random numbers becomes another weight on each worker, and their
gradients would be of different models.

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
    from elasticdl.training.keras.splitting import Trial


@contextlib.contextmanager
def restored(variables: Sequence[Any]) -> Iterator[None]:
    """Give variables back the values that they have now."""
    before = [tf.identity(variable.value) for variable in variables]
    try:
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)


def check_alike(
    call: Callable[[Trial, int], None],
    batch: Trial,
    trained: Sequence[Any],
    others: Sequence[Any],
    origin: Origin,
) -> bool:
    """Make sure that a call leaves the same trained weights whatever its examples are.

    Args:
        call: Calls the model in training on some examples, as the worker of a slot.
        batch: Examples; two parts of it are tried.
        trained: The weights that are trained.
        others: The other variables that a call may change.
        origin: For errors.

    Returns:
        Whether it changes one at all.

    Raises:
        DefinitionError: It leaves others.
    """
    size = batch.num_examples
    parts = [batch.rows(np.arange(size // 2 or 1)), batch.rows(np.arange(size // 2, size))]
    start = [np.array(variable.numpy()) for variable in trained]
    ends = []
    for slot, part in enumerate(parts):
        with restored([*trained, *others]):
            call(part, slot)
            ends.append([np.array(variable.numpy()) for variable in trained])
    moves = False
    for variable, before, one, other in zip(trained, start, *ends, strict=True):
        moves = moves or not np.array_equal(before, one)
        if not np.allclose(one, other, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise DefinitionError(
                f"{origin}: the model changes its weight {variable.path} when it is called in "
                "training, and to something else for other examples. So each worker would train "
                "another model. It can be trained in one process, without --global_batch_size. On "
                "workers, make it a weight that is not trained: add_weight(..., trainable=False)."
            )
    return moves

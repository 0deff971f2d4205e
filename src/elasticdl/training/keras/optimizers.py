"""The optimizer of a model file, and what of it does not go together with sums over workers.

Callers: `trainer.py`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.keras import overrides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.definition import ModelDefinition, Origin

_log = logging.getLogger("elasticdl")


def create(
    definition: ModelDefinition, model: keras.Model, trainable: Sequence[Any]
) -> keras.optimizers.Optimizer:
    """Return the optimizer, with its variables; the model has it as well, as after `compile`.

    Args:
        definition: What to train.
        model: Of it.
        trainable: The variables to train.

    Raises:
        DefinitionError: It is none of Keras 3, or the model is spread by `tf.distribute`.
    """
    strategy = model.distribute_strategy
    if strategy is not tf.distribute.get_strategy():
        raise DefinitionError(
            f"{definition.where('model')}: the model is made within a scope of "
            f"{type(strategy).__name__}, which shares updates among devices of its own. Make it "
            "without tf.distribute; --num_workers=N trains it on several workers."
        )
    optimizer = definition.create_optimizer()
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise DefinitionError(
            f"{definition.where('optimizer')}: the optimizer is a "
            f"{type(optimizer).__module__}.{type(optimizer).__name__}; expected an optimizer "
            "of Keras 3, such as keras.optimizers.Adam(0.001)."
        )
    if not definition.compiled:
        # Callbacks look for `model.optimizer`.
        model.compile(optimizer=optimizer)
        # In half precision Keras has wrapped it in one that scales the loss.
        optimizer = model.optimizer
    optimizer.build(trainable)
    return optimizer


def plain(optimizer: Any) -> list[Any]:
    """Return the optimizers that make the updates, without those that wrap them."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return plain(inner)
    several = getattr(optimizer, "optimizers", None)
    return [one for each in several for one in plain(each)] if several else [optimizer]


def may_draw(optimizer: Any, trainable: Sequence[Any]) -> bool:
    """Return whether an update runs code of the user's, which may draw random numbers.

    Args:
        optimizer: What makes it.
        trainable: The variables to train; their constraints are part of it.
    """
    constraints = [variable.constraint for variable in trainable]
    involved = [*plain(optimizer), *(each for each in constraints if each is not None)]
    return not all(overrides.is_of_keras(each) for each in involved)


def check_gradients_add_up(trainable: Sequence[Any], origin: Origin) -> None:
    """Refuse weights whose "gradient" is their next value, as scales of float8 are.

    Args:
        trainable: The variables to train.
        origin: For errors.

    Raises:
        DefinitionError: There is one.
    """
    for variable in trainable:
        if getattr(variable, "overwrite_with_gradient", False):
            raise DefinitionError(
                f"{origin}: the gradient of {variable.path} is its next value "
                "(overwrite_with_gradient; float8 keeps maxima of a batch so), and would be "
                "averaged over the batches of several workers or of --global_batch_size. Train "
                "in one process without --global_batch_size, or in mixed_bfloat16."
            )


def warn_of_repeated_rows(
    optimizer: Any, trainable: Sequence[Any], gradients: Sequence[Any], origin: Origin
) -> None:
    """Log where the sum over workers is another gradient than that of one process.

    In one process an embedding's gradient is a list of rows, and Keras squares rows of the same
    id one by one: a^2 + b^2. A sum over workers is dense, and its square is (a + b)^2, as it is
    for Keras on JAX and PyTorch.

    Args:
        optimizer: What uses the gradients.
        trainable: The variables to train.
        gradients: Of each of them.
        origin: For the warning.
    """
    paths = [
        variable.path
        for variable, gradient in zip(trainable, gradients, strict=True)
        if isinstance(gradient, tf.IndexedSlices)
    ]
    if paths and not all(_is_linear(each) for each in plain(optimizer)):
        _log.warning(
            "%s: %s: %s squares the gradients of ids that repeat in a batch one by one, as "
            "clipping by norm does. Here gradients are summed before; see "
            '"Differences from a plain script" in docs/training.md.',
            origin,
            ", ".join(paths),
            type(plain(optimizer)[0]).__name__,
        )


def _is_linear(optimizer: Any) -> bool:
    """Whether an update is the same for rows of one id and for their sum."""
    kinds = (keras.optimizers.SGD, keras.optimizers.Lion)
    return type(optimizer) in kinds and not (optimizer.clipnorm or optimizer.global_clipnorm)

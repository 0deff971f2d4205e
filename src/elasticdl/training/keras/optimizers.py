"""Creates the optimizer, and checks that it is compatible with sums over workers.

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
    from collections.abc import Iterable, Sequence

    from elasticdl.definition import ModelDefinition, Origin

_log = logging.getLogger("elasticdl")


def create(
    definition: ModelDefinition, model: keras.Model, trainable: Sequence[Any]
) -> keras.optimizers.Optimizer:
    """Create and build the optimizer of a definition, and set it on the model, as `compile` does.

    Args:
        definition: The model definition, which creates the optimizer.
        model: The model.
        trainable: The variables to train, for which the optimizer creates its state variables.

    Raises:
        DefinitionError: It is not a Keras 3 optimizer, or `tf.distribute` distributes the model.
    """
    strategy = model.distribute_strategy
    if strategy is not tf.distribute.get_strategy():
        raise DefinitionError(
            f"{definition.where('model')}: the model is created in the scope of a "
            f"{type(strategy).__name__}, which distributes updates over its own devices. Create it "
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
        own = model.optimizer if getattr(model, "compiled", False) else None
        if own is not None:
            _warn_if_replaced(own, optimizer, definition)
        # Callbacks look for `model.optimizer`.
        model.compile(optimizer=optimizer, auto_scale_loss=not _is_unscaled(model, own))
        # In half precision Keras wraps it in an optimizer that scales the loss.
        optimizer = model.optimizer
    optimizer.build(trainable)
    return optimizer


def _is_unscaled(model: keras.Model, own: keras.optimizers.Optimizer | None) -> bool:
    """Return whether the user's file compiled the model with `auto_scale_loss=False`.

    Args:
        model: The model, in half precision or not.
        own: The optimizer that it is compiled with; None if it is not.
    """
    # Keras does not store the argument. Without it, `compile` has wrapped the optimizer.
    is_half = own is not None and model.dtype_policy.name == "mixed_float16"
    return is_half and not isinstance(own, keras.optimizers.LossScaleOptimizer)


def _warn_if_replaced(own: Any, optimizer: Any, definition: ModelDefinition) -> None:
    """Warn if the model is compiled with another optimizer than that of the model file."""
    (first, *_), (used, *_) = plain(own), plain(optimizer)
    # RMSprop is what `compile` takes if it gets none.
    if not _is_like(first, keras.optimizers.RMSprop()) and not _is_like(first, used):
        _log.warning(
            "%s: the model is compiled with an optimizer of its own (%s), which is not used: the "
            "model file's optimizer (%s, %s) replaces it. Remove it from compile().",
            definition.where("model"),
            type(first).__name__,
            type(used).__name__,
            definition.where("optimizer"),
        )


def _is_like(one: Any, other: Any) -> bool:
    """Return whether two optimizers have the same class and, as far as known, the same settings."""
    try:
        configs = [{**each.get_config(), "name": ""} for each in (one, other)]
        is_equal = bool(configs[0] == configs[1])
    except Exception:  # noqa: BLE001 - such as a schedule of the user's without get_config()
        is_equal = True
    return type(one) is type(other) and is_equal


def plain(optimizer: Any) -> list[Any]:
    """Return the optimizers inside a wrapper such as `LossScaleOptimizer`; else `[optimizer]`."""
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        return plain(inner)
    several = getattr(optimizer, "optimizers", None)
    return [one for each in several for one in plain(each)] if several else [optimizer]


def may_draw(optimizer: Any, trainable: Sequence[Any]) -> bool:
    """Return whether an update runs user code, which may draw random numbers.

    Args:
        optimizer: The optimizer.
        trainable: The variables to train; their constraints are part of the update.
    """
    constraints = [variable.constraint for variable in trainable]
    involved = [*plain(optimizer), *(each for each in constraints if each is not None)]
    return not all(overrides.is_of_keras(each) for each in involved)


def check_gradients_add_up(trainable: Sequence[Any], origin: Origin) -> None:
    """Reject weights for which Keras returns the next value in place of a gradient.

    Such weights have the attribute `overwrite_with_gradient`, as the scales of float8 training do.
    Values in place of gradients must not be summed over workers.

    Raises:
        DefinitionError: There is such a weight.
    """
    for variable in trainable:
        if getattr(variable, "overwrite_with_gradient", False):
            raise DefinitionError(
                f"{origin}: the gradient of {variable.path} is its next value "
                "(overwrite_with_gradient; float8 uses this for the maxima of a batch), and would "
                "be averaged over the batches of several workers or of --global_batch_size. Train "
                "in one process without --global_batch_size, or in mixed_bfloat16."
            )


def warn_of_repeated_rows(
    optimizer: Any, trainable: Sequence[Any], gradients: Sequence[Any], definition: ModelDefinition
) -> None:
    """Warn if gradients summed over workers lead to other updates than gradients in one process.

    In one process an embedding's gradient is a list of rows, and Keras squares rows of the same
    id one by one: a^2 + b^2. A sum over workers is dense, and its square is (a + b)^2, as it is
    for Keras on JAX and PyTorch.
    """
    paths = [
        variable.path
        for variable, gradient in zip(trainable, gradients, strict=True)
        if isinstance(gradient, tf.IndexedSlices)
    ]
    effects = [effect for each in plain(optimizer) if (effect := _effect_on_rows(each))]
    if paths and effects:
        _log.warning(
            "%s: results differ slightly from those of a plain `fit`, as those of Keras on JAX "
            "and PyTorch do. They are not worse, and nothing needs to be done. The gradients of "
            "an id that repeats in a batch (%s) are summed here before %s; `fit` takes them one by "
            'one. See "Differences from a plain script" in docs/trust/differences.md.',
            definition.where("optimizer" if "optimizer" in definition.places else "model"),
            ", ".join(paths),
            effects[0],
        )


def _effect_on_rows(optimizer: Any) -> str:
    """Return a phrase that tells why repeated rows have another effect than their sum.

    Returns:
        A phrase such as "Adam squares them"; empty if the effect is the same.
    """
    clips = optimizer.clipnorm or optimizer.global_clipnorm or optimizer.clipvalue
    is_linear = type(optimizer) in (keras.optimizers.SGD, keras.optimizers.Lion)
    if is_linear and not clips:
        return ""
    words = [*(["clips"] if clips else []), *([] if is_linear else ["squares"])]
    return f"{type(optimizer).__name__} {' and '.join(words)} them"


def schedule_of(optimizer: keras.optimizers.Optimizer) -> str:
    """Return the class name of an optimizer's learning rate schedule; empty if there is none."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    # Keras has no public name for it; `learning_rate` is its current value.
    rate = getattr(inner, "_learning_rate", None)
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return type(rate).__name__ if is_schedule else ""


def classes_in(paths: Iterable[str]) -> str:
    """Return the classes of the optimizers that have variables in a state, such as "Adam, SGD".

    The names are joined for a message, and compared to find out whether two states have the same
    optimizers. Empty if there is none.

    Args:
        paths: Paths of all tensors: `optimizer/adam_w/learning_rate`, ...
    """
    parts = (path.split("/") for path in paths)
    found = sorted({of[1] for of in parts if of[0] == "optimizer" and len(of) > 2})  # noqa: PLR2004
    # Keras names an optimizer after its class: adam_w.
    classes = {name.lower(): name for name in vars(keras.optimizers)}
    return ", ".join(classes.get(name.replace("_", ""), name) for name in found)

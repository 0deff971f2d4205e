"""Detects weights that a model's `call` changes outside training, by calling it once.

    total.assign_add(sum(x))                   in every call, even in validation of `fit`
    if training: total.assign_add(sum(x))      in training only: accepted

In a plain script such a weight changes from batch to batch of the validation, and training
continues with its new value. An evaluation here has no side effects, because several workers share
it and it may be repeated after a kill. A model that changes a weight is therefore rejected before
it is evaluated. (This includes a weight that only the first call of the model initializes: a single
call cannot distinguish it from others.)

BatchNormalization that is called with training=True is not rejected: its outputs do not depend on
its statistics. A message says that they are left as they are.

Callers: `trainer.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.errors import DefinitionError
from elasticdl.training.keras import overrides
from elasticdl.training.keras.statistics import means_of

if TYPE_CHECKING:
    import keras

    from elasticdl.definition import Origin

_log = logging.getLogger("elasticdl")
_OF_BATCH_NORM = ("moving_mean", "moving_variance")


def changed_by(call: Callable[[], object], variables: Sequence[Any]) -> list[Any]:
    """Make a call, restore all variables to their values before it, and return those it changed."""
    before = [np.array(variable.numpy()) for variable in variables]
    changed = []
    try:
        call()
    finally:
        for variable, value in zip(variables, before, strict=True):
            if variable.numpy().tobytes() != value.tobytes():
                changed.append(variable)
                variable.assign(value)
    return changed


def check_unchanged(model: keras.Model, changed: Sequence[Any], origin: Origin) -> None:
    """Reject a model that changes variables in evaluation, other than BatchNormalization's.

    Args:
        model: The model that owns the variables.
        changed: The variables that a call with training=False changes.
        origin: Prefix for error messages if the line of the layer is unknown.

    Raises:
        DefinitionError: It changes something other than statistics of BatchNormalization.
    """
    known = means_of(model)
    # A model loaded by tf_keras has no Keras 3 layers.
    is_loaded = hasattr(model, "inner")
    harmless = [
        variable
        for variable in changed
        if id(variable) in known or (is_loaded and variable.path.endswith(_OF_BATCH_NORM))
    ]
    others = [variable for variable in changed if all(variable is not each for each in harmless)]
    if others:
        owner = _owner(model, others[0])
        method = overrides.own(owner, "call")
        place = None if method is None else overrides.place(method)
        raise DefinitionError(
            f"{place or origin}: {type(owner).__name__} changes its weight {others[0].path} where "
            "it is called with training=False. In a plain script, each call of validation and "
            "prediction that changes it has an effect on later batches and on training (a weight "
            "that the first call initializes is changed by them only before training). Here they "
            "change no weight, because workers share them. Compute with a masked or projected "
            "weight (kernel * mask) and assign nothing; initialize a weight in build(); change a "
            "statistic in training only: def call(self, inputs, training=None): if training: ...; "
            "or train without validation data, and evaluate and predict with a layer that changes "
            "nothing."
        )
    if harmless:
        _log.warning(
            "%s: BatchNormalization is called with training=True, so in a plain training script, "
            "validation changes %s. Here only training does; outputs do not depend on it.",
            origin,
            harmless[0].path,
        )


def _owner(model: keras.Model, variable: Any) -> Any:
    """Return the layer that owns a variable; the model itself if no layer does."""
    for layer in model._flatten_layers(include_self=False):  # noqa: SLF001 - no public name
        own = (*layer._trainable_variables, *layer._non_trainable_variables)  # noqa: SLF001
        if any(each is variable for each in own):
            return layer
    return model

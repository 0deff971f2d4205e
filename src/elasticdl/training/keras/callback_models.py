"""Reads and sets the variables of other models and optimizers that callbacks hold.

    self.teacher = keras.models.clone_model(self.model)
    self.probe.compile(keras.optimizers.Adam(), "mse")

Of a model, these are its weights, the variables of its optimizer and those of its metrics, without
those that it shares with the trained model.

Callers: `callback_checkpoint.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

WEIGHTS, OPTIMIZER, METRICS = "$weights", "optimizer", "metrics"


def variables_of_model(value: Any, trained: Collection[int]) -> dict[str, list[Any]]:
    """Return the variables of a model or optimizer, in parts; empty for other values.

    Args:
        value: The value of a callback's attribute.
        trained: Ids of the variables of the trained model and its optimizer, which are left out.

    Returns:
        Name of the part (`WEIGHTS`, `OPTIMIZER`, `METRICS`) -> its variables. It is empty as well
        if all variables belong to the trained model.
    """
    if isinstance(value, keras.Model):
        own = _optimizer_of(value)
        parts = {
            WEIGHTS: value.variables,
            OPTIMIZER: own.variables if own else [],
            METRICS: value.metrics_variables,
        }
    elif isinstance(value, keras.optimizers.Optimizer):
        parts = {WEIGHTS: value.variables}
    else:
        return {}
    left = {part: [v for v in some if id(v) not in trained] for part, some in parts.items()}
    return left if any(left.values()) else {}


def set_variables(value: Any, trained: Collection[int], kept: Mapping[str, Sequence[Any]]) -> bool:
    """Set the variables of a model or optimizer.

    An optimizer that Keras builds in its first step is built. Metrics that Keras would create in
    that step keep their initial values.

    Args:
        value: The model or optimizer.
        trained: Ids of variables that are left out; see `variables_of_model`.
        kept: Name of the part -> its arrays.

    Returns:
        False if its variables have other shapes. None is set then.
    """
    own = _optimizer_of(value)
    if own is not None and not own.built and len(kept.get(OPTIMIZER, ())) > len(own.variables):
        own.build(value.trainable_variables)
    parts = variables_of_model(value, trained)
    fits = {p: shapes_of(some) == shapes_of(kept.get(p, some)) for p, some in parts.items()}
    if not parts or not all(fits[part] for part in fits if part != METRICS):
        return False
    for part in (part for part in parts if fits[part] and part in kept):
        for variable, array in zip(parts[part], kept[part], strict=True):
            variable.assign(array)
    return True


def shapes_of_model(value: Any, trained: Collection[int], part: str) -> list[tuple[int, ...]]:
    """Return the shapes of the variables of one part; see `variables_of_model`."""
    return shapes_of(variables_of_model(value, trained).get(part, ()))


def shapes_of(arrays: Sequence[Any]) -> list[tuple[int, ...]]:
    """Return the shapes of arrays or variables."""
    return [tuple(each.shape) for each in arrays]


def _optimizer_of(value: Any) -> Any:
    found = getattr(value, "optimizer", None) if isinstance(value, keras.Model) else None
    return found if isinstance(found, keras.optimizers.Optimizer) else None

"""What a Keras name stands for: `"adam"`, `"mse"`, `"accuracy"`. The dialects' only way to Keras.

Keras is imported when a name is looked up, never before: a model file that needs none does not
pay for it.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from elasticdl.errors import DefinitionError

_SHORT_NAMES = ("mse", "mae", "mape", "msle", "bce", "kld")


def loss(name: str, where: object) -> Any:
    """Return the loss object of this name: what `compile(loss=name)` makes of it."""
    import keras  # noqa: PLC0415 - only where a name is looked up

    return as_loss_object(_get(keras.losses, name, where))


def is_loss_function(value: Any) -> bool:
    """Return whether a value is one of Keras' own loss functions."""
    module = str(getattr(value, "__module__", "") or "")
    return inspect.isfunction(value) and module.startswith("keras.src.losses")


def as_loss_object(value: Any) -> Any:
    """Return a loss object for a loss function of Keras, as `compile` wraps it."""
    import keras  # noqa: PLC0415 - only where a name is looked up
    from keras.src.losses.losses import LossFunctionWrapper  # noqa: PLC0415 - no public name

    if isinstance(value, keras.losses.Loss):
        return value
    return LossFunctionWrapper(value, name=value.__name__)


def optimizer(name: str, where: object) -> Any:
    """Return a new optimizer of this name."""
    import keras  # noqa: PLC0415 - only where a name is looked up

    return _get(keras.optimizers, name, where)


def metric(name: str, where: object) -> Any:
    """Return a new metric of this name, or a function `(y_true, y_pred)`."""
    import keras  # noqa: PLC0415 - only where a name is looked up

    if name in {"accuracy", "acc"}:
        return _accuracy
    return _get(keras.metrics, name, where)


def copied(value: Any, where: object) -> Any:
    """Return a new metric or optimizer with the settings of one the user made at import.

    Raises:
        DefinitionError: Its settings do not say how to make it again.
    """
    try:
        return type(value).from_config(value.get_config())
    except Exception as error:
        raise DefinitionError(
            f"{where}: {type(value).__name__} cannot be made a second time from its settings: "
            f"{error}\n  Make it in a function, so that each run has its own."
        ) from error


def _accuracy(labels: Any, predictions: Any) -> Any:
    """Compare as `compile(metrics=["accuracy"])` does: which way, the shapes say."""
    import keras  # noqa: PLC0415 - only where a name is looked up

    if predictions.shape[-1] == 1:
        return keras.metrics.binary_accuracy(labels, predictions)
    if len(labels.shape) == len(predictions.shape) and labels.shape[-1] == predictions.shape[-1]:
        return keras.metrics.categorical_accuracy(labels, predictions)
    return keras.metrics.sparse_categorical_accuracy(labels, predictions)


def _get(module: Any, name: str, where: object) -> Any:
    try:
        return module.get(name)
    except ValueError:
        known = {each.lower(): each for each in (*dir(module), *_SHORT_NAMES)}
        near = difflib.get_close_matches(name.lower(), known, n=1)
        suggestion = f" Did you mean {known[near[0]]!r}?" if near else ""
        public = module.__name__.replace("._tf_keras", "")
        raise DefinitionError(f"{where}: {public} has no {name!r}.{suggestion}") from None

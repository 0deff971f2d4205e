"""Creates Keras losses, optimizers and metrics from names: `"adam"`, `"mse"`, `"accuracy"`.

The dialects use Keras only through this module. It imports Keras only when a name is looked up,
because the import is slow.
"""

from __future__ import annotations

import difflib
import inspect
from types import ModuleType
from typing import Any, Literal

from elasticdl.errors import DefinitionError, framework_needed
from elasticdl.training.range_errors import unclear_crossentropy

_SHORT_NAMES = ("mse", "mae", "mape", "msle", "bce", "kld")
_ACCURACY = ("accuracy", "acc")


def loss(name: str, where: object) -> Any:
    """Create the loss of this name, as `compile(loss=name)` does.

    Args:
        name: A name that Keras knows.
        where: `file:line` of the name, for errors.

    Raises:
        DefinitionError: Keras has no such loss.
    """
    return as_loss_object(_get(_keras(where).losses, name, where))


def is_loss_function(value: Any) -> bool:
    """Return whether a value is one of Keras' own loss functions."""
    module = str(getattr(value, "__module__", "") or "")
    return inspect.isfunction(value) and module.startswith("keras.src.losses")


def as_loss_object(value: Any) -> Any:
    """Wrap a loss function of Keras in a loss object, as `compile` does.

    The object averages over examples and applies sample weights.
    """
    import keras  # noqa: PLC0415 - only where a name is looked up
    from keras.src.losses.losses import LossFunctionWrapper  # noqa: PLC0415 - no public name

    if isinstance(value, keras.losses.Loss):
        return value
    return LossFunctionWrapper(value, name=value.__name__)


def optimizer(name: str, where: object) -> Any:
    """Create the optimizer of this name, with Keras' default settings.

    Raises:
        DefinitionError: Keras has no such optimizer.
    """
    return _get(_keras(where).optimizers, name, where)


def metric(name: str, where: object) -> Any:
    """Return the metric of this name: a new object or a function `(y_true, y_pred)`.

    Raises:
        DefinitionError: Keras has no such metric.
    """
    if name.lower() in _ACCURACY:
        return _accuracy
    return _get(_keras(where).metrics, name, where)


def direction(metric: Any) -> Literal["min", "max"] | None:
    """Return "min" or "max": which values of a metric are better, judged by its name or function.

    Args:
        metric: The metric as the user's code returned it.

    Returns:
        "max" for the name of an accuracy, "min" for a loss function of Keras; None for anything
        else, including metric objects, which have a direction of their own.
    """
    if isinstance(metric, str):
        return "max" if metric.lower() in _ACCURACY else None
    return "min" if is_loss_function(metric) else None


def copied(value: Any, where: object) -> Any:
    """Create a metric or optimizer with the settings of an existing one, but with new state.

    Args:
        value: The existing metric or optimizer.
        where: `file:line` of its definition, for errors.

    Raises:
        DefinitionError: It cannot be copied.
    """
    from elasticdl.dialects import keras_copies  # noqa: PLC0415 - it imports Keras

    return keras_copies.copied(value, where)


def _accuracy(labels: Any, predictions: Any) -> Any:
    """Compute accuracy as `compile(metrics=["accuracy"])` does: the shapes determine its kind."""
    import keras  # noqa: PLC0415 - only where a name is looked up

    if predictions.shape[-1] == 1:
        return keras.metrics.binary_accuracy(labels, predictions)
    if len(labels.shape) == len(predictions.shape) and labels.shape[-1] == predictions.shape[-1]:
        return keras.metrics.categorical_accuracy(labels, predictions)
    return keras.metrics.sparse_categorical_accuracy(labels, predictions)


def _keras(where: object) -> ModuleType:
    with framework_needed(f"{where}: this name"):
        import keras  # noqa: PLC0415 - only where a name is looked up

    module: ModuleType = keras
    return module


def _get(module: Any, name: str, where: object) -> Any:
    try:
        return module.get(name)
    except ValueError:
        if unclear := unclear_crossentropy(name):
            raise DefinitionError(f"{where}: {unclear}") from None
        known = {each.lower(): each for each in (*dir(module), *_SHORT_NAMES)}
        # A function may have no name that `get` knows.
        known.pop(name.lower(), None)
        near = difflib.get_close_matches(name.lower(), known, n=1)
        suggestion = f" Did you mean {known[near[0]]!r}?" if near else ""
        public = module.__name__.replace("._tf_keras", "")
        raise DefinitionError(f"{where}: {public} has no {name!r}.{suggestion}") from None

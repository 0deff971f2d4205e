"""Describes a compiled Keras model: inputs, last layers, losses.

`sessions/checks/model.py` compares these facts with the data; `scores.py` derives the kind of the
outputs from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from elasticdl.data.batch import map_arrays


@dataclass(frozen=True)
class OutputFacts:
    """Facts about one output of a compiled model.

    Attributes:
        shape: Shape of the output, with the batch axis; None along axes of any size. Empty if it is
            unknown.
        activation: Activation of the layer that produces it; None if unknown.
        loss: Name of its loss function; None if unknown.
        from_logits: Whether the loss takes logits; None if it does not state it.
    """

    shape: tuple[int | None, ...]
    activation: str | None
    loss: str | None
    from_logits: bool | None


@dataclass(frozen=True)
class ModelFacts:
    """The inputs and outputs of a compiled model.

    Attributes:
        inputs: Shapes of the inputs; empty if unknown.
        outputs: The outputs, in order; empty if unknown.
    """

    inputs: tuple[tuple[int | None, ...], ...]
    outputs: tuple[OutputFacts, ...]


def facts_of(model: keras.Model, outputs: int = 1) -> ModelFacts:
    """Describe the inputs, outputs and losses of a model.

    Args:
        model: A compiled model.
        outputs: Number of outputs, for a model that does not declare it.
    """
    tensors = _tensors(model, "outputs")
    losses = _losses(getattr(model, "loss", None), tensors, outputs)
    declared = [name_and_logits(loss) for loss in losses]
    made = tensors or [None] * outputs
    pairs = zip(made, declared, strict=True) if len(made) == len(declared) else ()
    return ModelFacts(
        inputs=tuple(tuple(tensor.shape) for tensor in _tensors(model, "inputs")),
        outputs=tuple(
            OutputFacts(
                tuple(tensor.shape) if tensor is not None else (), _activation(tensor), *loss
            )
            for tensor, loss in pairs
        ),
    )


def loss_of(model: keras.Model) -> keras.losses.Loss | None:
    """Return the loss object that a model with one output was compiled with; None if unknown."""
    losses = _losses(getattr(model, "loss", None), [], 1)
    try:
        loss = keras.losses.get(losses[0]) if len(losses) == 1 else None
    except ValueError:
        return None
    if loss is None or isinstance(loss, keras.losses.Loss):
        return loss
    return _Given(loss)


class _Given(keras.losses.Loss):
    """A loss function that was passed to `compile`, in the form of a Keras loss object."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.fn = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Return the value of the user's function for labels and predictions."""
        return self.fn(y_true, y_pred)


def outputs_of(model: keras.Model, features: Any) -> Any:
    """Return a model's outputs for a batch, as numpy arrays; None if it rejects the batch."""
    try:
        outputs = model(map_arrays(keras.ops.convert_to_tensor, features), training=False)
    except Exception:  # noqa: BLE001 - a user's `call` may raise anything
        return None
    return map_arrays(keras.ops.convert_to_numpy, outputs)


def _tensors(model: keras.Model, name: str) -> list[Any]:
    try:
        return list(getattr(model, name) or [])
    except (AttributeError, ValueError):
        return []


def _activation(tensor: Any) -> str | None:
    """Return the name of the activation of the layer that produces a tensor; None if unknown."""
    history = getattr(tensor, "_keras_history", None)
    layer = getattr(history, "operation", None)
    if isinstance(layer, keras.Model):
        inner = _tensors(layer, "outputs")
        return _activation(inner[history.tensor_index]) if history is not None and inner else None
    if type(layer).__name__ in {"Softmax", "Sigmoid"}:
        return type(layer).__name__.lower()
    activation = getattr(layer, "activation", None)
    return getattr(activation, "__name__", None)


def _losses(loss: Any, tensors: list[Any], outputs: int) -> list[Any]:
    """Return a loss for each output; None for an unknown one.

    Args:
        loss: What was passed to `compile`: a loss, or a list or dict of losses.
        tensors: The model's symbolic outputs; empty if it has none.
        outputs: Number of outputs, for a model without symbolic ones.
    """
    if isinstance(loss, Mapping):
        loss = list(loss.values()) if len(loss) == 1 else None
    if isinstance(loss, (list, tuple)):
        return list(loss)
    return [loss if (len(tensors) or outputs) == 1 else None] * (len(tensors) or outputs)


def name_and_logits(loss: Any) -> tuple[str | None, bool | None]:
    """Return a loss's name and whether it takes logits; None for each if unknown."""
    if isinstance(loss, str):
        try:
            loss = keras.losses.get(loss)
        except ValueError:
            return None, None
    if loss is None:
        return None, None
    function = getattr(loss, "fn", loss)
    name = getattr(function, "__name__", None)
    if isinstance(loss, keras.losses.Loss):
        config = loss.get_config()
        if config.get("ignore_class") is not None:
            # Labels outside the classes are intended.
            return None, None
        logits = config.get("from_logits")
        return name or config.get("name"), logits if isinstance(logits, bool) else None
    ours = str(getattr(function, "__module__", "")).partition(".")[0] == "keras"
    return name, False if ours and "crossentropy" in (name or "") else None

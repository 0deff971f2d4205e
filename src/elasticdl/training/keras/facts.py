"""What a compiled Keras model says of itself: inputs, last layers, losses.

Looks only; what follows from it is decided elsewhere (`sessions/checks/model.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from elasticdl.data.batch import map_arrays

# They take values as they come, or bring them into a range themselves.
_SCALING = {
    "CategoryEncoding",
    "Discretization",
    "Embedding",
    "Hashing",
    "IntegerLookup",
    "Lambda",
    "Normalization",
    "Rescaling",
    "StringLookup",
    "TextVectorization",
}
_NORMALIZING = {"BatchNormalization", "LayerNormalization", "GroupNormalization"}


@dataclass(frozen=True)
class OutputFacts:
    """One output of a model.

    Attributes:
        shape: None along axes that are open.
        activation: Of the layer that makes it; None where that is not known.
        loss: Name of the function it is trained by; None where that is not known.
        from_logits: Whether that takes logits; None where it does not say.
    """

    shape: tuple[int | None, ...]
    activation: str | None
    loss: str | None
    from_logits: bool | None


@dataclass(frozen=True)
class ModelFacts:
    """A compiled model.

    Attributes:
        inputs: Their shapes; empty where they are not known.
        outputs: In order; empty where they are not known.
        scales: A layer brings x into a range.
    """

    inputs: tuple[tuple[int | None, ...], ...]
    outputs: tuple[OutputFacts, ...]
    scales: bool


def facts_of(model: keras.Model, outputs: int = 1) -> ModelFacts:
    """Return what a model says of itself.

    Args:
        model: Compiled.
        outputs: How many it has, where it does not know its own.
    """
    tensors = _tensors(model, "outputs")
    losses = _losses(getattr(model, "loss", None), tensors, outputs)
    said = [_loss(loss) for loss in losses]
    made = tensors or [None] * outputs
    pairs = zip(made, said, strict=True) if len(made) == len(said) else ()
    layers = [
        type(layer).__name__
        for layer in getattr(model, "_flatten_layers")(include_self=False)  # noqa: B009 - no public name goes into nested models
        if type(layer).__name__ != "InputLayer"
    ]
    return ModelFacts(
        inputs=tuple(tuple(tensor.shape) for tensor in _tensors(model, "inputs")),
        outputs=tuple(
            OutputFacts(
                tuple(tensor.shape) if tensor is not None else (), _activation(tensor), *loss
            )
            for tensor, loss in pairs
        ),
        scales=any(name in _SCALING for name in layers)
        or any(name in _NORMALIZING for name in layers[:2]),
    )


def outputs_of(model: keras.Model, features: Any) -> Any:
    """Return what a model says of a batch, as numpy; None if it cannot take it."""
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
    """Return the activation of the layer that makes a tensor."""
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
    """Return a loss for each output, as far as it can be told."""
    if isinstance(loss, Mapping):
        loss = list(loss.values()) if len(loss) == 1 else None
    if isinstance(loss, (list, tuple)):
        return list(loss)
    return [loss if (len(tensors) or outputs) == 1 else None] * (len(tensors) or outputs)


def _loss(loss: Any) -> tuple[str | None, bool | None]:
    """Return a loss' name and whether it takes logits."""
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
        logits = config.get("from_logits")
        return name or config.get("name"), logits if isinstance(logits, bool) else None
    ours = str(getattr(function, "__module__", "")).partition(".")[0] == "keras"
    return name, False if ours and "crossentropy" in (name or "") else None

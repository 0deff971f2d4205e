"""Infers from last layer and loss whether a Keras classifier returns probabilities or logits.

Callers: `trainer.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from elasticdl.definition import WeighableLoss, resolved
from elasticdl.training.keras.model_facts import facts_of, loss_of, name_and_logits
from elasticdl.training.scores import Array, Scores, scores_by_loss

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition

_CATEGORICAL = (
    "categorical_crossentropy",
    "sparse_categorical_crossentropy",
    "categorical_focal_crossentropy",
)
_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")


def scores_of(
    model: keras.Model, definition: ModelDefinition, shape: tuple[int, ...]
) -> Scores | None:
    """Return what a model's outputs are: "probabilities" or "logits"; None if neither or unknown.

    Args:
        model: The model.
        definition: Its definition.
        shape: Shape of the outputs for one example: `(classes,)`, `(1,)` or `()`.
    """
    outputs = facts_of(model).outputs
    activation = outputs[0].activation if len(outputs) == 1 else None
    is_binary = shape in {(), (1,)}
    if activation == "softmax":
        return None if is_binary else "probabilities"
    scores = _by_loss(_loss(model, definition), shape)
    if scores is not None and is_binary and activation == "sigmoid":
        # A loss `from_logits` uses the logits of this layer.
        return "probabilities"
    # Without an activation, these are not probabilities, even if the loss treats them as such.
    return None if scores == "probabilities" and activation == "linear" else scores


def _loss(model: keras.Model, definition: ModelDefinition) -> Any:
    if definition.compiled:
        return loss_of(model)  # a Keras object, which takes labels first
    loss = None if definition.loss is None else resolved(definition.loss)
    return loss.loss if isinstance(loss, WeighableLoss) else loss


def _by_loss(loss: Any, shape: tuple[int, ...]) -> Scores | None:
    if loss is None:
        return None
    name, from_logits = name_and_logits(loss)
    if from_logits is not None and name in (_BINARY if shape in {(), (1,)} else _CATEGORICAL):
        return "logits" if from_logits else "probabilities"
    takes_labels_first = isinstance(loss, keras.losses.Loss)

    def call(outputs: Array, labels: Array) -> Any:
        tensor = tf.convert_to_tensor(outputs)
        return loss(labels, tensor) if takes_labels_first else loss(tensor, labels)

    return scores_by_loss(call, shape)

"""Infers whether a PyTorch classifier outputs logits or probabilities: from its loss or last layer.

Also finds a softmax or sigmoid before a loss that applies one itself.

Callers: `trainer.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticdl.definition import resolved
from elasticdl.training.scores import Array, Scores, scores_by_loss

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elasticdl.definition import ModelDefinition

_CATEGORICAL: Mapping[type[nn.Module], Scores] = {
    nn.CrossEntropyLoss: "logits",
    nn.NLLLoss: "log_probabilities",
}
_BINARY: Mapping[type[nn.Module], Scores] = {
    nn.BCEWithLogitsLoss: "logits",
    nn.BCELoss: "probabilities",
}
_LAST_LAYERS: Mapping[type[nn.Module], Scores] = {
    nn.Softmax: "probabilities",
    nn.LogSoftmax: "log_probabilities",
}

# Operations of PyTorch that leave every value as it is.
_RESHAPES = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Select", "ToCopy"}


def scores_of(
    model: nn.Module, definition: ModelDefinition, shape: tuple[int, ...], device: torch.device
) -> Scores | None:
    """Return the kind of a classifier's outputs, such as "logits"; None if unknown.

    Also None if the model is not a classifier.

    Args:
        model: The module.
        definition: The model definition, for its loss.
        shape: Shape of the outputs for one example: `(classes,)`, `(1,)` or `()`.
        device: Device on which the loss is computed.
    """
    is_binary = shape in {(), (1,)}
    loss = None if definition.loss is None else resolved(definition.loss)
    for kind, scores in (_BINARY if is_binary else _CATEGORICAL).items():
        if isinstance(loss, kind):
            return scores
    by_layer = None if is_binary else _by_last_layer(model)
    if by_layer is not None or loss is None:
        return by_layer
    return _by_loss(loss, shape, device)


def last_activation(outputs: object) -> str:
    """Return "softmax" or "sigmoid" if a model's outputs are the result of one; else "".

    Args:
        outputs: The outputs with their graph.
    """
    node = outputs.grad_fn if isinstance(outputs, torch.Tensor) else None
    while node is not None:
        name = re.sub(r"Backward\d*$", "", node.name())
        if name not in _RESHAPES:
            return {"Softmax": "softmax", "Sigmoid": "sigmoid"}.get(name, "")
        node = node.next_functions[0][0]
    return ""


def takes_logits(definition: ModelDefinition, shape: tuple[int, ...], device: torch.device) -> bool:
    """Return whether the loss is a cross-entropy that applies a softmax or sigmoid itself.

    Args:
        definition: The model definition, for its loss.
        shape: Shape of the outputs for one example.
        device: Device on which the loss is computed.
    """
    loss = None if definition.loss is None else resolved(definition.loss)
    if loss is None or isinstance(loss, (nn.CrossEntropyLoss, nn.BCEWithLogitsLoss)):
        return loss is not None
    # A binary one may be that of several independent labels.
    shapes = dict.fromkeys([shape, (1,)] if len(shape) <= 1 else [(1,)])
    return any(_by_loss(loss, each, device) == "logits" for each in shapes)


def _by_loss(
    loss: Callable[..., Any], shape: tuple[int, ...], device: torch.device
) -> Scores | None:
    def call(outputs: Array, labels: Array) -> Any:
        with torch.no_grad():
            tensors = [torch.from_numpy(each.copy()).to(device) for each in (outputs, labels)]
            return loss(*tensors).cpu().numpy()

    return scores_by_loss(call, shape)


def _by_last_layer(module: nn.Module) -> Scores | None:
    while isinstance(module, nn.Sequential) and len(module):
        module = module[-1]
    return next((s for kind, s in _LAST_LAYERS.items() if isinstance(module, kind)), None)

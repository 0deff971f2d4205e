"""Runs the steps of models that compute their own loss, such as those of Hugging Face.

    outputs = model(**features, labels=labels)       in training and evaluation
    outputs.loss, outputs["loss"], outputs[0]        the loss: of an object, a dict, a tuple
    outputs = model(**features)                      in prediction

The input function returns the labels, and `forward` receives them as `labels`. Metrics receive all
outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.inputs import forward_parameters
from elasticdl.training.torch.label_shapes import TorchLabelShape
from elasticdl.training.torch.outputs import detached
from elasticdl.training.torch.steps import Stepped, Tensors, check_parts

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition, Origin
    from elasticdl.training.torch.inputs import Adapter, Arguments
    from elasticdl.training.torch.losses import TorchLoss
    from elasticdl.training.torch.precision import MixedPrecision
    from elasticdl.training.trainer import MetricStates


def check_takes_labels(model: nn.Module, origin: Origin) -> None:
    """Check that a model's `forward` takes labels, from which it can compute a loss.

    Raises:
        DefinitionError: `forward` has no argument for the labels.
    """
    if "labels" not in [each.name for each in forward_parameters(model)]:
        raise DefinitionError(
            f"{origin}: there is no loss, and {type(model).__name__}.forward has no argument "
            "labels to compute one from. Add the loss to the model file: "
            "def loss(labels, predictions): ..."
        )


class InnerLossSteps:
    """Computes the results of a module whose `forward` receives the labels; see `steps.Steps`.

    Args:
        definition: For errors.
        adapt: Adapter that converts features to the arguments of `forward`.
        loss: Finds the divisor of the loss that `forward` returns: the number by which the sum over
            examples was divided.
        precision: The number format of the computation.
        without_effects: Function (seed) -> context manager. In its block, the model is in
            evaluation mode, without gradients, and changes to its buffers are undone. See
            `steps.check_parts`.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        adapt: Adapter,
        loss: TorchLoss,
        precision: MixedPrecision,
        without_effects: Callable[..., AbstractContextManager[Any]],
    ) -> None:
        self._definition, self._adapt, self._loss = definition, adapt, loss
        self._precision, self._without_effects = precision, without_effects
        self._label_shape = TorchLabelShape(
            str(definition.where("model")),
            "the model's loss",
            may_reshape=definition.has_default_input,
        )

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """Call `forward` without labels and return its outputs, which contain no loss."""
        args, kwargs = self._adapt(features)
        with self._precision.autocast():
            return model(*args, **kwargs)

    def training(self, model: nn.Module, batch: Tensors) -> Stepped:
        """Call `forward` with the labels, and find the loss among its outputs.

        Raises:
            DefinitionError: `forward` returns no loss, or the input function returns no labels.
        """
        if batch.labels is None:
            raise DefinitionError(
                f"{self._definition.where('input')}: the input function returns no labels, but the "
                "model computes its loss from them. Return (features, labels)."
            )
        returned: list[Any] = []

        def compute() -> torch.Tensor:
            returned.append(self.touch(model, batch))
            return self._loss_in(returned[0], type(model).__name__)

        loss = self._loss.computed(compute, batch.weights, batch.num_examples)
        return Stepped(loss, detached(returned[0]))

    def evaluation(
        self, model: nn.Module, batch: Tensors, so_far: MetricStates | None = None
    ) -> Stepped:
        """Call `forward` with the labels, if any; without labels, the result has no loss."""
        del so_far
        if batch.labels is None:
            return Stepped(None, detached(self.outputs(model, batch.features)))
        return self.training(model, batch)

    def touch(self, model: nn.Module, batch: Tensors) -> Any:
        """Call `forward` with the labels, so that the caller can observe what it changes."""
        args, kwargs = self._adapt(batch.features)
        labels = self._label_shape((batch.features,), batch.labels)
        with self._precision.autocast():
            return model(*args, **{**kwargs, "labels": labels})

    def find_label_shape(self, model: nn.Module, batch: Tensors) -> Any:
        """Determine which shape of labels the loss needs; see `Steps.find_label_shape`."""

        def loss(inputs: Any, labels: Any) -> torch.Tensor:
            made = self.touch(model, Tensors(inputs[0], labels, None, len(labels)))
            return self._loss_in(made, type(model).__name__)

        if self._definition.has_default_input:
            self._label_shape.find(loss, (batch.features,), batch.labels)
        return detached(self.outputs(model, batch.features))

    def arguments(self, model: nn.Module, features: Any) -> Arguments:
        """Return the arguments of `forward`, without labels."""
        del model
        return self._adapt(features)

    def check_evaluation(self, model: nn.Module, batch: Tensors) -> Any:
        """Call `forward` without labels, as prediction does; see `Steps.check_evaluation`."""
        return detached(self.outputs(model, batch.features))

    def check_splits(self, model: nn.Module, batch: Tensors, stepped: Stepped) -> None:
        """Check that the loss of a batch follows from its parts' losses; see `Steps.check_splits`.

        Runs the model on each part and on the whole batch, in evaluation mode.

        Raises:
            DefinitionError: The loss of the batch is not the weighted mean of its parts' losses.
        """
        del stepped
        check_parts(self, self._loss, self._without_effects, model, batch)

    def found_rows(self, has_rows: Sequence[bool]) -> None:
        """Do nothing: to compare parts of a batch, the model is run on each part here.

        Only `ForwardSteps` splits the outputs for the whole batch instead, and needs `has_rows`.
        """

    def _loss_in(self, outputs: Any, name: str) -> torch.Tensor:
        if isinstance(outputs, Mapping):
            loss = outputs.get("loss")
        elif isinstance(outputs, (list, tuple)) and not hasattr(outputs, "loss"):
            loss = outputs[0] if outputs else None
        else:
            loss = getattr(outputs, "loss", None)
        if not isinstance(loss, torch.Tensor):
            raise DefinitionError(
                f"{self._definition.where('model')}: {name} received labels but returned "
                "no loss among its outputs. Add the loss to the model file: "
                "def loss(labels, predictions): ..."
            )
        return loss

"""What a model makes of a batch: its outputs, its loss and what it measures.

    ForwardSteps      `forward`, and the `loss` of the model file
    inner_loss.py     `forward`, which is given the labels and returns the loss among its outputs
    lightning.py      `training_step`, `validation_step` and `predict_step` of a LightningModule

A trainer knows one of them, and neither knows what a step is for: gradients, seeds and buffers are
the trainer's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from elasticdl.training.torch.losses import BatchLoss, Loss, rows_of
from elasticdl.training.torch.outputs import detached

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.torch.inputs import Adapter, Arguments
    from elasticdl.training.torch.metrics import Addends
    from elasticdl.training.torch.precision import MixedPrecision


@dataclass(frozen=True, eq=False)
class Tensors:
    """A batch as tensors.

    Attributes:
        features: A nesting of tensors.
        labels: A nesting of tensors; None where there are none.
        weights: Sample weights, float32[num_examples, ...], or None.
        num_examples: How many there are.
    """

    features: Any
    labels: Any
    weights: torch.Tensor | None
    num_examples: int

    def rows(self, rows: slice) -> Tensors:
        """Return the batch of some of its examples."""
        features, labels, weights = (
            rows_of(tree, rows, self.num_examples)
            for tree in (self.features, self.labels, self.weights)
        )
        return Tensors(features, labels, weights, len(range(self.num_examples)[rows]))


@dataclass(frozen=True, eq=False)
class Stepped:
    """What a batch came to.

    Attributes:
        loss: With its graph, if any; None where an evaluation has none.
        outputs: The model's, detached; None where a model keeps them to itself.
        metrics: What the batch adds to metrics, beside the loss.
    """

    loss: BatchLoss | None
    outputs: Any
    metrics: Addends = field(default_factory=dict)


class Steps(Protocol):
    """What a model makes of a batch.

    Each method is given the module, since a copy of it may be tried.
    """

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """Return the model's outputs, as a prediction has them."""
        ...

    def training(self, model: nn.Module, batch: Tensors) -> Stepped:
        """Return what a batch comes to in a training step."""
        ...

    def evaluation(self, model: nn.Module, batch: Tensors) -> Stepped:
        """Return what a batch comes to in an evaluation."""
        ...

    def touch(self, model: nn.Module, batch: Tensors) -> Any:
        """Call the model as a training step does, for what that does to it; return what it says."""
        ...

    def arguments(self, model: nn.Module, features: Any) -> Arguments | None:
        """Return what `forward` is called with, for an export; None if there is no `forward`."""
        ...

    def check_evaluation(self, model: nn.Module, batch: Tensors) -> Any:
        """Call the model as evaluation and prediction do; labels may be missing.

        Returns:
            Its outputs, detached; None where it keeps them to itself.
        """
        ...

    def check_splits(self, model: nn.Module, batch: Tensors, stepped: Stepped) -> None:
        """Make sure that sums over parts of a batch give what the batch does.

        Raises:
            DefinitionError: They do not.
        """
        ...


def check_parts(
    steps: Steps,
    loss: Loss,
    looking: Callable[[], AbstractContextManager[Any]],
    model: nn.Module,
    batch: Tensors,
) -> None:
    """Check that the losses of a batch's parts add up, by running the model on them.

    For a model that computes its loss by itself. One that draws random numbers in evaluation mode
    cannot be compared, and passes.

    Args:
        steps: Of the model.
        loss: Knows what it has checked already.
        looking: Runs the model in evaluation mode meanwhile, without a trace.
        model: The module.
        batch: A batch.

    Raises:
        DefinitionError: The losses of the parts do not add up to the loss of the batch.
    """
    if batch.num_examples == 1:
        return

    def of(part: Tensors) -> BatchLoss:
        with looking():
            found = steps.training(model, part).loss
        assert found is not None  # noqa: S101 - a training step has one
        return found

    whole = of(batch)
    if float(of(batch).value) == float(whole.value):
        loss.check_splits(batch.num_examples, whole, lambda rows: of(batch.rows(rows)))


class ForwardSteps:
    """The steps of a plain module: `forward`, and a loss beside it; see `Steps`.

    Its outputs say all that is said of a batch.

    Args:
        definition: Has the loss.
        adapt: Makes arguments of features.
        loss: Computes it.
        precision: What both are computed in.
    """

    def __init__(
        self, definition: ModelDefinition, adapt: Adapter, loss: Loss, precision: MixedPrecision
    ) -> None:
        self._has_loss = definition.loss is not None
        self._adapt, self._loss, self._precision = adapt, loss, precision

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """See `Steps`."""
        args, kwargs = self._adapt(features)
        with self._precision.autocast():
            return model(*args, **kwargs)

    def training(self, model: nn.Module, batch: Tensors) -> Stepped:
        """See `Steps`."""
        outputs = self.outputs(model, batch.features)
        return Stepped(self._loss_of(outputs, batch), detached(outputs))

    def evaluation(self, model: nn.Module, batch: Tensors) -> Stepped:
        """See `Steps`."""
        outputs = self.outputs(model, batch.features)
        has_loss = self._has_loss and batch.labels is not None
        return Stepped(self._loss_of(outputs, batch) if has_loss else None, detached(outputs))

    def touch(self, model: nn.Module, batch: Tensors) -> Any:
        """See `Steps`."""
        return self.outputs(model, batch.features)

    def arguments(self, model: nn.Module, features: Any) -> Arguments:
        """See `Steps`."""
        del model
        return self._adapt(features)

    def check_evaluation(self, model: nn.Module, batch: Tensors) -> Any:
        """See `Steps`."""
        return detached(self.outputs(model, batch.features))

    def check_splits(self, model: nn.Module, batch: Tensors, stepped: Stepped) -> None:
        """See `Steps`: the loss of parts is computed of the same outputs."""
        del model
        assert stepped.loss is not None  # noqa: S101 - a training step has one

        def of(rows: slice) -> BatchLoss:
            part = batch.rows(rows)
            # An output that is no row per example stays: it is the same for all of them.
            outputs = rows_of(stepped.outputs, rows, batch.num_examples)
            return self._loss_of(outputs, part)

        self._loss.check_splits(batch.num_examples, stepped.loss, of)

    def of_each(self, batch: Tensors, outputs: Any) -> torch.Tensor:
        """Return the loss of each example, as that of a batch of it alone.

        Args:
            batch: The batch.
            outputs: The model's.
        """
        alone = []
        for number in range(batch.num_examples):
            row = slice(number, number + 1)
            one = batch.rows(row)
            alone.append(self._loss_of(rows_of(outputs, row, batch.num_examples), one).value)
        return torch.stack(alone)

    def _loss_of(self, outputs: Any, batch: Tensors) -> BatchLoss:
        with self._precision.autocast():
            return self._loss.of(outputs, batch.labels, batch.weights, batch.num_examples)

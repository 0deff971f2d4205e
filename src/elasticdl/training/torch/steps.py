"""Computes a model's outputs, loss and metrics for a batch.

    ForwardSteps      `forward`, and the `loss` of the model file
    inner_loss.py     `forward`, which receives the labels and returns the loss among its outputs
    lightning_steps   `training_step`, `validation_step` and `predict_step` of a LightningModule

A trainer uses one of these classes. They only run the model: the trainer handles gradients, seeds
and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from elasticdl.data.batch import leaves
from elasticdl.training.torch.losses import BatchLoss, TorchLoss, rows_of
from elasticdl.training.torch.outputs import as_plain_containers, copied, detached, map_tensors

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.torch.inputs import Adapter, Arguments
    from elasticdl.training.torch.metric_states import StatefulMetric
    from elasticdl.training.torch.metrics import Addends
    from elasticdl.training.torch.precision import MixedPrecision
    from elasticdl.training.trainer import MetricStates

_TWO = 2


@dataclass(frozen=True, eq=False)
class Tensors:
    """A batch as tensors.

    Attributes:
        features: Nested tensors.
        labels: Nested tensors; None if there are none.
        weights: Sample weights, float32[num_examples, ...], or None.
        num_examples: Number of examples.
    """

    features: Any
    labels: Any
    weights: torch.Tensor | None
    num_examples: int

    def rows(self, rows: slice | Sequence[int]) -> Tensors:
        """Return a batch of some of the examples: those of a slice, or at the given positions."""
        features, labels, weights = (
            rows_of(tree, rows, self.num_examples)
            for tree in (self.features, self.labels, self.weights)
        )
        num = len(range(self.num_examples)[rows]) if isinstance(rows, slice) else len(rows)
        return Tensors(features, labels, weights, num)


@dataclass(frozen=True, eq=False)
class Stepped:
    """The results of a step on a batch.

    Attributes:
        loss: The loss with its graph, if any; None for an evaluation without a loss.
        outputs: The model's outputs, detached; None if a model does not return them.
        metrics: Totals and counts that the batch adds to metrics other than the loss.
        logged: Metrics that the model has updated with the batch, by name.
        given: Copies of the outputs and labels that the loss received, if it changes them in place,
            as `outputs.sigmoid_()` does; else None. Metrics receive the changed outputs and labels,
            as in a plain script; further calls of the loss need the copies.
    """

    loss: BatchLoss | None
    outputs: Any
    metrics: Addends = field(default_factory=dict)
    logged: Mapping[str, StatefulMetric] = field(default_factory=dict)
    given: tuple[Any, Any] | None = None

    def received(self, batch: Tensors) -> tuple[Any, Tensors]:
        """Return the outputs and the batch as the loss received them, before it changed them."""
        if self.given is None:
            return self.outputs, batch
        outputs, labels = self.given
        return outputs, replace(batch, labels=labels)


class Steps(Protocol):
    """Computes a model's outputs, loss and metrics for a batch.

    Each method takes the module, because checks during training may run a copy of the model.
    """

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """Return the model's outputs, as for a prediction."""
        ...

    def training(self, model: nn.Module, batch: Tensors) -> Stepped:
        """Return the results of a training step on a batch."""
        ...

    def evaluation(
        self, model: nn.Module, batch: Tensors, so_far: MetricStates | None = None
    ) -> Stepped:
        """Return the results of an evaluation of a batch.

        Args:
            model: The module.
            batch: The batch.
            so_far: States before the batch, of metrics that the model updates itself.
        """
        ...

    def touch(self, model: nn.Module, batch: Tensors) -> Any:
        """Call the model with a batch as a training step does, and return its result.

        The caller observes what the call changes, such as buffers. No loss is computed, unless
        the model itself computes it.
        """
        ...

    def arguments(self, model: nn.Module, features: Any) -> Arguments | None:
        """Return the arguments of `forward`, for an export; None if there is no `forward`."""
        ...

    def check_evaluation(self, model: nn.Module, batch: Tensors) -> Any:
        """Call the model once as evaluation does, so that the caller can check what it changes.

        Without labels, the model is called as for a prediction.

        Returns:
            The outputs, detached; None for a LightningModule, whose steps do not return them.
        """
        ...

    def check_splits(self, model: nn.Module, batch: Tensors, stepped: Stepped) -> None:
        """Check that the loss of a batch is the weighted mean of its parts' losses.

        The weight of a part is the divisor of its loss: the number by which the sum over its
        examples was divided (`BatchLoss.divisor`).

        Raises:
            DefinitionError: The loss is not that mean, so losses cannot be summed over workers.
        """
        ...

    def find_label_shape(self, model: nn.Module, batch: Tensors) -> Any:
        """Determine from an example batch which shape of labels the loss needs, and remember it.

        Returns:
            The model's outputs for that batch, from which metrics determine the shape that they
            need; None for a LightningModule.
        """
        ...

    def found_rows(self, has_rows: Sequence[bool]) -> None:
        """Store, for each of the model's output tensors, whether it has a row per example.

        To compute the loss of a part of a batch, only the tensors with such rows are split.
        `PartCheck` finds out which these are.

        Args:
            has_rows: One flag for each output tensor, in the order of `leaves`.
        """
        ...


class Pairs:
    """Joins a batch of one example with the previous batch of one example, for checks.

    The checks compare a batch with parts of it, so they need at least two examples. With
    `--minibatch_size=1`, no batch has two.
    """

    def __init__(self) -> None:
        self._before: tuple[Tensors, Any] | None = None

    def with_the_one_before(self, batch: Tensors) -> Tensors | None:
        """Return a batch of two examples: the one of the last call's batch, and this batch's.

        The batch is stored for the next call.

        Returns:
            A batch of two examples. None if this is the first call, or if the features of the two
            are equal or differ in shape, as sequences of different lengths do.
        """
        found = self.joined(batch, None)
        return None if found is None else found[0]

    def joined(self, batch: Tensors, outputs: Any) -> tuple[Tensors, Any] | None:
        """Join a batch of one example, and the model's outputs for it, with those of the last call.

        For a check that compares the loss of two examples with the losses of each. The batch and
        its outputs are stored for the next call.

        Args:
            batch: A batch of one example.
            outputs: The model's outputs for it; None if they are not needed.

        Returns:
            A batch of two examples, and the outputs for both. None if this is the first call, or if
            the features of the two are equal or differ in shape.
        """
        before, self._before = self._before, (batch, outputs)
        if before is None:
            return None
        one, of_one = before
        try:
            features, labels, weights, made = (
                _concatenated(left, right)
                for left, right in (
                    (one.features, batch.features),
                    (one.labels, batch.labels),
                    (one.weights, batch.weights),
                    (of_one, outputs),
                )
            )
        except (RuntimeError, ValueError, TypeError, StopIteration):
            # Sequences of different lengths.
            return None
        if all(len(t) < _TWO or torch.equal(t[:1], t[1:]) for t in _tensors_in(features)):
            return None
        return Tensors(features, labels, weights, _TWO), made


def _concatenated(one: Any, other: Any) -> Any:
    others = iter(_tensors_in(other))

    def join(tensor: torch.Tensor) -> torch.Tensor:
        right = next(others)
        return torch.cat([tensor, right]) if tensor.ndim and len(tensor) == 1 else tensor

    return map_tensors(join, one)


def _tensors_in(tree: Any) -> list[torch.Tensor]:
    return [each for each in leaves(as_plain_containers(tree)) if isinstance(each, torch.Tensor)]


def check_parts(
    steps: Steps,
    loss: TorchLoss,
    without_effects: Callable[..., AbstractContextManager[Any]],
    model: nn.Module,
    batch: Tensors,
) -> None:
    """Check that a batch's loss is the weighted mean of its parts' losses, by running the model.

    For a model that computes its own loss. If its loss is random in evaluation mode, nothing is
    checked.

    Args:
        steps: The steps of the model.
        loss: Compares the losses; if they are certain to be means (`BatchLoss.is_known`), it
            compares those of the first batches only.
        without_effects: Function (seed) -> context manager. In its block, the model is in
            evaluation mode, without gradients, and changes to its buffers are undone. The seed
            determines the random numbers drawn.
        model: The module.
        batch: A batch.

    Raises:
        DefinitionError: The batch's loss is not that mean.
    """
    if batch.num_examples == 1:
        return

    def of(part: Tensors, moment: int = 0) -> BatchLoss:
        with without_effects(moment):
            found = steps.training(model, part).loss
        assert found is not None  # noqa: S101 - a training step has one
        return found

    whole = of(batch)
    if float(of(batch, 1).value) == float(whole.value):
        loss.check_splits(batch.num_examples, whole, lambda rows: of(batch.rows(rows)))


class ForwardSteps:
    """Computes the results of a plain module by `forward` and a separate loss; see `Steps`.

    Loss and metrics of a batch depend on its outputs only.

    Args:
        definition: The model definition.
        adapt: Adapter that converts features to the arguments of `forward`.
        loss: Loss of the model file.
        precision: The number format of model and loss.
    """

    def __init__(
        self,
        definition: ModelDefinition,
        adapt: Adapter,
        loss: TorchLoss,
        precision: MixedPrecision,
    ) -> None:
        self._has_loss = definition.loss is not None
        self._adapt, self._loss, self._precision = adapt, loss, precision
        self._has_rows: Sequence[bool] | None = None
        self._pairs = Pairs()

    def outputs(self, model: nn.Module, features: Any) -> Any:
        """Call `forward` and return its outputs."""
        args, kwargs = self._adapt(features)
        with self._precision.autocast():
            return model(*args, **kwargs)

    def training(self, model: nn.Module, batch: Tensors) -> Stepped:
        """Call `forward`, and compute the loss from its outputs."""
        return self._stepped(self.outputs(model, batch.features), batch)

    def evaluation(
        self, model: nn.Module, batch: Tensors, so_far: MetricStates | None = None
    ) -> Stepped:
        """Call `forward`; compute the loss if the batch has labels and the file has a loss."""
        del so_far
        outputs = self.outputs(model, batch.features)
        if not self._has_loss or batch.labels is None:
            return Stepped(None, detached(outputs))
        return self._stepped(outputs, batch)

    def touch(self, model: nn.Module, batch: Tensors) -> Any:
        """Call `forward`, so that the caller can observe what it changes; return its outputs."""
        return self.outputs(model, batch.features)

    def arguments(self, model: nn.Module, features: Any) -> Arguments:
        """Return the arguments of `forward` for these features."""
        del model
        return self._adapt(features)

    def check_evaluation(self, model: nn.Module, batch: Tensors) -> Any:
        """Call `forward` as evaluation does; see `Steps.check_evaluation`."""
        return detached(self.outputs(model, batch.features))

    def check_splits(self, model: nn.Module, batch: Tensors, stepped: Stepped) -> None:
        """Check that the loss is the mean of the parts' losses; see `Steps.check_splits`."""
        del model
        whole = stepped.loss
        assert whole is not None  # noqa: S101 - a training step has one
        outputs, batch = stepped.received(batch)
        if batch.num_examples == 1 and not whole.is_known:
            pair = self._pairs.joined(batch, outputs)
            if pair is None:
                return
            batch, outputs = pair
            whole = self._loss_of(*self._separate(outputs, batch))

        def of(rows: slice) -> BatchLoss:
            # An output without a row per example is not split: it is the same for all examples.
            made = rows_of(outputs, rows, batch.num_examples, self._has_rows)
            return self._loss_of(*self._separate(made, batch.rows(rows)))

        self._loss.check_splits(batch.num_examples, whole, of)

    def find_label_shape(self, model: nn.Module, batch: Tensors) -> Any:
        """Determine which shape of labels the loss needs; see `Steps.find_label_shape`."""
        outputs = self.outputs(model, batch.features)
        self._loss.find_label_shape(outputs, batch.labels)
        return outputs

    def found_rows(self, has_rows: Sequence[bool]) -> None:
        """Store, for each of the model's output tensors, whether it has a row per example."""
        self._has_rows = has_rows

    def per_example_loss(self, batch: Tensors, stepped: Stepped) -> torch.Tensor:
        """Return the loss of each example as [num_examples], from the results for the whole batch.

        An example's loss is that of a batch of this example alone.
        """
        outputs, batch = stepped.received(batch)
        alone = []
        for number in range(batch.num_examples):
            row = slice(number, number + 1)
            one = batch.rows(row)
            made = rows_of(outputs, row, batch.num_examples, self._has_rows)
            alone.append(self._loss_of(*self._separate(made, one)).value)
        return torch.stack(alone)

    def _stepped(self, outputs: Any, batch: Tensors) -> Stepped:
        given = None
        if self._loss.changes_arguments:
            given = copied(outputs), copied(batch.labels)
        return Stepped(self._loss_of(outputs, batch), detached(outputs), given=given)

    def _separate(self, outputs: Any, batch: Tensors) -> tuple[Any, Tensors]:
        """Return outputs and a batch that the loss may change: copies if it changes them in place.

        They may be rows of a larger batch. These are views, so a loss that changes them in place
        would change the larger batch.
        """
        if not self._loss.changes_arguments:
            return outputs, batch
        return copied(outputs), replace(batch, labels=copied(batch.labels))

    def _loss_of(self, outputs: Any, batch: Tensors) -> BatchLoss:
        with self._precision.autocast():
            return self._loss.of(outputs, batch.labels, batch.weights, batch.num_examples)

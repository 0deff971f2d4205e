"""Computes the loss of a batch, and its divisor: the number by which the sum was divided.

    the loss is                                             its divisor is
    one value per example or more (reduction="none")        the number of examples
    a mean over the batch                                   the number of examples
    PyTorch's cross entropy or NLL with reduction="mean"    the number of targets not ignored, or
                                                            the sum of their class weights
    another loss of PyTorch with reduction="mean"           the number of rows that it averages, or
                                                            the sum of the weights of its values

The divisor is found by watching which function of PyTorch returned the loss, so it makes no
difference whether the user wrote `nn.CrossEntropyLoss(ignore_index=0)` or a function that
returns `functional.cross_entropy(...)`. Sums over workers are divided by the summed divisor, which
gives the loss of all their examples as one batch.

A loss that cannot be split this way (in-batch negatives, a sum) is detected by comparing a batch
with two parts of it; it trains in one process only.

Callers: `trainer.py`.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from elasticdl.data.batch import leaves
from elasticdl.errors import DefinitionError
from elasticdl.training.torch.hidden_mode import HiddenMode
from elasticdl.training.torch.label_shapes import TorchLabelShape
from elasticdl.training.torch.outputs import as_plain_containers, map_tensors

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition

_DIVIDE_BY_TARGETS: tuple[Any, ...] = (functional.cross_entropy, functional.nll_loss)
# Losses that with reduction="mean" return the mean of their result with reduction="none".
_PLAIN_MEANS: tuple[Any, ...] = (
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
    functional.gaussian_nll_loss,
    functional.hinge_embedding_loss,
    functional.huber_loss,
    functional.kl_div,
    functional.l1_loss,
    functional.margin_ranking_loss,
    functional.mse_loss,
    functional.multi_margin_loss,
    functional.multilabel_margin_loss,
    functional.multilabel_soft_margin_loss,
    functional.poisson_nll_loss,
    functional.smooth_l1_loss,
    functional.soft_margin_loss,
    functional.triplet_margin_loss,
    functional.cosine_embedding_loss,
)
# Losses with one value per row of this argument; the others have one per value.
_OF_ROWS: Mapping[Any, str] = {
    functional.cosine_embedding_loss: "input1",
    functional.multi_margin_loss: "input",
    functional.multilabel_margin_loss: "input",
    functional.multilabel_soft_margin_loss: "input",
    functional.triplet_margin_loss: "anchor",
}
_VALUES = ("input", "input1", "input2", "target", "var")
# Losses that divide by their `weight`; the others do not.
_DIVIDE_BY_WEIGHT = (functional.huber_loss, functional.l1_loss, functional.mse_loss)
_WATCHED = (*_DIVIDE_BY_TARGETS, *_PLAIN_MEANS)
_DEFAULTS = {
    function: {name: p.default for name, p in inspect.signature(function).parameters.items()}
    for function in _WATCHED
}
# A known loss that couples examples does so in each batch; others may do it only in some.
_CHECKS_OF_A_KNOWN_LOSS = 4
_ALONE = (
    "Such a model can only be trained in a single process and without --global_batch_size; workers "
    "and a global batch size need a loss whose sum over examples can be split."
)


@dataclass(frozen=True, eq=False)
class BatchLoss:
    """The loss of a batch and its divisor, with which losses of several batches are combined.

    Attributes:
        value: The loss, a float32 scalar tensor, on which `backward` can be called.
        divisor: The number by which the sum over examples was divided to give `value`. It is a
            scalar tensor if it was computed from the targets, such as their number without the
            ignored ones.
        is_known: Whether `value` is certain to be a mean with this divisor: a PyTorch loss with
            reduction="mean" has returned it, or the user's loss has returned one value per example.
            If False, the divisor is an assumption, the number of examples, to be checked.
        precision: Relative difference between two losses that rounding alone can cause.
        unsplittable: A phrase for the error, such as "cross_entropy() in it", if the divisor is
            unknown because the loss adds other terms to a loss that ignores targets; else empty.
    """

    value: torch.Tensor
    divisor: torch.Tensor | float
    is_known: bool
    precision: float = 1e-3
    unsplittable: str = ""


@dataclass(frozen=True, eq=False)
class _Call:
    result: torch.Tensor
    function: Callable[..., torch.Tensor]
    arguments: Mapping[str, Any]


class _Watch(HiddenMode):
    """Context manager that records calls of PyTorch's loss functions with reduction="mean".

    If one of these calls returned the user's loss, its arguments show the divisor.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if func in _WATCHED:
            # Not by Signature.bind, which would take as long as the loss of a small batch.
            given = zip(_DEFAULTS[func], args, strict=False)
            arguments = {**_DEFAULTS[func], **dict(given), **(kwargs or {})}
            if arguments["reduction"] == "mean":
                self.calls.append(_Call(result, func, arguments))
        return result


class TorchLoss:
    """Computes the loss of batches and its divisor.

    Args:
        definition: The model definition, with the user's loss, if any.

    Attributes:
        changes_arguments: Whether the loss has changed outputs or labels in place, as
            `outputs.sigmoid_()` does. A second call with them would give another loss.

    Raises:
        DefinitionError: The loss has parameters, which no optimizer would train.
    """

    def __init__(self, definition: ModelDefinition) -> None:
        self._definition = definition
        self._num_checks = 0
        self.changes_arguments = False
        self._label_shape = TorchLabelShape(
            str(definition.where("loss")), "the loss", may_reshape=definition.has_default_input
        )
        owner = getattr(definition.loss, "__self__", definition.loss)
        if isinstance(owner, nn.Module):
            names = [name for name, p in owner.named_parameters() if p.requires_grad]
            if names:
                raise DefinitionError(
                    f"{definition.where('loss')}: the loss {type(owner).__name__} has parameters "
                    "of its "
                    f"own ({', '.join(names)}), and the optimizer gets those of the model only. "
                    "Make them parameters of the model."
                )

    def of(
        self, outputs: Any, labels: Any, weights: torch.Tensor | None, num_examples: int
    ) -> BatchLoss:
        """Return the loss of a batch.

        Args:
            outputs: The model's outputs.
            labels: Labels of the batch, as tensors.
            weights: Sample weights, float32[num_examples, ...]; the loss is then
                sum(weight x loss) / number of examples.
            num_examples: Examples in the batch.

        Raises:
            DefinitionError: There is no loss, it is not a tensor, or it has no value per example to
                be weighted.
        """
        loss = self._definition.loss
        if loss is None:
            raise DefinitionError(f"{self._definition.origin}: there is no loss to train with.")
        labels = self._label_shape(outputs, labels)
        before = _versions(outputs, labels)
        computed = self.computed(lambda: loss(outputs, labels), weights, num_examples)
        if _versions(outputs, labels) != before:
            self.changes_arguments = True
        return computed

    @property
    def reshapes_labels(self) -> bool:
        """Whether labels are given to the loss in another shape; see `find_label_shape`."""
        return self._label_shape.reshapes

    def find_label_shape(self, outputs: Any, labels: Any) -> None:
        """Determine from an example batch which shape of labels the loss needs."""
        if self._definition.loss is not None:
            self._label_shape.find(self._definition.loss, outputs, labels)

    def computed(
        self, compute: Callable[[], Any], weights: torch.Tensor | None, num_examples: int
    ) -> BatchLoss:
        """Call user code that computes a batch's loss, and return the loss with its divisor.

        Args:
            compute: Function () -> loss.
            weights: Sample weights, as for `of`.
            num_examples: Number of examples in the batch.

        Raises:
            DefinitionError: The result is not a tensor, or has no value per example to be weighted.
        """
        with _Watch() as watch:
            loss = compute()
        if not isinstance(loss, torch.Tensor):
            raise DefinitionError(
                f"{self._definition.where('loss')}: the loss is a {type(loss).__name__}; expected "
                "a tensor: the batch's mean, or one value per example."
            )
        call = next((c for c in watch.calls if c.result is loss), None)
        of_examples = float(num_examples)
        if weights is not None:
            values = self._values(loss, call, num_examples)
            return BatchLoss(
                (values.float() * self._spread(weights, values)).mean(), of_examples, is_known=True
            )
        value = loss.float().mean()
        precision = max(1e-3, 4 * torch.finfo(loss.dtype).eps) if loss.is_floating_point() else 0.0
        if call is not None and call.function in _DIVIDE_BY_TARGETS:
            divisor = _targets_that_count(call)
            return BatchLoss(value, divisor, is_known=True, precision=precision)
        if call is not None:
            return BatchLoss(value, _rows_averaged(call), is_known=True, precision=precision)
        odd = [c for c in watch.calls if _divides_oddly(c)]
        return BatchLoss(
            value,
            of_examples,
            is_known=bool(loss.ndim and len(loss) == num_examples),
            precision=precision,
            unsplittable=f"{odd[0].function.__name__}() in it" if odd else "",
        )

    def check_splits(
        self, num_examples: int, whole: BatchLoss, part: Callable[[slice], BatchLoss]
    ) -> None:
        """Check that the loss of a batch is the mean of its parts' losses, weighted by divisor.

        If the loss is certain to be a mean (`BatchLoss.is_known`), only the first batches are
        checked: a loss that depends on which examples share a batch does so in every batch. Any
        other loss is checked in each batch, because it may divide by the size of a mask, which
        shows only in a batch where the mask leaves something out.

        Args:
            num_examples: Examples in the batch.
            whole: The loss of the batch.
            part: Function (slice) -> loss of these examples of the batch.

        Raises:
            DefinitionError: The loss is not that mean, or the loss of a part cannot be computed.
        """
        if whole.unsplittable:
            raise DefinitionError(
                f"{self._definition.where('loss')}: the loss has {whole.unsplittable}, which "
                "divides by the targets that are not ignored or by their class weights, and other "
                f"terms, so sums over workers cannot be divided correctly. {_ALONE} Or "
                "return one value per example (reduction='none')."
            )
        known = whole.is_known
        once = float(whole.value)
        if (known and self._num_checks >= _CHECKS_OF_A_KNOWN_LOSS) or num_examples == 1:
            return
        if not math.isfinite(once):
            return
        self._num_checks += 1
        # Two splits, because the weights of parts may by accident be proportional to their sizes.
        for first in {max(1, num_examples // 3), num_examples // 2}:
            self._check_split(first, num_examples, whole, part)

    def _check_split(
        self, first: int, num_examples: int, whole: BatchLoss, of: Callable[[slice], BatchLoss]
    ) -> None:
        parts = []
        for rows in (slice(0, first), slice(first, num_examples)):
            try:
                parts.append(of(rows))
            except Exception as error:
                raise DefinitionError(
                    f"{self._definition.where('loss')}: the loss of a batch of {num_examples} "
                    f"cannot be computed separately for its first {first} examples and for the "
                    f"rest: {type(error).__name__}: {error}. {_ALONE}"
                ) from error
        self.compare(first, num_examples, whole, parts)

    def compare(
        self, first: int, num_examples: int, whole: BatchLoss, of_parts: Sequence[BatchLoss]
    ) -> None:
        """Check that a batch's loss is the mean of two parts' losses, weighted by their divisors.

        Nothing is compared if the batch's loss is not finite, its divisor is unknown, or both
        divisors of the parts are 0.

        Args:
            first: Number of examples in the first part; the second part has the rest.
            num_examples: Number of examples in the batch.
            whole: The loss of the batch.
            of_parts: The losses of the two parts.

        Raises:
            DefinitionError: The batch's loss is not that mean.
        """
        once, precision = float(whole.value), whole.precision
        parts, divisors = [float(p.value) for p in of_parts], [float(p.divisor) for p in of_parts]
        if whole.unsplittable or not math.isfinite(once) or not sum(divisors):
            return
        sums = sum(value * by for value, by in zip(parts, divisors, strict=True) if by)
        if math.isclose(once, sums / sum(divisors), rel_tol=precision, abs_tol=1e-6):
            return
        what = (
            f"{self._definition.where('loss')}: the loss of a batch of {num_examples} is "
            f"{once:.6g}, and "
            f"that of its first {first} and last {num_examples - first} examples {parts[0]:.6g} "
            f"and {parts[1]:.6g}."
        )
        if math.isclose(once, sum(parts), rel_tol=precision, abs_tol=1e-6):
            raise DefinitionError(
                f"{what} It is a sum, possibly divided by a constant. Sums over workers need a "
                "loss that is a mean over the batch: divide the sum by the number of examples, "
                "len(labels). If the sum is the whole loss and has one term for each example, "
                "reduction='mean' instead of 'sum' does the same."
            )
        raise DefinitionError(
            f"{what} So it is not a mean over examples: it depends on which of them share a batch "
            "(negatives from within the batch), or it is divided by something other than their "
            f"number (a mask, weights). {_ALONE}"
        )

    def compare_replaced(self, num_examples: int, losses: Sequence[BatchLoss]) -> None:
        """Check that the loss is a mean over examples, without splitting the batch.

        In such a mean, replacing some examples has the same effect whatever the others are. Used
        for a model that draws random numbers: they would differ for a part of the batch.

        Args:
            num_examples: Number of examples in the batch.
            losses: Four losses: of the batch, and of the batch with its last examples replaced,
                with its first examples replaced, and with all of them replaced.

        Raises:
            DefinitionError: The effect depends on the others: the loss is not a mean over examples.
        """
        sums = [float(loss.value) * float(loss.divisor) for loss in losses]
        if not all(map(math.isfinite, sums)) or any(loss.unsplittable for loss in losses):
            return
        whole, one, other, neither = sums
        largest = max(map(abs, sums))
        precision = max(loss.precision for loss in losses)
        if math.isclose(whole + neither, one + other, abs_tol=precision * largest + 1e-6):
            return
        raise DefinitionError(
            f"{self._definition.where('loss')}: the loss of a batch of {num_examples} is "
            f"{float(losses[0].value):.6g}, and if some examples are replaced, its change depends "
            "on the other examples. So it is not a mean over examples: it depends on which of them "
            f"share a batch (negatives from within the batch). {_ALONE}"
        )

    def _values(self, loss: torch.Tensor, call: _Call | None, num_examples: int) -> torch.Tensor:
        """Return the loss values before their reduction to a mean, to apply sample weights to them.

        Args:
            loss: The loss that the user's code returned.
            call: The call of PyTorch's loss function that reduced it to a mean, if there was one.
            num_examples: Number of examples in the batch.

        Raises:
            DefinitionError: The loss is one number that cannot be split, or has other weights
                already.
        """
        origin = self._definition.where("loss")
        if loss.ndim and len(loss) == num_examples:
            return loss
        if call is None:
            raise DefinitionError(
                f"{origin}: the input function returns sample weights, but the loss is one number "
                "for the batch, which cannot be weighted. Return one value per example: "
                "reduction='none', or leave out .mean()."
            )
        if call.function in _DIVIDE_BY_TARGETS and _divides_oddly(call):
            raise DefinitionError(
                f"{origin}: the input function returns sample weights, and the loss has class "
                "weights or ignored targets of its own. Use one of them: put the class weights "
                "into the sample weights, or use a weight of 0 for ignored targets."
            )
        return call.function(**{**call.arguments, "reduction": "none"})

    def _spread(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Expand weights to the shape of the loss values.

        Raises:
            DefinitionError: The shapes do not fit.
        """
        of_each = spread(weights, values)
        if of_each is None:
            raise DefinitionError(
                f"{self._definition.where('input')}: the input function returns sample weights of "
                "shape "
                f"{list(weights.shape)}, and the loss has values of shape {list(values.shape)}. "
                "Return one weight per example, or one per value of the loss."
            )
        return of_each


def spread(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor | None:
    """Expand weights to the shape of the values: each applies to all values of its example.

    Returns:
        A view with the shape of `values`; None if the shapes do not fit.
    """
    while weights.ndim > values.ndim and weights.shape[-1] == 1:
        weights = weights[..., 0]
    if weights.ndim > values.ndim:
        return None
    weights = weights.reshape(*weights.shape, *[1] * (values.ndim - weights.ndim))
    fits = all(
        mine in (1, theirs) for mine, theirs in zip(weights.shape, values.shape, strict=True)
    )
    return weights.expand_as(values) if fits else None


def rows_of(
    tree: Any,
    rows: slice | Sequence[int],
    num_examples: int,
    has_rows: Sequence[bool] | None = None,
) -> Any:
    """Return the rows of some examples, from nested tensors of a batch such as its features.

    A tensor counts as having one row per example if its length is `num_examples`. Other tensors,
    such as one value for the whole batch, are returned unchanged.

    Args:
        tree: Nested tensors of the batch.
        rows: The examples whose rows are returned: a slice, or their positions.
        num_examples: Number of examples in the batch.
        has_rows: One flag for each tensor, in the order in which `map_tensors` visits them. False:
            it has no row per example, even if its length is `num_examples` by chance. None: decide
            by the length of each tensor alone.
    """
    at = rows if isinstance(rows, slice) else list(rows)
    known = iter(has_rows) if has_rows is not None else itertools.repeat(True)

    def of_examples(tensor: torch.Tensor) -> torch.Tensor:
        is_cut = next(known) and tensor.ndim and len(tensor) == num_examples
        return tensor[at] if is_cut else tensor

    return map_tensors(of_examples, tree)


def _versions(*trees: Any) -> list[int]:
    """Return PyTorch's version counter of each nested tensor, to detect in-place changes."""
    return [
        tensor._version  # noqa: SLF001 - autograd's own way to notice a change
        for tree in trees
        for tensor in (
            [tree] if isinstance(tree, torch.Tensor) else leaves(as_plain_containers(tree))
        )
        if isinstance(tensor, torch.Tensor)
    ]


def _divides_oddly(call: _Call) -> bool:
    """Return whether a cross entropy or NLL loss ignored targets or used class weights.

    If so, its mean was not divided by the number of its values. False for other losses.
    """
    if call.function not in _DIVIDE_BY_TARGETS or call.arguments["target"].is_floating_point():
        return False
    target, ignored = call.arguments["target"], call.arguments["ignore_index"]
    return call.arguments["weight"] is not None or bool((target == ignored).any())


def _rows_averaged(call: _Call) -> torch.Tensor | float:
    """Return the divisor of a PyTorch loss with reduction="mean", for all but the cross-entropies.

    It is the number of rows: of examples, unless each has several. For a loss that divides by the
    sum of weights, such as `mse_loss(..., weight=...)`, it is that sum.
    """
    given = call.arguments
    if (rows := _OF_ROWS.get(call.function)) is not None:
        return float(math.prod(given[rows].shape[:-1]))
    shapes = [given[name].shape for name in _VALUES if isinstance(given.get(name), torch.Tensor)]
    shape = np.broadcast_shapes(*shapes)
    weight = given.get("weight")
    if weight is not None and call.function in _DIVIDE_BY_WEIGHT:
        total: torch.Tensor = weight.expand(shape).float().sum()
        return total
    # Not the number of values: a matrix of similarities has more per row in a larger batch.
    return float(shape[0]) if shape else 1.0


def _targets_that_count(call: _Call) -> torch.Tensor | float:
    """Return the number by which PyTorch's cross entropy or NLL loss divided its sum.

    This is the number of targets that are not ignored, or the sum of their class weights; for
    targets that are probabilities, the number of targets.
    """
    target, weight = call.arguments["target"], call.arguments["weight"]
    if target.is_floating_point():
        # Probabilities: PyTorch divides by their number, weighted or not.
        scores = call.arguments["input"]
        return float(scores.numel() // scores.shape[1 if scores.ndim > 1 else 0])
    if weight is None and target.device.type == "cpu":
        # NumPy takes a third of the time, which matters in a small step.
        return float(np.count_nonzero(target.numpy() != call.arguments["ignore_index"]))
    counts: torch.Tensor = target != call.arguments["ignore_index"]
    of_each: torch.Tensor = counts if weight is None else weight.float()[target[counts]]
    return of_each.sum()

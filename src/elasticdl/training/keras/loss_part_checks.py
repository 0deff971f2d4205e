"""Checks that the loss of a batch follows from those of its parts, as sums over workers require.

A loss is a sum over examples, divided by a number, its divisor: usually the number of examples. The
first batch is cut into two unequal parts. The sum of their losses, each multiplied by its divisor,
must equal the batch's loss multiplied by the batch's divisor. Masks, sample weights and
outputs are synthetic in this trial: in a batch without padding, or with a model that returns the
same for all examples, every divisor would fit, and workers could choose different ones.

Callers: `trainer.py`, before the first gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.errors import DefinitionError, reason
from elasticdl.training.keras import reduction

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.definition import Origin
    from elasticdl.training.keras.reduction import Divisor


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """Examples and the model's outputs for them, as tensors.

    Attributes:
        features: Features of the examples.
        outputs: The model's outputs, with their masks.
        labels: Labels of the examples.
        weights: Sample weights, or None.
        num_examples: Number of examples; a tensor while a step is traced.
    """

    features: Any
    outputs: Any
    labels: Any
    weights: Any
    num_examples: Any

    def rows(self, rows: Any) -> ExampleBatch:
        """Return a batch of the examples with these indices."""

        def take(tensor: Any) -> Any:
            is_by_example = tensor.shape.rank and tensor.shape[0] == self.num_examples
            return tf.gather(tensor, rows) if is_by_example else tensor

        def take_output(output: Any) -> Any:
            mask = reduction.mask_of(output)
            return reduction.attach_mask(take(output), None if mask is None else take(mask))

        return ExampleBatch(
            map_arrays(take, self.features),
            map_arrays(take_output, self.outputs),
            map_arrays(take, self.labels),
            map_arrays(take, self.weights),
            len(rows),
        )

    def slice(self, start: tf.Tensor, stop: tf.Tensor) -> ExampleBatch:
        """Return the examples from `start` to before `stop`; works within a compiled step."""

        def take(tensor: Any) -> Any:
            return tensor[start:stop] if tensor.shape.rank else tensor

        def take_output(output: Any) -> Any:
            mask = reduction.mask_of(output)
            return reduction.attach_mask(take(output), None if mask is None else take(mask))

        return ExampleBatch(
            map_arrays(take, self.features),
            map_arrays(take_output, self.outputs),
            map_arrays(take, self.labels),
            map_arrays(take, self.weights),
            tf.cast(stop - start, tf.float32),
        )


def find_divisor(
    loss_of: Callable[[ExampleBatch], float],
    batch: ExampleBatch,
    origin: Origin,
    *,
    weights_in_labels: bool,
) -> Divisor | None:
    """Determine the divisor of a loss: the number by which it divides its sum over a batch.

    Args:
        loss_of: Function (examples) -> their loss.
        batch: The first batch for which gradients are computed.
        origin: Prefix for error messages.
        weights_in_labels: Whether the labels are pairs (labels, sample weights).

    Returns:
        The number of examples, the number of unmasked time steps, or the sum of the sample weights;
        None if the loss is not finite, so that this cannot be determined.

    Raises:
        DefinitionError: Whichever of these numbers is assumed, the loss of the batch does not
            follow from the losses of two parts.
    """
    rng = np.random.default_rng(0)
    for perturbed in (True, False):
        trial = _made_up(batch, rng, weights_in_labels, perturbed=perturbed)
        whole, parts = _cut(trial)
        loss = loss_of(whole)
        if math.isfinite(loss):
            break
    else:
        return None
    try:
        losses = [loss_of(part) for part in parts]
    except Exception as error:
        raise DefinitionError(
            f"{origin}: the loss of {whole.num_examples} examples is {loss:.6g}; for "
            f"{parts[0].num_examples} of them alone it cannot be computed ({reason(error)}). "
            f"{_COUPLED}"
        ) from error
    given = whole.labels[1] if weights_in_labels else whole.weights
    for kind in reduction.candidates(whole.outputs, given):
        divisors = [
            float(
                reduction.divisor(
                    kind,
                    part.outputs,
                    part.labels[1] if weights_in_labels else part.weights,
                    float(part.num_examples),
                )
            )
            for part in parts
        ]
        if _close(loss, _averaged(losses, divisors), whole.outputs):
            return kind
    raise DefinitionError(f"{origin}: the {_not_a_mean('loss', loss, losses, parts)}")


def run_difference(
    loss: float, losses: Sequence[float], divisors: Sequence[float], sizes: tuple[int, int]
) -> str | None:
    """Describe how a batch's loss differs from the average of two parts that the model was run on.

    Args:
        loss: Loss of the batch.
        losses: Losses of its parts.
        divisors: For each of these losses, the number that the sum over the part was divided by.
        sizes: Number of examples in the parts.

    Returns:
        Text of an error; None if the loss follows from those of the parts, or is not finite.
    """
    averaged = _averaged(list(losses), list(divisors))
    if not math.isfinite(loss) or math.isclose(loss, averaged, rel_tol=2e-3, abs_tol=1e-5):
        return None
    return (
        f"the loss of {sum(sizes)} examples is {loss:.6g}; for {sizes[0]} and {sizes[1]} of them, "
        f"with the model run for each, it is {losses[0]:.6g} and {losses[1]:.6g}. {_COUPLED}"
    )


def averaged_parts(
    loss_of: Callable[[ExampleBatch], Any],
    batch: ExampleBatch,
    kind: Divisor,
    *,
    weights_in_labels: bool,
) -> tf.Tensor:
    """Return the average of the losses of a batch's first third and of the rest.

    Each loss is weighted by the number that its sum was divided by. Runs within a compiled step.

    Args:
        loss_of: Function (examples) -> their loss, a float32 scalar.
        batch: All examples, with `num_examples` as a tensor.
        kind: Kind of the number by which a loss divides its sum over examples.
        weights_in_labels: Whether the labels are pairs (labels, sample weights).
    """
    size = tf.cast(batch.num_examples, tf.int32)
    first = tf.maximum(1, size // 3)
    losses, divisors = [], []
    # For a batch of one example, both parts are that example.
    for start, stop in ((tf.constant(0), first), (tf.minimum(first, size - 1), size)):
        part = batch.slice(start, stop)
        given = part.labels[1] if weights_in_labels else part.weights
        divisors.append(reduction.divisor(kind, part.outputs, given, part.num_examples))
        losses.append(loss_of(part))
    total = tf.add_n([loss * by for loss, by in zip(losses, divisors, strict=True)])
    return tf.math.divide_no_nan(total, tf.add_n(divisors))


def check_parts(loss: float, averaged: float, num_examples: int, origin: Origin) -> None:
    """Check that a batch's loss is the average of those of its parts, as sums over workers require.

    Args:
        loss: Loss of the batch.
        averaged: Result of `averaged_parts`.
        num_examples: Number of examples in the batch.
        origin: Prefix of the error.

    Raises:
        DefinitionError: They differ.
    """
    if math.isfinite(loss) and not math.isclose(loss, averaged, rel_tol=2e-3, abs_tol=1e-5):
        raise DefinitionError(
            f"{origin}: the loss of a batch of {num_examples} examples is {loss:.6g}, but the "
            f"average of its first third and the rest is {averaged:.6g}. {_COUPLED}"
        )


def check_ignores_nothing(losses: Sequence[Any], origin: Origin) -> None:
    """Reject Keras losses that ignore some labels and divide by the number of the others.

    Raises:
        DefinitionError: There is such a loss. The number that it divides by differs between
            minibatches, so that their gradients cannot be added up.
    """
    for loss in losses:
        if (ignored := getattr(loss, "ignore_class", None)) is not None:
            raise DefinitionError(
                f"{origin}: {type(loss).__name__} has ignore_class={ignored}, so it is divided by "
                "the number of labels that are not ignored. It can be trained in one process, "
                "without --global_batch_size. On workers, return sample weights of 0 for these "
                "labels instead; the loss is then divided by all examples."
            )


def check_averages(losses: Sequence[Any], origin: Origin) -> None:
    """Reject Keras losses with `reduction=None`, which do not average over a batch's examples.

    Raises:
        DefinitionError: There is such a loss: `fit` reports the mean of its values but follows the
            gradient of their sum.
    """
    for loss in losses:
        if getattr(loss, "reduction", "") in (None, "none"):
            raise DefinitionError(
                f"{origin}: {type(loss).__name__} has reduction=None. `fit` would report the mean "
                "over the examples of a batch, and follow the gradient of their sum. Leave out "
                'reduction for the mean, or take reduction="sum".'
            )


def check_added(
    added: Callable[[ExampleBatch, int], tuple[Any, float]],
    batch: ExampleBatch,
    kind: Divisor,
    origin: Origin,
    *,
    in_training: bool,
    differs_in_parts: bool,
) -> str | None:
    """Check that losses added by layers are means over the batch.

    Args:
        added: Function (examples, seed) -> outputs of the model, and the sum of the losses added by
            layers.
        batch: The first batch for which gradients are computed.
        kind: Kind of the number by which the batch's loss is divided.
        origin: Prefix for error messages.
        in_training: Whether `added` runs the model as in training.
        differs_in_parts: Whether the model has BatchNormalization. In training its outputs depend
            on the other examples, so losses of parts may differ for that reason alone.

    Returns:
        The reason why the check was inconclusive; None if it was conclusive.

    Raises:
        DefinitionError: An added loss is not a mean.
    """
    whole, parts = _cut(batch)
    _, loss = added(whole, 0)
    losses, divisors = [], []
    for part in parts:
        outputs, of_part = added(part, 0)
        losses.append(of_part)
        seen = replace(part, outputs=outputs)
        size = float(part.num_examples)
        divisors.append(float(reduction.divisor(kind, seen.outputs, part.weights, size)))
    average = _averaged(losses, divisors)
    if not math.isfinite(loss) or _close(loss, average, whole.outputs):
        return None
    # Two draws of a small dropout rate may give nearly the same loss.
    if not all(_close(loss, added(whole, n)[1], whole.outputs) for n in range(1, _NUM_DRAWS)):
        why = "it is random"
    elif in_training and differs_in_parts:
        why = "it is added in training only, where BatchNorm uses the whole batch"
    else:
        why = None
    is_sum = math.isclose(loss, sum(losses), rel_tol=_SUM_RTOL if in_training else 1e-4)
    if why is not None and not (is_sum and abs(loss - average) > _SUM_RTOL * abs(loss)):
        return why
    raise DefinitionError(
        f"{origin}: the {_not_a_mean('loss that layers add', loss, losses, parts)} (add_loss() and "
        "activity_regularizer are summed by Keras without averaging: divide by the number of "
        "examples.)"
    )


# Runs with different seeds that must agree before a result counts as not random.
_NUM_DRAWS = 8
# The sum of the losses of two parts, 1/3 and 2/3 of a batch, is 1.8 times their average.
_SUM_RTOL = 0.2

_COUPLED = (
    "So the loss of an example depends on the others of its batch, as with in-batch negatives, or "
    "with class weights that are divided by their sum. It can be trained in one process, without "
    "--global_batch_size; gradients of several workers, parties or minibatches do not add up to "
    "its gradient: they need a loss that is a mean over the batch."
)


def _not_a_mean(what: str, loss: float, losses: list[float], parts: list[ExampleBatch]) -> str:
    message = (
        f"{what} of {sum(part.num_examples for part in parts)} examples is {loss:.6g}; for "
        f"{parts[0].num_examples} and {parts[1].num_examples} of them it is {losses[0]:.6g} and "
        f"{losses[1]:.6g}."
    )
    if _close(loss, sum(losses), parts[0].outputs):
        return (
            f"{message} It is a sum. Gradients that are added up over workers need a loss that is "
            "a mean over the batch: use tf.reduce_mean instead of tf.reduce_sum."
        )
    return f"{message} {_COUPLED}"


def _averaged(losses: list[float], divisors: list[float]) -> float:
    return float(np.dot(losses, divisors)) / (sum(divisors) or 1.0)


def _close(one: float, other: float, outputs: Any) -> bool:
    """Return whether two losses differ by rounding only.

    Args:
        one: A loss.
        other: The other loss.
        outputs: The model's outputs, whose dtypes determine how much rounding is possible.
    """
    halved = any(output.dtype.size < np.dtype(np.float32).itemsize for output in leaves(outputs))
    return math.isclose(one, other, rel_tol=2e-3 if halved else 1e-4, abs_tol=1e-6)


def _cut(batch: ExampleBatch) -> tuple[ExampleBatch, list[ExampleBatch]]:
    """Order the examples by label; return all of them, and two parts: a third and the rest.

    A batch of one example yields that example twice, and once as each part.
    """
    if batch.num_examples == 1:
        # One example has no parts; but if it is repeated, a sum is still twice as large.
        once = np.array([0])
        return batch.rows(np.array([0, 0])), [batch.rows(once), batch.rows(once)]
    first, rest = _parts(batch)
    whole = batch.rows(np.concatenate([first, rest]))
    return whole, [batch.rows(first), batch.rows(rest)]


def _parts(batch: ExampleBatch) -> tuple[Any, Any]:
    order = _order(batch)
    first = max(1, len(order) // 3)
    return order[:first], order[first:]


def _order(batch: ExampleBatch) -> Any:
    """Return the examples' indices sorted by label, so that the two parts differ most."""
    for labels in leaves(batch.labels):
        if labels.shape.rank and (labels.dtype.is_floating or labels.dtype.is_integer):
            flat = np.asarray(labels, np.float64).reshape(batch.num_examples, -1)
            return np.argsort(flat @ np.arange(1.0, flat.shape[1] + 1), kind="stable")
    return np.arange(batch.num_examples)


def _made_up(
    batch: ExampleBatch, rng: Any, weights_in_labels: bool, *, perturbed: bool
) -> ExampleBatch:
    """Replace a batch's masks and sample weights, if it has any, by synthetic ones.

    They differ between the two parts of a batch; otherwise a wrong divisor could pass for the right
    one.

    Args:
        batch: The batch.
        rng: Random generator of NumPy.
        weights_in_labels: Whether the labels are pairs (labels, sample weights).
        perturbed: Whether to change the values of the outputs as well, besides their masks.
    """
    in_first_part = np.isin(np.arange(batch.num_examples), _parts(batch)[0])

    def level(first: float, rest: float, shape: Any) -> Any:
        levels = np.where(in_first_part, first, rest)
        return levels.reshape(-1, *[1] * (len(shape) - 1))

    def is_by_example(tensor: Any) -> bool:
        return bool(tensor.shape.rank) and tensor.shape[0] == batch.num_examples

    def output(tensor: Any) -> Any:
        mask, made = reduction.mask_of(tensor), tf.identity(tensor)
        if perturbed and tensor.dtype.is_floating and is_by_example(tensor):
            # Probabilities stay between 0 and 1.
            factor = level(0.2, 0.9, tensor.shape) - 0.1 * rng.random(tensor.shape)
            shift = 0.05 * rng.random(tensor.shape)
            made = tensor * tf.cast(factor, tensor.dtype) + tf.cast(shift, tensor.dtype)
        if mask is not None:
            chosen = rng.random(mask.shape) < level(0.3, 0.9, mask.shape)
            chosen[:, :1] = True
            mask = tf.constant(chosen)
        return reduction.attach_mask(made, mask)

    def weight(tensor: Any) -> Any:
        made = level(0.5, 2.0, tensor.shape) + rng.random(tensor.shape)
        return tf.constant(made, tensor.dtype)

    labels = batch.labels
    if weights_in_labels:
        labels = (labels[0], map_arrays(weight, labels[1]))
    return replace(
        batch,
        outputs=map_arrays(output, batch.outputs),
        labels=labels,
        weights=map_arrays(weight, batch.weights),
    )

"""Reduces the losses of examples, or of time steps, to the loss of a batch, as Keras does.

    no mask    sum(weight * loss) / number of values
    a mask     sum(weight * loss where the mask is true) / number of values where it is true

A mask travels with a tensor, in an attribute that Keras sets (`_keras_mask`).
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from elasticdl.data.batch import Arrays, leaves, map_arrays
from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.definition import Origin


class Divisor(StrEnum):
    """Kinds of the number by which the summed loss of a batch is divided.

    Attributes:
        EXAMPLES: The number of examples.
        STEPS: The number of places where the mask is true, such as time steps.
        WEIGHTS: The sum of the sample weights (where the mask is true, if there is one).
    """

    EXAMPLES = "examples"
    STEPS = "steps"
    WEIGHTS = "weights"


def mask_of(tensor: Any) -> Any | None:
    """Return the mask that Keras has attached to a tensor; None if there is none."""
    return getattr(tensor, "_keras_mask", None)


def masks_of(outputs: Any) -> list[Any | None]:
    """Return the mask of each output, depth first."""
    return [mask_of(output) for output in leaves(outputs)]


def with_masks(outputs: Any, masks: list[Any | None]) -> Any:
    """Copy outputs and attach masks to the copies.

    Args:
        outputs: Tensors in any nesting.
        masks: One mask or None for each tensor, depth first.
    """
    following = iter(masks)
    return map_arrays(lambda output: attach_mask(tf.identity(output), next(following)), outputs)


def attach_mask(tensor: Any, mask: Any | None) -> Any:
    """Attach the mask to the tensor and return it."""
    if mask is not None:
        tensor._keras_mask = mask  # noqa: SLF001 - Keras has no public name
    return tensor


def batch_loss(values: Any, mask: Any | None, weights: Any | None, origin: Origin) -> Any:
    """Return a batch's loss from the values that the user's function returned.

    Args:
        values: float32: a mean over the batch, or one value per example or time step.
        mask: The mask of the model's output.
        weights: float32, the weight of each example.
        origin: Prefix of the error.

    Raises:
        DefinitionError: There are weights, and they cannot be applied to the values.
    """
    if values.shape.rank == 0:
        if weights is not None:
            raise DefinitionError(
                f"{origin}: the input function returns sample weights, but the loss function "
                "returns one number for the whole batch, to which they cannot be applied. Return "
                "one loss per example, without reduce_mean; or use a loss of keras.losses."
            )
        return values
    if mask is None and weights is None:
        return tf.reduce_mean(values)
    if (
        weights is not None
        and weights.shape.rank == 1 < values.shape.rank
        and values.shape[-1] != 1
    ):
        raise DefinitionError(
            f"{origin}: the loss function returns values of shape {list(values.shape)}, and the "
            f"sample weights have the shape {list(weights.shape)}. Expected one weight for each "
            "value, or weights of shape [examples, 1] that apply to all steps of an example."
        )
    return _Values(name="values", dtype="float32")(
        values, attach_mask(tf.identity(values), mask), sample_weight=weights
    )


def divisor(kind: Divisor, outputs: Any, weights: Any, num_examples: Any) -> Any:
    """Return the number by which the summed loss of a batch was divided: float32.

    Args:
        kind: Kind of the number.
        outputs: The model's outputs, with their masks.
        weights: Sample weights, or None.
        num_examples: Number of examples in the batch.
    """
    if kind is Divisor.EXAMPLES:
        return num_examples
    mask = first_mask(outputs)
    if kind is Divisor.STEPS:
        return tf.reduce_sum(tf.cast(mask, tf.float32))
    counted = tf.cast(leaves(weights)[0], tf.float32)
    if mask is not None:
        if mask.shape.rank > counted.shape.rank:
            counted = counted[..., tf.newaxis]
        counted = counted * tf.cast(mask, tf.float32)
    return tf.reduce_sum(counted)


def first_mask(outputs: Any) -> Any | None:
    """Return the mask of the first output that has one; None if no output has."""
    return next((mask for mask in masks_of(outputs) if mask is not None), None)


def candidates(outputs: Any, weights: Arrays) -> list[Divisor]:
    """Return the kinds of number that a batch's loss may be divided by, the most likely one first.

    Args:
        outputs: The model's outputs, with their masks.
        weights: Sample weights, or None.
    """
    found = [Divisor.EXAMPLES]
    if first_mask(outputs) is not None:
        found.insert(0, Divisor.STEPS)
    if len(leaves(weights)) == 1:
        found.append(Divisor.WEIGHTS)
    return found


class _Values(keras.losses.Loss):
    """A Keras loss that returns the predictions it gets as its values.

    It is called with values of a user's loss in place of predictions, so that Keras' own code
    reduces them to the loss of a batch.
    """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        del y_true
        return y_pred

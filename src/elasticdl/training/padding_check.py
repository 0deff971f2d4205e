"""Warns if padding to the longest record of a minibatch changes the loss.

An input function may pad its arrays to the longest of its records. If they are labels, one per
time step, a loss that divides by all values, padding included, has another divisor for each padded
length. If they are features, a model that does not mask padding has other outputs. The result of an
update then depends on how its examples are divided into minibatches, because each minibatch is
padded to its own longest record. Whether that is so depends on the model and the loss, so the loss
of a batch is compared with those of two parts of it, each padded by the input function.

Used by the trainers, where gradients are summed.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, leaves
from elasticdl.data.padding import PaddedParts, lengths_of, padded_parts

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_log = logging.getLogger("elasticdl")

# Comparisons, each of which takes several forward passes, and how many of them have equal lengths:
# whether padding changes a maximum depends on the values.
_MAX_COMPARISONS = 8
_MAX_OF_EQUAL_LENGTHS = 3
# Relative difference of losses that rounding in float32 explains, if the outputs are different.
_ROUNDING_OF_LOSS = 1e-6
_MASK = "mask the padding in the model, so that it has no effect on the outputs"
_OWN_MEAN = (
    "use a loss that returns one value per example, the mean over its own labels, or divides by "
    "the number of labels that are not padding"
)


@dataclass(frozen=True)
class MeasuredLoss:
    """The loss of a batch, computed without training (no dropout), and the model's outputs.

    Attributes:
        value: The loss.
        divisor: The number by which the sum over examples was divided to give `value`.
        lengths: Shape of each output of the model, without the axis of the examples. If it differs
            between padded lengths, the model has outputs for each time step.
        precision: Relative difference between two losses that rounding alone can cause.
        is_random: Whether another seed gives another loss.
        outputs: Outputs with one row per example, as float64 or complex128.
        output_precision: Difference between two outputs that rounding alone can cause, as a
            fraction of the largest output.
    """

    value: float
    divisor: float
    lengths: Sequence[tuple[int, ...]]
    precision: float
    is_random: bool = False
    outputs: Sequence[np.ndarray[Any, Any]] = ()
    output_precision: float = 1e-3


class PaddingCheck:
    """Compares the loss of some batches with that of their parts, and warns if padding changes it.

    Each part is padded again by the user's input function, to its own longest record.

    Args:
        origin: Prefix of the warning.
        advice: How to leave padding out of a loss of this framework. Completes the warning, such as
            "with PyTorch, the ignore_index of cross_entropy()".
    """

    def __init__(self, origin: Origin, advice: str) -> None:
        self._origin, self._advice = origin, advice
        self._num_comparisons, self._is_done = 0, False
        self._largest = 0
        self._seen: Counter[tuple[tuple[int, ...], ...]] = Counter()
        self._before: Batch | None = None

    def check(
        self, batch: Batch, update_size: int, measure: Callable[[Batch], MeasuredLoss]
    ) -> None:
        """Warn, once, if the loss of a minibatch depends on the length to which it is padded.

        Only a few minibatches are compared, and none unless updates consist of several: then the
        result of an update depends on how its examples are divided into minibatches.

        Args:
            batch: The next minibatch.
            update_size: Number of examples of the largest update so far. If it is larger than all
                minibatches, updates consist of several.
            measure: Function that computes the loss of some examples.
        """
        self._largest = max(self._largest, batch.num_examples)
        before, self._before = self._before, batch
        if self._is_done or batch.remake is None or update_size <= self._largest:
            return
        lengths = tuple(lengths_of(batch))
        if self._seen[lengths] >= _MAX_OF_EQUAL_LENGTHS and batch.num_examples > 1:
            return
        found = padded_parts(batch, before)
        if found is None:
            return
        self._seen[lengths] += 1
        self._num_comparisons += 1
        self._is_done = self._num_comparisons >= _MAX_COMPARISONS
        try:
            whole, *parts = (measure(each) for each in (found.whole, *found.parts))
        except Exception:  # noqa: BLE001 - if a real minibatch has it too, it is reported
            return
        of_steps = found.of_labels or any(part.lengths != whole.lengths for part in parts)
        # A random loss of models that mask padding would be a false alarm.
        if of_steps or not whole.is_random:
            self._compare(found, whole, parts, of_steps=of_steps)

    def _compare(
        self,
        found: PaddedParts,
        whole: MeasuredLoss,
        parts: Sequence[MeasuredLoss],
        *,
        of_steps: bool,
    ) -> None:
        total = sum(part.divisor for part in parts)
        if not math.isfinite(whole.value) or not total:
            return
        combined = sum(part.value * part.divisor for part in parts if part.divisor) / total
        if whole.is_random:
            what = "The loss is random, so it cannot be determined whether it counts padding."
            verb = "may change"
        else:
            # Large labels hide changed outputs: their loss changes less, but not its gradients.
            change = 0.0 if of_steps else _change_of_outputs(whole, parts)
            tolerance = _ROUNDING_OF_LOSS if change else whole.precision
            if math.isclose(whole.value, combined, rel_tol=tolerance, abs_tol=1e-6):
                return
            what = (
                f"The loss of all is {whole.value:.6g}; the losses of the parts combine to "
                f"{combined:.6g}."
            )
            if change:
                what += f" Outputs for the same examples differ by up to {change:.3g}."
            verb = "changes"
        self._is_done = True
        kind = "labels" if found.of_labels else "features"
        way_out = _MASK
        if of_steps:
            way_out = f"{_OWN_MEAN}: {self._advice}"
        shapes = [_shape_of(getattr(each, kind)) for each in (found.whole, *found.parts)]
        sizes = [part.num_examples for part in found.parts]
        _log.warning(
            "%s: padding %s the loss. The input function made %s of shape %s from %d records, %s "
            "from the first %d of them and %s from the last %d. %s Each minibatch of an update is "
            "padded to its own longest record, so the numbers differ from those of one process "
            "that computes the whole update as one batch. Pad to a fixed length; or %s.",
            self._origin,
            verb,
            kind,
            shapes[0],
            sum(sizes),
            shapes[1],
            sizes[0],
            shapes[2],
            sizes[1],
            what,
            way_out,
        )


def _change_of_outputs(whole: MeasuredLoss, parts: Sequence[MeasuredLoss]) -> float:
    """Return the largest difference between an output for the whole batch and for its parts.

    It is an absolute difference, between outputs for the same example. The result is 0 if rounding
    explains all differences.
    """
    largest = 0.0
    for output, *pieces in zip(whole.outputs, *(part.outputs for part in parts), strict=False):
        if any(piece.shape[1:] != output.shape[1:] for piece in pieces):
            continue
        joined = np.concatenate(pieces)
        if joined.shape != output.shape:
            continue
        is_finite = np.isfinite(output) & np.isfinite(joined)
        changes = np.abs(output[is_finite] - joined[is_finite])
        scale = np.abs(output[is_finite]).max(initial=0.0)
        if changes.max(initial=0.0) > whole.output_precision * scale + 1e-6:
            largest = max(largest, float(changes.max()))
    return largest


def _shape_of(arrays: Any) -> str:
    return " and ".join(str(list(array.shape)) for array in leaves(arrays))

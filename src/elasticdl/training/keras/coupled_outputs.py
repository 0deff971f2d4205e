"""Detects models whose output for an example depends on the other examples of its batch.

Workers that sum gradients need a model that processes each example independently: a layer that
compares the examples of a batch (a minibatch standard deviation, attention across the batch) sees
different batches on two workers than in one process. The first batch is run through the model in
inference mode, whole and in two parts, and the outputs are compared.

BatchNormalization is exempt. In inference mode it does not use batch statistics, and its behaviour
in training is a documented difference, even if a layer fixes it to `training=True`.

Callers: `trainer.py`, before the first gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elasticdl.data.batch import leaves
from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import keras

    from elasticdl.definition import Origin
    from elasticdl.training.keras.splitting import Trial

# The order of summation in kernels depends on the batch size; deep models amplify the difference.
_RTOL = 1e-3
_HALF_PRECISION = {"float16", "bfloat16"}
_HALF_PRECISION_RTOL = 0.02


def check(
    forward: Callable[[Trial, int], Any],
    batch: Trial,
    origin: Origin,
    *,
    rtol: float,
    normalizes_by_batch: Callable[[Trial], bool],
) -> None:
    """Check that the outputs for a batch equal the outputs for its parts.

    Args:
        forward: Returns the model's outputs in inference mode; its other argument determines its
            random numbers.
        batch: The first batch for which gradients are computed.
        origin: Prefix of error messages.
        rtol: Differences up to this share of the largest output are rounding; see `rounding_of`.
        normalizes_by_batch: Whether the batch moves statistics of a BatchNormalization in
            inference mode, so that its outputs are known to depend on the batch.

    Raises:
        DefinitionError: They differ, and neither randomness nor BatchNormalization explains it.
    """
    size = batch.num_examples
    if size == 1:
        return
    first = max(1, size // 3)
    whole = _numbers(forward(batch, 0))
    try:
        ones = _numbers(forward(batch.rows(np.arange(first)), 0))
        others = _numbers(forward(batch.rows(np.arange(first, size)), 0))
    except Exception:  # noqa: BLE001 - the first batch of this size reports it as the user's error
        return
    joined = [
        _joined(*outputs, num_examples=size) for outputs in zip(whole, ones, others, strict=True)
    ]
    if all(_is_near(one, other, rtol) for one, other in zip(whole, joined, strict=True)):
        return
    again = _numbers(forward(batch, 1))
    is_random = not all(_is_near(one, other, 0.0) for one, other in zip(whole, again, strict=True))
    if is_random or normalizes_by_batch(batch):
        return
    raise DefinitionError(
        f"{origin}: the model's outputs for an example depend on the other examples of its batch: "
        f"the outputs for a batch of {size} differ from those for its first {first} and last "
        f"{size - first} examples. Workers, parties and minibatches of a global batch would each "
        "compare only the examples of their own batch. The model trains in one process without "
        "--global_batch_size."
    )


def rounding_of(model: keras.Model) -> float:
    """Return the relative difference that rounding alone can cause in a model's outputs."""
    # A layer of a loaded SavedModel does not state its compute dtype.
    is_known = not hasattr(model, "inner")
    types = {
        getattr(layer, "compute_dtype", None)
        for layer in model._flatten_layers()  # noqa: SLF001 - Keras has no public name
    }
    return _RTOL if is_known and types.isdisjoint(_HALF_PRECISION) else _HALF_PRECISION_RTOL


def _numbers(outputs: Any) -> list[np.ndarray[Any, Any]]:
    """Return the floating-point outputs; discrete outputs may flip by rounding alone."""
    return [
        np.asarray(tf.cast(output, tf.complex128 if output.dtype.is_complex else tf.float64))
        for output in leaves(outputs)
        if isinstance(output, tf.Tensor) and (output.dtype.is_floating or output.dtype.is_complex)
    ]


def _joined(
    whole: np.ndarray[Any, Any],
    one: np.ndarray[Any, Any],
    other: np.ndarray[Any, Any],
    *,
    num_examples: int,
) -> np.ndarray[Any, Any] | None:
    """Combine the outputs for two parts into the whole batch's; None if the shapes do not match."""
    if whole.ndim and len(whole) == num_examples:
        return np.concatenate([one, other]) if one.shape[1:] == other.shape[1:] else None
    if one.shape != other.shape:
        return None
    # One value per batch: a mean over its examples, or a value that does not depend on them.
    first = max(1, num_examples // 3)
    return np.asarray((one * first + other * (num_examples - first)) / num_examples)


def _is_near(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any] | None, rtol: float) -> bool:
    if other is None or one.shape != other.shape:
        return False
    finite = np.abs(one[np.isfinite(one)])
    largest = float(finite.max()) if finite.size else 0.0
    return np.allclose(one, other, rtol=0.0, atol=rtol * largest + 1e-6, equal_nan=True)

"""Detects models and losses for which an example depends on the other examples of its batch.

Workers that sum gradients need each example to be processed independently: a layer that compares
the examples of a batch (a minibatch standard deviation, attention across the batch) sees different
batches on two workers than in one process. The first batches are run through the model, whole and
in two parts, and outputs and losses are compared. The model runs as in training, because some
models mix examples in training only, but without dropout and with BatchNormalization as in
inference. There are two special cases, in which the model is compared in inference mode as well:

* Its outputs are still random. Random numbers for a part alone would differ from those for the
  batch. Instead of a part alone, the model therefore gets a whole batch in which the other examples
  are replaced: it draws the same numbers, and the outputs for the part must not change.
* It changes a statistic, so it may contain a custom normalization: each worker would normalize over
  its own batch, as BatchNormalization does. Differences in training then only cause a warning.

A limit over the batch, such as the capacity of an expert, may be reached by a whole update but by
no worker's batch. So copies of one example are run as well, as many as an update has: they crowd
the same experts, and all copies must have the same outputs.

The loss is computed right after each run, because it may read what the model left in an attribute.

BatchNormalization is exempt. In inference mode it does not use batch statistics, and its behaviour
in training is a documented difference, even if a layer fixes it to `training=True`.

Callers: `split_checks.py`, before the first gradients and some later ones.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.errors import DefinitionError
from elasticdl.training.keras import loss_part_checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elasticdl.definition import Origin
    from elasticdl.training.keras.loss_part_checks import ExampleBatch

# The order of summation in kernels depends on the batch size; deep models amplify the difference.
_RTOL = 1e-3
_HALF_PRECISION = {"float16", "bfloat16"}
_HALF_PRECISION_RTOL = 0.02
# Batches of copies: of how many examples, and how many times as large as a batch at most.
_CROWDED_EXAMPLES = 3
_MAX_CROWDING = 4
# Attributes that set the amount of randomness of a layer in training; 0 switches it off.
_RATES = ("rate", "stddev")
_ALONE = (
    "Workers, parties and minibatches of a global batch would each compare only the examples of "
    "their own batch. Such a model can only be trained in a single process and without "
    "--global_batch_size."
)


@dataclass(frozen=True, eq=False)
class ModelRunner:
    """Functions that run a model on some examples.

    Attributes:
        forward: Function (examples, seed for random numbers, whether to run as in training) ->
            outputs.
        loss_of: Function (examples whose outputs are known) -> their loss.
        divisor_of: Function (the same examples) -> number that their loss was divided by.
        normalizes_by_batch: Function (examples) -> whether running them in inference mode changes
            statistics of a BatchNormalization. Their outputs then depend on the batch.
        moves_statistics: Function (examples) -> whether running them in training mode changes a
            statistic.
    """

    forward: Callable[[ExampleBatch, int, bool], Any]
    loss_of: Callable[[ExampleBatch], float]
    divisor_of: Callable[[ExampleBatch], float]
    normalizes_by_batch: Callable[[ExampleBatch], bool]
    moves_statistics: Callable[[ExampleBatch], bool]


def check(
    runner: ModelRunner,
    batch: ExampleBatch,
    model: keras.Model,
    origin: Origin,
    of_loss: Origin,
    *,
    is_early: bool,
) -> bool:
    """Check that the outputs and the loss of a batch can be computed from its parts.

    Args:
        runner: How the model is run.
        batch: One of the first batches for which gradients are computed.
        model: The model.
        origin: Prefix for error messages.
        of_loss: Prefix for error messages about the loss.
        is_early: Whether to find out by one more call whether the outputs are random, even if they
            agree. All parts get the same random numbers, which may hide a difference.

    Returns:
        False if the results agree or cannot be compared. True if the outputs differ in training
        only, and a call in training changes a statistic: then a normalization that the user wrote
        may be the reason, and the caller should warn.

    Raises:
        DefinitionError: They differ, and neither randomness nor a normalization explains it.
    """
    if batch.num_examples == 1:
        return False
    with _quiet(model):
        found = _compare(
            runner, batch, model, origin, of_loss, training=True, seeks_randomness=is_early
        )
    if found is not _Found.EQUAL:
        _compare(runner, batch, model, origin, of_loss, training=False)
    return found is _Found.LIKE_A_NORMALIZATION


def check_crowded(
    runner: ModelRunner,
    batch: ExampleBatch,
    num_examples: int,
    model: keras.Model,
    origin: Origin,
) -> None:
    """Check that all copies of one example, in a batch as large as an update, have equal outputs.

    They differ if the model has a limit over the batch, such as the capacity of an expert.

    Args:
        runner: How the model is run.
        batch: A worker's batch; examples are taken from it.
        num_examples: Number of examples of an update.
        model: The model.
        origin: Prefix for error messages.

    Raises:
        DefinitionError: They differ, and randomness does not explain it.
    """
    size = min(num_examples, _MAX_CROWDING * batch.num_examples)
    if size <= batch.num_examples:
        return
    rtol = rounding_of(model)
    with _quiet(model):
        for row in np.linspace(0, batch.num_examples - 1, _CROWDED_EXAMPLES, dtype=np.int64):
            copies = batch.rows(np.full(size, row))
            # Where a model is random in training, it is compared in inference mode.
            if any(_copies_differ(runner, copies, rtol, training=mode) for mode in (True, False)):
                raise DefinitionError(
                    f"{origin}: the model's outputs for an example depend on the other examples "
                    f"of its batch: {size} copies of one example, as many as an update has, have "
                    "different outputs. A limit on the number of examples or tokens in a batch, "
                    f"such as the capacity of an expert, does this. {_ALONE}"
                )


def _copies_differ(
    runner: ModelRunner, copies: ExampleBatch, rtol: float, *, training: bool
) -> bool:
    """Return whether copies of an example have different outputs; False if outputs are random."""

    def run(step: int) -> list[np.ndarray[Any, Any]]:
        outputs = _numbers(runner.forward(copies, step, training))
        return [each for each in outputs if each.ndim and len(each) == copies.num_examples]

    try:
        outputs = run(0)
        if _are_near(outputs, [np.broadcast_to(each[:1], each.shape) for each in outputs], rtol):
            return False
        return _are_near(outputs, run(1), 0.0)
    except Exception:  # noqa: BLE001 - not every model accepts repeated examples, or as many
        return False


class _Found(Enum):
    """Result of comparing a batch with its parts.

    Attributes:
        EQUAL: The outputs and the loss agree, or differ only because of BatchNormalization.
        NOTHING: This comparison cannot decide; inference mode must be compared as well.
        LIKE_A_NORMALIZATION: The outputs differ in training, and a call in training changes a
            statistic, so the model may contain a normalization over the batch.
    """

    EQUAL = auto()
    NOTHING = auto()
    LIKE_A_NORMALIZATION = auto()


def _compare(
    runner: ModelRunner,
    batch: ExampleBatch,
    model: keras.Model,
    origin: Origin,
    of_loss: Origin,
    *,
    training: bool,
    seeks_randomness: bool = False,
) -> _Found:
    """Compare a batch's outputs and loss with those of two parts, in training or inference.

    Args:
        runner: How the model is run.
        batch: The batch.
        model: The model.
        origin: Prefix for error messages.
        of_loss: Prefix for error messages about the loss.
        training: Whether the model runs as in training.
        seeks_randomness: Whether random outputs that agree cannot be compared either.

    Returns:
        Whether they are equal, or differ as if by a normalization, or cannot be compared.

    Raises:
        DefinitionError: They differ, and neither randomness nor a normalization explains it.
    """
    size, rtol = batch.num_examples, rounding_of(model)
    first = max(1, size // 3)

    def run(part: ExampleBatch, step: int) -> tuple[list[np.ndarray[Any, Any]], float, float]:
        made = replace(part, outputs=runner.forward(part, step, training))
        return _numbers(made.outputs), runner.loss_of(made), runner.divisor_of(made)

    try:
        moves = training and runner.moves_statistics(batch)
        whole, loss, _ = run(batch, 0)
        one, *of_one = run(batch.rows(np.arange(first)), 0)
        other, *of_other = run(batch.rows(np.arange(first, size)), 0)
        joined = [
            _joined(*outputs, num_examples=size) for outputs in zip(whole, one, other, strict=True)
        ]
        is_near = _are_near(whole, joined, rtol)
        if is_near and moves:
            # In inference mode, the loss is compared as well.
            return _Found.NOTHING
        differs = loss_part_checks.run_difference(
            loss, [of_one[0], of_other[0]], [of_one[1], of_other[1]], (first, size - first)
        )
        is_equal = is_near and differs is None
        if is_equal and not seeks_randomness:
            return _Found.EQUAL
        again, loss_again, _ = run(batch, 1)
    except Exception:  # noqa: BLE001 - the first batch of this size reports it as the user's error
        return _Found.NOTHING
    if loss != loss_again or not _are_near(whole, again, 0.0):
        if not moves and _changes_if_replaced(lambda part: run(part, 0)[0], batch, whole, rtol):
            raise DefinitionError(
                f"{origin}: the model's outputs for an example depend on the other examples of its "
                f"batch: the outputs for a part of a batch of {size} change if the other examples "
                f"are replaced. {_ALONE}"
            )
        return _Found.NOTHING
    if is_equal or (not is_near and runner.normalizes_by_batch(batch)):
        return _Found.EQUAL
    if is_near:
        raise DefinitionError(f"{of_loss}: {differs}")
    if moves:
        return _Found.LIKE_A_NORMALIZATION
    raise DefinitionError(
        f"{origin}: the model's outputs for an example depend on the other examples of its "
        f"batch: the outputs for a batch of {size} differ from those for its first {first} and "
        f"last {size - first} examples. {_ALONE}"
    )


def _changes_if_replaced(
    outputs_of: Callable[[ExampleBatch], list[np.ndarray[Any, Any]]],
    batch: ExampleBatch,
    whole: list[np.ndarray[Any, Any]],
    rtol: float,
) -> bool:
    """Return whether the outputs for a part of a batch change if the other examples are replaced.

    The runs have the same shapes and the same seed, so a random model should draw the same numbers
    for the part. If a second run shows that it does not, or if the model rejects repeated examples,
    nothing can be said, and the result is False.

    Args:
        outputs_of: Function (examples) -> outputs of the model, computed with the same seed each
            time.
        batch: The batch.
        whole: The outputs for the batch.
        rtol: Relative difference that rounding alone can cause.
    """
    size = batch.num_examples
    first = max(1, size // 3)
    rows = np.arange(size)
    try:
        # Copies of one example: their mean differs from that of the examples they replace.
        one = outputs_of(batch.rows(np.where(rows < first, rows, 0)))
        other = outputs_of(batch.rows(np.where(rows < first, size - 1, rows)))
        again = outputs_of(batch)
    except Exception:  # noqa: BLE001 - the first batch reports it as the user's error
        return False
    if not _are_near(whole, again, 0.0):
        return False
    stayed = [
        np.concatenate([left[:first], right[first:]]) if len(left) == len(right) == size else before
        for before, left, right in zip(
            *(map(np.atleast_1d, outputs) for outputs in (whole, one, other)), strict=True
        )
    ]
    return not _are_near([np.atleast_1d(array) for array in whole], stayed, rtol)


@contextmanager
def _quiet(model: keras.Model) -> Iterator[None]:
    """Context manager: BatchNormalization runs as in inference, Keras' random layers are off."""
    # A loaded SavedModel has layers of another kind within.
    layers = [] if hasattr(model, "inner") else list(model._flatten_layers())  # noqa: SLF001 - Keras has no public name
    rates = [
        (layer, name, getattr(layer, name))
        for layer in layers
        if layer.__module__.startswith("keras.src.layers.regularization")
        for name in _RATES
        if isinstance(getattr(layer, name, None), (int, float))
    ]
    normalizing = [each for each in layers if isinstance(each, keras.layers.BatchNormalization)]
    try:
        for layer, name, _ in rates:
            vars(layer)[name] = 0.0
        for layer in normalizing:
            # Bypasses __setattr__, which tracks a layer's attributes.
            vars(layer)["call"] = functools.partial(_call_in_inference, layer.call)
        yield
    finally:
        for layer, name, value in rates:
            vars(layer)[name] = value
        for layer in normalizing:
            del vars(layer)["call"]


def _call_in_inference(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return call(*args, **{**options, "training": False})


def joined(one: ExampleBatch, other: ExampleBatch) -> ExampleBatch | None:
    """Concatenate two batches of one example each, for a check that needs at least two examples.

    The check compares the outputs of a batch with those of its parts.

    Returns:
        The joined batch; None if the shapes do not match, or if the batches are equal, which would
        show no difference.
    """
    before = leaves([one.features, one.labels, one.weights])
    after = leaves([other.features, other.labels, other.weights])
    if len(before) != len(after) or any(
        a.dtype != b.dtype or a.shape[1:] != b.shape[1:] for a, b in zip(before, after, strict=True)
    ):
        return None
    if all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
        return None
    rest = iter(after)

    def join(tensor: Any) -> Any:
        return tf.concat([tensor, next(rest)], 0)

    features, labels, weights = map_arrays(join, [one.features, one.labels, one.weights])
    return replace(
        one,
        features=features,
        labels=labels,
        weights=weights,
        num_examples=one.num_examples + other.num_examples,
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


def rows_of(batch: ExampleBatch) -> list[np.ndarray[Any, Any]]:
    """Return those outputs of a batch that have one row per example, as float64 or complex128.

    Discrete outputs are left out.
    """
    rows = _numbers(batch.outputs)
    return [each for each in rows if each.ndim and len(each) == batch.num_examples]


def _numbers(outputs: Any) -> list[np.ndarray[Any, Any]]:
    """Return the floating-point and complex outputs, as float64 and complex128 arrays.

    Discrete outputs are left out, because rounding alone may change them.
    """
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
    """Compute, from the outputs for two parts, a batch's output if no example affects another.

    Args:
        whole: The output for the batch. It only shows whether there is one row per example;
            otherwise the output counts as a mean over the batch.
        one: The output for the first third of the examples.
        other: The output for the other examples.
        num_examples: Number of examples in the batch.

    Returns:
        The expected output; None if the shapes do not match.
    """
    if whole.ndim and len(whole) == num_examples:
        return np.concatenate([one, other]) if one.shape[1:] == other.shape[1:] else None
    if one.shape != other.shape:
        return None
    # One value per batch: a mean over its examples, or a value that does not depend on them.
    first = max(1, num_examples // 3)
    return np.asarray((one * first + other * (num_examples - first)) / num_examples)


def _are_near(some: list[Any], others: list[Any], rtol: float) -> bool:
    return all(_is_near(one, other, rtol) for one, other in zip(some, others, strict=True))


def _is_near(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any] | None, rtol: float) -> bool:
    if other is None or one.shape != other.shape:
        return False
    finite = np.abs(one[np.isfinite(one)])
    largest = float(finite.max()) if finite.size else 0.0
    return np.allclose(one, other, rtol=0.0, atol=rtol * largest + 1e-6, equal_nan=True)

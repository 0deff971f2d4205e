"""Rules of the session check for the model, to find mismatches that would make training useless.

The rules compare input shapes with x, the last layer with the loss, labels with outputs and loss,
`export.metric` with the metrics measured, `export.mode` with the direction in which that metric
improves, and the metrics that callbacks monitor with those measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import describe, leaves
from elasticdl.did_you_mean import nearest
from elasticdl.sessions.checks.finding import CheckFinding, error, warning

if TYPE_CHECKING:
    from elasticdl.config_file import ConfigStruct
    from elasticdl.data.batch import Batch
    from elasticdl.sessions.checks.batches import Places
    from elasticdl.training.keras.model_facts import ModelFacts, OutputFacts

_SPARSE = "sparse_categorical_crossentropy"
_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy")
_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")
# Losses that compare outputs and labels element by element; a user's function may not.
_ELEMENTWISE = {"mean_squared_error", "mean_absolute_error", "huber", "log_cosh", "poisson"}
_SQUASHED = {"softmax", "sigmoid", "log_softmax", "hard_sigmoid"}


def shapes(facts: ModelFacts, batch: Batch, where: str, places: Places) -> Iterator[CheckFinding]:
    """Yield mismatches between x and the model's inputs.

    Args:
        facts: Contains the shapes of the model's inputs.
        batch: A batch of a split.
        where: Location of the method that creates the model.
        places: Locations of the code that produces the split.
    """
    arrays = leaves(batch.features)
    if len(facts.inputs) != len(arrays):
        if facts.inputs:
            yield error(
                f"{places.split}: the model has {len(facts.inputs)} inputs, but x is "
                f"{len(arrays)} arrays.",
                where,
                "Use the same number of both.",
            )
        return
    for shape, array in zip(facts.inputs, arrays, strict=True):
        expected, found = shape[1:], array.shape[1:]
        fits = len(expected) == len(found) and all(
            e is None or e == f for e, f in zip(expected, found, strict=True)
        )
        if not fits:
            yield error(
                f"{places.split}: the model expects examples of the shape {list(expected)}; x has "
                f"examples of {list(found)}.",
                places.images,
                f"Change the preprocessing, or the model's input ({where}).",
            )


def last_layers(facts: ModelFacts, outputs: Any, where: str, logits: str) -> Iterator[CheckFinding]:
    """Yield warnings if the last layer's activation does not fit the loss.

    A loss that expects logits needs a last layer without activation. A loss that expects
    probabilities needs a softmax or sigmoid. A softmax over one unit is always 1.

    Args:
        facts: Contains the activation and the loss of each output of the model.
        outputs: The model's outputs for a batch.
        where: Location of the method that creates the model.
        logits: Location of the line with `from_logits`, or `where` if there is none.
    """
    for output, array in _pairs(facts, outputs):
        activation = output.activation or _by_values(array)
        loss = output.loss
        if activation == "softmax" and output.shape[-1:] == (1,):
            yield warning(
                "the last layer is a softmax of one unit, which always returns 1.",
                where,
                "Use a sigmoid, or one unit per class.",
            )
        if loss is None or loss not in {_SPARSE, *_ONE_HOT, *_BINARY}:
            continue
        if output.from_logits and activation in _SQUASHED:
            yield warning(
                f"the last layer is a {activation}, and {loss} is configured for logits "
                "(from_logits=True).",
                logits,
                "Write from_logits=False, or give the last layer no activation. On TensorFlow, "
                "Keras uses the input of the activation, so training is correct here; elsewhere "
                "it is applied twice.",
            )
        elif output.from_logits is False and activation == "linear":
            yield warning(
                f"the last layer has no activation, and {loss} expects probabilities "
                "(from_logits=False).",
                logits,
                "Write from_logits=True, or end with a "
                f"{'sigmoid' if loss in _BINARY else 'softmax'}.",
            )


def targets(
    facts: ModelFacts, batches: Sequence[Batch], outputs: Any, where: str
) -> Iterator[CheckFinding]:
    """Yield mismatches between y, the model's outputs and the loss.

    Args:
        facts: Contains the loss of each output of the model.
        batches: Batches of the training split.
        outputs: The model's outputs for the first batch.
        where: Location of the method that preprocesses y.
    """
    columns = list(zip(*(leaves(batch.labels[0]) for batch in batches), strict=False))
    pairs = list(_pairs(facts, outputs))
    if len(columns) != len(pairs):
        return
    for (output, array), arrays in zip(pairs, columns, strict=True):
        first = arrays[0]
        if not np.issubdtype(first.dtype, np.number) and first.dtype != bool:
            continue
        if output.loss == _SPARSE:
            yield from _numbers(arrays, array, where)
        elif output.loss in _ONE_HOT and first.shape[1:] != array.shape[1:]:
            classes = array.shape[-1]
            way_out = (
                "Use sparse_categorical_crossentropy, which expects class numbers, or let "
                f"label_preprocess return one-hot arrays of {classes}."
                if _are_numbers(first)
                else "Use the same number of classes in both."
            )
            yield error(
                f"y is {describe(first)}, but the model returns {describe(array)}; {output.loss} "
                "compares arrays of the same shape.",
                where,
                way_out,
            )
        elif output.loss in _BINARY:
            low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)
            if low < 0 or high > 1:
                yield warning(
                    f"y is within {low:g}..{high:g}; {output.loss} expects 0 to 1.",
                    where,
                    "Let label_preprocess return 0 or 1, or use a multi-class loss.",
                )
        elif output.loss in _ELEMENTWISE and _broadcasts(first.shape[1:], array.shape[1:]):
            yield warning(
                f"y is {describe(first)}, but the model returns {describe(array)}; {output.loss} "
                "broadcasts each value of y against several outputs.",
                where,
                "Give the last layer as many units as y has values per example.",
            )


def _numbers(arrays: Sequence[Any], output: Any, where: str) -> Iterator[CheckFinding]:
    classes = output.shape[-1]
    first = arrays[0]
    if first.ndim == output.ndim and first.shape[-1] == classes and classes > 1:
        yield error(
            f"y is {describe(first)}, which looks one-hot; {_SPARSE} expects class numbers.",
            where,
            "Use categorical_crossentropy, or let label_preprocess return the number.",
        )
        return
    low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)
    if low < 0 or high >= classes:
        yield error(
            f"y is within {low:g}..{high:g}; with {classes} outputs, {_SPARSE} expects 0 to "
            f"{classes - 1}.",
            where,
            "Number the classes starting at 0, or give the last layer one unit per class.",
        )
    elif any(np.any(a != np.floor(a)) for a in arrays):
        yield warning(
            f"y has values such as {first.ravel()[0]:g}; {_SPARSE} expects whole numbers.",
            where,
            "Let label_preprocess return the number of the class.",
        )


def best(
    config: ConfigStruct, metrics: Mapping[str, Any], direction: Callable[[str], str | None]
) -> Iterator[CheckFinding]:
    """Yield mistakes in `export`, the section of the config that selects the best model.

    Args:
        config: Config of the session.
        metrics: Metrics of a batch: name in the evaluation -> value. Only a metric whose value is
            one number can select the best model.
        direction: Function (name of a metric) -> `min` if lower values are better, or `max`; None
            if unknown.
    """
    names = [name for name, value in metrics.items() if isinstance(value, float)]
    known = [*names, *(f"val_{name}" for name in names)]
    wanted, mode = config.export.metric, config.export.mode
    name = wanted.removeprefix("val_")
    better = "min" if name == "loss" else direction(name)
    if wanted not in known:
        near = nearest(wanted, known)
        yield error(
            f"export.metric is {wanted!r}, which is not measured; expected one of "
            f"{', '.join(known)}.",
            config.export.where("metric"),
            f"Did you mean {near!r}?" if near else "Use one of them, or add it in compile().",
        )
    elif better is not None and mode != better:
        larger = "larger" if better == "max" else "smaller"
        yield warning(
            f"export.mode is {mode}, but a {larger} {wanted} is better: the worst model would be "
            "exported.",
            config.export.where("mode"),
            f"Write mode: {better}",
        )


def monitors(
    callbacks: Sequence[Any], metrics: Mapping[str, Any], where: str
) -> Iterator[CheckFinding]:
    """Yield a warning for each callback that monitors a metric that is not measured.

    Args:
        callbacks: Keras callbacks; those without a `monitor` are ignored.
        metrics: Metrics of a batch: name in the evaluation -> value; only the names are used.
        where: Location of the method that creates the callbacks.
    """
    names = [*metrics, *(f"val_{name}" for name in metrics), "learning_rate", "lr"]
    for callback in callbacks:
        wanted = getattr(callback, "monitor", None)
        if isinstance(wanted, str) and wanted not in names:
            near = nearest(wanted, names)
            yield warning(
                f"{type(callback).__name__} monitors {wanted!r}, which is not measured; expected "
                f"one of {', '.join(names[:-2])}.",
                where,
                f"Did you mean {near!r}?" if near else "Use one of them.",
            )


def _pairs(facts: ModelFacts, outputs: Any) -> list[tuple[OutputFacts, Any]]:
    arrays = leaves(outputs)
    return (
        list(zip(facts.outputs, arrays, strict=True)) if len(facts.outputs) == len(arrays) else []
    )


def _by_values(array: Any) -> str | None:
    """Guess an output's activation, "softmax" or "linear", from its values; None if unclear."""
    if array.ndim < 2 or array.shape[-1] < 2 or not np.isfinite(array).all():  # noqa: PLR2004
        return None
    if array.min() >= 0 and np.allclose(array.sum(axis=-1), 1, atol=1e-3):
        return "softmax"
    return "linear" if array.min() < 0 else None


def _are_numbers(array: Any) -> bool:
    return bool(array.ndim == 1 or array.shape[1:] == (1,))


def _broadcasts(y: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """Return whether each label is one number, but each output is several.

    Broadcasting then lets a loss compare this number with every output, without an error.

    Args:
        y: Shape of an example's label.
        out: Shape of an example's output.
    """
    return math.prod(y) == 1 and math.prod(out) > 1

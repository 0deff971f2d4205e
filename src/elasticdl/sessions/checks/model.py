"""Whether last layer, loss, labels and metrics fit each other, and the choice of the best."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import describe, leaves
from elasticdl.sessions.checks.batches import looks_like_bytes
from elasticdl.sessions.checks.finding import Finding, error, warning

if TYPE_CHECKING:
    from elasticdl.config import ConfigStruct
    from elasticdl.data.batch import Batch
    from elasticdl.training.keras.facts import ModelFacts, OutputFacts

_SPARSE = "sparse_categorical_crossentropy"
_ONE_HOT = ("categorical_crossentropy", "categorical_focal_crossentropy")
_BINARY = ("binary_crossentropy", "binary_focal_crossentropy")
# They compare number with number; a function of the user's may do otherwise.
_ELEMENTWISE = {"mean_squared_error", "mean_absolute_error", "huber", "log_cosh", "poisson"}
_SQUASHED = {"softmax", "sigmoid", "log_softmax", "hard_sigmoid"}
_GROWS = re.compile(r"acc|auc|precision|recall|f1|f_?score|iou|r2|kappa|similarity", re.IGNORECASE)
_FALLS = re.compile(r"loss|error|entropy|divergence|mse|mae|mape|rmse", re.IGNORECASE)


def shapes(facts: ModelFacts, batch: Batch, where: str, images: str) -> Iterator[Finding]:
    """Yield how x does not fit the model's inputs.

    Args:
        facts: Of the model.
        batch: Of the training split.
        where: The method that makes the model.
        images: The one that preprocesses x.
    """
    arrays = leaves(batch.features)
    if len(facts.inputs) != len(arrays):
        if facts.inputs:
            yield error(
                f"the model has {len(facts.inputs)} inputs, and x is {len(arrays)} arrays.",
                where,
                "Let both have as many.",
            )
        return
    for shape, array in zip(facts.inputs, arrays, strict=True):
        expected, found = shape[1:], array.shape[1:]
        fits = len(expected) == len(found) and all(
            e is None or e == f for e, f in zip(expected, found, strict=True)
        )
        if not fits:
            yield error(
                f"the model takes examples of the shape {list(expected)}; x has examples of "
                f"{list(found)}.",
                images,
                f"Change the preprocessing, or the model's input ({where}).",
            )


def ranges(
    facts: ModelFacts, batches: Sequence[Batch], where: str, images: str
) -> Iterator[Finding]:
    """Yield whether x looks like bytes that nobody scales."""
    found = looks_like_bytes(batches)
    if found is not None and not facts.scales:
        yield warning(
            f"x is within {found[0]:g}..{found[1]:g}, and the model has no layer that scales it.",
            images,
            f"Divide by 255, or begin the model with Rescaling(1 / 255) ({where}).",
        )


def last_layers(facts: ModelFacts, outputs: Any, where: str, logits: str) -> Iterator[Finding]:
    """Yield where the last layer and the loss disagree on logits.

    Args:
        facts: Of the model.
        outputs: What it says of a batch.
        where: The method that makes the model.
        logits: The line that says `from_logits`, or the same.
    """
    for output, array in _pairs(facts, outputs):
        activation = output.activation or _by_values(array)
        loss = output.loss
        if activation == "softmax" and output.shape[-1:] == (1,):
            yield error(
                "the last layer is a softmax of one unit, which is always 1.",
                where,
                "Use a sigmoid, or one unit a class.",
            )
        if loss is None or loss not in {_SPARSE, *_ONE_HOT, *_BINARY}:
            continue
        if output.from_logits and activation in _SQUASHED:
            yield warning(
                f"the last layer is a {activation}, and {loss} is told to expect logits "
                "(from_logits=True).",
                logits,
                "Write from_logits=False, or give the last layer no activation. On TensorFlow "
                "Keras takes what went into the activation, so the training is right here; "
                "elsewhere it is applied twice.",
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
) -> Iterator[Finding]:
    """Yield where y does not fit the model's outputs and the loss.

    Args:
        facts: Of the model.
        batches: Of the training split.
        outputs: What the model says of the first.
        where: The method that preprocesses y.
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
                "Use sparse_categorical_crossentropy, which takes numbers of classes, or let "
                f"label_preprocess return one-hot arrays of {classes}."
                if _are_numbers(first)
                else "Let both have as many classes."
            )
            yield error(
                f"y is {describe(first)} and the model says {describe(array)}; {output.loss} "
                "compares arrays of one shape.",
                where,
                way_out,
            )
        elif output.loss in _BINARY:
            low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)
            if low < 0 or high > 1:
                yield error(
                    f"y is within {low:g}..{high:g}; {output.loss} takes 0 to 1.",
                    where,
                    "Let label_preprocess return 0 or 1, or use the loss for several classes.",
                )
        elif output.loss in _ELEMENTWISE and _broadcasts(first.shape[1:], array.shape[1:]):
            yield warning(
                f"y is {describe(first)} and the model says {describe(array)}; {output.loss} "
                "compares each number of y with several.",
                where,
                "Let the last layer have as many units as y has numbers.",
            )


def _numbers(arrays: Sequence[Any], output: Any, where: str) -> Iterator[Finding]:
    classes = output.shape[-1]
    first = arrays[0]
    if first.ndim == output.ndim and first.shape[-1] == classes and classes > 1:
        yield error(
            f"y is {describe(first)}, which looks one-hot; {_SPARSE} takes numbers of classes.",
            where,
            "Use categorical_crossentropy, or let label_preprocess return the number.",
        )
        return
    low, high = min(a.min() for a in arrays), max(a.max() for a in arrays)
    if low < 0 or high >= classes:
        yield error(
            f"y is within {low:g}..{high:g}; with {classes} outputs, {_SPARSE} takes 0 to "
            f"{classes - 1}.",
            where,
            "Number the classes from 0 on, or give the last layer one unit a class.",
        )
    elif any(np.any(a != np.floor(a)) for a in arrays):
        yield error(
            f"y has values such as {first.ravel()[0]:g}; {_SPARSE} takes whole numbers.",
            where,
            "Let label_preprocess return the number of the class.",
        )


def best(config: ConfigStruct, metrics: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield what is wrong with `export`, which says which model is the best.

    Args:
        config: Of the session.
        metrics: Of a batch, under the names of the evaluation.
    """
    names = [name for name, value in metrics.items() if isinstance(value, float)]
    known = [*names, *(f"val_{name}" for name in names)]
    wanted, mode = config.export.metric, config.export.mode
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, n=1)
        yield error(
            f"export.metric is {wanted!r}, which is not measured; there is {', '.join(known)}.",
            config.export.where("metric"),
            f"Did you mean {near[0]!r}?" if near else "Name one of them, or compile it in.",
        )
    elif mode == "min" and _GROWS.search(wanted) and not _FALLS.search(wanted):
        yield warning(
            f"export.mode is min, and {wanted} is better the larger it is: the worst model would "
            "be exported.",
            config.export.where("mode"),
            "Write mode: max",
        )
    elif mode == "max" and _FALLS.search(wanted):
        yield warning(
            f"export.mode is max, and {wanted} is better the smaller it is: the worst model would "
            "be exported.",
            config.export.where("mode"),
            "Write mode: min",
        )


def monitors(callbacks: Sequence[Any], metrics: Mapping[str, Any], where: str) -> Iterator[Finding]:
    """Yield callbacks that watch a metric nobody measures."""
    names = [*metrics, *(f"val_{name}" for name in metrics), "learning_rate", "lr"]
    for callback in callbacks:
        wanted = getattr(callback, "monitor", None)
        if isinstance(wanted, str) and wanted not in names:
            near = difflib.get_close_matches(wanted, names, n=1)
            yield warning(
                f"{type(callback).__name__} watches {wanted!r}, which is not measured; there is "
                f"{', '.join(names[:-2])}.",
                where,
                f"Did you mean {near[0]!r}?" if near else "Name one of them.",
            )


def _pairs(facts: ModelFacts, outputs: Any) -> list[tuple[OutputFacts, Any]]:
    arrays = leaves(outputs)
    return (
        list(zip(facts.outputs, arrays, strict=True)) if len(facts.outputs) == len(arrays) else []
    )


def _by_values(array: Any) -> str | None:
    """Return what an output looks like where the layer is not known."""
    if array.ndim < 2 or array.shape[-1] < 2 or not np.isfinite(array).all():  # noqa: PLR2004
        return None
    if array.min() >= 0 and np.allclose(array.sum(axis=-1), 1, atol=1e-3):
        return "softmax"
    return "linear" if array.min() < 0 else None


def _are_numbers(array: Any) -> bool:
    return bool(array.ndim == 1 or array.shape[1:] == (1,))


def _broadcasts(y: tuple[int, ...], out: tuple[int, ...]) -> bool:
    """Return whether one number of y meets several of an output."""
    return math.prod(y) == 1 and math.prod(out) > 1

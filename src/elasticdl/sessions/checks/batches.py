"""Rules for the arrays of a split: what cannot be trained on, and what was probably not meant.

Arrays are looked at, nothing is read here; whoever reads says where it came from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import describe, leaves
from elasticdl.sessions.checks.finding import Finding, error, warning

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch

# Divided by 255 once, a white pixel is 1; twice, 0.0039.
_TINY = 0.02
_BYTE = 255
# From here on it is a range of bytes rather than one of standard deviations ...
_LARGE = 32
# ... and an image rather than a row of a table.
_MANY_FEATURES = 16
_OTHER_SCALE = 20


@dataclass(frozen=True)
class Places:
    """Where a person finds what makes a split.

    Attributes:
        split: `training`, `validation` or `test`.
        loader: The method that creates the generator.
        images: The one that preprocesses x.
        labels: The one that preprocesses y.
        batchify: The one that makes batches.
    """

    split: str
    loader: str
    images: str
    labels: str
    batchify: str


def inputs(batches: Sequence[Batch], places: Places) -> Iterator[Finding]:
    """Yield what is wrong with x."""
    for name, arrays in _columns([batch.features for batch in batches]):
        values = np.concatenate([array.ravel() for array in arrays])
        said = f"{places.split}: x{name} {describe(arrays[0])}"
        if values.dtype == object:
            if not all(isinstance(value, (str, bytes)) for value in values[:100]):
                yield error(
                    f"{said} has examples of different shapes or of no number.",
                    places.images,
                    "Let image_preprocess return arrays of numbers, all of one shape.",
                )
            continue
        if not np.issubdtype(values.dtype, np.number):
            continue
        bad = int(np.count_nonzero(~np.isfinite(values)))
        if bad:
            yield error(
                f"{said}: {bad:,} of {values.size:,} values are NaN or infinite.",
                places.images,
                "Correct or leave out these examples; a division by 0 is the usual cause.",
            )
            continue
        low, high = float(values.min()), float(values.max())
        if low == high and values.size > 1:
            yield warning(
                f"{said}: every value of the first {len(arrays)} batches is {low:g}.",
                places.images,
                "There is nothing to learn from it: look at what is read, and at the "
                "preprocessing.",
            )
        elif low > -_TINY and 0 < high < _TINY and np.issubdtype(values.dtype, np.floating):
            yield warning(
                f"{said} is within {low:.2g}..{high:.2g}; an image that is divided by {_BYTE} "
                "twice looks so.",
                places.images,
                f"Divide once: what reads the image may give 0..1 already (skimage's "
                f"as_gray does, of RGB); if so, divide by 1 instead of {_BYTE}.",
            )


def looks_like_bytes(batches: Sequence[Batch]) -> tuple[float, float] | None:
    """Return the range of x if it is that of an image nobody has scaled."""
    for _, arrays in _columns([batch.features for batch in batches]):
        first = arrays[0]
        if not np.issubdtype(first.dtype, np.number) or math.prod(first.shape[1:]) < _MANY_FEATURES:
            continue
        low, high = min(float(a.min()) for a in arrays), max(float(a.max()) for a in arrays)
        if low >= 0 and _LARGE < high <= _BYTE:
            return low, high
    return None


def labels(batches: Sequence[Batch], places: Places) -> Iterator[Finding]:
    """Yield what is wrong with y, whatever the loss."""
    for name, arrays in _columns([batch.labels[0] for batch in batches]):
        said = f"{places.split}: y{name} {describe(arrays[0])}"
        if not np.issubdtype(arrays[0].dtype, np.number) and arrays[0].dtype != bool:
            yield error(
                f"{said} is no number: {arrays[0].ravel()[:1].tolist()}.",
                places.labels,
                "Let label_preprocess return a number: the place of the class in a list.",
            )
        elif not all(np.isfinite(array).all() for array in arrays):
            yield error(
                f"{said} has values that are NaN or infinite.",
                places.labels,
                "Correct or leave out these examples.",
            )


def weights(batches: Sequence[Batch], places: Places) -> Iterator[Finding]:
    """Yield what is wrong with the sample weights."""
    for name, arrays in _columns([batch.labels[1] for batch in batches]):
        said = f"{places.split}: w{name} {describe(arrays[0])}"
        values = np.concatenate([array.ravel() for array in arrays])
        if not np.isfinite(values).all() or (values < 0).any():
            found = values[~np.isfinite(values) | (values < 0)][0]
            yield error(
                f"{said}: a weight is {found:g}; expected a finite number, at least 0.",
                places.loader,
                "Correct it; 1 counts an example once, 0 leaves it out.",
            )
        elif not values.any():
            yield error(
                f"{said}: all weights are 0, so nothing is learned.",
                places.loader,
                "Yield 1 for an example that counts once.",
            )


def counts(
    places: Places, *, num_examples: int, num_batches: int, size: int, batch_size: int
) -> Iterator[Finding]:
    """Yield what is wrong with what was said of an epoch.

    Args:
        places: Where it was said.
        num_examples: By the loader.
        num_batches: By the preprocessor.
        size: Of the first batch.
        batch_size: By the config.
    """
    if num_examples < 1:
        yield error(
            f"{places.split}: the generator is said to have {num_examples} examples.",
            places.loader,
            "Return the number of examples of an epoch, at least 1.",
        )
        return
    if size != min(batch_size, num_examples):
        yield warning(
            f"{places.split}: batches have {size} examples; batch_size of the config is "
            f"{batch_size}.",
            places.batchify,
            "Let batchify() take config.batch_size.",
        )
    expected = math.ceil(num_examples / size)
    if num_batches < expected:
        yield warning(
            f"{places.split}: n_iter is {num_batches}, and {num_examples:,} examples make "
            f"{expected} batches of {size}: {num_examples - num_batches * size:,} examples of "
            "each epoch are left out.",
            places.batchify,
            "Return ceil(n_data_points / batch_size).",
        )
    elif num_batches > expected:
        yield warning(
            f"{places.split}: n_iter is {num_batches}, and {num_examples:,} examples make only "
            f"{expected} batches of {size}: examples come twice in an epoch.",
            places.batchify,
            "Return ceil(n_data_points / batch_size).",
        )


def alike(training: Batch, other: Batch, places: Places) -> Iterator[Finding]:
    """Yield how another split differs from the training split in what the model takes."""
    pairs = zip(leaves(training.features), leaves(other.features), strict=False)
    for trained, array in pairs:
        if trained.shape[1:] != array.shape[1:]:
            yield error(
                f"{places.split}: an example of x is {describe(array[0])}; in training it is "
                f"{describe(trained[0])}.",
                places.images,
                "Preprocess all splits alike.",
            )
            continue
        numbers = all(np.issubdtype(a.dtype, np.number) for a in (trained, array))
        if not numbers or not trained.size or not array.size:
            continue
        here, there = float(np.abs(array).max()), float(np.abs(trained).max())
        if max(here, there) > _OTHER_SCALE * min(here, there) > 0:
            yield warning(
                f"{places.split}: x reaches {here:.4g}; in training it reaches {there:.4g}.",
                places.images,
                "Preprocess all splits alike: one of them seems to be scaled otherwise.",
            )


def range_of(batches: Sequence[Batch]) -> str:
    """Return what batches hold in a line: `x float32[8, 784] 0..1, y int64[8] 0..9`."""
    x = ", ".join(_shown(name, arrays) for name, arrays in _columns([b.features for b in batches]))
    y = ", ".join(_shown(name, arrays) for name, arrays in _columns([b.labels[0] for b in batches]))
    return f"x {x}, y {y}"


def _shown(name: str, arrays: Sequence[Any]) -> str:
    text = f"{name} {describe(arrays[0])}".strip()
    if not np.issubdtype(arrays[0].dtype, np.number) or not arrays[0].size:
        return text
    return f"{text} {min(a.min() for a in arrays):.4g}..{max(a.max() for a in arrays):.4g}"


def _columns(trees: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each array of a nesting with its name, as it is in each of several batches."""
    first = trees[0]
    names = [f"[{name!r}]" for name in first] if isinstance(first, Mapping) else None
    columns = list(zip(*(leaves(tree) for tree in trees), strict=False))
    for number, arrays in enumerate(columns):
        if names is not None and len(names) == len(columns):
            yield names[number], list(arrays)
        else:
            yield f"[{number}]" if len(columns) > 1 else "", list(arrays)

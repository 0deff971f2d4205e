"""Rules of the session check for a split's arrays and its declared sizes.

The rules inspect arrays that callers have read. Callers also pass the locations of the user's code
that made the arrays, for the findings.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import describe, leaves
from elasticdl.sessions.checks.finding import CheckFinding, error, warning

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch


@dataclass(frozen=True)
class Places:
    """Locations (`file:line`) of the user's methods that produce a split, for messages.

    Attributes:
        split: Name of the split: `training`, `validation` or `test`.
        loader: Location of the method that creates the generator.
        images: Location of the method that preprocesses x.
        labels: Location of the method that preprocesses y.
        batchify: Location of the method that builds batches.
    """

    split: str
    loader: str
    images: str
    labels: str
    batchify: str


def arrays(batches: Sequence[Batch], places: Places) -> Iterator[CheckFinding]:
    """Yield findings for arrays that cannot be trained on, and for non-finite values.

    Args:
        batches: The first batches of a split.
        places: Locations of the user's methods that produced them.
    """
    for name, found in _columns([batch.features for batch in batches]):
        said = f"{places.split}: x{name} {describe(found[0])}"
        if found[0].dtype == object and not _are_texts(found):
            yield error(
                f"{said} has examples of different shapes, or examples that are not numbers.",
                places.images,
                "Let image_preprocess return arrays of numbers, all of one shape.",
            )
        yield from _not_finite(said, found, places.images)
    for name, found in _columns([batch.labels[0] for batch in batches]):
        said = f"{places.split}: y{name} {describe(found[0])}"
        if not np.issubdtype(found[0].dtype, np.number) and found[0].dtype != bool:
            yield error(
                f"{said} is not a number: {found[0].ravel()[:1].tolist()}.",
                places.labels,
                "Let label_preprocess return a number: the index of the class in a list.",
            )
        yield from _not_finite(said, found, places.labels)
    for name, found in _columns([batch.labels[1] for batch in batches]):
        said = f"{places.split}: w{name} {describe(found[0])}"
        yield from _not_finite(said, found, places.loader)


def _are_texts(arrays: Sequence[Any]) -> bool:
    return all(isinstance(value, (str, bytes)) for array in arrays for value in array.ravel())


def _not_finite(said: str, arrays: Sequence[Any], where: str) -> Iterator[CheckFinding]:
    # A model or a loss may expect them; if not, the step finds that the loss is NaN.
    if not np.issubdtype(arrays[0].dtype, np.number):
        return
    bad = sum(int(np.count_nonzero(~np.isfinite(array))) for array in arrays)
    if bad:
        size = sum(array.size for array in arrays)
        yield warning(f"{said}: {bad:,} of {size:,} values are NaN or infinite.", where)


def counts(
    places: Places, *, num_examples: int, num_batches: int, size: int, batch_size: int
) -> Iterator[CheckFinding]:
    """Yield findings about an epoch's declared size, or a batch size, that does not fit the data.

    Args:
        places: Locations where the sizes are declared.
        num_examples: Number of examples in an epoch that the loader declared.
        num_batches: Number of batches in an epoch that the preprocessor declared.
        size: Size of the first batch.
        batch_size: Batch size in the config.
    """
    if num_examples < 1:
        yield error(
            f"{places.split}: the generator is declared to have {num_examples} examples.",
            places.loader,
            "Return the number of examples of an epoch, at least 1.",
        )
        return
    if size != min(batch_size, num_examples):
        yield warning(
            f"{places.split}: batches have {size} examples; batch_size of the config is "
            f"{batch_size}.",
            places.batchify,
            "Let batchify() use config.batch_size.",
        )
    expected = math.ceil(num_examples / size)
    if num_batches < expected:
        yield warning(
            f"{places.split}: n_iter is {num_batches}, but {num_examples:,} examples make "
            f"{expected} batches of {size}: {num_examples - num_batches * size:,} examples of each "
            "epoch are left out.",
            places.batchify,
            "Return ceil(n_data_points / batch_size).",
        )
    elif num_batches > expected:
        yield warning(
            f"{places.split}: n_iter is {num_batches}, but {num_examples:,} examples make only "
            f"{expected} batches of {size}: some examples occur twice in an epoch.",
            places.batchify,
            "Return ceil(n_data_points / batch_size).",
        )


def range_of(batches: Sequence[Batch]) -> str:
    """Return a summary of batches in one line: `x float32[8, 784] 0..1, y int64[8] 0..9`."""
    x = ", ".join(_shown(name, arrays) for name, arrays in _columns([b.features for b in batches]))
    y = ", ".join(_shown(name, arrays) for name, arrays in _columns([b.labels[0] for b in batches]))
    return f"x {x}, y {y}"


def _shown(name: str, arrays: Sequence[Any]) -> str:
    text = f"{name} {describe(arrays[0])}".strip()
    if not np.issubdtype(arrays[0].dtype, np.number) or not arrays[0].size:
        return text
    return f"{text} {min(a.min() for a in arrays):.4g}..{max(a.max() for a in arrays):.4g}"


def _columns(trees: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each array of a split's batches: how to show its name, and its values, one per batch.

    Args:
        trees: The x (or y, or weights) of each batch: an array, or a dict, list or tuple of arrays.

    Yields:
        A suffix for messages, and the array of each batch. The suffix is `['age']` for a dict of
        arrays, else `[0]`, or empty for a single array.
    """
    first = trees[0]
    names = [f"[{name!r}]" for name in first] if isinstance(first, Mapping) else None
    columns = list(zip(*(leaves(tree) for tree in trees), strict=False))
    for number, arrays in enumerate(columns):
        if names is not None and len(names) == len(columns):
            yield names[number], list(arrays)
        else:
            yield f"[{number}]" if len(columns) > 1 else "", list(arrays)

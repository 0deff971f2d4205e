"""Finds the axes for which steps are compiled without a fixed size: sequence lengths may vary.

A function is compiled for the shapes of the example batch. An axis along which a batch differs in
size from the example (sequences padded to the longest of a batch) is compiled without a fixed size
(an *open* axis), so that not every length requires a compilation. A function with an open axis may
round differently from one without (measured on TensorFlow 2.21, CPU: convolutions, attention,
SimpleRNN and BatchNorm differ in the last digit; Dense, LSTM, GRU, Embedding and LayerNormalization
do not). The choice of the function therefore depends only on the shapes of the batch and of the
example, never on earlier batches, which a resumed process has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import numpy as np

from elasticdl.data.batch import Arrays, leaves

Shape: TypeAlias = tuple[int | None, ...]
Axes: TypeAlias = frozenset[tuple[int, int]]
"""(Number of the array, axis after those of the batch)."""

# Enough for the combinations of some axes; a model that cannot have open axes needs one function
# per length.
_MAX_FUNCTIONS = 64


class Lengths:
    """Compares the shapes of batches with those of the example batch.

    Args:
        parts: The parts of the example batch: features, labels.

    Attributes:
        seen: Axes of the features along which a batch differed in size.
    """

    def __init__(self, *parts: Arrays) -> None:
        self._examples = [[np.shape(array)[1:] for array in leaves(part)] for part in parts]
        self.seen: set[tuple[int, int]] = set()

    def open_axes(self, parts: Sequence[Arrays], leading: int) -> Axes:
        """Return the axes along which a batch differs in size from the example.

        Adds those of features to `seen`.

        Args:
            parts: Features, labels; a part may be None.
            leading: Number of axes before those of one example: 1 for a batch, 2 for stacked
                batches.

        Returns:
            Pairs (index of the array, axis within one example).
        """
        found: set[tuple[int, int]] = set()
        first = 0
        for number, (part, examples) in enumerate(zip(parts, self._examples, strict=True)):
            shapes = [np.shape(array)[leading:] for array in leaves(part)]
            if [len(shape) for shape in shapes] == [len(shape) for shape in examples]:
                found |= {
                    (first + i, axis)
                    for i, (shape, example) in enumerate(zip(shapes, examples, strict=True))
                    for axis, (size, other) in enumerate(zip(shape, example, strict=True))
                    if size != other
                }
            if number == 0:
                self.seen |= found
            first += len(shapes)
        return frozenset(found)


def signature(
    shape: Sequence[int], number: int, leading: int, fixed_axis: int | None, axes: Axes
) -> Shape:
    """Return the shape for which a function is compiled: None along axes of variable size.

    Args:
        shape: Shape of an array.
        number: Index of the array.
        leading: Number of axes before those of one example.
        fixed_axis: The leading axis whose length is fixed. None: all of them have variable sizes.
        axes: Further axes of variable size, as `Lengths.open_axes` returns them.
    """
    return tuple(
        None if (i < leading and i != fixed_axis) or (number, i - leading) in axes else size
        for i, size in enumerate(shape)
    )


class Functions:
    """Cache of compiled functions; drops those least recently called.

    Attributes:
        last: Arguments and function of the last call, set by the caller: a shortcut, because
            nearly all batches have the shapes of the previous one.
    """

    def __init__(self) -> None:
        self._found: dict[Any, Callable[..., Any]] = {}
        self.last: tuple[Any, Callable[..., Any]] | None = None

    def get(self, key: Any, compile_: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """Return the function for a key, compiling it if it is missing."""
        function = self._found.pop(key, None)
        if function is None:
            function = compile_()
        self._found[key] = function
        if len(self._found) > _MAX_FUNCTIONS:
            del self._found[next(iter(self._found))]
        return function

    def clear(self) -> None:
        """Drop the cached functions of all shapes; each is compiled again at its next use."""
        self._found.clear()
        self.last = None

    def drop(self, names: Collection[str]) -> None:
        """Drop the functions with one of these names, the first part of their keys."""
        self._found = {key: each for key, each in self._found.items() if key[0] not in names}
        self.last = None

    def __len__(self) -> int:
        """Return the number of cached functions."""
        return len(self._found)

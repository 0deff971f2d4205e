"""Which axes of a compiled step are open.

A function is compiled for the shapes of the example batch. An axis along which a batch has another
size than the example (sequences padded to the longest of a batch) is open instead, so lengths do
not cost a compilation each. A function with an open axis need not give the bits of one without
(measured on TensorFlow 2.21, CPU: convolutions, attention, SimpleRNN and BatchNorm differ in the
last digit; Dense, LSTM, GRU, Embedding and LayerNormalization do not). So which one is called
depends on the shapes of the batch and of the example only, never on the batches before it, which a
resumed process has not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from elasticdl.data.batch import Arrays, leaves

Shape: TypeAlias = tuple[int | None, ...]
Axes: TypeAlias = frozenset[tuple[int, int]]
"""(Number of the array, axis after those of the batch)."""

# Enough for the combinations of some axes; a model that cannot have any open needs one a length.
_MAX_FUNCTIONS = 64


class Lengths:
    """Knows the shapes of the example, part by part: features, labels.

    Args:
        parts: Of the example batch.

    Attributes:
        seen: Axes of the features along which a batch had another size.
    """

    def __init__(self, *parts: Arrays) -> None:
        self._examples = [[np.shape(array)[1:] for array in leaves(part)] for part in parts]
        self.seen: set[tuple[int, int]] = set()

    def open_axes(self, parts: Sequence[Arrays], leading: int) -> Axes:
        """Return the axes along which a batch has another size than the example.

        Args:
            parts: Features, labels; a part may be None.
            leading: How many axes stand before those of one example.
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
    """Return the shape that a function is compiled for.

    Args:
        shape: Of an array.
        number: Which one it is.
        leading: How many axes stand before those of one example.
        fixed_axis: The one of these that is compiled in; None leaves all of them open.
        axes: What is open besides.
    """
    return tuple(
        None if (i < leading and i != fixed_axis) or (number, i - leading) in axes else size
        for i, size in enumerate(shape)
    )


class Functions:
    """Compiled functions by what they are compiled for; those not called for long are dropped."""

    def __init__(self) -> None:
        self._found: dict[Any, Callable[..., Any]] = {}

    def get(self, key: Any, compile_: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        """Return the function of a key, compiled now if it is not there."""
        function = self._found.pop(key, None)
        if function is None:
            function = compile_()
        self._found[key] = function
        if len(self._found) > _MAX_FUNCTIONS:
            del self._found[next(iter(self._found))]
        return function

    def clear(self) -> None:
        """Drop all."""
        self._found.clear()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._found)

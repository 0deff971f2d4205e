"""Reads positions of iterators without advancing them, to detect that user code advances one.

    iterator                  its position is read from
    a generator               its current instruction, its variables, and the iterators of its loops
    of Python and itertools   what its `__reduce__` returns
    any other                 nothing; `CountingIterator` counts how often it was advanced

Callers: `torch/untracked_state.py`, `keras/attributes.py`.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from types import FunctionType, GeneratorType
from typing import Any

# The modules of Python's own iterators.
_OF_PYTHON = {"builtins", "itertools", "_collections"}


class CountingIterator:
    """Wraps an iterator that cannot be copied, and counts how often it is advanced.

    Args:
        inner: The iterator.

    Attributes:
        num_calls: Number of calls of `next` so far.
    """

    def __init__(self, inner: Iterator[Any]) -> None:
        self._inner, self.num_calls = inner, 0

    def __iter__(self) -> CountingIterator:
        """Return this object, as every iterator does."""
        return self

    def __next__(self) -> Any:
        """Count the call, and return the next item of the wrapped iterator."""
        self.num_calls += 1
        return next(self._inner)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the wrapped iterator."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._inner, name)


def position_of(iterator: Iterator[Any]) -> Iterator[Any]:
    """Yield the values that determine the next items of an iterator, without advancing it.

    Yields nothing for an iterator whose position cannot be read.
    """
    if isinstance(iterator, GeneratorType):
        yield iterator.gi_frame.f_lasti if iterator.gi_frame else None
        # Its local variables, and the iterators of loops that it is in.
        for each in gc.get_referents(iterator):
            if not isinstance(each, FunctionType):
                yield each
    elif is_readable(iterator):
        # Python 3.12 and 3.13 warn that this will end for those of itertools.
        with warnings.catch_warnings(action="ignore"):
            reduced: Any = iterator.__reduce__()
        _, items, *state = reduced
        yield from items
        yield from state


def is_readable(iterator: Iterator[Any]) -> bool:
    """Return whether `position_of` reads an iterator from `__reduce__`; False for generators."""
    kind = type(iterator)
    return kind.__module__ in _OF_PYTHON and kind.__reduce__ is not object.__reduce__

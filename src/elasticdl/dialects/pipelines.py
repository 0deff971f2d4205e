"""Reads the elements of a session's generators as numpy arrays.

A session is a training run described by component classes and a config (`abstractions.py`). A
*generator* is a `tf.data.Dataset`, a `keras.utils.PyDataset` (or any object with a length and
items), or any Python iterable. Elements are read only when they are requested.

Callers: `abstractions.py`, and code that evaluates a session.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elasticdl.data.batch import map_arrays, not_in_numpy
from elasticdl.errors import DefinitionError, ElasticDLError, UserCodeError, users_traceback

if TYPE_CHECKING:
    from collections.abc import Callable

Kind = Literal["tf.data", "indexed", "iterable"]
# Python's message for a generator that calls `next` on an exhausted one.
_ENDED_WITHIN = "generator raised StopIteration"


def kind_of(generator: Any, name: str) -> Kind:
    """Return how a generator is read: as `tf.data`, by index or by iteration.

    Raises:
        DefinitionError: It can be read in none of these ways.
    """
    if hasattr(generator, "element_spec") and hasattr(generator, "with_options"):
        return "tf.data"
    if hasattr(generator, "__getitem__") and length_of(generator) is not None:
        return "indexed"
    if hasattr(generator, "__next__") or hasattr(generator, "__iter__"):
        return "iterable"
    raise DefinitionError(
        f"{name} is of type {type(generator).__name__}. Expected a tf.data.Dataset, a "
        "keras.utils.PyDataset, or an iterable, such as a Python generator."
    )


def length_of(generator: Any) -> int | None:
    """Return the number of elements of an object with items; None if it is unknown.

    A `PyDataset` may have `num_batches` instead of a length.
    """
    try:
        return len(generator)
    except TypeError:
        pass
    try:
        number = getattr(generator, "num_batches", None)
    except NotImplementedError:
        return None
    return number if isinstance(number, int) else None


def elements(generator: Any, name: str, first: int = 0) -> Iterator[Any]:
    """Yield a generator's elements, with tensors as numpy arrays.

    Args:
        generator: A generator of any kind.
        name: The user's name for it, for errors.
        first: Index of the first element, for a generator that `kind_of` calls `indexed`; ignored
            for others.

    Raises:
        UserCodeError: The generator raised; the message has the user's part of the traceback.
        DefinitionError: An element has a tensor of a dtype that NumPy lacks.
    """
    kind = kind_of(generator, name)
    if kind == "tf.data":
        from elasticdl.data import tensorflow  # noqa: PLC0415 - needed only for a dataset

        return _guarded(lambda: tensorflow.numpy_elements(generator), name)
    if kind == "indexed":
        items = (generator[i] for i in range(first, length_of(generator) or 0))
        return _guarded(lambda: map(partial(_as_numpy, name=name), items), name)
    return _guarded(lambda: map(partial(_as_numpy, name=name), generator), name)


def is_end(error: Exception) -> bool:
    """Return whether a generator failed only because it called `next` on an exhausted iterator.

    Python turns the `StopIteration` of that call into a `RuntimeError`. ElasticDL treats it as the
    end of the generator.
    """
    return isinstance(error, RuntimeError) and str(error) == _ENDED_WITHIN


def _guarded(begin: Callable[[], Iterator[Any]], name: str) -> Iterator[Any]:
    try:
        yield from begin()
    except ElasticDLError:
        raise
    except Exception as error:
        if is_end(error):
            return
        raise UserCodeError(f"{name} raised:\n{users_traceback(error)}") from error


def _as_numpy(element: Any, name: str) -> Any:
    def convert(leaf: Any) -> Any:
        if problem := not_in_numpy(leaf):
            raise DefinitionError(f"{name} yields {problem}")
        return leaf if isinstance(leaf, (str, bytes)) else np.asarray(leaf)

    return map_arrays(convert, element)

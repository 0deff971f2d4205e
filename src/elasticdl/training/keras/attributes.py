"""Python attributes (numbers, arrays, switches) that a step reads when it is compiled.

A step reads `optimizer.weight_decay`, `layer.rate` or `layer.trainable` when it is compiled, and
never again. The same holds for attributes of the objects in them, such as a regularizer, a
constraint, a learning rate schedule or an object of the user's. `fit` compiles it at the first
batch, after the first calls of callbacks; a resumed run compiles it in the middle, and workers
compile it before training begins:

    set by the model file           as_in_file(): every step is compiled with these
    changed before the first step   rejected: only `fit` would see it, once
    changed later                   not seen, as in `fit`; but callbacks may read them again, so
                                    checkpoints keep what has `changed`

A model that requests to run eagerly may change attributes in each step, and also numbers in lists
and positions of iterators. Such a change is rejected when a step is compiled.

Callers: `trainer.py`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.iterators import position_of

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_PLAIN = (type(None), bool, int, float, str)
# Maximum depth of lists, dicts and iterators within each other.
_DEPTH = 4
_TRAINABLE = "_trainable"
_OF_KERAS = {"built", "compiled", "stop_training"}
_MISSING = object()
# Larger arrays are not copied, so a change of them is not noticed.
_MAX_BYTES = 16 << 20
# Objects of Keras whose attributes a step reads, among those that layers and optimizers hold.
_READ = (
    keras.regularizers.Regularizer,
    keras.constraints.Constraint,
    keras.optimizers.schedules.LearningRateSchedule,
)
_LEARNING_RATE = "_learning_rate"
_LIBRARIES = ("keras", "tensorflow", "numpy", "tf_keras", "elasticdl")
_DEPTH_OF_OBJECTS = 2


class Attributes:
    """Tracks the plain Python attributes that a compiled step reads only once.

    These are the attributes of a model, its layers, weights and optimizer, and of the objects
    stored in them.

    Args:
        model: The model, as the user's file created it.
        optimizer: Its optimizer, as the user's file created it.
        origin: Prefix of error messages.
    """

    def __init__(
        self, model: keras.Model, optimizer: keras.optimizers.Optimizer, origin: Origin
    ) -> None:
        self._origin = origin
        # Keras has no public name for the list of all layers, including nested ones.
        layers = [model, *model._flatten_layers(include_self=False)]  # noqa: SLF001
        owners = (*layers, *_optimizers(optimizer), *model.variables)
        found = {id(each): (each, _name(each)) for each in owners}
        for owner in owners:
            for name, each in _held(owner, _name(owner), _DEPTH_OF_OBJECTS):
                found.setdefault(id(each), (each, name))
        self._owners = [owner for owner, _ in found.values()]
        self._names = [name for _, name in found.values()]
        self._made = [_values(owner) for owner in self._owners]

    @contextlib.contextmanager
    def as_in_file(self) -> Iterator[None]:
        """Reset attributes to the values they had when the user's Python file created the model.

        A context manager, for compiling a step. On exit the previous values are restored; an
        attribute changed inside the block keeps its new value.
        """
        moved = []
        for owner, made in zip(self._owners, self._made, strict=True):
            for name, value in _changes(owner, made, _values(owner), with_new=True).items():
                moved.append((owner, name, value, made.get(name, _MISSING)))
                _put(owner, name, made.get(name, _MISSING))
        try:
            yield
        finally:
            for owner, name, value, before in moved:
                if _same(vars(owner).get(name, _MISSING), before):
                    _put(owner, name, value)

    def changed(self) -> dict[str, Any]:
        """Return the attributes that differ from those that the user's file set, for `restore`.

        Returns:
            Key such as "3/rate" -> a copy of the value. The number identifies the object that has
            the attribute, such as a layer.
        """
        return {
            f"{number}/{name}": value
            for number, (owner, made) in enumerate(zip(self._owners, self._made, strict=True))
            for name, value in _changes(owner, made, _values(owner), with_new=True).items()
        }

    def restore(self, changed: Mapping[str, Any]) -> None:
        """Set attributes to the values that `changed` returned in an earlier process."""
        for key, value in changed.items():
            number, _, name = key.partition("/")
            _put(self._owners[int(number)], name, value)

    @contextlib.contextmanager
    def watched(self, who: str, advice: str, *, within: bool = False) -> Iterator[None]:
        """Context manager: rejects code that changes these attributes in the block.

        Args:
            who: The code that may change them, for the error message.
            advice: What to do instead.
            within: Whether to also reject changes inside attribute values: of numbers in lists and
                dicts, and of positions of iterators.

        Raises:
            DefinitionError: An attribute has another value at the end.
        """
        read = _values_within if within else _values
        before = [read(owner) for owner in self._owners]
        yield
        for owner, called, values in zip(self._owners, self._names, before, strict=True):
            for name in _changes(owner, values, read(owner)):
                raise DefinitionError(
                    f"{self._origin}: {who} changes {name.removeprefix('_')} of "
                    f"{called} ({type(owner).__name__}). {advice}"
                )


def _values(owner: Any) -> dict[str, Any]:
    plain = {
        name: _number(value)
        for name, value in vars(owner).items()
        if name == _TRAINABLE or not (name.startswith("_") or name in _OF_KERAS)
    }
    copies = {name: _copied(value, _DEPTH) for name, value in plain.items()}
    return {name: value for name, value in copies.items() if value is not _MISSING}


def _copied(value: Any, depth: int) -> Any:
    """Copy a plain value, a small array, or a list or dict of these; `_MISSING` for others."""
    value = _number(value)
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return value.copy() if value.nbytes <= _MAX_BYTES and value.dtype != object else _MISSING
    if depth == 0 or not isinstance(value, (list, tuple, Mapping)):
        return _MISSING
    items = value if isinstance(value, Mapping) else dict(enumerate(value))
    copies = {key: _copied(each, depth - 1) for key, each in items.items()}
    if any(each is _MISSING for each in copies.values()):
        return _MISSING
    if isinstance(value, Mapping):
        return copies
    return tuple(copies.values()) if isinstance(value, tuple) else list(copies.values())


def _name(owner: Any) -> str:
    return str(getattr(owner, "path", None) or getattr(owner, "name", owner))


def _held(owner: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) for each object stored in `owner` whose attributes a step may read.

    Such objects are regularizers, constraints, learning rate schedules and the user's own.

    Args:
        owner: A model, layer, weight, optimizer, or an object found in one of these.
        name: How messages name `owner`.
        depth: How many levels of objects within objects to search.
    """
    for attribute, value in list(vars(owner).items()):
        if attribute.startswith("_") and attribute != _LEARNING_RATE:
            continue
        for each in _objects_in(value, _DEPTH):
            called = f"{attribute.removeprefix('_')} of {name}"
            yield called, each
            if depth > 1:
                yield from _held(each, called, depth - 1)


def _objects_in(value: Any, depth: int) -> Iterator[Any]:
    if depth and isinstance(value, (list, tuple, Mapping)):
        for each in list(value.values() if isinstance(value, Mapping) else value):
            yield from _objects_in(each, depth - 1)
    elif isinstance(value, _READ) or _is_of_user(value):
        yield value


def _is_of_user(value: Any) -> bool:
    """Return whether a value is an object of a class that the user wrote, with attributes."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (type, keras.layers.Layer, keras.Variable, keras.Optimizer))
        and not callable(getattr(value, "__get__", None))
        and kind.__module__.partition(".")[0] not in (*_LIBRARIES, *sys.stdlib_module_names)
    )


def _values_within(owner: Any) -> dict[str, Any]:
    """Return name -> number, string or bool of `owner`, also from inside lists and dicts: `a[0]`.

    An iterator is represented by its current position.
    """
    values = {name: each for name, each in _values(owner).items() if type(each) in _PLAIN}
    for name, value in list(vars(owner).items()):
        if not name.startswith("_") and type(value) not in _PLAIN:
            values |= dict(_entries(name, value, _DEPTH))
    return values


def _entries(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    value = _number(value)
    if type(value) in _PLAIN:
        yield name, value
    elif depth == 0:
        return
    elif isinstance(value, Iterator):
        # An iterator counts as one value, its position.
        position = [_entries("", each, depth - 1) for each in position_of(value)]
        yield name, repr([list(each) for each in position])
    elif isinstance(value, (list, tuple, Mapping)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in list(items):
            yield from _entries(f"{name}[{key!r}]", each, depth - 1)


def _number(value: Any) -> Any:
    """Convert a NumPy or TensorFlow scalar to a Python number; return other values unchanged."""
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        value = value.numpy()
    is_number = isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0
    return value.item() if is_number else value


def _changes(
    owner: Any, before: dict[str, Any], now: dict[str, Any], *, with_new: bool = False
) -> dict[str, Any]:
    """Return name -> new value for the attributes in `now` that differ from those in `before`.

    An attribute missing from `before` is compared with the default in the class of `owner`; if the
    class has none, it is left out unless `with_new`.
    """
    return {
        name: value
        for name, value in now.items()
        if (with_new or name in before or hasattr(type(owner), name))
        and not _same(value, before.get(name, getattr(type(owner), name, _MISSING)))
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and (one == other or one != one)  # noqa: PLR0124 - NaN


def _put(owner: Any, name: str, value: Any) -> None:
    # Bypasses the setters of Keras, which pass `trainable` on to other layers.
    if value is _MISSING:
        vars(owner).pop(name, None)
    else:
        vars(owner)[name] = value


def _optimizers(optimizer: Any) -> list[Any]:
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [optimizer, *(one for each in inner if each is not None for one in _optimizers(each))]

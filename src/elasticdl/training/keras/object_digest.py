"""Computes digests of what the user's functions and objects hold, to detect changes.

    kind of value                                   covered by its digest
    a value that checkpoints could store            its value
    a list, a dict, ...                             its items
    an object or class of the user, a function      its attributes, defaults, enclosing variables
    an iterator                                     its position
    anything else                                   nothing: changes are not detected

Large values are compared in part, because a digest is computed for each checkpoint.

Callers: `callback_memory.py`.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import inspect
import itertools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from elasticdl.training.iterators import is_readable, position_of
from elasticdl.training.keras.callback_state import digest
from elasticdl.training.keras.read_variables import is_users

_DEPTH = 5
_MAX_ITEMS = 200
_MAX_BYTES = 2**20
_SEQUENCES = (list, tuple, deque, set, frozenset)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_DESCRIPTORS = (property, classmethod, staticmethod, types.MemberDescriptorType)

Key = tuple[int, str]
"""(id of the object, class, module or cell that has a variable, its name)."""


class Held(NamedTuple):
    """A value that a function or an object refers to; later checkpoints check it for changes.

    It is an attribute, a closure variable, a default or a bound argument.

    Attributes:
        key: Identifies the variable or attribute: id of what holds it, and its name there.
        name: Its name for messages.
        value: Its present value.
    """

    key: Key
    name: str
    value: Any

    @property
    def attribute(self) -> str:
        """Name of the attribute that has the value; empty if a variable or an argument has it."""
        return self.key[1] if "." in self.name else ""


class Digest:
    """Computes digests of values, which are compared later to detect changes.

    Args:
        is_left_out: Function (value) -> whether to ignore changes of a value.

    Attributes:
        found: Key of a variable or attribute -> (its name for messages, digest of its value).
    """

    def __init__(self, is_left_out: Callable[[Any], bool] = lambda _: False) -> None:
        self.found: dict[Key, tuple[str, Any]] = {}
        self._is_left_out = is_left_out

    def add(self, held: Held, depth: int = _DEPTH) -> None:
        """Add a value, and the values that functions and objects in it hold, down to `depth`."""
        if held.key in self.found or not depth:
            return
        inner: list[Any] = []
        self.found[held.key] = held.name, self._token(held.value, depth, inner)
        for value in inner:
            for each in itertools.islice(held_by(value, held.name), _MAX_ITEMS):
                self.add(each, depth - 1)

    def _token(self, value: Any, depth: int, inner: list[Any]) -> Any:
        """Return the digest of a value; equal values have equal digests.

        Functions and objects have none: they are added to `inner`, so that `add` searches their
        attributes and variables.
        """
        if not depth or self._is_left_out(value):
            return ()
        if isinstance(value, Iterator):
            items = list(position_of(value))
        elif isinstance(value, Mapping):
            items = list(itertools.chain(*value.items()))
        elif isinstance(value, _SEQUENCES):
            items = list(value)
        else:
            if (found := _digest(value)) is None:
                inner.append(value)
            return found
        some = items[:_MAX_ITEMS] + items[-1:]
        tokens = [self._token(each, depth - 1, inner) for each in some]
        # The order of a set is not part of its value.
        is_set = isinstance(value, (set, frozenset))
        return len(items), sorted(map(repr, tokens)) if is_set else tokens


def _digest(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    if isinstance(value, np.ndarray):
        return value.shape, digest(value.reshape(-1)[: _MAX_BYTES // max(value.itemsize, 1)])
    return digest(value)


def held_by(value: Any, name: str) -> Iterator[Held]:
    """Yield the attributes, closure variables and defaults of a user's function, class or object.

    Nothing for other values.
    """
    match value:
        case functools.partial():
            yield from (Held((id(value), key), key, each) for key, each in _arguments(value))
            yield Held((id(value), "func"), name_of(value.func), value.func)
        case types.MethodType():
            yield Held((id(value), "self"), type(value.__self__).__name__, value.__self__)
        case types.FunctionType() if is_users(value.__module__):
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            for key, cell in cells:
                with contextlib.suppress(ValueError):  # The cell is empty.
                    yield Held((id(cell), key), key, cell.cell_contents)
            yield from (Held((id(value), f"{key}="), key, each) for key, each in _defaults(value))
            yield from _attributes(value, value.__name__)
        case type() if is_users(value.__module__):
            yield from _attributes(value, value.__name__)
        case _ if is_users_object(value):
            yield from _attributes(value, name)
            for kind in type(value).__mro__:
                yield from held_by(kind, kind.__name__)


def _attributes(value: Any, name: str) -> Iterator[Held]:
    left_out = (types.FunctionType, *_DESCRIPTORS) if isinstance(value, type) else ()
    for key, each in list(vars(value).items()):
        if not key.startswith("__") and key != "_abc_impl" and not isinstance(each, left_out):
            yield Held((id(value), key), f"{name}.{key}", each)


def _arguments(function: functools.partial[Any]) -> list[tuple[str, Any]]:
    """Return (name, value) of the arguments that a `functools.partial` passes."""
    try:
        bound = inspect.signature(function.func).bind_partial(*function.args, **function.keywords)
    except (TypeError, ValueError):  # Functions of C have no signature.
        return [("its argument", (function.args, function.keywords))]
    return list(bound.arguments.items())


def _defaults(function: types.FunctionType) -> list[tuple[str, Any]]:
    """Return (name, value) of the default arguments of a function."""
    values, code = function.__defaults__ or (), function.__code__
    names = code.co_varnames[code.co_argcount - len(values) : code.co_argcount]
    return [*zip(names, values, strict=True), *(function.__kwdefaults__ or {}).items()]


def name_of(function: Any) -> str:
    """Return the name of a function, or of the class of a callable object."""
    return str(getattr(function, "__name__", type(function).__name__))


def is_users_object(value: Any) -> bool:
    """Return whether a value is an object of a user's class that has attributes."""
    others = (type, types.ModuleType, types.FunctionType, enum.Enum, *_SEQUENCES, dict)
    is_other = isinstance(value, others) or not hasattr(value, "__dict__")
    return not is_other and is_users(type(value).__module__)


def is_compared(value: Any) -> bool:
    """Return whether a digest detects all changes of a value that the user's code can make.

    It does not if the value, or an item in it, is of a type that digests do not cover.
    """
    if isinstance(value, (*_SEQUENCES, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return all(map(is_compared, itertools.islice(inner, _MAX_ITEMS)))
    if isinstance(value, Iterator):
        return is_readable(value)
    is_code = isinstance(value, (*_FUNCTIONS, type, enum.Enum))
    return is_code or is_users_object(value) or digest(value) is not None

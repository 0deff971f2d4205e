"""Summary of what a user's object holds, to detect that it has changed.

    a number, a string, a container, an array       its value
    an object or class of the user, a function      its attributes, defaults, enclosing variables
    an iterator, a random generator                 its position, its state
    anything else                                   nothing: it is not compared

Large values are summarised in part, because it is computed for each checkpoint.

Callers: `keras/callback_memory.py`.
"""

from __future__ import annotations

import enum
import functools
import itertools
import random
import sys
import sysconfig
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from elasticdl.training.iterators import is_readable, position_of

_DEPTH = 5
_MAX_ITEMS = 200
_MAX_BYTES = 2**20
PLAIN = (
    bool, int, float, complex, str, bytes, bytearray, np.generic, range, date, time, timedelta,
    Decimal, Fraction, PurePath, enum.Enum,
)  # fmt: skip
_FRAMEWORKS = {"elasticdl", "keras", "numpy", "tensorflow"}
_OF_PYTHON = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("/site-packages/", "/dist-packages/")

Summary = dict[tuple[int, str], tuple[str, Any]]
"""(id of the owner, name of the attribute) -> (name for messages, what it holds)."""


def summary(
    value: Any,
    name: str,
    key: tuple[int, str],
    special: Callable[[Any], Any] = lambda _: None,
) -> Summary:
    """Summarise a value; two summaries of it are equal as long as it does not change.

    Args:
        value: The value. It must not change at the same time.
        name: Its name for messages; those of its attributes begin with it.
        key: What to name it in the result.
        special: Function (value) -> summary of a value of a framework, a tuple; the empty one if it
            is not compared, None if the value is of no framework.
    """
    found: Summary = {}
    _Summary(special).add(found, value, name, key, _DEPTH)
    return found


class _Summary:
    def __init__(self, special: Callable[[Any], Any]) -> None:
        self._special = special
        self._seen: set[int] = set()

    def add(self, found: Summary, value: Any, name: str, key: tuple[int, str], depth: int) -> None:
        """Add a value to a summary: one entry, or one for each of its attributes."""
        inner = self._attributes(value) if self._special(value) is None else None
        if inner is None:
            found[key] = name, self._token(value, depth)
            return
        if id(value) in self._seen or not depth:
            return
        self._seen.add(id(value))
        for owner, attribute, label, each in itertools.islice(inner, _MAX_ITEMS):
            full = label or f"{name}.{attribute}"
            self.add(found, each, full, (id(owner), attribute), depth - 1)

    def _attributes(self, value: Any) -> list[tuple[Any, str, str, Any]] | None:
        """Return (owner, attribute, name or empty, value) within a value; None if it has none."""
        if isinstance(value, PLAIN):
            return None
        if isinstance(value, functools.partial):
            named = [*zip(range(len(value.args)), value.args, strict=True), *value.keywords.items()]
            some = [
                (each, "", f"argument {key} of {_name(value.func)}", each) for key, each in named
            ]
            return [*some, (value.func, "", _name(value.func), value.func)]
        if isinstance(value, types.MethodType):
            return [(value.__self__, "", type(value.__self__).__name__, value.__self__)]
        if isinstance(value, types.FunctionType):
            return _of_function(value) if is_users(value) else None
        if isinstance(value, type):
            return _of_class(value) if is_users(value) else None
        if not is_users_object(value) or isinstance(value, (list, tuple, dict, set, deque)):
            return None
        own = [(value, key, "", each) for key, each in list(vars(value).items())]
        return own + [each for base in type(value).__mro__ for each in _of_class(base)]

    def _token(self, value: Any, depth: int) -> Any:  # noqa: C901, PLR0911 - one line a type
        """Return a value that compares equal as long as another one is the same."""
        if value is None or isinstance(value, PLAIN):
            return type(value).__name__, repr(value)
        if (special := self._special(value)) is not None:
            return special
        if not depth:
            return ()
        match value:
            case np.ndarray():
                return value.shape, value.dtype.str, checksum(value)
            case np.random.Generator():
                return repr(value.bit_generator.state)
            case np.random.RandomState():
                return repr(value.get_state(legacy=False))
            case random.Random():
                return hash(value.getstate())
            case Mapping():
                some = list(itertools.islice(value.items(), _MAX_ITEMS))
                items = [(self._token(k, depth - 1), self._token(v, depth - 1)) for k, v in some]
                return type(value).__name__, len(value), items
            case set() | frozenset():
                # The order of a set is not part of its value.
                some = list(itertools.islice(value, _MAX_ITEMS))
                return len(value), sorted(repr(self._token(each, depth - 1)) for each in some)
            case list() | tuple() | deque():
                # The end of a long list changes when items are added, and when the last one does.
                some = [*itertools.islice(value, _MAX_ITEMS), *([value[-1]] if value else [])]
                return len(value), [self._token(each, depth - 1) for each in some]
            case Iterator() if not isinstance(value, itertools.count):
                return [self._token(each, depth - 1) for each in position_of(value)]
        inner = self._attributes(value)
        if inner is None or id(value) in self._seen:
            return ()
        return [
            (attribute, self._token(each, depth - 1))
            for _, attribute, _, each in itertools.islice(inner, _MAX_ITEMS)
        ]


def _of_function(function: types.FunctionType) -> list[tuple[Any, str, str, Any]]:
    name = function.__name__
    names = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    cells = [(cell, key, key, content_of(cell)) for key, cell in names if key != "__class__"]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    more = [(each, "", f"a default argument of {name}", each) for each in defaults]
    return cells + more + [(function, key, "", each) for key, each in vars(function).items()]


def _of_class(kind: type) -> list[tuple[Any, str, str, Any]]:
    if not is_users(kind):
        return []
    descriptors = (
        types.FunctionType,
        property,
        classmethod,
        staticmethod,
        types.MemberDescriptorType,
    )
    return [
        (kind, key, f"{kind.__name__}.{key}", value)
        for key, value in list(vars(kind).items())
        if not key.startswith("__") and key != "_abc_impl" and not isinstance(value, descriptors)
    ]


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def content_of(cell: types.CellType) -> Any:
    """Return the value of a variable of an enclosing function; None if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def checksum(array: np.ndarray[Any, Any]) -> int:
    """Return a checksum of an array, of its first bytes if it is large; 0 for one of objects."""
    if array.dtype.hasobject:
        return 0
    some = array.reshape(-1)[: _MAX_BYTES // max(array.itemsize, 1)]
    return zlib.crc32(np.ascontiguousarray(some).tobytes())


def is_users_object(value: Any) -> bool:
    """Return whether a value is an object of a user's class that has attributes."""
    return (
        not isinstance(value, (type, types.ModuleType, enum.Enum))
        and hasattr(value, "__dict__")
        and is_users(type(value))
    )


def is_users(code: types.FunctionType | type | types.ModuleType) -> bool:
    """Return whether a function, class or module is of a user's file, not of a library."""
    # A user's code may set them to anything.
    name: object = code.__name__ if isinstance(code, types.ModuleType) else code.__module__
    return isinstance(name, str) and not _is_library(name)


def is_summarised(value: Any) -> bool:
    """Return whether `summary` shows each change of a value, as far as it is in the user's code."""
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return all(map(is_summarised, itertools.islice(value, _MAX_ITEMS)))
    if isinstance(value, dict):
        return all(map(is_summarised, itertools.islice(value.values(), _MAX_ITEMS)))
    functions = types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial
    return (
        value is None
        or isinstance(value, (*PLAIN, *functions, type, np.ndarray))
        or is_users_object(value)
        or (isinstance(value, Iterator) and is_readable(value))
    )


def _is_library(name: str) -> bool:
    package = name.partition(".")[0]
    if package in _FRAMEWORKS:
        return True
    file = str(getattr(sys.modules.get(package), "__file__", None) or "")
    # A user's file may have the name of a module of Python, such as `code` or `__main__`.
    if package in sys.stdlib_module_names and name != "__main__":
        return not file or Path(file).is_relative_to(_OF_PYTHON)
    return any(part in file.replace("\\", "/") for part in _INSTALLED)

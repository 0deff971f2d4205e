"""Finds variables of modules, classes and closures that the code of a step reads.

    ALPHA = 1.0                     a variable of the user's file, or of a module that it imports
    class Scale(Layer): rate = 1.0  an attribute of a class
    def with_scale(scale): ...      a variable of the function around a loss

A step reads them when it is compiled, as it does attributes of objects. `variables_of` finds those
whose names occur in the code of a loss, a metric or a layer, without running it.

Callers: `attributes.py`; `callback_memory.py` for the functions of callbacks.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import types
from collections.abc import Hashable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras

__all__ = [
    "Variables", "is_of_library", "is_of_user", "is_users", "names_in", "private_names", "used_by",
    "variables_of",
]  # fmt: skip

_LIBRARIES = ("keras", "tensorflow", "numpy", "tf_keras", "elasticdl")
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
# Methods that no step calls.
_NOT_IN_STEPS = {"__init__", "__init_subclass__", "get_config", "from_config"}
_NOT_FOLLOWED = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    keras.Variable,
    keras.callbacks.Callback,
)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
# Maximum number of functions that call each other.
_DEPTH = 5


@dataclass(frozen=True, eq=False)
class Variables:
    """The variables of one place: a module, a class, or the closure of a function.

    Attributes:
        called: Name of the place in messages.
        kind: "module", "class" or "function".
        place: Name -> value, for all variables; setting a value changes the variable.
        names: Names of the variables that a step reads.
    """

    called: str
    kind: str
    place: MutableMapping[str, Any]
    names: set[str] = field(default_factory=set)

    @property
    def identity(self) -> Hashable:
        """Value that is equal for two `Variables` of the same module, class or closure."""
        return "variables", id(getattr(self.place, "of", self.place))

    def key(self, name: str) -> tuple[int, str]:
        """Return the key of a variable, which is the same in all functions that share it.

        It is a pair: id of the module, the class or the closure cell, and name of the variable.
        """
        if isinstance(self.place, _OfClosure):
            return id(self.place.cells[name]), name
        return id(getattr(self.place, "of", self.place)), name


class _OfClass(MutableMapping[str, Any]):
    """Mapping of the attributes of a class (not of its instances), to read and set them."""

    def __init__(self, class_: type) -> None:
        self.of = class_

    def __getitem__(self, name: str) -> Any:
        return vars(self.of)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        setattr(self.of, name, value)

    def __delitem__(self, name: str) -> None:
        delattr(self.of, name)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self.of))

    def __len__(self) -> int:
        return len(vars(self.of))


class _OfClosure(MutableMapping[str, Any]):
    """Mapping of a function's closure variables (those of the enclosing function)."""

    def __init__(self, function: types.FunctionType) -> None:
        self.of = function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self.cells = dict(cells)

    def __getitem__(self, name: str) -> Any:
        try:
            return self.cells[name].cell_contents
        except ValueError:  # The cell is empty.
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self.cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self.cells[name].cell_contents

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.cells if name in self])

    def __contains__(self, name: object) -> bool:
        try:
            self[str(name)]
        except KeyError:
            return False
        return True

    def __len__(self) -> int:
        return len(list(iter(self)))


def variables_of(owners: Iterable[Any]) -> list[Variables]:
    """Return the variables that functions and objects read, grouped by module, class or closure.

    Args:
        owners: Functions of a step, or objects whose methods it calls: losses, metrics, layers.
            The user's functions that these call are followed.
    """
    found: dict[int, Variables] = {}
    seen: set[int] = set()
    for owner in owners:
        functions = list(_functions_of(owner, _DEPTH, seen))
        for function in functions:
            _add_read_by(function, found)
        if not isinstance(owner, _FUNCTIONS):
            _add_of_class(type(owner), set[str]().union(*map(names_in, functions)), found)
    return [each for each in found.values() if each.names]


def _add_read_by(function: types.FunctionType, found: dict[int, Variables]) -> None:
    """Add the variables that a function reads to those found so far.

    Args:
        function: The function.
        found: Id of a module, of a class, or of a function with a closure -> its variables that
            are read.
    """
    names = names_in(function)
    _add_of_module(function.__globals__, str(function.__module__), names, found)
    if function.__closure__:
        # Functions share a cell if the function around them was called once.
        called, cells = function.__qualname__, _OfClosure(function)
        found[id(function)] = Variables(
            called, "function", cells, set(function.__code__.co_freevars)
        )
    for value in used_by(function).values():
        if isinstance(value, types.ModuleType) and not is_of_library(value.__name__):
            _add_of_module(vars(value), value.__name__, names, found)
        elif isinstance(value, type):
            _add_of_class(value, names, found)


def _add_of_module(
    module: dict[str, Any], name: str, names: set[str], found: dict[int, Variables]
) -> None:
    if not _is_installed(module):
        file = Path(str(module.get("__file__", name))).name
        place = Variables(file, "module", module)
        found.setdefault(id(module), place).names.update(names & module.keys())


def _add_of_class(class_: type, names: set[str], found: dict[int, Variables]) -> None:
    for kind in class_.__mro__:
        if not is_of_library(kind.__module__):
            place = Variables(kind.__qualname__, "class", _OfClass(kind))
            found.setdefault(id(kind), place).names.update(names & vars(kind).keys())


def _functions_of(owner: Any, depth: int, seen: set[int]) -> Iterator[types.FunctionType]:
    """Yield the user's functions that a function calls, or that are methods of an object.

    Args:
        owner: The function or object.
        depth: How many functions that call each other to follow.
        seen: Ids of what was searched before, which is skipped; added to.
    """
    if depth == 0 or id(owner) in seen or isinstance(owner, _NOT_FOLLOWED):
        return
    seen.add(id(owner))
    if isinstance(owner, types.FunctionType) and not is_of_library(owner.__module__):
        yield owner
    for value in _called_by(owner):
        yield from _functions_of(value, depth - 1, seen)


def _called_by(owner: Any) -> list[Any]:
    """Return what a value may call: functions, and objects whose methods are searched next.

    For a function, these are the functions that it refers to. For an object, they are its methods
    and the functions in its attributes.
    """
    match owner:
        case types.FunctionType() if is_of_library(owner.__module__):
            # A function of ElasticDL or Keras around one of the user's.
            return [each for _, each in _OfClosure(owner).items()]
        case types.FunctionType():
            return [each for each in used_by(owner).values() if isinstance(each, _FUNCTIONS)]
        case types.MethodType():
            return [owner.__func__, owner.__self__]
        case functools.partial():
            return [owner.func, *owner.args, *owner.keywords.values()]
        case _:
            # Such as the function of a `Lambda`, or an activation.
            held = list(getattr(owner, "__dict__", {}).values())
            return [*_methods_of(owner), *(each for each in held if isinstance(each, _FUNCTIONS))]


def _methods_of(owner: Any) -> Iterator[types.FunctionType]:
    for kind in type(owner).__mro__:
        if is_of_library(kind.__module__):
            continue
        for name, value in vars(kind).items():
            method = value.fget if isinstance(value, property) else value
            method = getattr(method, "__func__", method)  # A static or class method.
            if name not in _NOT_IN_STEPS and isinstance(method, types.FunctionType):
                yield method


def used_by(function: Any) -> dict[str, Any]:
    """Return name -> value of the global and closure variables that a function uses.

    For a method or a `functools.partial`, return the values bound to it; for a value that is no
    function at all, an empty dict.
    """
    match function:
        case functools.partial():
            return {"func": function.func, "args": function.args, **function.keywords}
        case types.MethodType():
            return {"self": function.__self__}
        case types.FunctionType():
            names = function.__globals__
            used = {name: names[name] for name in function.__code__.co_names if name in names}
            return used | dict(_OfClosure(function))
        case _:
            return {}


def names_in(value: Any) -> set[str]:
    """Return the names of variables and attributes in the code of a function or an object."""
    functions = [value, *vars(type(value)).values()]
    codes = [getattr(each, "__code__", None) for each in functions]
    return set[str]().union(*map(_names_in_code, codes))


def _names_in_code(code: Any) -> set[str]:
    """Return the names in a code object and in the functions within it; empty for other values."""
    if not isinstance(code, types.CodeType):
        return set()
    return set(code.co_names).union(*map(_names_in_code, code.co_consts))


@functools.cache
def private_names(class_: Any) -> frozenset[str]:
    """Return the private names in the code of a user's class, without those of its base classes.

    A base class of Keras uses many private attributes, whose names occur in its own code.
    """
    names: dict[bool, set[str]] = {True: set(), False: set()}
    for kind in class_.__mro__:
        for value in vars(kind).values():
            parts = [getattr(value, name, None) for name in ("fget", "fset", "__func__")]
            # A method may be decorated with `tf.function`.
            parts += [value, getattr(value, "python_function", None)]
            codes = [getattr(each, "__code__", None) for each in parts]
            names[is_users(kind.__module__)].update(*map(_names_in_code, codes))
    found = names[True] - names[False]
    return frozenset(name for name in found if name.startswith("_") and not name.endswith("__"))


def is_of_user(value: Any) -> bool:
    """Return whether a value is an object of a class that the user wrote, with attributes."""
    kind = type(value)
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (type, keras.layers.Layer, keras.Variable, keras.Optimizer))
        and not callable(getattr(value, "__get__", None))
        and not is_of_library(kind.__module__)
    )


def is_of_library(module: str | None) -> bool:
    """Return whether a module is one of Python, of a framework, or of ElasticDL."""
    return str(module).partition(".")[0] in (*_LIBRARIES, *sys.stdlib_module_names)


def is_users(module: str | None) -> bool:
    """Return whether a module is one of the user's files, not one of an installed package."""
    loaded = sys.modules.get(str(module))
    return not is_of_library(module) and not (loaded and _is_installed(vars(loaded)))


def _is_installed(module: Mapping[str, Any]) -> bool:
    """Return whether a module is in a folder of installed packages, such as `site-packages`.

    Args:
        module: The variables of the module, by name; its `__file__` decides.
    """
    return str(module.get("__file__", "")).startswith(_INSTALLED)

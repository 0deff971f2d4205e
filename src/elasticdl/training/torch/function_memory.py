"""Finds, stores and restores what a user's function remembers from one call to the next.

    the function uses                                                    stored is
    a variable of the enclosing function, a global one that it assigns   the value
    a list, dict, deque or tensor in such a variable                     its contents
    a scheduler, or anything with state_dict() and load_state_dict()     its state
    an object of a user's class                                          its attributes
    a module                                                             attributes it uses
    a random generator                                                   its position

These values are outside the state of any module or optimizer.

Callers: `hook_memory.py` for hooks of an optimizer and of gradients, `callback_hooks.py` for those
that callbacks register, `schedulers.py` for the functions that a scheduler calls; `callbacks.py`
and others for `is_of_library` and `has_state`.
"""

from __future__ import annotations

import collections.abc
import dis
import functools
import inspect
import random
import sys
import types
from collections.abc import (
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from dataclasses import dataclass, replace
from io import IOBase
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from elasticdl.tracebacks import is_of_the_user
from elasticdl.training.closures import assigned_variables
from elasticdl.training.torch.tensors import assign_array, to_array
from elasticdl.training.torch.value_codec import (
    CONTAINERS,
    NUMBERS,
    Codec,
    UnkeepableValueError,
)

_LIBRARIES = {"torch", "numpy", "elasticdl", "tensorflow", "keras", *sys.stdlib_module_names}
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_DRAWS = (*_GENERATORS, collections.abc.Iterator)
OF_MODULES = vars(nn.Module()).keys()
"""The attributes that every module has, to tell them from the user's own."""


class _Uses(NamedTuple):
    """Names that occur in the code of one or more functions.

    An object has many attributes. Only those whose names occur in a function's code are searched
    for state that the function changes.

    Attributes:
        named: Names of all global variables and attributes.
        assigned: Names of the attributes that the code assigns.
    """

    named: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()

    def __or__(self, other: object) -> _Uses:
        if not isinstance(other, _Uses):
            return NotImplemented
        return _Uses(self.named | other.named, self.assigned | other.assigned)


_NOTHING = _Uses()


@dataclass(frozen=True)
class RememberedValue:
    """A variable or attribute that a user's function uses, and whose value may have to be stored.

    Attributes:
        name: Its name in checkpoints and errors, such as "hook 0, seen".
        get: Function () -> its present value.
        put: Function (value) that assigns it.
        is_read_only: Whether the function does not assign it. Its value may still change: another
            function may assign it, and a list may be appended to.
        may_be_setting: Whether its value may be a setting, which never changes. Such a value is
            stored only once it has changed, and until then it may be of a type that cannot be
            stored.
        owner: The object or class whose attribute it is; None for a variable.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    is_read_only: bool = False
    may_be_setting: bool = False
    owner: Any = None

    def read(self) -> Any:
        """Return the value in a form that `Codec` can convert, such as an object's `state_dict()`.

        Raises:
            UnkeepableValueError: The object has no such form.
        """
        value = self.get()
        if isinstance(value, torch.optim.Optimizer):
            raise UnkeepableValueError(f"another optimizer, {type(value).__name__},")
        if has_state(value):
            return dict(value.state_dict())
        if isinstance(value, _GENERATORS):
            return _state_of(value)
        if isinstance(value, collections.defaultdict):
            # Its function for missing keys is that of the user's code.
            return dict(value)
        if isinstance(value, (*NUMBERS, np.generic, torch.Tensor, np.ndarray)):
            return value
        if isinstance(value, tuple(CONTAINERS.values())):
            return value
        raise UnkeepableValueError(f"a {type(value).__module__}.{type(value).__name__}")

    def write(self, saved: Any) -> None:
        """Restore a value that `read` returned, in place if the present object allows it."""
        value = self.get()
        if has_state(value):
            value.load_state_dict(saved)
        elif isinstance(value, _GENERATORS):
            _set_state(value, saved)
        elif isinstance(value, torch.Tensor) and value.shape == getattr(saved, "shape", None):
            with torch.no_grad():
                assign_array(value, to_array(saved))
        elif isinstance(value, collections.defaultdict) and type(saved) is dict:
            value.clear()
            value.update(saved)
        elif type(value) is not type(saved):
            self.put(saved)
        elif isinstance(value, MutableSequence):
            # In place, because other objects may refer to the same object.
            value.clear()
            value.extend(saved)
        elif isinstance(value, (MutableMapping, set)):
            value.clear()
            value.update(saved)
        else:
            self.put(saved)


def objects_of(places: Iterable[RememberedValue]) -> list[Any]:
    """Return the objects that hold remembered values: containers, tensors, objects and classes.

    Checkpoints store their contents, so `engines/file_variables.py` need not warn if they change.
    """
    found = [value for place in places for value in (place.get(), place.owner)]
    return [value for value in found if not isinstance(value, NUMBERS)]


class FunctionMemory:
    """Saves and restores what functions remember from call to call, such as a counter.

    Args:
        functions: Name -> function, method, partial or other callable. The name is the prefix of
            the names of what it remembers.
        codec: Converts the state to arrays.
        known: Objects whose state is stored elsewhere, such as the optimizer.
    """

    def __init__(
        self, functions: Mapping[str, Any], codec: Codec, *, known: Sequence[Any] = ()
    ) -> None:
        self._functions, self._codec, self._known = dict(functions), codec, list(known)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the functions' state as arrays; empty if there is none.

        Values that are probably settings are left out: numbers that the functions only read, and
        values of types that cannot be stored.

        Raises:
            UnkeepableValueError: A function uses an iterator. It is no setting: each use advances
                it, and its position cannot be stored.
        """
        values = {}
        for place in self._places():
            value = place.get()
            if place.is_read_only and isinstance(value, (*NUMBERS, np.generic)):
                continue
            try:
                self._codec.to_arrays(place.read())
            except UnkeepableValueError:
                if isinstance(value, _DRAWS):
                    raise
                continue
            values[place.name] = place.read()
        return self._codec.to_arrays(values) if values else {}

    @property
    def objects(self) -> list[Any]:
        """The objects that hold the functions' state, such as a list that a function appends to.

        Checkpoints store their contents; see `objects_of`.
        """
        return objects_of(self._places())

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore what the functions remembered from arrays that `state` returned."""
        saved = self._codec.to_values(arrays) if arrays else {}
        for place in self._places():
            if place.name in saved:
                place.write(saved[place.name])

    def _places(self) -> list[RememberedValue]:
        seen = {id(each) for each in self._known}
        return [
            place
            for name, function in self._functions.items()
            for place in remembered_by_function(function, name, seen)
        ]


def remembered_by_function(
    function: Any, name: str, seen: set[int], uses: _Uses = _NOTHING
) -> Iterator[RememberedValue]:
    """Yield the variables and attributes in which a function may keep state between calls.

    These are variables of the enclosing function, global variables, attributes of the function and
    of objects that it uses, and those of functions that it calls. Checkpoints store their values.

    Args:
        function: A function, method, partial or other callable.
        name: Its name, such as "hook 0": the prefix of the names of the yielded values.
        seen: Ids of objects that are not searched, because they were searched earlier. The ids of
            those that are searched now are added to it.
        uses: Names in the code of the callers, if the search has reached this function through
            others. An attribute of an object counts as used if its name occurs there or in the
            code of this function.
    """
    callables = (types.FunctionType, types.MethodType, functools.partial)
    uses |= _uses_of(function)
    if not isinstance(function, callables):
        yield from _of_value(_constant(name, function), seen, uses)
        return
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from remembered_by_function(function.func, name, seen, uses)
        for i, argument in enumerate([*function.args, *function.keywords.values()]):
            yield from _of_value(_constant(f"{name}, argument {i}", argument), seen, uses)
        return
    if inspect.ismethod(function):
        yield from _of_value(_constant(name, function.__self__), seen, uses)
        yield from remembered_by_function(function.__func__, name, seen, uses)
        return
    is_users = not is_library(function.__globals__.get("__name__", ""))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    assigned = assigned_variables(function)
    for variable, cell in cells:
        # The wrapper of a library, such as that of a scheduler around `step`, may call a function
        # of the user.
        if isinstance(_content(cell), nn.Module) or (
            id(cell) not in seen and (is_users or isinstance(_content(cell), callables))
        ):
            seen.add(id(cell))
            place = replace(
                _in_cell(f"{name}, {variable}", cell), is_read_only=variable not in assigned
            )
            yield from _of_value(place, seen, uses)
    if not is_users:
        return
    yield from _of_globals(function, name, seen, uses)
    own = [key for key in sorted(vars(function)) if not key.startswith("__")]
    for place in (
        *(_in_attribute(f"{name}.{key}", function, key) for key in own),
        *(
            _constant(f"{name}, default {i}", value)
            for i, value in enumerate(function.__defaults__ or ())
        ),
    ):
        yield from _of_value(place, seen, uses)


def _of_globals(
    function: types.FunctionType, name: str, seen: set[int], uses: _Uses
) -> Iterator[RememberedValue]:
    instructions = list(dis.get_instructions(function))
    assigned = {i.argval for i in instructions if i.opname == "STORE_GLOBAL"}
    used = {i.argval for i in instructions if i.opname == "LOAD_GLOBAL"}
    values = function.__globals__
    for variable in sorted(assigned | used):
        value = values.get(variable)
        keeps = isinstance(value, (MutableSequence, MutableMapping, torch.Tensor, set))
        if variable in assigned or keeps or has_state(value) or _is_users_class(value):
            yield from _of_value(_in_dict(f"{name}, {variable}", values, variable), seen, uses)
        elif isinstance(value, types.FunctionType) and value.__globals__ is values:
            yield from remembered_by_function(value, f"{name}, {variable}", seen, uses)


def _of_value(
    place: RememberedValue, seen: set[int], uses: _Uses = _NOTHING
) -> Iterator[RememberedValue]:
    try:
        value = place.get()
    except ValueError:
        # A variable that has no value yet.
        return
    if isinstance(value, (*NUMBERS, np.generic)):
        yield place
        return
    if isinstance(value, nn.Module):
        yield from _of_module(value, place.name, seen, uses)
    if _is_users_class(value):
        yield from _of_class(value, place.name, seen, uses)
        return
    if id(value) in seen:
        return
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        yield from remembered_by_function(value, place.name, seen, uses)
        return
    seen.add(id(value))
    if isinstance(value, nn.Parameter) or _is_constant(value):
        return
    if has_state(value) or isinstance(value, (torch.Tensor, np.ndarray, *CONTAINERS.values())):
        yield place
        return
    if hasattr(value, "__dict__") and not is_of_library(type(value)):
        yield from remembered_by_object(value, place.name, sorted(vars(value)), seen, uses)
        return
    # A value of another kind: `RememberedValue.read` reports that it cannot be stored.
    yield place


def _of_module(
    module: nn.Module, name: str, seen: set[int], uses: _Uses
) -> Iterator[RememberedValue]:
    """Yield the attributes of a module and its submodules that a function's code may change.

    Attributes that only `forward` changes are left to `untracked_state.py`.

    Args:
        module: The module, which the function refers to.
        name: Its name: the prefix of the names of the yielded values.
        seen: Ids and hashes of what was searched already; receives those searched now.
        uses: Names in the code of the function and its callers.
    """
    if (searched := hash((id(module), uses))) in seen:
        return
    seen.add(searched)
    for prefix, each in module.named_modules():
        of_module = _with_methods(uses, each)
        others = OF_MODULES | each._parameters.keys() | each._modules.keys()  # noqa: SLF001
        others |= each._buffers.keys() - each._non_persistent_buffers_set  # noqa: SLF001
        for attribute in sorted(of_module.named - others):
            known = hash((id(each), attribute))
            value = inspect.getattr_static(each, attribute, None)
            is_of_class = attribute not in vars(each) and attribute not in each._buffers  # noqa: SLF001
            if known in seen or (is_of_class and hasattr(value, "__get__")):
                continue
            is_assigned = attribute in of_module.assigned
            is_missing = is_of_class and not hasattr(type(each), attribute)
            # `p.grad = ...` assigns an attribute of another object.
            if is_missing and (not is_assigned or is_of_library(type(each))):
                continue
            value = getattr(each, attribute, None)
            if isinstance(value, (*NUMBERS, np.generic)) and not is_assigned:
                continue
            seen.add(known)
            where = ".".join(part for part in (name, prefix, attribute) if part)
            place = _in_attribute(where, each, attribute)
            for found in _of_value(place, seen, uses):
                yield replace(found, may_be_setting=True)


def _of_class(kind: type[Any], name: str, seen: set[int], uses: _Uses) -> Iterator[RememberedValue]:
    """Yield the attributes of a user's class that a function's code assigns or may mutate.

    `_of_module` describes the arguments.
    """
    of_class = (uses.assigned & vars(kind).keys()) | _mutable(kind, uses.named)
    for attribute in sorted(of_class):
        known = hash((id(kind), attribute))
        value = inspect.getattr_static(kind, attribute)
        if known not in seen and not hasattr(value, "__get__"):
            seen.add(known)
            yield from _of_value(_in_attribute(f"{name}.{attribute}", kind, attribute), seen, uses)


def _mutable(kind: type[Any], names: Iterable[str]) -> set[str]:
    """Return the names of class attributes that are mutable: lists, dicts, tensors, arrays, sets.

    Args:
        kind: The class.
        names: The names of attributes to consider.
    """
    mutable = (MutableSequence, MutableMapping, set, torch.Tensor, np.ndarray)
    found = ((name, inspect.getattr_static(kind, name, None)) for name in names)
    return {name for name, value in found if isinstance(value, mutable)}


def _is_users_class(value: Any) -> bool:
    return isinstance(value, type) and not is_of_library(value)


def _with_methods(uses: _Uses, owner: Any) -> _Uses:
    """Add to `uses` the names in the code of those methods of an object that may be called.

    A method may be called if its name is in `uses`, or in the code of another such method.

    Args:
        uses: The names in the code of some functions; not changed.
        owner: The object.

    Returns:
        `uses` together with the added names.
    """
    new = set(uses.named)
    while new:
        method = inspect.getattr_static(type(owner), new.pop(), None)
        if isinstance(method, types.FunctionType):
            more = _uses_of(method)
            new |= more.named - uses.named
            uses |= more
    return uses


def _uses_of(function: Any) -> _Uses:
    """Return the names in the code of a function; no names if the function is not the user's."""
    while isinstance(function, functools.partial):
        function = function.func
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        # Of its class, as `function()` looks it up; a class has a `__call__` of its own.
        function = inspect.getattr_static(type(function), "__call__", None)
    code = getattr(function, "__code__", None)
    return _uses_of_code(code) if code and is_of_the_user(code.co_filename) else _NOTHING


@functools.cache
def _uses_of_code(code: types.CodeType) -> _Uses:
    """Return the names in the code of a function and of the functions nested in it."""
    assigned = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_ATTR"}
    uses = _Uses(frozenset(code.co_names), frozenset(assigned))
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            uses |= _uses_of_code(inner)
    return uses


def remembered_by_object(
    value: Any, name: str, attributes: list[str], seen: set[int], uses: _Uses = _NOTHING
) -> Iterator[RememberedValue]:
    """Yield the variables and attributes in which an object may keep state between calls.

    Args:
        value: The object, callable or not.
        name: Its name: the prefix of the names of the yielded values.
        attributes: Names of those of its attributes that are searched. Attributes that its code
            may set later, and mutable class attributes that it uses, are searched as well.
        seen: Ids of objects that are not searched, because they were searched earlier. The ids of
            those that are searched now are added to it.
        uses: Names in the code of the functions through which the search has reached the object.
    """
    uses |= _uses_of(value)
    for attribute in attributes:
        place = _in_dict(f"{name}.{attribute}", vars(value), attribute)
        yield from _of_value(replace(place, owner=value), seen, uses)
    if not is_of_library(type(value)):
        # The first call may set others.
        names = _with_methods(uses, value)
        of_class = names.assigned | _mutable(type(value), names.named)
        for attribute in sorted(of_class - vars(value).keys()):
            if not hasattr(inspect.getattr_static(type(value), attribute, None), "__get__"):
                place = _in_attribute(f"{name}.{attribute}", value, attribute)
                yield from _of_value(place, seen, uses)
    if callable(value):
        yield from remembered_by_function(type(value).__call__, name, seen, uses)


def _constant(name: str, value: Any) -> RememberedValue:
    """Return a `RememberedValue` for an object that user code can change only in place.

    Such as an argument of a partial: no variable refers to it that could be assigned.
    """
    return RememberedValue(name, lambda: value, lambda _: None)


def _in_cell(name: str, cell: types.CellType) -> RememberedValue:
    return RememberedValue(
        name, lambda: cell.cell_contents, lambda value: setattr(cell, "cell_contents", value)
    )


def _content(cell: types.CellType) -> Any:
    """Return the value of a closure variable; None if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _in_dict(name: str, values: dict[str, Any], key: str) -> RememberedValue:
    return RememberedValue(
        name, lambda: values.get(key), lambda value: values.__setitem__(key, value)
    )


def _in_attribute(name: str, owner: Any, attribute: str) -> RememberedValue:
    """Return a `RememberedValue` for an attribute, which may be missing until user code sets it."""

    def put_value(value: Any) -> None:
        if value is not None or hasattr(owner, attribute):
            setattr(owner, attribute, value)

    return RememberedValue(name, lambda: getattr(owner, attribute, None), put_value, owner=owner)


def _state_of(generator: Any) -> Any:
    """Return the state of a random generator as numbers, arrays and containers."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.getstate()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, torch.Generator):
        generator.set_state(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def has_state(value: Any) -> bool:
    """Return whether an object has state_dict() and load_state_dict()."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _is_constant(value: Any) -> bool:
    """Return whether a value is treated as immutable, as Python modules, classes and files are."""
    plain = (types.ModuleType, type, types.BuiltinFunctionType, torch.dtype, torch.device, IOBase)
    if isinstance(value, plain):
        return True
    draws = isinstance(value, _DRAWS)
    return (
        is_of_library(type(value))
        and not draws
        and not has_state(value)
        and (not isinstance(value, (torch.Tensor, np.ndarray, *CONTAINERS.values())))
    )


def is_of_library(kind: type[Any]) -> bool:
    """Return whether a class belongs to a known library rather than to the user."""
    return is_library(kind.__module__)


def is_library(module: str) -> bool:
    """Return whether a module belongs to a known library."""
    return module.partition(".")[0] in _LIBRARIES

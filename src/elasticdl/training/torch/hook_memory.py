"""State of an optimizer's hooks and other functions: schedules, counters, averages of weights.

A hook (`optimizer.register_step_post_hook`), a function that replaces `optimizer.step` and one that
a LambdaLR calls are a user's functions, and the values that they change are outside the optimizer's
state: in variables of the enclosing function, in global variables, in attributes of an object, in a
scheduler. All of these are found from the function and stored in a checkpoint; a value that cannot
be stored is rejected when the trainer is created.

    a variable of the enclosing function, a global one that it assigns   the value
    a list, dict, deque or tensor in one                                 its contents, in place
    a scheduler, or anything with state_dict() and load_state_dict()     its state
    an object of a user's class, including the user's own optimizer      its attributes, likewise

Parameters in them are stored by name, not copied. Values are converted to JSON and arrays.

Callers: `optimizer.py`, `schedulers.py`, `callback_state.py`.
"""

from __future__ import annotations

import collections
import collections.abc
import dis
import functools
import inspect
import json
import random
import sys
import types
from collections.abc import (
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    MutableSequence,
    Sequence,
)
from dataclasses import dataclass, replace
from io import IOBase
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.tensors import here, put, to_array, to_tensor

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_JSON = "values"
_LIBRARIES = {"torch", "numpy", "elasticdl", "tensorflow", "keras", *sys.stdlib_module_names}
_DRAWS = (
    random.Random,
    np.random.Generator,
    np.random.RandomState,
    torch.Generator,
    collections.abc.Iterator,
)
_NUMBERS = (bool, int, float, str, type(None))


class UnkeepableValueError(Exception):
    """Raised for a value that cannot be stored in a checkpoint; the message describes the value."""


@dataclass(frozen=True)
class _Place:
    """A variable or attribute that a hook can change: its name, and functions to get and set it.

    Attributes:
        is_read_only: Whether the function that uses the variable does not assign it; another one
            may.
    """

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    is_read_only: bool = False


class FunctionMemory:
    """Reads the state of functions for a checkpoint, and restores it.

    Args:
        functions: Name -> function, method, partial or other callable; names are for errors.
        codec: Converts the state to arrays.
        known: Objects whose state is stored elsewhere, such as the optimizer.
    """

    def __init__(
        self, functions: Mapping[str, Any], codec: Codec, *, known: Sequence[Any] = ()
    ) -> None:
        self._functions, self._codec, self._known = dict(functions), codec, list(known)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the functions' state as arrays; empty if there is none.

        Settings, which no function changes, are left out: numbers that are only read, and values
        that cannot be stored.

        Raises:
            UnkeepableValueError: A function draws from a generator or an iterator, which changes.
        """
        values = {}
        for place in self._places():
            value = place.get()
            if place.is_read_only and isinstance(value, (*_NUMBERS, np.generic)):
                continue
            try:
                self._codec.to_arrays(_read(value))
            except UnkeepableValueError:
                if isinstance(value, _DRAWS):
                    raise
                continue
            values[place.name] = _read(value)
        return self._codec.to_arrays(values) if values else {}

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore a state that `state` returned."""
        saved = self._codec.to_values(arrays) if arrays else {}
        for place in self._places():
            if place.name in saved:
                _write(place, saved[place.name])

    def _places(self) -> list[_Place]:
        seen = {id(each) for each in self._known}
        return [
            place
            for name, function in self._functions.items()
            for place in _of_function(function, name, seen)
        ]


class HookMemory:
    """Reads the state of an optimizer's hooks for a checkpoint, and restores it.

    Args:
        optimizer: The optimizer that has the hooks; attributes that the user's code sets are state
            too.
        parameters: The model's parameters, by name.
        origin: Prefix of errors.
        may_be_scheduled: Whether the optimizer may have learning rate schedulers that no hook
            refers to, because the trainer steps them.

    Raises:
        DefinitionError: A hook has state that cannot be stored, a hook is registered for all
            optimizers, or there is a scheduler that no hook refers to and that must not be there.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
        origin: Origin,
        *,
        may_be_scheduled: bool = False,
    ) -> None:
        self._optimizer, self._origin = optimizer, origin
        self._codec = Codec(parameters)
        _check_global_hooks(origin)
        self.state()
        is_scheduled = hasattr(optimizer.step, "_wrapped_by_lr_sched") and not may_be_scheduled
        if is_scheduled and not any(_is_scheduler(place.get()) for place in self._places()):
            raise DefinitionError(
                f"{origin}: a learning rate scheduler was created for the optimizer, but nothing "
                "here would call its step(). Create it in a separate function: def "
                "lr_scheduler(optimizer): return torch.optim.lr_scheduler.StepLR(optimizer, 30)."
            )

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the state of the hooks as arrays; empty if there is none.

        Raises:
            DefinitionError: A value cannot be stored.
        """
        values = {}
        for place in self._places():
            try:
                values[place.name] = _read(place.get())
            except UnkeepableValueError as error:
                raise self._refused(place, error) from error
        if not values:
            return {}
        try:
            return self._codec.to_arrays(values)
        except UnkeepableValueError as error:
            raise DefinitionError(
                f"{self._origin}: the hooks of the optimizer keep {error}; a checkpoint can store "
                "numbers, strings, tensors, and lists and dicts of them."
            ) from error

    def problems(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Return one line for each mismatch between a saved state and the state of these hooks."""
        saved = self._codec.to_values(arrays) if arrays else {}
        names = {place.name for place in self._places()}
        return [f"{name}: not in the checkpoint" for name in sorted(names - saved.keys())] + [
            f"{name}: not in the model file" for name in sorted(saved.keys() - names)
        ]

    def load(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Restore the hooks' state; `problems` must have found no mismatch."""
        if not arrays:
            return
        saved = self._codec.to_values(arrays)
        for place in self._places():
            _write(place, saved[place.name])

    def _places(self) -> list[_Place]:
        seen: set[int] = {id(self._optimizer)}
        places: list[_Place] = []
        hooks = (
            *self._optimizer._optimizer_step_pre_hooks.values(),  # noqa: SLF001 - no public name
            *self._optimizer._optimizer_step_post_hooks.values(),  # noqa: SLF001
        )
        for number, hook in enumerate(hooks):
            places += _of_function(hook, f"hook {number}", seen)
        attributes = vars(self._optimizer)
        if "step" in attributes:
            places += _of_function(attributes["step"], "step", seen)
        kind: Any = type(self._optimizer)
        theirs = attributes.keys() - _OF_EVERY_OPTIMIZER - _set_by_library(kind)
        places += _of_object(self._optimizer, "optimizer", sorted(theirs), seen)
        return places

    def _refused(self, place: _Place, error: UnkeepableValueError) -> DefinitionError:
        return DefinitionError(
            f"{self._origin}: the optimizer keeps {error} ({place.name}), which no checkpoint can "
            "store, so a resumed training would continue differently. Keep numbers, strings and "
            "tensors, lists and dicts of them, or implement state_dict() and load_state_dict()."
        )


class Codec:
    """Converts the state of hooks to arrays that a checkpoint can store, and back.

    It accepts numbers, strings, tensors, arrays, and standard containers of them.

    Args:
        parameters: The model's parameters, which are stored by name and not copied.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._names = {id(p): name for name, p in parameters.items()}

    def to_arrays(self, value: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Convert a value to named arrays: JSON as an array of bytes, and each array in the value.

        Raises:
            UnkeepableValueError: The value contains an object of another kind.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        text = json.dumps(self._encoded(value, arrays))
        return {_JSON: np.frombuffer(text.encode(), np.uint8).copy(), **arrays}

    def to_values(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """Restore the value that was passed to `to_arrays`."""
        return self._decoded(json.loads(arrays[_JSON].tobytes().decode()), arrays)

    def _encoded(self, value: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
        if type(value) in _NUMBERS:
            return value
        if isinstance(value, np.generic):
            return self._encoded(value.item(), arrays)
        if id(value) in self._names:
            return {"parameter": self._names[id(value)]}
        if isinstance(value, (torch.Tensor, np.ndarray)):
            name = str(len(arrays))
            if isinstance(value, torch.Tensor):
                arrays[name] = to_array(value)
                return {"tensor": name, "device": value.device.type}
            arrays[name] = value.copy()
            return {"array": name}
        kind = next((k for k, t in _CONTAINERS.items() if type(value) is t), None)
        if kind is None:
            raise UnkeepableValueError(f"a {type(value).__module__}.{type(value).__name__}")
        if isinstance(value, Mapping):
            items = [
                [self._key(key, arrays), self._encoded(inner, arrays)]
                for key, inner in value.items()
            ]
        else:
            items = [self._encoded(item, arrays) for item in value]
        if kind == "deque":
            return {kind: items, "maxlen": value.maxlen}
        return {kind: items}

    def _key(self, key: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
        """Encode a key of a dict; `id(parameter)`, which each process has another of, by name."""
        if type(key) is int and key in self._names:
            return {"id of": self._names[key]}
        return self._encoded(key, arrays)

    def _decoded(self, made: Any, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        if not isinstance(made, dict):
            return made
        (kind, inner), *more = made.items()
        if kind == "parameter":
            return self._parameters[inner]
        if kind == "id of":
            return id(self._parameters[inner])
        if kind == "tensor":
            return to_tensor(arrays[inner]).to(here(made["device"]))
        if kind == "array":
            return np.array(arrays[inner])
        container: Any = _CONTAINERS[kind]
        if issubclass(container, Mapping):
            pairs = [[self._decoded(x, arrays) for x in item] for item in inner]
            return container(dict(pairs))
        items = [self._decoded(item, arrays) for item in inner]
        return container(items, *(value for _, value in more))


_CONTAINERS: Mapping[str, type[Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "deque": collections.deque,
    "dict": dict,
    "ordered": collections.OrderedDict,
    "counter": collections.Counter,
}
_OF_EVERY_OPTIMIZER = {
    *vars(torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.0)),
    "step",
    "_opt_called",
}


def _of_function(function: Any, name: str, seen: set[int]) -> Iterator[_Place]:
    """Yield the variables and attributes that a function can change and that outlive a call.

    Args:
        function: A function, method, partial or other callable.
        name: Its name, for errors; the prefix of the yielded names.
        seen: Ids of the objects that were searched already; receives those searched now.
    """
    callables = (types.FunctionType, types.MethodType, functools.partial)
    if not isinstance(function, callables):
        yield from _of_value(_constant(name, function), seen)
        return
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        yield from _of_function(function.func, name, seen)
        for i, argument in enumerate([*function.args, *function.keywords.values()]):
            yield from _of_value(_constant(f"{name}, argument {i}", argument), seen)
        return
    if inspect.ismethod(function):
        yield from _of_value(_constant(name, function.__self__), seen)
        yield from _of_function(function.__func__, name, seen)
        return
    is_users = not _is_of_libraries(function.__globals__.get("__name__", ""))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    instructions = dis.get_instructions(function)
    assigned = {i.argval for i in instructions if i.opname == "STORE_DEREF"}
    for variable, cell in cells:
        # The wrapper of a library, such as that of a scheduler around `step`, may call a function
        # of the user.
        if id(cell) not in seen and (is_users or isinstance(_content(cell), callables)):
            seen.add(id(cell))
            place = replace(
                _in_cell(f"{name}, {variable}", cell), is_read_only=variable not in assigned
            )
            yield from _of_value(place, seen)
    if not is_users:
        return
    yield from _of_globals(function, name, seen)
    for i, value in enumerate(function.__defaults__ or ()):
        yield from _of_value(_constant(f"{name}, default {i}", value), seen)


def _of_globals(function: types.FunctionType, name: str, seen: set[int]) -> Iterator[_Place]:
    instructions = list(dis.get_instructions(function))
    assigned = {i.argval for i in instructions if i.opname == "STORE_GLOBAL"}
    used = {i.argval for i in instructions if i.opname == "LOAD_GLOBAL"}
    values = function.__globals__
    for variable in sorted(assigned | used):
        value = values.get(variable)
        keeps = isinstance(value, (MutableSequence, MutableMapping, torch.Tensor, set))
        if variable in assigned or keeps or has_state(value):
            yield from _of_value(_in_dict(f"{name}, {variable}", values, variable), seen)
        elif isinstance(value, types.FunctionType) and value.__globals__ is values:
            yield from _of_function(value, f"{name}, {variable}", seen)


def _of_value(place: _Place, seen: set[int]) -> Iterator[_Place]:
    try:
        value = place.get()
    except ValueError:
        # A variable that has no value yet.
        return
    if isinstance(value, (*_NUMBERS, np.generic)):
        yield place
        return
    if id(value) in seen:
        return
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        yield from _of_function(value, place.name, seen)
        return
    seen.add(id(value))
    if isinstance(value, nn.Parameter) or _is_constant(value):
        return
    if has_state(value) or isinstance(value, (torch.Tensor, np.ndarray, *_CONTAINERS.values())):
        yield place
        return
    if hasattr(value, "__dict__") and not is_of_library(type(value)):
        yield from _of_object(value, place.name, sorted(vars(value)), seen)
        return
    # A value of another kind: `_read` reports that it cannot be stored.
    yield place


def _of_object(value: Any, name: str, attributes: list[str], seen: set[int]) -> Iterator[_Place]:
    for attribute in attributes:
        yield from _of_value(_in_dict(f"{name}.{attribute}", vars(value), attribute), seen)
    if callable(value):
        yield from _of_function(type(value).__call__, name, seen)


def _constant(name: str, value: Any) -> _Place:
    """Describe an object that no hook replaces, although a hook may change its contents."""
    return _Place(name, lambda: value, lambda _: None)


def _in_cell(name: str, cell: types.CellType) -> _Place:
    return _Place(
        name, lambda: cell.cell_contents, lambda value: setattr(cell, "cell_contents", value)
    )


def _content(cell: types.CellType) -> Any:
    """Return the value of a variable; None if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _in_dict(name: str, values: dict[str, Any], key: str) -> _Place:
    return _Place(name, lambda: values.get(key), lambda value: values.__setitem__(key, value))


def _read(value: Any) -> Any:
    if isinstance(value, torch.optim.Optimizer):
        raise UnkeepableValueError(f"another optimizer, {type(value).__name__},")
    if has_state(value):
        return dict(value.state_dict())
    if isinstance(value, (*_NUMBERS, np.generic, torch.Tensor, np.ndarray)):
        return value
    if isinstance(value, tuple(_CONTAINERS.values())):
        return value
    raise UnkeepableValueError(f"a {type(value).__module__}.{type(value).__name__}")


def _write(place: _Place, saved: Any) -> None:
    value = place.get()
    if has_state(value):
        value.load_state_dict(saved)
    elif isinstance(value, torch.Tensor) and value.shape == getattr(saved, "shape", None):
        with torch.no_grad():
            put(value, to_array(saved))
    elif type(value) is not type(saved):
        place.put(saved)
    elif isinstance(value, MutableSequence):
        # In place, because other objects may refer to the same object.
        value.clear()
        value.extend(saved)
    elif isinstance(value, (MutableMapping, set)):
        value.clear()
        value.update(saved)
    else:
        place.put(saved)


def has_state(value: Any) -> bool:
    """Return whether an object has state_dict() and load_state_dict()."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def _is_scheduler(value: Any) -> bool:
    return isinstance(value, torch.optim.lr_scheduler.LRScheduler)


def _is_constant(value: Any) -> bool:
    """Return whether a value is treated as immutable: modules, classes, builtins, files."""
    plain = (types.ModuleType, type, types.BuiltinFunctionType, torch.dtype, torch.device, IOBase)
    if isinstance(value, plain):
        return True
    draws = isinstance(value, _DRAWS)
    return (
        is_of_library(type(value))
        and not draws
        and not has_state(value)
        and (not isinstance(value, (torch.Tensor, np.ndarray, *_CONTAINERS.values())))
    )


def is_of_library(kind: type[Any]) -> bool:
    """Return whether a class belongs to a known library rather than to the user."""
    return _is_of_libraries(kind.__module__)


def _is_of_libraries(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


@functools.cache
def _set_by_library(kind: type[Any]) -> frozenset[str]:
    """Return the attributes that an optimizer's methods set; none if its class is the user's."""
    if not is_of_library(kind):
        return frozenset()
    methods = (
        inspect.unwrap(method)
        for base in kind.__mro__
        for method in vars(base).values()
        if isinstance(method, types.FunctionType)
    )
    return frozenset(
        instruction.argval
        for method in methods
        for instruction in dis.get_instructions(method)
        if instruction.opname == "STORE_ATTR"
    )


def _check_global_hooks(origin: Origin) -> None:
    """Check that no function of a user is a hook of all optimizers of the process.

    It would also be called in later trainings of the same process, and twice once its file is
    imported again.
    """
    hooks = (*_global_optimizer_pre_hooks.values(), *_global_optimizer_post_hooks.values())
    for hook in hooks:
        if not is_of_library(type(hook)) or not _is_of_libraries(getattr(hook, "__module__", "")):
            name = getattr(hook, "__qualname__", type(hook).__qualname__)
            raise DefinitionError(
                f"{origin}: {name} is registered as a hook of all optimizers of the process "
                "(register_optimizer_step_pre_hook or register_optimizer_step_post_hook), which "
                "would also change other trainings. Register it for this optimizer: "
                "optimizer.register_step_pre_hook(hook) or "
                "optimizer.register_step_post_hook(hook)."
            )

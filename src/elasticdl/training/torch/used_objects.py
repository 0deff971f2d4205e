"""Finds objects and variables that user functions use, and that callbacks could change.

The functions' code is searched; it is not run.

    an object      a module or an instance of a user's class; checkpoints can store its attributes
    a variable     of the file, an enclosing function or a class; checkpoints do not store it

    margin = Margin()                                       an object that the loss uses
    SCALE = 30.0                                            a variable that the loss uses

    def loss(labels, predictions):
        return margin(SCALE * predictions, labels)

Callers: `callback_changes.py`.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from elasticdl.tracebacks import is_of_the_user
from elasticdl.training.torch.function_memory import OF_MODULES, is_of_library
from elasticdl.training.torch.untracked_state import digest, names_read_by

# Deep enough for a loss, which is wrapped in functions of ElasticDL that order its arguments.
_DEPTH = 8
_VALUES = (bool, int, float, str, type(None), dict, np.ndarray, torch.Tensor)
_OTHERS = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type, list, set, deque)


class UsedObjects:
    """Finds the objects and variables that functions use, directly or indirectly.

    Args:
        functions: The functions, modules or other callable objects, or their classes.
        known: Objects that are not searched, because their state is stored elsewhere.

    Attributes:
        objects: The objects found, in the order of the search.
    """

    def __init__(self, functions: Iterable[Any], known: Collection[Any] = ()) -> None:
        self.objects: list[Any] = []
        self._functions: list[FunctionType] = []
        self._classes: list[type] = []
        self._known = list(known)
        self._seen = {id(each): _DEPTH for each in known}
        # The id of a dead object may be reused.
        self._alive: list[Any] = []
        for each in functions:
            self._reach(each, _DEPTH)

    def variables(self, *, values_only: bool = False) -> Iterator[tuple[str, str]]:
        """Yield (description, digest of the value) of each variable found, to detect its changes.

        Lists and sets are skipped, because the user may only collect values for a log in them.

        Args:
            values_only: Yield only variables whose values are numbers, strings, tensors, arrays or
                dicts; skip those that hold other objects.
        """
        without = [*self.objects, *self._known]
        for function in self._functions:
            for variable, value in _variables_of(function):
                if isinstance(value, _VALUES) or not (values_only or isinstance(value, _OTHERS)):
                    yield (
                        f"{variable}, which {function.__qualname__} uses",
                        digest(value, without=without),
                    )
        for kind in self._classes:
            for name, value in vars(kind).items():
                if isinstance(value, _VALUES) and not name.startswith("__"):
                    yield f"{kind.__name__}.{name}", digest(value, without=without)

    def _reach(self, value: Any, depth: int) -> None:
        if depth <= self._seen.get(id(value), 0):
            return
        is_new = id(value) not in self._seen
        self._seen[id(value)] = depth
        self._alive.append(value)
        for each in self._within(value, is_new=is_new):
            self._reach(each, depth - 1)

    def _within(self, value: Any, *, is_new: bool) -> Iterable[Any]:
        """Return the values that `value` refers to, to be searched next.

        Args:
            value: A function, a module or another object.
            is_new: Whether `value` is reached for the first time; it is then recorded as found. It
                may be reached again by a shorter path, from which the search goes further.
        """
        if isinstance(value, FunctionType):
            if not is_of_the_user(value.__code__.co_filename):
                return [used for _, used in _cells_of(value)]
            if is_new:
                self._functions.append(value)
            return [used for _, used in _variables_of(value)]
        return self._within_instance(value, is_new=is_new)

    def _within_instance(self, value: Any, *, is_new: bool) -> Iterable[Any]:
        if isinstance(value, MethodType):
            return value.__self__, value.__func__
        if isinstance(value, functools.partial):
            return value.func, *value.args, *value.keywords.values()
        if isinstance(value, Mapping):
            return value.values()
        if isinstance(value, list | tuple):
            return value
        if isinstance(value, type):
            return self._within_classes([value])
        if hasattr(value, "__dict__") and not isinstance(value, ModuleType):
            return self._within_object(value, is_new=is_new)
        return ()

    def _within_object(self, value: Any, *, is_new: bool) -> Iterable[Any]:
        is_of_user = not is_of_library(type(value))
        is_ours = type(value).__module__.startswith("elasticdl.")
        if not is_of_user and not is_ours and not isinstance(value, nn.Module):
            return ()
        if is_new and not is_ours:
            self.objects.append(value)
        return [*vars(value).values(), *self._within_classes(type(value).__mro__)]

    def _within_classes(self, kinds: Iterable[type[Any]]) -> Iterable[Any]:
        """Return the methods of the user's classes among some classes, to be searched next.

        The user's classes are recorded as found, so that `variables` yields their variables too.

        Args:
            kinds: A class that is used, or all base classes of an object. Those of libraries are
                skipped.
        """
        users = [kind for kind in kinds if not is_of_library(kind)]
        self._classes += [kind for kind in users if kind not in self._classes]
        members = [each for kind in users for each in vars(kind).values()]
        return [each for each in members if isinstance(each, FunctionType)]


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object; for a module, also its weights and buffers."""
    if not isinstance(value, nn.Module):
        return dict(vars(value))
    own = {name: each for name, each in vars(value).items() if name not in OF_MODULES}
    # Buffers may be None, as the weight of a loss; `named_buffers` leaves those out.
    return own | value._parameters | value._buffers  # noqa: SLF001


def put_attribute(owner: Any, name: str, value: Any) -> None:
    """Restore an attribute of an object to a value from a checkpoint.

    No code of the user's class runs for this: neither a property nor `__setattr__`.

    Args:
        owner: The object.
        name: Name of the attribute, a key of `attributes_of(owner)`.
        value: The value from the checkpoint.
    """
    if isinstance(owner, nn.Module):
        if name in owner._parameters:  # noqa: SLF001 - as in `attributes_of`
            owner._parameters[name] = nn.Parameter(value)  # noqa: SLF001
            return
        if name in owner._buffers:  # noqa: SLF001
            owner._buffers[name] = value  # noqa: SLF001
            return
    vars(owner)[name] = value


def _variables_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names = names_read_by(function.__code__)
    yield from ((name, value) for name, value in function.__globals__.items() if name in names)
    yield from _cells_of(function)


def _cells_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        # Empty if the variable has not been assigned yet.
        yield name, getattr(cell, "cell_contents", None)

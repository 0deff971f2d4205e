"""Finds state that callbacks keep outside their attributes, where no checkpoint can store it.

    LearningRateScheduler(rates.rate)      def rate(self, epoch): self.n += 1
    LambdaCallback(on_epoch_end=f)         a variable of f's enclosing function, a global one
    self.config.n += 1                     in a callback: an object of the user's own class

Before training, the functions' code is searched for plain signs of a change (`closures.py`). At
each checkpoint, a digest (`object_digest.py`) of the variables that the functions read, and of what
they hold, shows what has changed. Functions that only read, as most schedules do, cause no warning.

Callers: `callback_checkpoint.py`.
"""

from __future__ import annotations

import contextlib
import functools
import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.training.closures import Changes, changes_in
from elasticdl.training.keras import callback_state
from elasticdl.training.keras.object_digest import (
    Digest,
    Held,
    Key,
    held_by,
    is_compared,
    is_users_object,
    name_of,
)
from elasticdl.training.keras.random_ops import handle
from elasticdl.training.keras.read_variables import is_users, variables_of

# A resumed training calls these again, or has no need of what they change.
_AT_AN_END = ("__init__", "set_model", "set_params", "on_train_begin", "on_train_end")
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_CONTAINERS = (list, MutableMapping, set, deque, np.ndarray)
_DRAWS = (np.random.Generator, np.random.RandomState, random.Random)
_OF_KERAS = (
    keras.Model, keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric,
    keras.losses.Loss, keras.callbacks.Callback, keras.random.SeedGenerator,
)  # fmt: skip
# Keras passes the first arguments (a number and the logs, or the learning rate).
_NUM_GIVEN = 2


class UnstoredMemory:
    """Detects values that functions of callbacks change and that no checkpoint stores.

    Args:
        callbacks: The callbacks, after `on_train_begin`.
        known: Function () -> the TensorFlow and Keras variables that checkpoints contain.
        stored: Function () -> keys of the Python attributes and variables that checkpoints
            contain; see `Attributes.stored`.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        known: Callable[[], Iterable[Any]],
        stored: Callable[[], Collection[Key]] = tuple,
    ) -> None:
        self._known_variables, self._stored = known, stored
        self._known: set[int] = set()
        self._named: set[Key] = set()
        self._unstored: dict[int, dict[str, Any]] = {}
        for each in callbacks:
            self._unstored[id(each)] = {
                name: value
                for name, value in callback_state.attributes_of(each).items()
                if not _is_of_keras(value) and callback_state.digest(value) is None
            }
        self._functions = [(each, list(self._functions_of(each))) for each in callbacks]
        self._before = [self._digests(each, functions) for each, functions in self._functions]

    def watches(self, callback: keras.callbacks.Callback, name: str) -> bool:
        """Return whether `changed` will warn if a callback's attribute changes.

        The caller then need not warn beforehand that checkpoints cannot store the attribute. False
        for attributes that they store, and for values whose changes cannot be detected.
        """
        unstored = self._unstored[id(callback)]
        return name in unstored and is_compared(unstored[name])

    def suspected(self) -> Iterator[str]:
        """Yield a warning for each function whose code seems to change unstored values.

        The functions are those of the callbacks.
        """
        for callback, functions in self._functions:
            found = []
            for name, function in functions:
                # Code may be anything; without a result, there is no warning before training.
                suspects: dict[Key, str] = {}
                with contextlib.suppress(Exception):
                    suspects = {each.key: each.name for each in _suspects(function)}
                new = suspects.keys() - self._named - set(self._stored())
                self._named |= new
                found += [(name, suspects[key]) for key in suspects if key in new]
            yield from _sentences(callback, found, has_changed=False)

    def changed(self) -> Iterator[str]:
        """Yield a warning for each function of a callback that uses changed, unstored values.

        These are values that no checkpoint stores and that have changed since this object was
        created. Each is reported once, here or by `suspected`.
        """
        for (callback, functions), before in zip(self._functions, self._before, strict=True):
            now = self._digests(callback, functions)
            changed = {key for key, each in now.items() if before.get(key, ())[2:] != each[2:]}
            if new := changed - self._named:
                new -= set(self._stored())
            self._named |= new
            found = [now[key][:2] for key in now if key in new]
            yield from _sentences(callback, found, has_changed=True)

    def _functions_of(self, callback: keras.callbacks.Callback) -> Iterator[tuple[str, Any]]:
        """Yield (name, function) for the user's methods of a callback, and functions it holds."""
        for kind in (each for each in type(callback).__mro__ if is_users(each.__module__)):
            for name, method in vars(kind).items():
                if name not in _AT_AN_END and isinstance(method, types.FunctionType):
                    yield f"{name}()", types.MethodType(method, callback)
        for name, value in callback_state.attributes_of(callback).items():
            is_function = isinstance(value, _FUNCTIONS) or (
                name in self._unstored[id(callback)] and callable(value)
            )
            if is_function and name not in _AT_AN_END and not _is_of_keras(value):
                yield _called(value, name), value

    def _digests(
        self, callback: keras.callbacks.Callback, functions: Sequence[tuple[str, Any]]
    ) -> dict[Key, tuple[str, str, Any]]:
        """Return digests of the values that a callback and its functions use, to detect changes.

        Args:
            callback: The callback.
            functions: Its functions, as pairs (name, function).

        Returns:
            Key of a variable or attribute -> (name of the function that uses it, name of the value,
            digest). The name of the function is empty for the callback itself.
        """
        self._known = {id(handle(each)) for each in self._known_variables()}
        digest = Digest(self._is_left_out)
        by_function: dict[Key, str] = {}
        for function, owner in [*functions, ("", callback)]:
            # A value may be anything, or be changed by another thread meanwhile.
            with contextlib.suppress(Exception):
                for each in _held(owner, self._unstored[id(callback)]):
                    digest.add(each)
            by_function |= {key: function for key in digest.found if key not in by_function}
        return {key: (by_function[key], *each) for key, each in digest.found.items()}

    def _is_left_out(self, value: Any) -> bool:
        is_variable = isinstance(value, (keras.Variable, tf.Variable))
        return _is_of_keras(value) or (is_variable and id(handle(value)) in self._known)


def _held(owner: Any, unstored: dict[str, Any]) -> Iterator[Held]:
    """Yield values to check for changes: a function's variables, or a callback's attributes.

    Args:
        owner: A function or a callback.
        unstored: Name -> value of the callback's attributes that checkpoints cannot contain.
    """
    if not isinstance(owner, keras.callbacks.Callback):
        yield Held((id(owner), ""), name_of(owner), owner)
        for each in variables_of([owner]):
            before = f"{each.called}." if each.kind == "class" else ""
            for name in sorted(each.names & set(each.place)):
                yield Held(each.key(name), before + name, each.place[name])
        return
    for name, value in unstored.items():
        if is_compared(value) and not isinstance(value, _FUNCTIONS):
            yield Held((id(owner), name), f"self.{name}", value)
    for kind in type(owner).__mro__:
        yield from held_by(kind, kind.__name__)


# --- what the code shows --------------------------------------------------------------------------


def _suspects(function: Any) -> Iterator[Held]:
    """Yield the variables that the code of a function seems to change."""
    passed: list[Held] = []
    while isinstance(function, functools.partial):
        passed, function = [*held_by(function, ""), *passed], function.func
    owner = getattr(function, "__self__", None)
    code = getattr(function, "__func__", function)
    if not isinstance(code, types.FunctionType):
        owner, code = function, vars(type(function)).get("__call__")
    if not isinstance(code, types.FunctionType) or not is_users(code.__module__):
        return
    given = code.__code__.co_varnames[: _NUM_GIVEN + (owner is not None)]
    own = [each for each in held_by(code, "") if each.key[1] not in {f"{name}=" for name in given}]
    changes = changes_in(code)
    # Arguments of a `partial` replace defaults.
    held = {each.name: each for each in (*own, *passed)}
    yield from _changed(changes, held.values())
    for name in changes.variables - held.keys():
        yield Held((id(code.__globals__), name), name, None)
    if is_users_object(owner) and not _is_of_keras(owner):
        changes = changes_in(code, *_methods_called(type(owner), changes.names))
        yield from _changed(changes, list(held_by(owner, type(owner).__name__)))


def _changed(changes: Changes, held: Collection[Held]) -> Iterator[Held]:
    """Yield the variables and attributes in `held` that the code seems to change.

    Args:
        changes: What the code may change.
        held: The variables and attributes that it can access.
    """
    read = [each for each in held if not each.attribute or each.attribute in changes.names]
    containers = [each for each in read if isinstance(each.value, _CONTAINERS)]
    for each in read:
        name, value = each.attribute or each.name, each.value
        if (
            name in (changes.attributes if each.attribute else changes.variables)
            or (isinstance(value, _CONTAINERS) and changes.mutates(name))
            # Of several containers, the code does not show in which one it assigns an item.
            or (changes.assigns_items and containers == [each])
            or (isinstance(value, _DRAWS) and name in changes.methods)
            or (isinstance(value, Iterator) and changes.advances)
        ):
            yield each
        elif not each.attribute and is_users_object(value) and not _is_of_keras(value):
            inner = held_by(value, name)
            yield from (one for one in inner if one.attribute in changes.attributes)


def _methods_called(kind: type, names: Collection[str]) -> list[types.FunctionType]:
    """Return the methods of a user's class that some code calls, and the methods that these call.

    Args:
        kind: The class.
        names: Names of methods in the code; `__call__` is always added.
    """
    methods = {
        name: method
        for each in reversed(kind.__mro__)
        for name, method in vars(each).items()
        if isinstance(method, types.FunctionType) and is_users(method.__module__)
    }
    found: dict[str, types.FunctionType] = {}
    while new := ({*names, "__call__"} & methods.keys()) - found.keys() - {"__init__"}:
        found |= {name: methods[name] for name in new}
        names = changes_in(*found.values()).names
    return list(found.values())


# --- names and messages ---------------------------------------------------------------------------


def _is_of_keras(value: Any) -> bool:
    is_object = isinstance(value, _OF_KERAS) or type(value).__module__ == "logging"
    return is_object and not isinstance(value, type)


def _called(function: Any, attribute: str) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", "") or type(function).__qualname__
    name = name.rpartition("<locals>.")[2]
    return f"its {attribute}" if name == "<lambda>" else name


def _sentences(
    callback: keras.callbacks.Callback, found: Sequence[tuple[str, str]], *, has_changed: bool
) -> Iterator[str]:
    """Yield a warning for each function that depends on values which no checkpoint stores.

    Args:
        callback: The callback that has the functions.
        found: Pairs (name of the function, name of a value that it uses). The first is empty for
            the callback's own code.
        has_changed: Whether the values are known to have changed. If False, the warning says that
            the function changes them.
    """
    who, verb = type(callback).__name__, "uses" if has_changed else "changes"
    for function in dict.fromkeys(function for function, _ in found):
        names = list(dict.fromkeys(name for of, name in found if of == function))
        what = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        is_one = len(names) == 1
        if has_changed:
            what += ", whose value has changed" if is_one else ", whose values have changed"
        if function.endswith("()"):
            begin = f"{function} of the callback {who} {verb} {what}"
        elif function:
            begin = f"the callback {who} calls {function}, which {verb} {what}"
        else:
            begin = f"the callback {who} {verb} {what}"
        it, they_are = ("it", "it is") if is_one else ("them", "they are")
        yield (
            f"{begin}. A checkpoint cannot store {it}, so {they_are} reset when this job resumes: "
            f"keep {it} in an attribute of a callback (numbers, strings, lists, dicts, arrays), or "
            f"compute {it} from the epoch. Batches are made in advance, so a function of the input "
            f"that reads {it} gives other numbers than in `fit`."
        )

"""Finds what callbacks remember outside their attributes, which no checkpoint can store.

    LearningRateScheduler(rates.rate)      def rate(self, epoch): self.n += 1
    LambdaCallback(on_epoch_end=f)         a variable of f's enclosing function, a global one
    self.config.n += 1                     in a callback: an object of the user's own class

Before training, `changed_variables.py` reads from the functions' code what they change. At each
checkpoint, `object_digest.py` shows what has changed nevertheless. Functions that only read, as
most schedules do, cause no warning.

Callers: `hooks.py`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.training.changed_variables import ChangedVariables, Variable
from elasticdl.training.keras import callback_state
from elasticdl.training.keras.random_ops import handle
from elasticdl.training.object_digest import (
    Summary,
    checksum,
    is_summarised,
    is_users,
    summary,
)

# A resumed training calls these again, or has no need of what they change.
_AT_AN_END = ("__init__", "set_model", "set_params", "on_train_begin", "on_train_end")
# Keras passes a number and the logs, or the learning rate, so their defaults are not used.
_GIVEN = (None, None)
_FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
_OF_KERAS = (
    keras.Model, keras.layers.Layer, keras.optimizers.Optimizer, keras.metrics.Metric,
    keras.losses.Loss, keras.callbacks.Callback, keras.random.SeedGenerator,
)  # fmt: skip
_MAX_SIZE = 2**16


class CallbackMemory:
    """Watches what the functions of callbacks use and change.

    Args:
        callbacks: The callbacks, after `on_train_begin`.
        known: Function () -> the variables that checkpoints contain.
    """

    def __init__(
        self, callbacks: Sequence[keras.callbacks.Callback], known: Callable[[], Iterable[Any]]
    ) -> None:
        self._known_variables = known
        self._known: set[int] = set()
        self._named: set[tuple[int, str]] = set()
        self._attributes: set[tuple[int, str]] = set()
        self._callbacks = [(each, self._follow(each)) for each in callbacks]
        self._before = [self._summary(followed) for _, followed in self._callbacks]

    def watches(self, callback: keras.callbacks.Callback, name: str) -> bool:
        """Return whether changes of an attribute that cannot be stored are noticed."""
        return (id(callback), name) in self._attributes

    def suspected(self) -> Iterator[str]:
        """Yield a sentence for each function whose code changes what no checkpoint stores."""
        for callback, followed in self._callbacks:
            found = [(each.function, each.name) for each in self._new(followed.changed)]
            yield from _sentences(callback, found, has_changed=False)

    def changed(self) -> Iterator[str]:
        """Yield a sentence for each function that uses what has changed, and was not named yet."""
        for (callback, followed), before in zip(self._callbacks, self._before, strict=True):
            now = self._summary(followed)
            found = [
                (function, name)
                for key, (function, name, token) in now.items()
                if (key not in before or before[key][2] != token) and key not in self._named
            ]
            self._named |= {key for key, each in now.items() if each[:2] in found}
            yield from _sentences(callback, found, has_changed=True)

    def _new(self, variables: Iterable[Variable]) -> Iterator[Variable]:
        for each in variables:
            if each.key not in self._named:
                self._named.add(each.key)
                yield each

    def _follow(self, callback: keras.callbacks.Callback) -> _Followed:
        attributes = callback_state.attributes_of(callback)
        unstored = {
            name
            for name, value in attributes.items()
            if not _is_left_out(value) and callback_state.digest(value) is None
        }
        code = ChangedVariables(
            _is_left_out,
            lambda value, name: value is callback and name not in unstored,
        )
        # Code may be anything; without a result, there is no warning before training.
        try:
            for name, function in _methods(callback):
                itself = Variable(callback, "", "self", callback, name)
                code.follow(function, name, [itself, *_GIVEN])
            for name, value in attributes.items():
                if name not in _AT_AN_END and not _is_left_out(value):
                    code.follow(value, _name_of(value, name), _GIVEN)
        except Exception:  # noqa: BLE001, S110 - see above
            pass
        own = [
            Variable(callback, name, f"self.{name}", attributes[name], "")
            for name in sorted(unstored)
            if is_summarised(attributes[name]) and not isinstance(attributes[name], _FUNCTIONS)
        ]
        self._attributes |= {(id(callback), each.attribute) for each in own}
        self._attributes |= {
            (id(callback), name) for name in unstored if isinstance(attributes[name], _FUNCTIONS)
        }
        return _Followed([*code.used, *own], code.changed)

    def _summary(self, followed: _Followed) -> dict[tuple[int, str], tuple[str, str, Any]]:
        self._known = {id(handle(each)) for each in self._known_variables()}
        found: dict[tuple[int, str], tuple[str, str, Any]] = {}
        for each in followed.used:
            # A value may be anything, or be changed by another thread meanwhile.
            try:
                inner: Summary = summary(each.now(), each.name, each.key, self._special)
            except Exception:  # noqa: BLE001, S112 - see above
                continue
            for key, (name, token) in inner.items():
                found.setdefault(key, (each.function, name, token))
        return found

    def _special(self, value: Any) -> Any:
        """Return a summary of a variable or tensor; see `object_digest.summary`."""
        if _is_left_out(value):
            return ()
        if isinstance(value, (keras.Variable, tf.Variable)):
            is_known = id(handle(value)) in self._known
            return () if is_known else _some_of(value)
        return _some_of(value) if isinstance(value, tf.Tensor) else None


class _Followed:
    """What the functions of a callback use and change."""

    def __init__(self, used: list[Variable], changed: list[Variable]) -> None:
        self.used, self.changed = used, changed


def _is_left_out(value: Any) -> bool:
    if isinstance(value, type):
        return False
    return isinstance(value, _OF_KERAS) or type(value).__module__ == "logging"


def _methods(callback: keras.callbacks.Callback) -> Iterator[tuple[str, types.FunctionType]]:
    """Yield (name, method) for the user's methods that Keras calls during the training."""
    kinds = type(callback).__mro__
    of_keras = {name for kind in kinds if not is_users(kind) for name in vars(kind)}
    for kind in kinds:
        if is_users(kind):
            for name, method in vars(kind).items():
                is_called = name in of_keras and name not in _AT_AN_END
                if is_called and isinstance(method, types.FunctionType):
                    yield f"{name}()", method


def _name_of(function: Any, attribute: str) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", "")
    if not name:
        return type(function).__qualname__.rpartition("<locals>.")[2]
    name = name.rpartition("<locals>.")[2]
    return f"its {attribute}" if name == "<lambda>" else name


def _some_of(value: Any) -> Any:
    array = np.asarray(tf.reshape(tf.convert_to_tensor(value), [-1])[:_MAX_SIZE])
    return tuple(value.shape), str(value.dtype), checksum(array)


def _sentences(
    callback: keras.callbacks.Callback, found: Sequence[tuple[str, str]], *, has_changed: bool
) -> Iterator[str]:
    """Yield a sentence for each function; `found` has (function, variable)."""
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
            f"compute {it} from the epoch."
        )

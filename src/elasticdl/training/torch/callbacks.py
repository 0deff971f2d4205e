"""Callbacks of a PyTorch model file: checks the user's objects, and calls their methods.

`callbacks()` returns a list of the user's objects. Each may have any of the methods of `MOMENTS`,
with Keras' names and arguments; there is no base class. Before training each one receives the model
and the optimizer, as the attributes `model` and `optimizer` or through `set_model`.

    class Halve:                                   called after each epoch, on each worker
        def on_epoch_end(self, epoch, logs):
            for group in self.optimizer.param_groups:
                group["lr"] /= 2

A method that would not be called (`on_epoch_start`), one with other arguments, and callbacks of
Keras or Lightning are rejected.

Callers: `hooks.py`.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training import missing_logs
from elasticdl.training.closures import assigned_variables
from elasticdl.training.torch.function_memory import has_state, is_of_library

if TYPE_CHECKING:
    from torch import nn

    from elasticdl.definition import Origin

MOMENTS: Mapping[str, int] = {
    "on_train_begin": 0,
    "on_train_end": 0,
    "on_epoch_begin": 1,
    "on_epoch_end": 1,
    "on_train_batch_begin": 1,
    "on_train_batch_end": 1,
    "on_test_begin": 0,
    "on_test_end": 0,
    "on_test_batch_begin": 1,
    "on_test_batch_end": 1,
}
"""Method -> number of its arguments before `logs`: 1 if it takes an epoch or batch number."""

BATCH_MOMENTS = ("on_train_batch_begin", "on_train_batch_end")
TEST_BATCH_MOMENTS = ("on_test_batch_begin", "on_test_batch_end")

# Names of events in other libraries.
_LIKE_A_MOMENT = re.compile(
    r"on_\w*(begin|begins|start|starts|end|ends|finish|backward|step|zero_grad|checkpoint)$"
)
_NEAR = {
    "on_train_start": "on_train_begin",
    "on_fit_start": "on_train_begin",
    "on_fit_end": "on_train_end",
    "on_epoch_start": "on_epoch_begin",
    "on_train_epoch_start": "on_epoch_begin",
    "on_train_epoch_end": "on_epoch_end",
    "on_batch_begin": "on_train_batch_begin",
    "on_batch_start": "on_train_batch_begin",
    "on_batch_end": "on_train_batch_end",
    "on_train_batch_start": "on_train_batch_begin",
    "on_step_begin": "on_train_batch_begin",
    "on_step_end": "on_train_batch_end",
    "on_validation_start": "on_test_begin",
    "on_validation_end": "on_test_end",
    "on_validation_epoch_end": "on_test_end",
    "on_validation_batch_end": "on_test_batch_end",
    "on_evaluate": "on_test_end",
}
_LIBRARIES = {
    "fastai": "fastai",
    "ignite": "Ignite",
    "keras": "Keras",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "skorch": "skorch",
    "tensorflow": "Keras",
    "tf_keras": "Keras",
    "transformers": "Transformers",
}
_HELD_BY_CLASSES = (
    bool, int, float, str, type(None), list, dict, set, deque, np.ndarray, np.generic, torch.Tensor,
)  # fmt: skip
_CHANGEABLE = (list, dict, set, deque, np.ndarray, torch.Tensor)


class Callbacks:
    """Checks the user's callbacks, and calls their methods.

    Args:
        objects: The objects that the user's function returned.
        where: The user's function, for errors.

    Raises:
        DefinitionError: An object cannot be called as a callback here.
    """

    def __init__(self, objects: Sequence[Any], where: Origin) -> None:
        self.where = where
        self.objects = list(objects)
        for each in self.objects:
            self._check(each)
        # (Number of the callback, method) -> whether it takes `logs`.
        self._methods = {
            (number, moment): self._takes_logs(each, moment)
            for number, each in enumerate(self.objects)
            for moment in _moments_of(each)
        }
        self._given: list[Mapping[str, Any]] = [{} for _ in self.objects]

    def __bool__(self) -> bool:
        """Return whether the model file has any callbacks."""
        return bool(self.objects)

    def any_has(self, moments: Collection[str]) -> bool:
        """Return whether any callback has one of these methods."""
        return any(moment in moments for _, moment in self._methods)

    def with_one_of(self, moments: Sequence[str]) -> tuple[Any, str] | None:
        """Return the first callback with one of these methods, and the method's name, or None."""
        return next(
            ((self.objects[n], moment) for n, moment in self._methods if moment in moments), None
        )

    def give(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Pass the model and the optimizer to each callback: by `set_model`, or as attributes.

        An attribute is not set if the callback uses its name for something else: `self.optimizer`
        may be a string.

        Raises:
            UserCodeError: `set_model` raised.
        """
        for number, each in enumerate(self.objects):
            given = {"model": model, "optimizer": optimizer}
            if callable(getattr(each, "set_model", None)):
                self._call(each, "set_model", (model,))
                del given["model"]
            # A callback may use the attribute otherwise, such as for the name of an optimizer.
            given = {name: value for name, value in given.items() if _is_free(each, name, value)}
            for name, value in given.items():
                setattr(each, name, value)
            self._given[number] = given

    def call(self, moment: str, *args: Any, logs: Mapping[str, Any] | None = None) -> None:
        """Call a method of each callback that has it, in the order of the list.

        Args:
            moment: One of `MOMENTS`.
            args: Number of the epoch or batch.
            logs: The measured values; all callbacks receive the same dict.

        Raises:
            UserCodeError: A callback raised.
            DefinitionError: A callback has replaced the model or optimizer passed to it.
        """
        # As in Keras, a callback may add entries for later callbacks.
        shared = dict(logs or {})
        for number, each in enumerate(self.objects):
            takes_logs = self._methods.get((number, moment))
            if takes_logs is None:
                continue
            self._call(each, moment, (*args, shared) if takes_logs else args)
            for name, value in self._given[number].items():
                if getattr(each, name, None) is not value:
                    raise DefinitionError(
                        f"{self.where}: the callback {type(each).__name__} replaced self.{name} in "
                        f"{moment}(), but training continues with the {name} of the model file. "
                        f"Change self.{name} itself, or give the attribute another name."
                    )

    def stop_requested(self) -> bool:
        """Return whether a callback has set its attribute `stop_training` to True."""
        return any(getattr(each, "stop_training", False) is True for each in self.objects)

    def remembered(self, number: int) -> dict[str, Any]:
        """Return the attributes of a callback that checkpoints store: name -> value.

        Class attributes are included if their values are data. The attributes that `give` has set
        (`model` and `optimizer`) are not.

        Args:
            number: Index of the callback in `objects`.
        """
        each = self.objects[number]
        found = {
            name: value
            for kind in reversed(type(each).__mro__)
            if not is_of_library(kind)
            for name, value in vars(kind).items()
            if not name.startswith("__") and isinstance(value, _HELD_BY_CLASSES)
        }
        found |= vars(each)
        return {name: value for name, value in found.items() if name not in self._given[number]}

    # --- what the user's function returns -----------------------------------------------------

    def _check(self, each: Any) -> None:
        kind = each if inspect.isclass(each) else type(each)
        name = kind.__name__
        library = next(
            (
                _LIBRARIES[root]
                for ancestor in inspect.getmro(kind)
                if (root := ancestor.__module__.partition(".")[0]) in _LIBRARIES
                and "callback" in ancestor.__name__.lower()
            ),
            None,
        )
        if library is not None:
            raise self._error(
                f"{name} is a callback of {library}, which cannot be called here.",
                "Write your own class instead, with methods such as on_epoch_end(self, epoch, "
                "logs); self.model and self.optimizer are those of PyTorch.",
            )
        if inspect.isclass(each):
            raise self._error(f"{name} is a class.", f"Return an instance of it: [{name}()].")
        unknown = [
            method
            for method in dir(kind)
            if method not in MOMENTS
            and (method in _NEAR or _LIKE_A_MOMENT.match(method))
            and callable(getattr(kind, method))
        ]
        if unknown:
            meant = _NEAR.get(unknown[0]) or next(
                iter(difflib.get_close_matches(unknown[0], MOMENTS, n=1)), ""
            )
            raise self._error(
                f"{name} has {unknown[0]}(), which would not be called.",
                f"There is {meant}()." if meant else f"There are {', '.join(MOMENTS)}.",
            )
        if not _moments_of(each):
            raise self._error(
                f"{name} has no method that would be called.", f"There are {', '.join(MOMENTS)}."
            )
        if not hasattr(each, "__dict__"):
            raise self._error(
                f"{name} has __slots__, but a checkpoint stores the attributes in a callback's "
                "__dict__.",
                "Remove __slots__ (slots=True).",
            )
        outside = next(_closure_state(kind), None)
        if outside is not None and not has_state(each):
            method, variable = outside
            raise self._error(
                f"{name}.{method}() keeps its state in {variable}, a variable of the enclosing "
                "function, which no checkpoint stores.",
                "Keep it in an attribute: self.NAME.",
            )

    def _takes_logs(self, each: Any, moment: str) -> bool:
        """Return whether a method takes `logs` after the number of the epoch or batch.

        Raises:
            DefinitionError: The method takes other arguments.
        """
        try:
            signature = inspect.signature(getattr(each, moment))
        except (TypeError, ValueError):
            return True
        numbers = (0,) * MOMENTS[moment]
        for takes_logs in (True, False):
            try:
                signature.bind(*numbers, *([{}] if takes_logs else []))
            except TypeError:
                continue
            return takes_logs
        wanted = ", ".join(["self", "epoch" if "epoch" in moment else "batch"][: 1 + len(numbers)])
        raise self._error(
            f"{type(each).__name__}.{moment}{signature} does not accept the arguments that it "
            "would be called with.",
            f"Expected {moment}({wanted}, logs=None).",
        )

    def _call(self, each: Any, method: str, args: Sequence[Any]) -> None:
        try:
            getattr(each, method)(*args)
        except ElasticDLError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"{raised_at(error, self.where)}: the callback {type(each).__name__} raised in "
                f"{method}():\n{users_traceback(error)}"
                f"{missing_logs.hint(error, args[-1] if args else None)}"
            ) from error

    def _error(self, problem: str, way_out: str) -> DefinitionError:
        return DefinitionError(f"{self.where}: callbacks(): {problem} {way_out}")


def _moments_of(each: Any) -> list[str]:
    return [moment for moment in MOMENTS if callable(getattr(each, moment, None))]


def _closure_state(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield (method, variable) for each closure variable that a callback's method may change.

    Callbacks with such a variable are rejected, because checkpoints store attributes only.

    Args:
        kind: The class of the callback.
    """
    methods = {
        name: value
        for ancestor in reversed(kind.__mro__)
        if not is_of_library(ancestor)
        for name, value in vars(ancestor).items()
        if isinstance(value, FunctionType)
    }
    for name, function in methods.items():
        assigned = assigned_variables(function)
        for variable, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            # Empty if the variable has not been assigned yet.
            value = getattr(cell, "cell_contents", None)
            if variable in assigned or isinstance(value, _CHANGEABLE):
                yield name, variable


def _is_free(each: Any, name: str, value: Any) -> bool:
    """Return whether an attribute of a callback may be set to `value` without a conflict.

    True if the callback does not use the attribute: it is missing, None, or equal to `value`.
    """
    if isinstance(inspect.getattr_static(type(each), name, None), property):
        return False
    return getattr(each, name, None) in (None, value)

"""Finds the place of objects that callbacks refer to and that the user's code creates again.

A checkpoint stores such a place instead of a copy, so that a resumed callback refers to the same
object as before:

    self.kernels = [kernel, ...]    weights of the model     {"$reference": ["variables", 0]}
    self.average[id(kernel)]        the id of a weight       {"$id": ["variables", 0]}
    self.phase = self.second        a method of a callback   {"$method": ["callbacks", 0, "second"]}
    self.rate = cosine              a function of the file   {"$code": ["model", "cosine"]}

Callers: `callback_state.py`; `callback_checkpoint.py` creates the object.
"""

from __future__ import annotations

import functools
import inspect
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticdl.training.callback_state import CannotKeepError
from elasticdl.training.keras.read_variables import is_users

if TYPE_CHECKING:
    import keras

_GENERATORS, _OWNED = "_seed_generators", "owned"

Place = list[Any]
"""[name of a group of objects, index in it]."""


class References:
    """Knows the places of the trained model's and the optimizer's objects, and of the callbacks.

    Args:
        model: The trained model, with its optimizer.
        callbacks: All callbacks.
        others: Function () -> name of a group -> variables of other models that callbacks have.

    Attributes:
        owned: Metrics and variables that the callbacks had when training began, in the order of
            their attributes.
    """

    def __init__(
        self,
        model: keras.Model,
        callbacks: Sequence[keras.callbacks.Callback],
        others: Callable[[], Mapping[str, Sequence[Any]]] = dict,
    ) -> None:
        self._model, self._callbacks, self._others = model, callbacks, others
        self._groups: dict[str, list[Any]] = {}
        self._places: dict[int, Place] = {}
        self.owned: list[Any] = []

    def find(self) -> None:
        """Look up all objects again: a layer or an optimizer may have got new variables."""
        optimizer = getattr(self._model, "optimizer", None)
        # Keras has no public name for the list of all layers, including nested ones.
        layers = list(self._model._flatten_layers())  # noqa: SLF001
        groups: dict[str, list[Any]] = {
            "variables": list(self._model.variables),
            "optimizer": list(optimizer.variables) if optimizer else [],
            **{name: list(each) for name, each in self._others().items()},
        }
        # The variables of TensorFlow in those of Keras.
        inner = {
            f"{name} of TensorFlow": [getattr(each, "_value", each) for each in group]
            for name, group in groups.items()
        }
        self._groups = {
            **groups,
            **inner,
            "layers": layers,
            "losses": [loss] if callable(loss := getattr(self._model, "loss", None)) else [],
            "metrics": list(self._model.metrics),
            # Keras has no public name for these either.
            "generators": [one for each in layers for one in getattr(each, _GENERATORS, ())],
            "optimizers": list(_optimizers(optimizer)),
            "callbacks": list(self._callbacks),
            # Last, because some belong to the model as well.
            _OWNED: self.owned,
        }
        self._places = {}
        for name, group in self._groups.items():
            for index, each in enumerate(group):
                self._places.setdefault(id(each), [name, index])

    def owned_variables(self) -> list[list[Any]]:
        """Return the variables of each of `owned`; none for what is part of another group."""
        places = [self.place(each) for each in self.owned]
        return [
            list(getattr(each, "variables", [each])) if place and place[0] == _OWNED else []
            for each, place in zip(self.owned, places, strict=True)
        ]

    def place(self, value: Any) -> Place | None:
        """Return the place of an object; None if it is not one of the training's objects."""
        return self._places.get(id(value))

    def place_of_id(self, number: int) -> Place | None:
        """Return the place of the object whose `id` a number is; None if there is none."""
        return self._places.get(number)

    def at(self, place: Sequence[Any]) -> Any:
        """Return the object at a place.

        Raises:
            CannotKeepError: There is none.
        """
        name, index = place
        try:
            return self._groups[name][index]
        except LookupError:
            what = "a metric or variable" if name == _OWNED else f"one of {name}"
            raise CannotKeepError(what) from None

    def method(self, value: types.MethodType) -> list[Any] | None:
        """Return the place of an object and the name of its method; None if it is of no object."""
        place = self.place(value.__self__)
        is_found = place and getattr(value.__self__, value.__name__, None) == value
        return [*(place or ()), value.__name__] if is_found else None

    def method_at(self, place: Sequence[Any]) -> Any:
        """Return a method by the result of `method`.

        Raises:
            CannotKeepError: There is none.
        """
        owner, name = self.at(place[:-1]), place[-1]
        if not inspect.ismethod(found := getattr(owner, name, None)):
            raise CannotKeepError(f"the method {name}")
        return found


def name_of_code(value: Any) -> list[str] | None:
    """Return module and name of a user's function or class; None if it is not found by them."""
    module, name = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
    found = _named(module, name) if is_users(module) else None
    return [module, name] if found is value else None


def code_named(module: str, name: str) -> Any:
    """Return a function or class of the user by its name, from a module that is imported.

    Raises:
        CannotKeepError: There is none. Other code is never returned.
    """
    found = _named(module, name) if is_users(module) else None
    if not isinstance(found, (types.FunctionType, type)):
        raise CannotKeepError(f"the function or class {name}")
    return found


def is_same_code(value: Any, before: Any) -> bool:
    """Return whether a function, method or class does the same as another one.

    A function that is defined in a block is a new object each time, which does the same if it uses
    no variables of the block.
    """
    if value is before or (isinstance(value, types.MethodType) and value == before):
        return True
    if not isinstance(value, types.FunctionType) or not isinstance(before, types.FunctionType):
        return False
    parts = operator.attrgetter("__code__", "__closure__", "__defaults__", "__kwdefaults__")
    try:
        return not value.__closure__ and bool(parts(value) == parts(before))
    except ValueError:  # A default value is an array.
        return False


def _named(module: str, name: str) -> Any:
    try:
        return functools.reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


def _optimizers(optimizer: Any) -> Iterable[Any]:
    while optimizer is not None:
        yield optimizer
        optimizer = getattr(optimizer, "inner_optimizer", None)

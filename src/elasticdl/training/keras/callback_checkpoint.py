"""Saves the state of all Keras callbacks in a checkpoint, and restores it.

    what is stored                              converted or found by
    attributes of each callback                 `callback_state.py`
    places of the training's objects in them    `callback_references.py`
    variables of other models                   `callback_models.py`
    rows of a CSVLogger                         `callback_files.py`
    clock readings                              `training/clock_readings.py`
    changed attributes of the model, the        `attributes.py`
    optimizer, the loss and metrics

Warnings name what cannot be stored (`callback_warnings.py`), also what callbacks keep outside their
attributes (`callback_memory.py`).

Callers: `hooks.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.callback_state import ContainerRestorer
from elasticdl.training.clock_readings import ClockReadings
from elasticdl.training.keras import callback_state
from elasticdl.training.keras.callback_files import CallbackFiles, LoggedRows
from elasticdl.training.keras.callback_memory import UnstoredMemory
from elasticdl.training.keras.callback_methods import are_of_users
from elasticdl.training.keras.callback_models import (
    METRICS,
    WEIGHTS,
    set_variables,
    shapes_of,
    shapes_of_model,
    variables_of_model,
)
from elasticdl.training.keras.callback_references import References, is_same_code
from elasticdl.training.keras.callback_state import CannotKeepError
from elasticdl.training.keras.callback_warnings import CallbackWarnings
from elasticdl.training.keras.untracked_state import variables_in
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    import numpy as np

    from elasticdl.training.keras.attributes import Attributes
    from elasticdl.training.trainer import State

# Key of the rows that a CSVLogger has written.
_ROWS = "$rows"

_CLOCKS = "clocks"
# Key of the attributes of the model and the optimizer that have changed.
_ATTRIBUTES = "$attributes"
# Key of those of them that evaluations are compiled with.
_IN_EVALUATION = "$attributes_in_evaluation"
# Key of the names of attributes that a callback had as training began, and has deleted.
_DELETED = "$deleted"
# Key of the metrics and variables that callbacks had as training began.
_OWNED = "$owned"
_OF_OWNED = f"{CALLBACKS}{_OWNED}"


class CallbackCheckpoint:
    """Saves and restores the state of a job's callbacks.

    Args:
        callbacks: The callbacks.
        model: The trained model, with its optimizer.
        files: The files of the callbacks.
        attributes: Tracks Python attributes of the model, the optimizer and the loss that the
            user's callbacks change.
        where: Names the user's code, for messages.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        files: CallbackFiles,
        attributes: Attributes,
        where: str,
    ) -> None:
        self._callbacks, self._model, self._files = callbacks, model, files
        self._attributes, self._where = attributes, where
        self._are_of_users = are_of_users(callbacks)
        # The user's code sets arguments again; an argument that a callback has changed is state.
        self._first = [
            {
                name: (value, callback_state.digest(value))
                for name, value in vars(each).items()
                if name in callback_state.arguments_of(each)
            }
            for each in self._callbacks
        ]
        self._warnings = CallbackWarnings(where)
        self._references = References(model, callbacks, self._variables_of_others)
        self._values = callback_state.KerasValues(self._references)
        # (number of a callback, name of its attribute) -> its value as training begins.
        self._begun: dict[tuple[int, str], Any] = {}
        # The same key, part of a model -> shapes of the variables of a model that it is.
        self._shapes: dict[tuple[tuple[int, str], str], list[tuple[int, ...]]] = {}
        self._containers = ContainerRestorer({})
        self._memory: UnstoredMemory | None = None
        self._clocks = ClockReadings()
        self._has_begun = False

    def beginning(self) -> AbstractContextManager[None]:
        """Context manager around the calls of `on_train_begin`."""
        return self._clocks.beginning(self._all_attributes)

    def begun(self) -> None:
        """Record which objects exist after `on_train_begin`, and so also exist in a resumed run."""
        self._has_begun = True
        self._begun = {
            (number, name): value
            for number, each in enumerate(self._callbacks)
            for name, value in callback_state.attributes_of(each).items()
        }
        self._containers = ContainerRestorer(self._begun)
        self._references.owned = self._values.begin(self._begun.values())
        self._references.find()
        trained = self._trained_ids()
        self._shapes = {
            (key, part): shapes_of_model(value, trained, part)
            for key, value in self._begun.items()
            for part in (WEIGHTS, METRICS)
        }
        for (number, name), value in self._begun.items():
            # on_train_begin has set the argument, so its value of the file is state as well.
            if not self._is_as_in_file(number, name, value):
                self._first[number].pop(name, None)

    def state(self) -> dict[str, Any]:
        """Return the callbacks' state as JSON values: `EarlyStopping.wait`, `.best`, ..."""
        clocks = {_CLOCKS: self._clocks.state()} if self._callbacks else {}
        return {**self.keep()[0], **clocks}

    def arrays(self) -> State:
        """Return the arrays of the callbacks' state by name: `EarlyStopping.best_weights`, ..."""
        return self.keep()[1]

    def keep(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
        """Return the callbacks' state as JSON and arrays; warn of what cannot be stored."""
        values: dict[str, Any] = {}
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        self._files.flush()
        self._references.find()
        self._warn_of_memory()
        trained = self._trained_ids()
        for number in range(len(self._callbacks)):
            values[self._key(number)] = self._keep_callback(number, trained, arrays)
        values[_OWNED] = [
            callback_state.encode(list(map(tf.convert_to_tensor, some)), f"{_OF_OWNED}/{i}", arrays)
            for i, some in enumerate(self._references.owned_variables())
        ]
        if self._are_of_users:
            changed = self._attributes.changed()
            values[_ATTRIBUTES] = self._keep_attributes(changed, _ATTRIBUTES, arrays)
            in_evaluation = self._attributes.changed_in_evaluation()
            if in_evaluation is not None:
                kept = self._keep_attributes(in_evaluation, _IN_EVALUATION, arrays)
                values[_IN_EVALUATION] = kept
        return values, arrays

    def _keep_callback(
        self, number: int, trained: set[int], arrays: dict[str, np.ndarray[Any, Any]]
    ) -> dict[str, Any]:
        callback, key = self._callbacks[number], self._key(number)
        values: dict[str, Any] = {}
        for name, value in callback_state.attributes_of(callback).items():
            if self._is_as_in_file(number, name, value):
                continue
            path = f"{CALLBACKS}{key}/{name}"
            found: dict[str, np.ndarray[Any, Any]] = {}
            if parts := variables_of_model(value, trained):
                self._warn_of_model(number, name, value)
                values[name] = {
                    part: callback_state.encode([v.value for v in some], f"{path}/{part}", found)
                    for part, some in parts.items()
                }
            elif not self._is_created_again(number, name, value):
                try:
                    kept = self._values.encode(value, path, found)
                except CannotKeepError as error:
                    self._warn_of_value(number, name, str(error))
                    continue
                values[name] = self._containers.mark((number, name), value, kept)
            arrays |= found
        begun = (name for of, name in self._begun if of == number)
        if deleted := sorted(name for name in begun if name not in vars(callback)):
            values[_DELETED] = deleted
        if isinstance(getattr(callback, "csv_file", None), LoggedRows):
            values[_ROWS] = callback.csv_file.state()
        return values

    def _keep_attributes(
        self, changed: Mapping[str, Any], part: str, arrays: dict[str, np.ndarray[Any, Any]]
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in changed.items():
            try:
                values[key] = callback_state.encode(value, f"{CALLBACKS}{part}/{key}", arrays)
            except CannotKeepError as error:
                self._warnings.of_attribute(self._attributes.name_of(key), str(error))
        return values

    def load_state(self, state: Mapping[str, Any], arrays: State) -> bool:
        """Restore the callbacks from the results of `state` and `arrays`, after `begun`.

        Returns:
            Whether attributes of the model and the like were restored, so that evaluations must be
            compiled again.

        Raises:
            DefinitionError: A callback lacks an object that it had when the checkpoint was written.
        """
        self._references.find()
        self._load_owned(state.get(_OWNED, ()), arrays)
        for number, callback in enumerate(self._callbacks):
            kept = dict(state.get(self._key(number), {}))
            rows = kept.pop(_ROWS, None)
            for name in kept.pop(_DELETED, ()):
                vars(callback).pop(name, None)
            for name, value in kept.items():
                current = vars(callback).get(name)
                if isinstance(value, dict) and WEIGHTS in value:
                    parts = {
                        part: callback_state.decode(each, None, arrays)
                        for part, each in value.items()
                    }
                    self._set_weights(callback, name, current, parts)
                    continue
                decode = functools.partial(self._values.decode, current=current, arrays=arrays)
                try:
                    restored = self._containers.restored((number, name), value, decode)
                except CannotKeepError as error:
                    raise DefinitionError(
                        f"{self._where}: the callback {type(callback).__name__} had {error} in "
                        f"{name} when the checkpoint was written, which is not there now, so it "
                        "cannot be restored. Create it in on_train_begin()."
                    ) from error
                vars(callback)[name] = self._clocks.moved(
                    state.get(_CLOCKS, {}), f"{number}/{name}", restored
                )
            if isinstance(callback, keras.callbacks.CSVLogger) and rows is not None:
                callback.csv_file.load_state(rows)
                callback.append_header, callback.writer = callback.csv_file.is_empty, None
        if _ATTRIBUTES not in state:
            return False
        changed, in_evaluation = (
            None
            if kept is None
            else {key: callback_state.decode(each, None, arrays) for key, each in kept.items()}
            for kept in (state[_ATTRIBUTES], state.get(_IN_EVALUATION))
        )
        self._attributes.restore(changed or {}, in_evaluation)
        return True

    def _load_owned(self, kept: Sequence[Any], arrays: State) -> None:
        owned = self._references.owned_variables()
        values = [callback_state.decode(each, None, arrays) for each in kept]
        if [shapes_of(some) for some in values] != [shapes_of(some) for some in owned]:
            raise DefinitionError(
                f"{self._where}: the callbacks had other metrics or variables when the checkpoint "
                "was written than they have now, so they cannot be restored. Create the same ones "
                "in on_train_begin(), a metric with all of its variables."
            )
        for variables, some in zip(owned, values, strict=True):
            for variable, value in zip(variables, some, strict=True):
                variable.assign(value)

    def _set_weights(
        self,
        callback: keras.callbacks.Callback,
        name: str,
        current: Any,
        kept: Mapping[str, Sequence[Any]],
    ) -> None:
        if not set_variables(current, self._trained_ids(), kept):
            raise DefinitionError(
                f"{self._where}: the callback {type(callback).__name__} had a model or optimizer "
                f"in {name} when the checkpoint was written, and now has none with the same "
                "weights, so it cannot be restored. Create it in on_train_begin()."
            )

    def variables(self) -> list[Any]:
        """Return the variables that callbacks have as attributes."""
        return [variable for each in self._callbacks for variable in variables_in(each)]

    def _all_attributes(self) -> dict[str, Any]:
        return {
            f"{number}/{name}": value
            for number, each in enumerate(self._callbacks)
            for name, value in callback_state.attributes_of(each).items()
        }

    def _trained_ids(self) -> set[int]:
        optimizer = getattr(self._model, "optimizer", None)
        of_optimizer = optimizer.variables if optimizer else ()
        trained = [*self._model.variables, *self._model.metrics_variables, *of_optimizer]
        return {id(variable) for variable in trained}

    def _key(self, number: int) -> str:
        return f"{number}/{type(self._callbacks[number]).__name__}"

    def _is_as_in_file(self, number: int, name: str, value: Any) -> bool:
        if name not in self._first[number]:
            return False
        first, digest = self._first[number][name]
        return value is first if digest is None else callback_state.digest(value) == digest

    def _is_created_again(self, number: int, name: str, value: Any) -> bool:
        """Return whether an attribute is code that the user's code creates again on a resume.

        That is code that the attribute had as training began. False for a function or class that
        it got later, and for the model, a layer or the optimizer.
        """
        if not callback_state.is_code(value):
            return False
        if inspect.isroutine(value) or isinstance(value, type):
            before = self._begun.get((number, name), self) if self._has_begun else value
            return is_same_code(value, before)
        return self._references.place(value) is None

    def _warn_of_value(self, number: int, name: str, kind: str) -> None:
        callback = self._callbacks[number]
        value, before = vars(callback)[name], self._begun.get((number, name))
        if value is before and self._memory and self._memory.watches(callback, name):
            return
        self._warnings.of_value(callback, name, kind)

    def _warn_of_model(self, number: int, name: str, value: Any) -> None:
        """Warn of a callback's model that a resume could not restore, or not with its metrics."""
        trained = self._trained_ids()
        is_other = {
            part: shapes_of_model(value, trained, part) != self._shapes.get(((number, name), part))
            for part in (WEIGHTS, METRICS)
        }
        if any(is_other.values()):
            self._warnings.of_model(
                self._callbacks[number], name, has_other_weights=is_other[WEIGHTS]
            )

    def _warn_of_memory(self) -> None:
        """Warn of values that callbacks change and that no checkpoint stores."""
        if self._memory is None:
            self._memory = UnstoredMemory(
                self._callbacks, self._known_variables, self._known_attributes
            )
            sentences = self._memory.suspected()
        else:
            sentences = self._memory.changed()
        for sentence in sentences:
            self._warnings.of_memory(sentence)

    def _known_variables(self) -> list[Any]:
        optimizer = getattr(self._model, "optimizer", None)
        of_optimizer = optimizer.variables if optimizer else ()
        return [*self._model.variables, *of_optimizer, *self.variables()]

    def _known_attributes(self) -> set[tuple[int, str]]:
        stored = {
            (id(each), name)
            for each in self._callbacks
            for name, value in callback_state.attributes_of(each).items()
            if isinstance(value, (list, tuple, dict)) and self._values.digest(value) is not None
        }
        return stored | (self._attributes.stored() if self._are_of_users else set())

    def _variables_of_others(self) -> dict[str, list[Any]]:
        """Return the variables of other models that callbacks have, by place; for references."""
        trained = self._trained_ids()
        return {
            f"{number}/{name}": found
            for number, each in enumerate(self._callbacks)
            for name, value in vars(each).items()
            if (found := [*chain(*variables_of_model(value, trained).values())])
        }

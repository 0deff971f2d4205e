"""Calls the user's Keras callbacks for the same events, in the same order, as `Model.fit`."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training import missing_logs
from elasticdl.training.callback_state import ContainerRestorer
from elasticdl.training.clock_readings import ClockReadings
from elasticdl.training.keras import callback_state
from elasticdl.training.keras.callback_files import CallbackFiles, LoggedRows
from elasticdl.training.keras.callback_memory import UnstoredMemory
from elasticdl.training.keras.callback_methods import (
    BATCH_MOMENTS,
    TEST_BATCH_MOMENTS,
    any_overrides,
    are_of_users,
    check_grouping,
    check_sharing,
)
from elasticdl.training.keras.callback_models import (
    METRICS,
    WEIGHTS,
    set_variables,
    shapes_of,
    shapes_of_model,
    variables_of_model,
)
from elasticdl.training.keras.callback_monitors import CallbackMonitors
from elasticdl.training.keras.callback_references import References, is_same_code
from elasticdl.training.keras.callback_state import CannotKeepError
from elasticdl.training.keras.model_in_callbacks import MethodsInCallbacks, without_result
from elasticdl.training.keras.untracked_state import variables_in
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    import numpy as np

    from elasticdl.training.keras.attributes import Attributes
    from elasticdl.training.monitors import Monitor
    from elasticdl.training.trainer import State

_log = logging.getLogger("elasticdl")
# Key of the rows that a CSVLogger has written.
_ROWS = "$rows"

_STOPS = "stop_training"
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
_VALUES_INSTEAD = (
    "Create what has no state in on_train_begin(), and keep state as numbers, strings, lists, "
    "dicts or arrays."
)
_FUNCTIONS_INSTEAD = (
    "Use a method of the callback, or a function or class at the top level of your file: these are "
    "stored by name."
)


class KerasHooks:
    """Forwards the events of the training loop to Keras callbacks; see `trainer.Hooks`.

    Args:
        model: The model, compiled with its optimizer.
        callbacks: The user's callbacks.
        where: Names the user's code, for messages.
        direction: Function (name of a metric) -> "min" or "max", whichever values are better, or
            None if unknown. Needed for a model that was not compiled with its metrics, because
            Keras then cannot find out. None: leave it to Keras.
        is_compiled: Whether the model was compiled with its loss and metrics.
        drawing: Function (name of an event, such as `on_epoch_end`, number of the batch) -> context
            manager that seeds the random numbers drawn in its block. None: do not seed them.
        only_in_validation: Names of metrics that are not measured in training, as far as they are
            known before training.

    Raises:
        DefinitionError: A callback is a class.

    Attributes:
        are_of_users: Whether there is a callback with user code.
        epoch: The current epoch, from 0.
        first_step: Number of updates before this epoch.
        attributes: Tracks Python attributes of the model, the optimizer and the loss that the
            user's callbacks change, to store them in checkpoints. None: store none.
        evaluation_changed: Called when evaluations must be compiled again, because attributes have
            other values.
    """

    def __init__(
        self,
        model: keras.Model,
        callbacks: Sequence[keras.callbacks.Callback],
        where: str = "the model",
        direction: Callable[[str], str | None] | None = None,
        *,
        is_compiled: bool = True,
        drawing: Callable[[str, int], contextlib.AbstractContextManager[None]] | None = None,
        only_in_validation: Collection[str] = (),
    ) -> None:
        self._where = where
        for each in callbacks:
            if isinstance(each, type):
                raise DefinitionError(
                    f"{where}: {each.__name__} of the callbacks is a class. Use an instance of it: "
                    f"{each.__name__}(...)."
                )
        self._only_in_validation = only_in_validation
        self._drawing = drawing or (lambda *_: contextlib.nullcontext())
        # It would load its weights over those of the checkpoint.
        left_out = keras.callbacks.BackupAndRestore
        self._callbacks = [each for each in callbacks if not isinstance(each, left_out)]
        self._leaves_out = len(self._callbacks) < len(callbacks)
        self.are_of_users = are_of_users(self._callbacks)
        self._model = model
        self.epoch = self.first_step = 0
        self._clocks = ClockReadings()
        self._list = keras.callbacks.CallbackList(
            self._callbacks, add_history=bool(self._callbacks), add_progbar=False
        )
        self.attributes: Attributes | None = None
        self.evaluation_changed: Callable[[], None] = lambda: None
        # Includes the history callback that `fit` adds.
        self._callbacks = list(self._list.callbacks)
        self._monitors = CallbackMonitors(self._callbacks, where, direction)
        self._monitors.set_directions()
        self.callbacks: Sequence[Any] = self._callbacks
        self.observes_batches = any_overrides(self._callbacks, BATCH_MOMENTS)
        self.observes_test_batches = any_overrides(self._callbacks, TEST_BATCH_MOMENTS)
        # The user's code sets arguments again; an argument that a callback has changed is state.
        self._first = [
            {
                name: (value, callback_state.digest(value))
                for name, value in vars(each).items()
                if name in callback_state.arguments_of(each)
            }
            for each in self._callbacks
        ]
        self._warned: set[tuple[str, str]] = set()
        self._references = References(model, self._callbacks, self._variables_of_others)
        self._values = callback_state.KerasValues(self._references)
        # (number of a callback, name of its attribute) -> its value as training begins.
        self._begun: dict[tuple[int, str], Any] = {}
        # The same key, part of a model -> shapes of the variables of a model that it is.
        self._shapes: dict[tuple[tuple[int, str], str], list[tuple[int, ...]]] = {}
        self._containers = ContainerRestorer({})
        self._memory: UnstoredMemory | None = None
        self._files = CallbackFiles(self._callbacks, model)
        self._has_model = False
        self._methods = MethodsInCallbacks(model, is_compiled=is_compiled)

    @property
    def has_begun(self) -> bool:
        """Whether `train_begin` was called."""
        return self._has_model

    @property
    def stop_requested(self) -> bool:
        """Whether a callback has set `model.stop_training`."""
        return bool(self._callbacks) and bool(getattr(self._model, "stop_training", False))

    @property
    def stored(self) -> Sequence[Any]:
        """Losses and metrics whose changed attributes are stored in checkpoints.

        Empty unless a callback is user code: no other callback changes their attributes.
        """
        return self.attributes.of_step if self.attributes and self.are_of_users else ()

    @property
    def monitored(self) -> Mapping[str, Monitor]:
        """Name of a metric -> what needs it; see `CallbackMonitors.needed`."""
        return self._monitors.needed()

    def check_sharing(self) -> None:  # noqa: D102 - see trainer.Hooks, here and below
        check_sharing(self._callbacks, self._where)

    def check_grouping(self, steps: int) -> None:
        """Reject callbacks that `steps_per_execution` above 1 does not allow here.

        Raises:
            DefinitionError: There is such a callback; see `callback_methods.check_grouping`.
        """
        check_grouping(self._callbacks, steps, self._where)

    def variables(self) -> list[Any]:
        """Return the variables that callbacks have as attributes, for checkpoints."""
        return [variable for each in self._callbacks for variable in variables_in(each)]

    def train_begin(  # noqa: D102
        self,
        *,
        num_epochs: int,
        num_steps: int | None,
        resumes: bool,
        num_updates: int | None = None,
        num_full_epochs: int | None = None,
    ) -> None:
        del num_updates, num_full_epochs
        if self._leaves_out:
            self._leaves_out = False
            _log.warning(
                "%s: the callback BackupAndRestore is ignored: ElasticDL's checkpoints replace it.",
                self._where,
            )
        self._monitors.check_measured(self._only_in_validation)
        self._list.set_params({"verbose": 1, "epochs": num_epochs, "steps": num_steps})
        self._model.stop_training = False
        leads, self._files.leads = self._files.leads, self._files.leads and not resumes
        with self._moment("on_train_begin"), self._clocks.beginning(self._attributes):
            if not self._has_model:
                self._has_model = True
                self._files.set_model(self._list)
            self._files.begin(self._list)
        self._files.leads = leads
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
        self._monitors.check_directions()
        if not resumes:
            self._monitors.note_wrong_modes()
            self._keep()

    def committed(self, *, leads: bool) -> None:  # noqa: D102
        try:
            self._files.committed(leads=leads)
        except OSError as error:
            raise UserCodeError(
                f"{self._where}: a file of a callback cannot be written: {error}. Give this user "
                "write permission, or let the callback write elsewhere."
            ) from error

    def epoch_begin(self, epoch: int) -> None:  # noqa: D102
        self.epoch = epoch
        with self._moment("on_epoch_begin"):
            self._list.on_epoch_begin(epoch)

    def batch_begin(self, step: int) -> None:  # noqa: D102
        with self._moment("on_train_batch_begin"):
            self._list.on_train_batch_begin(step)

    def batch_end(self, step: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        with self._moment("on_train_batch_end", logs=logs):
            self._list.on_train_batch_end(step, dict(logs))

    def test_begin(self) -> None:  # noqa: D102
        self._model.stop_evaluating = False
        with self._moment("on_test_begin"):
            self._list.on_test_begin()
        if not self.observes_test_batches:
            self._begin_evaluation()

    def test_batch_begin(self, number: int) -> None:  # noqa: D102
        with self._moment("on_test_batch_begin", number):
            self._list.on_test_batch_begin(number)
        # As `fit`, which compiles the evaluation after this event of the first batch.
        self._begin_evaluation()

    def _begin_evaluation(self) -> None:
        if self.attributes is not None and self.attributes.begin_evaluation():
            self.evaluation_changed()

    def test_batch_end(self, number: int, logs: Mapping[str, Any]) -> bool:  # noqa: D102
        with self._moment("on_test_batch_end", number, logs=logs):
            self._list.on_test_batch_end(number, dict(logs))
        return not getattr(self._model, "stop_evaluating", False)

    def test_end(self, logs: Mapping[str, Any]) -> None:  # noqa: D102
        with self._moment("on_test_end", logs=logs):
            self._list.on_test_end(dict(logs))

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._monitors.check_measured({name.removeprefix("val_") for name in logs} - set(logs))
        with self._moment("on_epoch_end", logs=logs):
            self._list.on_epoch_end(epoch, dict(logs))

    def train_end(self, logs: Mapping[str, Any]) -> str:  # noqa: D102
        with self._moment("on_train_end", logs=logs):
            self._list.on_train_end(dict(logs))
        return ". ".join(filter(None, map(self._restored_by, self._callbacks)))

    def _restored_by(self, callback: Any) -> str:
        """Return a clause that says which epoch's weights an EarlyStopping restored; else ""."""
        if (
            not isinstance(callback, keras.callbacks.EarlyStopping)
            or not callback.restore_best_weights
            or callback.best_weights is None
            or callback.best_epoch == self.epoch
        ):
            return ""
        return (
            f"EarlyStopping has restored the weights of epoch {callback.best_epoch + 1} "
            f"({callback.monitor} {callback.best:.4g})"
        )

    # --- the state of callbacks -----------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return the callbacks' state as JSON values: `EarlyStopping.wait`, `.best`, ..."""
        # A callback may have requested to stop training just before a checkpoint.
        clocks = {_CLOCKS: self._clocks.state()} if self._callbacks else {}
        return {**self._keep()[0], **clocks, _STOPS: self.stop_requested}

    def _attributes(self) -> dict[str, Any]:
        return {
            f"{number}/{name}": value
            for number, each in enumerate(self._callbacks)
            for name, value in callback_state.attributes_of(each).items()
        }

    def arrays(self) -> State:
        """Return the arrays of the callbacks' state by name: `EarlyStopping.best_weights`, ..."""
        return self._keep()[1]

    def load_state(self, state: Mapping[str, Any], arrays: State) -> None:  # noqa: D102
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
                    self._give_weights(callback, name, current, parts)
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
        if self.attributes is not None and _ATTRIBUTES in state:
            changed, in_evaluation = (
                None
                if kept is None
                else {key: callback_state.decode(each, None, arrays) for key, each in kept.items()}
                for kept in (state[_ATTRIBUTES], state.get(_IN_EVALUATION))
            )
            self.attributes.restore(changed or {}, in_evaluation)
            self.evaluation_changed()
        self._model.stop_training = bool(state.get(_STOPS, False))
        self._files.forget()
        # Logs at every start which attributes cannot be stored.
        self._keep()

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

    def _keep(self) -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
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
        if self.attributes is not None and self.are_of_users:
            changed = self.attributes.changed()
            values[_ATTRIBUTES] = self._keep_attributes(changed, _ATTRIBUTES, arrays)
            in_evaluation = self.attributes.changed_in_evaluation()
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
                name = self.attributes.name_of(key) if self.attributes else key
                self._warn_of_attribute(name, str(error))
        return values

    def _trained_ids(self) -> set[int]:
        optimizer = getattr(self._model, "optimizer", None)
        of_optimizer = optimizer.variables if optimizer else ()
        trained = [*self._model.variables, *self._model.metrics_variables, *of_optimizer]
        return {id(variable) for variable in trained}

    def _give_weights(
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
            before = self._begun.get((number, name), self) if self.has_begun else value
            return is_same_code(value, before)
        return self._references.place(value) is None

    def _warn_of_value(self, number: int, name: str, kind: str) -> None:
        callback = self._callbacks[number]
        value, before = vars(callback)[name], self._begun.get((number, name))
        if value is before and self._memory and self._memory.watches(callback, name):
            return
        who = type(callback).__name__
        if (who, name) not in self._warned:
            self._warned.add((who, name))
            is_function = inspect.isroutine(value) or isinstance(value, type)
            _log.warning(
                "%s: the callback %s keeps %s in self.%s, which a checkpoint cannot store, so it "
                "is reset when this job resumes. %s",
                self._where,
                who,
                _with_article(kind.removeprefix("builtins.")),
                name,
                _FUNCTIONS_INSTEAD if is_function else _VALUES_INSTEAD,
            )

    def _warn_of_model(self, number: int, name: str, value: Any) -> None:
        """Warn of a callback's model that a resume could not restore, or not with its metrics."""
        who, trained = type(self._callbacks[number]).__name__, self._trained_ids()
        is_other = {
            part: shapes_of_model(value, trained, part) != self._shapes.get(((number, name), part))
            for part in (WEIGHTS, METRICS)
        }
        if not any(is_other.values()) or (who, name) in self._warned:
            return
        self._warned.add((who, name))
        if is_other[WEIGHTS]:
            _log.warning(
                "%s: the callback %s has in self.%s a model or optimizer that did not have these "
                "weights after on_train_begin(), so this job cannot be resumed. Create it in "
                "on_train_begin(), a model with an Input, an optimizer with "
                "optimizer.build(variables).",
                self._where,
                who,
                name,
            )
        else:
            _log.warning(
                "%s: the callback %s has a model in self.%s whose metrics Keras creates in its "
                "first step: they begin again when this job resumes. If their values matter, call "
                "reset_metrics() of this model before each use.",
                self._where,
                who,
                name,
            )

    def _warn_of_attribute(self, name: str, kind: str) -> None:
        if ("", name) not in self._warned:
            self._warned.add(("", name))
            _log.warning(
                "%s: a callback sets %s to a %s, which a checkpoint cannot store. Training steps "
                "are compiled with the value from the model file; but when this job resumes, "
                "callbacks and the exported model have that value, too, until a callback sets it "
                "again.",
                self._where,
                name,
                kind.removeprefix("builtins."),
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
            _log.warning("%s: %s", self._where, sentence)

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
        return stored | (
            self.attributes.stored() if self.attributes and self.are_of_users else set()
        )

    def _variables_of_others(self) -> dict[str, list[Any]]:
        """Return the variables of other models that callbacks have, by place; for references."""
        trained = self._trained_ids()
        return {
            f"{number}/{name}": found
            for number, each in enumerate(self._callbacks)
            for name, value in vars(each).items()
            if (found := [*chain(*variables_of_model(value, trained).values())])
        }

    @contextlib.contextmanager
    def _moment(
        self, name: str, number: int = 0, *, logs: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Context manager for calling callbacks.

        In the block, random numbers are seeded, the model's methods that do not work here (such as
        `compile`) raise, and its save methods write to temporary folders where `CallbackFiles`
        demands it.

        Args:
            name: Name of the event, such as `on_epoch_end`.
            number: Number of the batch, for an event of an evaluation batch.
            logs: The logs that the callbacks get, for the error.

        Raises:
            UserCodeError: A callback raised.
        """
        with self._methods.replaced(self._files.redirected()):
            try:
                with self._drawing(name, number), without_result(self._model):
                    yield
                self._files.flush_for_others()
            except ElasticDLError:
                raise
            except Exception as error:
                raise UserCodeError(
                    f"{raised_at(error, self._where)}: a callback raised in {name}:\n"
                    f"{users_traceback(error)}{missing_logs.hint(error, logs)}"
                ) from error


def _with_article(kind: str) -> str:
    if kind.startswith(("a ", "an ")):
        return kind
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"

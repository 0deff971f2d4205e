"""Calls the user's Keras callbacks for the same events, in the same order, as `Model.fit`.

callback_methods.py       which methods callbacks have, and which cannot be called
callback_monitors.py      checks of the metrics that callbacks monitor
model_in_callbacks.py     methods of the model that raise in callbacks
callback_files.py         files of callbacks, which one worker writes
callback_checkpoint.py    the state of callbacks in checkpoints
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import keras

from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training import missing_logs
from elasticdl.training.keras.callback_checkpoint import CallbackCheckpoint
from elasticdl.training.keras.callback_files import CallbackFiles
from elasticdl.training.keras.callback_methods import (
    BATCH_MOMENTS,
    TEST_BATCH_MOMENTS,
    any_overrides,
    are_of_users,
    check_grouping,
    check_sharing,
)
from elasticdl.training.keras.callback_monitors import CallbackMonitors
from elasticdl.training.keras.model_in_callbacks import MethodsInCallbacks, without_result

if TYPE_CHECKING:
    from elasticdl.training.keras.attributes import Attributes
    from elasticdl.training.monitors import Monitor
    from elasticdl.training.trainer import State

_log = logging.getLogger("elasticdl")
_STOPS = "stop_training"


class KerasHooks:
    """Forwards the events of the training loop to Keras callbacks; see `trainer.Hooks`.

    Args:
        model: The model, compiled with its optimizer.
        callbacks: The user's callbacks.
        attributes: Tracks Python attributes of the model, the optimizer and the loss that the
            user's callbacks change, to store them in checkpoints.
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
        evaluation_changed: Called when evaluations must be compiled again, because attributes have
            other values.
    """

    def __init__(
        self,
        model: keras.Model,
        callbacks: Sequence[keras.callbacks.Callback],
        attributes: Attributes,
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
        self._list = keras.callbacks.CallbackList(
            self._callbacks, add_history=bool(self._callbacks), add_progbar=False
        )
        self._attributes = attributes
        self.evaluation_changed: Callable[[], None] = lambda: None
        # Includes the history callback that `fit` adds.
        self._callbacks = list(self._list.callbacks)
        self._monitors = CallbackMonitors(self._callbacks, where, direction)
        self._monitors.set_directions()
        self.callbacks: Sequence[Any] = self._callbacks
        self.observes_batches = any_overrides(self._callbacks, BATCH_MOMENTS)
        self.observes_test_batches = any_overrides(self._callbacks, TEST_BATCH_MOMENTS)
        self._files = CallbackFiles(self._callbacks, model)
        self._checkpoint = CallbackCheckpoint(
            self._callbacks, model, self._files, attributes, where
        )
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
        return self._attributes.of_step if self.are_of_users else ()

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
        return self._checkpoint.variables()

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
        with self._moment("on_train_begin"), self._checkpoint.beginning():
            if not self._has_model:
                self._has_model = True
                self._files.set_model(self._list)
            self._files.begin(self._list)
        self._files.leads = leads
        self._checkpoint.begun()
        self._monitors.check_directions()
        if not resumes:
            self._monitors.note_wrong_modes()
            self._checkpoint.keep()

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
        if self._attributes.begin_evaluation():
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

    def state(self) -> dict[str, Any]:
        """Return the callbacks' state as JSON values; see `CallbackCheckpoint.state`."""
        # A callback may have requested to stop training just before a checkpoint.
        return {**self._checkpoint.state(), _STOPS: self.stop_requested}

    def arrays(self) -> State:
        """Return the arrays of the callbacks' state by name."""
        return self._checkpoint.arrays()

    def load_state(self, state: Mapping[str, Any], arrays: State) -> None:  # noqa: D102
        if self._checkpoint.load_state(state, arrays):
            self.evaluation_changed()
        self._model.stop_training = bool(state.get(_STOPS, False))
        self._files.forget()
        # Logs at every start which attributes cannot be stored.
        self._checkpoint.keep()

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

"""Forwards the events of a run to a PyTorch model's callbacks and learning rate schedulers."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.callback_changes import CallbackChanges
from elasticdl.training.torch.callback_hooks import CallbackHooks
from elasticdl.training.torch.callback_state import CallbackMemory, TorchValues
from elasticdl.training.torch.callbacks import BATCH_MOMENTS, TEST_BATCH_MOMENTS
from elasticdl.training.torch.function_memory import is_of_library
from elasticdl.training.torch.untracked_state import names_read_by

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import nn

    from elasticdl.definition import ModelDefinition
    from elasticdl.training.monitors import Monitor
    from elasticdl.training.torch.callback_changes import Modes
    from elasticdl.training.torch.callbacks import Callbacks
    from elasticdl.training.torch.schedulers import Schedulers
    from elasticdl.training.trainer import State

_log = logging.getLogger("elasticdl")

_STOPS = "stop_training"
_TOUCHED = "model"
_MODES = "modes"


class TorchHooks:
    """Calls callbacks, and steps schedulers after an epoch; see `trainer.Hooks`.

    Args:
        callbacks: The user's callbacks.
        definition: The user's definition.
        model: The trained model.
        optimizer: The optimizer of the model.
        modes: Sets the model's mode, training or evaluation.
        schedulers: The schedulers, which step at the end of an epoch, after the callbacks.
        drawing: Function (event, number) -> context manager that seeds the random numbers drawn in
            its block. The event is given as a hash of its name, with the number of the epoch or
            batch.
        changed: Function () that is called after callbacks, which may have frozen or unfrozen
            parameters.
        stored: Objects of the user's code, besides callbacks, whose contents checkpoints store,
            such as a list that a hook of the optimizer appends to.

    Attributes:
        epoch: The current epoch, from 0.
        first_step: Number of updates before this epoch.

    Raises:
        DefinitionError: A callback cannot be called, or its state cannot be stored.
    """

    def __init__(
        self,
        callbacks: Callbacks,
        definition: ModelDefinition,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        modes: Modes,
        *,
        schedulers: Schedulers,
        drawing: Callable[[int, int], AbstractContextManager[None]],
        changed: Callable[[], None],
        stored: Sequence[Any],
    ) -> None:
        self._callbacks, self._model, self._optimizer = callbacks, model, optimizer
        self._modes, self._schedulers, self._drawing = modes, schedulers, drawing
        self._changed, self._optimizer_at = changed, definition.where("optimizer")
        self._has_own_steps = definition.loss_within == "training_step"
        values = TorchValues(model, optimizer, callbacks.objects)
        self._memory = CallbackMemory(callbacks, values)
        self._touched = CallbackChanges(
            model, optimizer, modes, values, callbacks=callbacks, definition=definition
        )
        self._registered = CallbackHooks(model, optimizer, callbacks.objects, callbacks.where)
        self.epoch = self.first_step = 0
        self.observes_batches = callbacks.any_has(BATCH_MOMENTS)
        self.observes_test_batches = callbacks.any_has(TEST_BATCH_MOMENTS)
        self.callbacks: Sequence[Any] = callbacks.objects
        self.stored = stored

    @property
    def stop_requested(self) -> bool:
        """Whether a callback has set `stop_training`, on itself or on the model."""
        return bool(self._callbacks) and (
            getattr(self._model, _STOPS, False) is True or self._callbacks.stop_requested()
        )

    @property
    def monitored(self) -> Mapping[str, Monitor]:
        """Name of each metric that a scheduler monitors -> the scheduler, for errors."""
        return self._schedulers.monitored

    def check_sharing(self) -> None:
        """Reject callbacks with methods for evaluation batches, such as `on_test_batch_end`.

        Workers share the batches of an evaluation, so each worker would call the method for
        different batches.

        Raises:
            DefinitionError: A callback has such a method.
        """
        found = self._callbacks.with_one_of(TEST_BATCH_MOMENTS)
        if found is not None:
            callback, moment = found
            raise DefinitionError(
                f"{self._callbacks.where}: the callback {type(callback).__name__} has {moment}(). "
                "Workers share the batches of an evaluation, so each would call it for different "
                "batches. Use on_test_end(logs), which receives the metrics of all batches, or "
                "train in one process."
            )

    def train_begin(  # noqa: D102 - see trainer.Hooks, here and below
        self,
        *,
        num_epochs: int,
        num_steps: int | None,
        resumes: bool,
        num_updates: int | None = None,
        num_full_epochs: int | None = None,
    ) -> None:
        del num_epochs
        if not resumes:
            self._schedulers.note_idle_epoch()
            self._schedulers.note_wrong_mode()
            self._schedulers.note_unfinished(num_updates, num_full_epochs, num_steps)
            self._note_opposite_directions()
            self._note_modes_of_optimizer()
        self._schedulers.check_monitored()
        self._schedulers.check_length(
            num_updates, num_full_epochs, num_steps, may_end_earlier=bool(self._callbacks)
        )
        if not self._callbacks:
            return
        setattr(self._model, _STOPS, False)
        self._touched.begin()
        self._registered.begin()
        with self._moment("on_train_begin", in_training=True), self._memory.beginning():
            self._callbacks.give(self._model, self._optimizer)
            self._callbacks.call("on_train_begin")
        self._memory.begun()
        self._registered.begun()
        if not resumes:
            self._touched.keep()

    def _note_opposite_directions(self) -> None:
        groups = self._optimizer.param_groups
        num_maximizing = sum(bool(group.get("maximize")) for group in groups)
        if 0 < num_maximizing < len(groups):
            _log.warning(
                "%s: maximize=True is set in %d of %d parameter groups: these raise the loss, and "
                "the others lower it. The lowest loss counts as the best, unless you set "
                "--best_mode=max.",
                self._optimizer_at,
                num_maximizing,
                len(groups),
            )

    def _note_modes_of_optimizer(self) -> None:
        kind = type(self._optimizer)
        if not all(callable(getattr(kind, name, None)) for name in ("train", "eval")):
            return
        # A LightningModule may call them in its hooks.
        owners = [*self._callbacks.objects, *([self._model] if self._has_own_steps else [])]
        if "eval" in set().union(*map(_names_in_code_of, owners)):
            return
        _log.warning(
            "%s: %s has train() and eval(), which switch between the weights that are trained and "
            "those to use, as schedule-free optimizers do, but no callback calls them. So "
            "validation and the trained model have the weights that are trained. If your script "
            "calls them, let a callback do so: self.optimizer.train() in on_train_begin() and "
            "on_test_end(), self.optimizer.eval() in on_test_begin() and on_train_end().",
            self._optimizer_at,
            kind.__name__,
        )

    def committed(self, *, leads: bool) -> None:  # noqa: D102
        pass

    def epoch_begin(self, epoch: int) -> None:  # noqa: D102
        self.epoch = epoch
        # A plain loop calls model.train() here.
        self._modes.forget()
        self._call("on_epoch_begin", epoch)

    def batch_begin(self, step: int) -> None:  # noqa: D102
        self._call("on_train_batch_begin", step)

    def batch_end(self, step: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._call("on_train_batch_end", step, logs=logs)

    def test_begin(self) -> None:  # noqa: D102
        self._call("on_test_begin", in_training=False)

    def test_batch_begin(self, number: int) -> None:  # noqa: D102
        self._call("on_test_batch_begin", number, in_training=False)

    def test_batch_end(self, number: int, logs: Mapping[str, Any]) -> bool:  # noqa: D102
        self._call("on_test_batch_end", number, logs=logs, in_training=False)
        return True

    def test_end(self, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._call("on_test_end", logs=logs, in_training=False)
        # As in a plain loop, model.train() follows an evaluation.
        self._modes.forget()

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._call("on_epoch_end", epoch, logs=logs, in_training=False)
        self._schedulers.epoch_ended(epoch, logs)

    def train_end(self, logs: Mapping[str, Any]) -> str:  # noqa: D102
        self._call("on_train_end", logs=logs, in_training=False)
        return ""

    def state(self) -> dict[str, Any]:
        """Return the callbacks' state as JSON; the state of schedulers is in `Trainer.state`.

        Without callbacks, it has only the modes that steps have set.
        """
        if not self._callbacks:
            return {_MODES: self._modes.present()}
        # A callback may have requested the end just before a checkpoint.
        kept, touched = self._memory.keep()[0], self._touched.keep()[0]
        return {**kept, _TOUCHED: touched, _STOPS: self.stop_requested}

    def arrays(self) -> State:
        """Return the arrays of the callbacks' state, by the names that `state` uses for them."""
        if not self._callbacks:
            return {}
        arrays: dict[str, np.ndarray[Any, Any]] = self._memory.keep()[1]
        return arrays | self._touched.keep()[1] | dict(self._registered.arrays())

    def load_state(self, state: Mapping[str, Any], arrays: State) -> None:  # noqa: D102
        if not self._callbacks:
            # A federated party begins without any: its modules keep those of the model file.
            if _MODES in state:
                self._modes.restore(state[_MODES])
            return
        self._touched.load(state.get(_TOUCHED, {}), arrays)
        self._changed()
        self._memory.load(state, arrays)
        self._registered.load(arrays)
        setattr(self._model, _STOPS, bool(state.get(_STOPS, False)))

    def _call(
        self,
        moment: str,
        *number: int,
        logs: Mapping[str, Any] | None = None,
        in_training: bool = True,
    ) -> None:
        if self._callbacks.any_has((moment,)):
            with self._moment(moment, *number, in_training=in_training):
                self._callbacks.call(moment, *number, logs=logs)

    @contextmanager
    def _moment(self, moment: str, number: int = 0, *, in_training: bool) -> Iterator[None]:
        """Context manager in whose block callbacks are called for one event.

        It puts the model into the mode of the event, seeds the random numbers that callbacks draw,
        and records what they change, for checkpoints. The seed is the same on every worker and
        after a resume, so the callbacks act identically.

        Args:
            moment: Name of the event, such as `on_epoch_end`.
            number: Number of the epoch or batch; 0 for an event without one.
            in_training: Whether the event's mode is training mode; otherwise evaluation mode.

        Raises:
            DefinitionError: A callback has changed state that checkpoints do not contain.
        """
        with (
            self._drawing(zlib.crc32(moment.encode()), number),
            self._touched.watched(moment, in_training=in_training),
        ):
            yield
        self._changed()


def _names_in_code_of(owner: Any) -> set[str]:
    """Return the names in the methods of an object's class, and in the functions that they call."""
    kinds = [kind for kind in type(owner).__mro__ if not is_of_library(kind)]
    methods = [each for kind in kinds for each in vars(kind).values()]
    functions = [each for each in methods if isinstance(each, FunctionType)]
    called = [each.__globals__.get(n) for each in functions for n in names_read_by(each.__code__)]
    functions += [each for each in called if isinstance(each, FunctionType)]
    return set().union(*(each.__code__.co_names for each in functions))

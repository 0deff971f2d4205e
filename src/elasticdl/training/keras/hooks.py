"""The user's Keras callbacks, called at the moments and in the order of `Model.fit`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras

_BATCH_MOMENTS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)


class KerasHooks:
    """Forwards the loop's moments to Keras callbacks; see `trainer.Hooks`."""

    def __init__(self, model: keras.Model, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = list(callbacks)
        self._model = model
        self._list = keras.callbacks.CallbackList(
            self._callbacks, add_history=False, add_progbar=False, model=model
        )
        self.observes_batches = any(
            _overrides(callback, moment)
            for callback in self._callbacks
            for moment in _BATCH_MOMENTS
        )

    @property
    def stop_requested(self) -> bool:
        """A callback has set `model.stop_training`."""
        return bool(self._callbacks) and bool(getattr(self._model, "stop_training", False))

    def train_begin(self) -> None:  # noqa: D102 - see trainer.Hooks, here and below
        self._model.stop_training = False
        self._list.on_train_begin()

    def epoch_begin(self, epoch: int) -> None:  # noqa: D102
        self._list.on_epoch_begin(epoch)

    def batch_begin(self, step: int) -> None:  # noqa: D102
        self._list.on_train_batch_begin(step)

    def batch_end(self, step: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._list.on_train_batch_end(step, dict(logs))

    def test_begin(self) -> None:  # noqa: D102
        self._list.on_test_begin()

    def test_end(self, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._list.on_test_end(dict(logs))

    def epoch_end(self, epoch: int, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._list.on_epoch_end(epoch, dict(logs))

    def train_end(self, logs: Mapping[str, Any]) -> None:  # noqa: D102
        self._list.on_train_end(dict(logs))

    def state(self) -> dict[str, Any]:
        """Return what each callback has come to know: `EarlyStopping.wait`, `.best`, ...

        Keras has no protocol for this. It is taken to be the attributes that are plain values
        and no arguments of the constructor: arguments are the user's, come from the user's code
        again, and Keras turns some around in place (`min_delta`).
        """
        return {
            f"{number}/{type(callback).__name__}": {
                name: value
                for name, value in vars(callback).items()
                if _is_plain(value) and name not in _arguments(callback)
            }
            for number, callback in enumerate(self._callbacks)
        }

    def load_state(self, state: Mapping[str, Any]) -> None:  # noqa: D102
        for number, callback in enumerate(self._callbacks):
            vars(callback).update(state.get(f"{number}/{type(callback).__name__}", {}))


def _overrides(callback: keras.callbacks.Callback, moment: str) -> bool:
    return moment in vars(callback) or getattr(type(callback), moment) is not getattr(
        keras.callbacks.Callback, moment
    )


def _arguments(callback: keras.callbacks.Callback) -> set[str]:
    return {
        name
        for kind in inspect.getmro(type(callback))
        if "__init__" in vars(kind)
        for name in inspect.signature(vars(kind)["__init__"]).parameters
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, (bool, int, float, str, type(None))):
        return True
    if isinstance(value, (list, dict)):
        try:
            return bool(json.loads(json.dumps(value)) == value)
        except (TypeError, ValueError):
            return False
    return False

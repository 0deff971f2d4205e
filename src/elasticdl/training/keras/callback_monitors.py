"""Checks the metrics that Keras callbacks monitor: whether they are measured, and which is better.

Callers: `hooks.py`.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Callable, Collection, Mapping, Sequence

import keras

from elasticdl.errors import DefinitionError
from elasticdl.training.keras.callback_methods import is_own
from elasticdl.training.metric_direction import direction_by_name
from elasticdl.training.monitors import Monitor, monitor_of, needed_by

_log = logging.getLogger("elasticdl")


class CallbackMonitors:
    """Knows the metrics that callbacks monitor, such as `val_loss` of an `EarlyStopping`.

    Args:
        callbacks: The callbacks.
        where: Names the user's code, for messages.
        direction: Function (name of a metric) -> "min" or "max", whichever values are better, or
            None if unknown. None: leave it to Keras.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        where: str,
        direction: Callable[[str], str | None] | None,
    ) -> None:
        self._callbacks, self._where, self._direction = callbacks, where, direction

    def set_directions(self) -> None:
        """Set the mode of callbacks that leave it to Keras ("auto"), where it is known."""
        direction = self._direction
        for each in self._callbacks:
            if direction and getattr(each, "mode", None) == "auto" and hasattr(each, "monitor_op"):
                each.mode = direction(each.monitor.removeprefix("val_")) or "auto"

    def needed(self) -> Mapping[str, Monitor]:
        """Return name of a metric -> what needs it, as named in messages.

        A check before training uses it to reject metrics that will not be measured. Empty if a
        user's callback has `on_epoch_end`, which may add metrics that are unknown here.

        Raises:
            DefinitionError: The file name of a `ModelCheckpoint` cannot be formatted.
        """
        if any(is_own(each, "on_epoch_end") for each in self._callbacks):
            return {}
        found = {
            name: Monitor(f"{self._where}: the callback {type(each).__name__}")
            for each in self._callbacks
            if (name := needed_by(each)) is not None
        }
        for each in self._callbacks:
            if isinstance(each, keras.callbacks.ModelCheckpoint) and each.save_freq == "epoch":
                for field in self._fields_of(each):
                    if field.startswith("val_"):
                        subject = (
                            f"{self._where}: the file name {each.filepath!r} of the callback "
                            f"{type(each).__name__}"
                        )
                        found.setdefault(field, Monitor(subject, is_file_name=True))
        return found

    def _fields_of(self, callback: keras.callbacks.ModelCheckpoint) -> list[str]:
        """Return the names in braces in a callback's file name.

        Raises:
            DefinitionError: A brace is not closed or not opened.
        """
        try:
            parts = [*string.Formatter().parse(callback.filepath)]
        except ValueError as error:
            raise DefinitionError(
                f"{self._where}: the file name {callback.filepath!r} of the callback "
                f"{type(callback).__name__} cannot be formatted: {error}. Expected names of "
                'metrics in braces, such as "{epoch:02d}-{loss:.2f}.keras".'
            ) from error
        return [field for _, field, *_ in parts if field]

    def check_measured(self, only_in_validation: Collection[str]) -> None:
        """Reject a callback that monitors a training metric that is only measured in validation.

        `fit` measures all of a model's metrics in training as well. Keras only warns of a missing
        name, and the callback would do nothing.

        Args:
            only_in_validation: Names of metrics that are not measured in training.

        Raises:
            DefinitionError: There is such a callback.
        """
        for each in self._callbacks:
            name = monitor_of(each)
            if name is not None and name in only_in_validation:
                raise DefinitionError(
                    f"{self._where}: the callback {type(each).__name__} monitors {name!r}, which "
                    f"is measured in validation, not in training. Let it monitor 'val_{name}' or "
                    "'loss'."
                )

    def note_wrong_modes(self) -> None:
        """Warn of a callback with mode="min" that monitors an accuracy or the like."""
        for each in self._callbacks:
            monitored, mode = monitor_of(each), getattr(each, "mode", None)
            if mode != "min" or monitored is None:
                continue
            name = monitored.removeprefix("val_")
            known = None if self._direction is None else self._direction(name)
            if (known or direction_by_name(name)) == "max":
                _log.warning(
                    '%s: the callback %s monitors %r with mode="min", so it takes a rising value '
                    'for a worse one. If high values are better, use mode="max".',
                    self._where,
                    type(each).__name__,
                    monitored,
                )

    def check_directions(self) -> None:
        """Reject a callback if it is unknown whether low or high values of its metric are better.

        Raises:
            DefinitionError: There is such a callback: neither it nor its metric defines the
                direction. In `fit` it would raise only after the first epoch.
        """
        for each in self._callbacks:
            monitored = monitor_of(each)
            if (
                self._direction is None
                or monitored is None
                or getattr(each, "mode", None) != "auto"
                or getattr(each, "monitor_op", each) is not None
                or is_own(each, "on_epoch_end")
            ):
                continue
            name = monitored.removeprefix("val_")
            if name != "loss" and self._direction(name) is None:
                raise DefinitionError(
                    f"{self._where}: the callback {type(each).__name__} monitors {monitored!r}, "
                    "and Keras does not know whether lower or higher values of it are better. Add "
                    "mode='max' if higher values are better, otherwise mode='min'."
                )

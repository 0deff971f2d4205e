"""Warns, once for each attribute, of values of Keras callbacks that a checkpoint cannot store.

Callers: `callback_checkpoint.py`, which finds these values.
"""

from __future__ import annotations

import inspect
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

_log = logging.getLogger("elasticdl")

_VALUES_INSTEAD = (
    "Create what has no state in on_train_begin(), and keep state as numbers, strings, lists, "
    "dicts or arrays."
)
_FUNCTIONS_INSTEAD = (
    "Use a method of the callback, or a function or class at the top level of your file: these are "
    "stored by name."
)


class CallbackWarnings:
    """Logs the attributes that do not resume as they were.

    Args:
        where: Names the user's code, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._warned: set[tuple[str, str]] = set()

    def of_value(self, callback: keras.callbacks.Callback, name: str, kind: str) -> None:
        """Warn of a callback's attribute that is reset on a resume.

        Args:
            callback: The callback.
            name: Name of the attribute.
            kind: What it has there, such as `_io.TextIOWrapper`.
        """
        who, value = type(callback).__name__, vars(callback)[name]
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

    def of_model(
        self, callback: keras.callbacks.Callback, name: str, *, has_other_weights: bool
    ) -> None:
        """Warn of a callback's model that a resume could not restore, or not with its metrics.

        Args:
            callback: The callback.
            name: Name of the attribute with the model or optimizer.
            has_other_weights: Whether it did not have these weights after `on_train_begin`.
                Otherwise it did not have these metrics.
        """
        who = type(callback).__name__
        if (who, name) in self._warned:
            return
        self._warned.add((who, name))
        if has_other_weights:
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

    def of_attribute(self, name: str, kind: str) -> None:
        """Warn of an attribute of the model, the optimizer or the loss that a callback has set.

        Args:
            name: Names the attribute and its owner.
            kind: The type of its value.
        """
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

    def of_memory(self, sentence: str) -> None:
        """Warn of a value outside the attributes, which `UnstoredMemory` describes."""
        _log.warning("%s: %s", self._where, sentence)


def _with_article(kind: str) -> str:
    if kind.startswith(("a ", "an ")):
        return kind
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {kind}"

"""Metrics that callbacks and learning rate schedules depend on, for checks before training.

Callers: `engines/training_context.py`, `keras/callback_monitors.py`, `torch/schedulers.py`.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple


class Monitor(NamedTuple):
    """A user of a metric: a callback, a scheduler or a file name, as named in error messages.

    Attributes:
        subject: `file:line` and the object, as the subject of a sentence.
        is_file_name: Whether it is the name of a file, which contains the metric's value.
    """

    subject: str
    is_file_name: bool = False

    def needs(self, metric: str) -> str:
        """Return the clause that begins an error about a metric, such as one that is not measured.

        Example:
            >>> Monitor("model.py:3: the callback EarlyStopping").needs("val_loss")
            "model.py:3: the callback EarlyStopping monitors 'val_loss'"
        """
        return f"{self.subject} {'contains' if self.is_file_name else 'monitors'} {metric!r}"

    def other(self, metric: str) -> str:
        """Return advice to use another metric, such as "let it monitor 'loss'"."""
        if self.is_file_name:
            return f"rename it, such as {{{metric}:.2f}}"
        return f"let it monitor {metric!r}"


def monitor_of(callback: Any) -> str | None:
    """Return the name of the metric that a callback monitors; None if it monitors none."""
    # It may be a property of the user's class.
    with contextlib.suppress(Exception):
        name = callback.monitor
        return name if isinstance(name, str) else None
    return None


def needed_by(callback: Any) -> str | None:
    """Return the name of the metric without which a callback does nothing; None if there is none.

    A Keras `ModelCheckpoint` depends on its metric only with `save_best_only`.
    """
    with contextlib.suppress(Exception):
        if not getattr(callback, "save_best_only", True):
            return None
    return monitor_of(callback)

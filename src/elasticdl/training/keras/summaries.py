"""Decides which calls of a model write points with `tf.summary`.

A layer or a loss may write points to a default writer, such as that of a `TensorBoard` callback, or
to a writer of its own. Training steps and evaluations write them, on the worker with rank 0 only,
as callbacks do. ElasticDL's own calls of the model (checks, warm-up, export) write none.

A compiled function writes to the writer that was the default one when it was traced. A worker
traces its step before callbacks set theirs, so the step of a model that writes points is traced
again when the default writer changes.

Callers: `trainer.py`, `step_functions.py`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf
from tensorflow.python.ops import summary_ops_v2

if TYPE_CHECKING:
    from collections.abc import Iterator

# TensorFlow has no public way to read the default writer, or to add a condition that `record_if` of
# the user's code does not replace.
_state = summary_ops_v2._summary_state  # noqa: SLF001
_NOWHERE = tf.summary.create_noop_writer()


class Summaries:
    """Switches points of `tf.summary` on and off, and knows which functions write them.

    Attributes:
        variables: The variable that compiled functions read to decide whether they write.
    """

    def __init__(self) -> None:
        self._is_on = tf.Variable(True, trainable=False, name="writes_summaries")
        self._is_on_now, self._called = True, False
        # Name of a function that writes points -> the default writer when it was traced.
        self._writers: dict[str, Any] = {}
        self.variables = [self._is_on]

    def switch(self, *, on: bool) -> None:
        """Set whether the next calls of compiled functions write points."""
        if on != self._is_on_now:
            self._is_on.assign(on)
            self._is_on_now = on

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        """Context manager for calls of the model that write no points."""
        with _recording_if(False, None):
            yield

    @contextlib.contextmanager
    def watched(self, name: str) -> Iterator[None]:
        """Context manager for running or tracing a function: `switch` decides whether it writes.

        Args:
            name: Name of the function, for `must_trace_again`.
        """
        writer, outer = _state.writer, _state.is_recording_distribution_strategy
        self._called = False

        def is_recording() -> Any:
            self._called = True
            if _state.writer is _NOWHERE or outer is False:
                if _state.is_recording is not None:
                    # The user's `record_if`, which restores it. For a condition that is a tensor,
                    # TensorFlow would trace the write.
                    _state.is_recording = False
                return False
            return self._is_on.read_value()

        # With a writer, the functions of `tf.summary` call the condition, so they are noticed.
        with _recording_if(is_recording, _NOWHERE if writer is None else writer):
            yield
        if self._called:
            self._writers[name] = writer

    def must_trace_again(self, name: str) -> bool:
        """Return whether a function was traced with another default writer and writes points."""
        return self._writers.get(name, _state.writer) is not _state.writer


@contextlib.contextmanager
def _recording_if(condition: Any, writer: Any) -> Iterator[None]:
    before = _state.is_recording_distribution_strategy, _state.writer
    _state.is_recording_distribution_strategy, _state.writer = condition, writer
    try:
        yield
    finally:
        _state.is_recording_distribution_strategy, _state.writer = before

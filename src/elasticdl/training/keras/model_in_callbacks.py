"""Lets the methods and metrics of the trained model raise in callbacks where they do not work.

    model.compile(...)           steps are compiled already, with the optimizer and the loss
    model.evaluate(...)          the model has no loss and metrics, unless its file has compiled it
    model.get_metrics_result()   the model's mean loss, which only `fit` tracks

Callers: `hooks.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

from elasticdl.training.keras import overrides

# Methods of a model that need its loss; without one they use only losses added by layers.
_NEED_LOSS = (
    "compute_loss", "compute_metrics", "evaluate", "fit", "get_metrics_result", "test_on_batch",
    "test_step", "train_on_batch", "train_step",
)  # fmt: skip
# A compiled step keeps the optimizer and the loss that it was compiled with.
_NEVER = ("compile",)


class MethodsInCallbacks:
    """Replaces methods of the trained model while callbacks are called.

    Args:
        model: The model.
        is_compiled: Whether the model was compiled with its loss and metrics.
    """

    def __init__(self, model: keras.Model, *, is_compiled: bool) -> None:
        self._model = model
        self._refused: tuple[str, ...] = _NEVER if is_compiled else (*_NEVER, *_NEED_LOSS)
        self._has_own_loss = overrides.own(model, overrides.COMPUTE_LOSS) is not None

    @contextlib.contextmanager
    def replaced(self, others: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
        """Context manager in which the methods that do not work in callbacks raise.

        Args:
            others: Name of a further method -> the function that replaces it.
        """
        attributes = vars(self._model)
        put = {
            each: _refusing(each)
            for each in self._refused
            # A loss of the model itself works here as well.
            if each not in attributes and not (each == "compute_loss" and self._has_own_loss)
        }
        put |= others
        own = {each: attributes[each] for each in put if each in attributes}
        attributes.update(put)
        try:
            yield
        finally:
            for each in put:
                del attributes[each]
            attributes.update(own)


@contextlib.contextmanager
def without_result(model: keras.Model) -> Iterator[None]:
    """Context manager in which the model's mean loss raises, instead of being 0.

    `fit` tracks the loss in it, ElasticDL does not; `model.evaluate` in a callback does.
    """
    # Keras has no public name for it.
    tracker = getattr(model, "_loss_tracker", None)
    if not isinstance(tracker, keras.metrics.Mean) or "result" in vars(tracker):
        yield
        return

    def result() -> Any:
        if tf.executing_eagerly() and not float(tracker.count):
            raise NotImplementedError(
                "The metric 'loss' of the model (model.metrics, model.get_metrics_result()) has no "
                "value in a callback here: ElasticDL does not track the loss in it. Read the logs "
                "that the callback gets."
            )
        return type(tracker).result(tracker)

    vars(tracker)["result"] = result
    try:
        yield
    finally:
        del vars(tracker)["result"]


def _refusing(method: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> None:
        if method in _NEVER:
            raise NotImplementedError(
                f"model.{method}() does not work in a callback here: the optimizer and the loss "
                "come from the model file, and checkpoints hold the state of that optimizer. "
                "Change the learning rate, or train again from the trained model with another "
                "file."
            )
        raise NotImplementedError(
            f"model.{method}() does not work in a callback here: the model is compiled with its "
            "optimizer only, and ElasticDL has its loss and metrics. Read the logs that the "
            "callback gets, compute metrics from self.model.predict(...), or put the records into "
            "the validation data."
        )

    return refuse

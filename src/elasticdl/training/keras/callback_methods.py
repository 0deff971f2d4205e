"""Looks up which methods Keras callbacks have, and rejects those that cannot be called as in `fit`.

Callers: `hooks.py`, `callback_monitors.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import keras

from elasticdl.errors import DefinitionError
from elasticdl.training.keras import overrides

BATCH_MOMENTS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)
TEST_BATCH_MOMENTS = ("on_test_batch_begin", "on_test_batch_end")


def are_of_users(callbacks: Iterable[keras.callbacks.Callback]) -> bool:
    """Return whether there is a callback with user code."""
    # Keras' own callbacks draw no random numbers, except through functions passed to them.
    return any(
        not overrides.is_of_keras(each) or isinstance(each, keras.callbacks.LambdaCallback)
        for each in callbacks
    )


def any_overrides(callbacks: Iterable[keras.callbacks.Callback], moments: Sequence[str]) -> bool:
    """Return whether a callback has its own method for one of some events."""
    return any(_overrides(each, moment) for each in callbacks for moment in moments)


def is_own(callback: keras.callbacks.Callback, moment: str) -> bool:
    """Return whether a callback's method, such as `on_epoch_end`, is user code, not Keras' own."""
    method = vars(callback).get(moment, getattr(type(callback), moment))
    return not str(method.__module__).startswith("keras.")


def check_sharing(callbacks: Sequence[keras.callbacks.Callback], where: str) -> None:
    """Reject user callbacks that observe evaluation batches; called if there are workers.

    Args:
        callbacks: The callbacks.
        where: Names the user's code, for messages.

    Raises:
        DefinitionError: There is such a callback. Workers divide the batches among them, so
            each would call it for different batches.
    """
    for each in callbacks:
        for moment in TEST_BATCH_MOMENTS:
            if is_own(each, moment):
                raise DefinitionError(
                    f"{where}: the callback {type(each).__name__} has {moment}(). "
                    "Workers share the batches of an evaluation, so each would call it for "
                    "different batches. Use on_test_end(logs), which receives the metrics of "
                    "all batches, or train in one process."
                )


def check_grouping(callbacks: Sequence[keras.callbacks.Callback], steps: int, where: str) -> None:
    """Reject user callbacks with batch methods; called if `steps_per_execution` is above 1.

    `fit` calls these methods once for a group of batches; ElasticDL would for each batch.

    Args:
        callbacks: The callbacks.
        steps: `steps_per_execution` of the model.
        where: Names the user's code, for messages.

    Raises:
        DefinitionError: There is such a callback.
    """
    for each in callbacks:
        for moment in BATCH_MOMENTS:
            if is_own(each, moment):
                raise DefinitionError(
                    f"{where}: the callback {type(each).__name__} has {moment}(), which "
                    f"`fit` calls once for {steps} batches with steps_per_execution={steps}. "
                    "Here it would be called for each batch. Leave out steps_per_execution: "
                    "ElasticDL groups steps itself."
                )
        if not isinstance(each, keras.callbacks.ModelCheckpoint) or each.save_freq == "epoch":
            continue
        if each.save_freq % steps:
            raise DefinitionError(
                f"{where}: the callback {type(each).__name__} has save_freq="
                f"{each.save_freq}, and steps_per_execution={steps}: `fit` saves at the end of "
                "a group of batches. Leave out steps_per_execution: ElasticDL groups steps "
                "itself."
            )


def _overrides(callback: keras.callbacks.Callback, moment: str) -> bool:
    return moment in vars(callback) or getattr(type(callback), moment) is not getattr(
        keras.callbacks.Callback, moment
    )

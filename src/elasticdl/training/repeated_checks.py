"""Decides when the checks of the first batches are repeated later in a job.

Before the first update, a model is rejected if its result for an example depends on the other
examples of the batch. A result may start to depend on them later: a callback raises a weight from
zero, or the weight is learned. By then the job has been running. The cause may also be rounding, as
when the larger of two nearly equal values changes. So a check that fails later only logs a warning,
and training continues.

Used by the trainers, where gradients are summed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_log = logging.getLogger("elasticdl")

LIKE_BATCH_NORM = (
    "%s: in training, an example depends on the other examples of its batch, and the model keeps "
    "statistics of its own. If it normalizes by them, each worker does so by its own minibatch, as "
    "with BatchNorm, and the numbers differ from those of one process."
)
"""Warning for a model that compares the examples of a batch and keeps statistics."""

# A check takes several forward passes.
_MAX_EPOCHS = 8
# No check is repeated up to this step, because the first batches are checked anyway.
_FIRST_BATCHES = 8


class RepeatedChecks:
    """Decides before which updates a check is repeated, and logs its first failure as a warning.

    It is repeated before steps 16, 32, 64 and so on, and, if there are callbacks, at the start of
    up to eight epochs. It ends with the first failure.

    Args:
        origin: Prefix of the warning.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._checked_step = -1
        self._epochs: set[int] = set()
        self._has_warned = False

    def is_due(self, step: int, epoch: int, *, has_callbacks: bool) -> bool:
        """Return whether to check the next batch.

        Checks are due before steps 16, 32, 64 and so on. With callbacks, they are also due at the
        start of up to eight epochs, because callbacks usually change a model between epochs.
        After a failed check, no check is due.

        Args:
            step: Number of the step.
            epoch: Number of the epoch.
            has_callbacks: Whether the user has callbacks.
        """
        is_power_of_two = step > _FIRST_BATCHES and step.bit_count() == 1
        is_new_epoch = (
            has_callbacks and epoch not in self._epochs and len(self._epochs) < _MAX_EPOCHS
        )
        if has_callbacks:
            self._epochs.add(epoch)
        is_next = is_power_of_two and step != self._checked_step
        if self._has_warned or not (is_next or is_new_epoch):
            return False
        self._checked_step = step
        return True

    def state(self) -> dict[str, Any]:
        """Return at which step and epochs checks were made, and whether one has failed.

        The result is a JSON value. A worker that joins the job loads it, so that all workers make
        the next check at the same step.
        """
        return {
            "step": self._checked_step,
            "epochs": sorted(self._epochs),
            "has_warned": self._has_warned,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Count the checks in another worker's `state` as made here, so as not to repeat them."""
        self._checked_step = state["step"]
        self._epochs = set(state["epochs"])
        self._has_warned = state["has_warned"]

    @contextmanager
    def reported(self, step: int) -> Iterator[None]:
        """Context manager that logs a `DefinitionError` of a check as a warning.

        After such a failure, no check is due any more.

        Args:
            step: Number of the step, for the warning.
        """
        try:
            yield
        except DefinitionError as error:
            self._has_warned = True
            _log.warning(
                "%s: since step %d at the latest, an example depends on the other examples of its "
                "batch, so the numbers differ from those of one process (%s) If this is not meant, "
                "train in one process without --global_batch_size.",
                self._origin,
                step,
                error,
            )

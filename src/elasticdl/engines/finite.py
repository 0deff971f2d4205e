"""NaN and infinity end a training: before the update where that can be, at the next look else.

Callers: `loop.py`; `elastic/committer.py` for what all workers have summed up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import leaves
from elasticdl.engines.accumulator import GRADIENTS
from elasticdl.errors import ElasticDLError, NonFiniteLossError
from elasticdl.training.mistakes import in_words, num_scores, out_of_range
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.batch import Batch
    from elasticdl.engines.feed import FedBatch
    from elasticdl.training.trainer import Trainer

# Of ml_dtypes; NumPy takes them for bytes.
_NARROW_FLOATS = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
_WHAT_TO_DO = "Lower the learning rate, or look for NaN and huge values in the data"


def check_losses(
    losses: np.ndarray[Any, Any],
    group: Sequence[FedBatch],
    trainer: Trainer,
    *,
    step: int,
    last_good: int,
) -> None:
    """Check the losses of a group of steps that one process has made.

    Args:
        losses: One a step; none where another process made them.
        group: The batch of each step.
        trainer: Asked for the model's outputs where a loss is bad.
        step: Number of the last of them.
        last_good: Step of the last checkpoint.

    Raises:
        NonFiniteLossError: One is NaN or infinite.
    """
    bad = np.flatnonzero(~np.isfinite(losses))
    if not bad.size:
        return
    at = group[int(bad[0])]
    raise NonFiniteLossError(
        f"The loss is {losses[bad[0]]} at step {step - len(group) + int(bad[0]) + 1} (epoch "
        f"{at.epoch + 1}, shard {at.shard}, batch {at.number}). The training stopped; the last "
        f"good checkpoint is of step {last_good}. {_WHAT_TO_DO} of that batch."
        f"{_labels_of(at.batch, trainer)}"
    )


def _labels_of(batch: Batch | None, trainer: Trainer) -> str:
    """Return what is wrong with the labels: on a GPU the loss of one out of range is NaN."""
    if batch is None:
        return ""
    records = "" if batch.where is None else f"\n  It was made of {batch.where()}."
    try:
        outputs = leaves(trainer.predict(batch.features))
    except ElasticDLError:
        return records
    stop = num_scores(outputs[0].shape, batch.labels) if len(outputs) == 1 else 0
    wrong = out_of_range(batch.labels, stop) if stop else []
    return f"{records}\n  Of its labels: {in_words(wrong, stop)}." if wrong else records


def check_sum(total: float, *, step: int, epoch: int) -> None:
    """Check the loss that all workers have summed up for a step which none has made yet.

    Raises:
        NonFiniteLossError: It is NaN or infinite.
    """
    if not np.isfinite(total):
        raise NonFiniteLossError(
            f"The loss is {total} at step {step} (epoch {epoch + 1}), summed over all workers. The "
            f"training stopped and that step was not made. {_WHAT_TO_DO}."
        )


class StateCheck:
    """Checks what is to become a checkpoint against how the training began.

    A mask of -inf or an unused NaN in a buffer is no sign of a training that went wrong: only a
    number that was finite at the beginning, or appeared since, has to be finite.

    Args:
        state: Of the trainer, before its first step here.
    """

    def __init__(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._never_finite = {
            path: bad for path, array in state.items() if (bad := _not_finite(array)) is not None
        }

    def check(
        self, state: Mapping[str, np.ndarray[Any, Any]], *, step: int, last_good: int
    ) -> None:
        """Check what is to become a checkpoint.

        Raises:
            NonFiniteLossError: A tensor holds NaN or infinity where it was finite.
        """
        for path, array in state.items():
            # The best value so far may well be infinite; gradients that overflow make no update.
            if path.startswith(CALLBACKS) or path == GRADIENTS:
                continue
            bad = _not_finite(array)
            if bad is None:
                continue
            before = self._never_finite.get(path)
            if before is None or before.shape != bad.shape or (bad & ~before).any():
                raise NonFiniteLossError(
                    f"{path} holds NaN or infinity at step {step}. The training stopped; the last "
                    f"good checkpoint is of step {last_good}. Lower the learning rate or clip "
                    "gradients."
                )


def _not_finite(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return where an array holds NaN or infinity; None if nowhere."""
    if array.dtype.kind not in "fc":
        if array.dtype.name not in _NARROW_FLOATS:
            return None
        array = array.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        # One pass without a temporary array; a sum that overflows needs a closer look.
        if np.isfinite(np.sum(array)):
            return None
    bad: np.ndarray[Any, Any] = ~np.isfinite(array)
    return bad if bad.any() else None

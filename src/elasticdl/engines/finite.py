"""NaN and infinity end a training: before the update where that can be, at the next look else.

Callers: `loop.py`; `elastic/committer.py` for what all workers have summed up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.errors import NonFiniteLossError
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    from elasticdl.engines.feed import FedBatch

_WHAT_TO_DO = "Lower the learning rate, or look for NaN and huge values in the data"


def check_losses(
    losses: np.ndarray[Any, Any], group: Sequence[FedBatch], *, step: int, last_good: int
) -> None:
    """Check the losses of a group of steps that one process has made.

    Args:
        losses: One a step; none where another process made them.
        group: The batch of each step.
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
    )


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


def check_state(state: Mapping[str, np.ndarray[Any, Any]], *, step: int, last_good: int) -> None:
    """Check what is to become a checkpoint.

    Raises:
        NonFiniteLossError: A tensor holds NaN or infinity.
    """
    for path, tensor in state.items():
        if path.startswith(CALLBACKS):
            # The best value so far may well be infinite.
            continue
        # NumPy does not call bfloat16 a float.
        is_narrow = tensor.dtype.name == "bfloat16"
        array = tensor.astype(np.float32) if is_narrow else tensor
        with np.errstate(over="ignore", invalid="ignore"):
            # One pass without a temporary array; a sum that overflows asks for a closer look.
            if array.dtype.kind != "f" or np.isfinite(np.sum(array)):
                continue
        if not np.isfinite(array).all():
            raise NonFiniteLossError(
                f"{path} holds NaN or infinity at step {step}. The training stopped; the last "
                f"good checkpoint is of step {last_good}. Lower the learning rate or clip "
                "gradients."
            )

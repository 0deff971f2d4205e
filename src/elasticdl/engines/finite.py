"""Finiteness checks: NaN or infinity ends training, before the update if possible.

`check_sum` runs before workers apply an update, `check_losses` after a group of updates, and
`StateCheck` before a state is saved as a checkpoint.

Callers: `loop.py`; `elastic/committer.py` for the sum of all workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import leaves
from elasticdl.data.class_names import no_label_advice
from elasticdl.data.wording import counted
from elasticdl.engines.feed import place_of
from elasticdl.engines.gradient_accumulation import GRADIENTS
from elasticdl.errors import ElasticDLError, NonFiniteLossError
from elasticdl.training.range_errors import in_words, num_classes, out_of_range
from elasticdl.training.trainer import CALLBACKS, MEASURED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.batch import Batch
    from elasticdl.engines.feed import TrainingBatch
    from elasticdl.training.trainer import Trainer

# Types of ml_dtypes; NumPy treats them as raw bytes.
_NARROW_FLOATS = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
_WHAT_TO_DO = "Lower the learning rate, or check for NaN and very large values in the data"


def check_losses(
    losses: np.ndarray[Any, Any],
    group: Sequence[TrainingBatch],
    trainer: Trainer,
    *,
    step: int,
    last_good: int,
) -> None:
    """Raise an error if the loss of one of this process's latest steps is NaN or infinite.

    Args:
        losses: The loss of each step; empty if this process had no batch in these steps.
        group: The batch of each step; the error names the records of the bad one.
        trainer: Computes the model's outputs for a batch with a bad loss. Their shape gives the
            number of classes, and so whether labels that are out of range are the cause.
        step: Number of the last of these steps.
        last_good: Step of the last checkpoint, for the error.

    Raises:
        NonFiniteLossError: A loss is NaN or infinite.
    """
    bad = np.flatnonzero(~np.isfinite(losses))
    if not bad.size:
        return
    at = group[int(bad[0])]
    data = None if at.batch is None else _not_finite_data(at.batch)
    what_to_do = f"{_WHAT_TO_DO} of that batch" if data is None else f"That batch has {data}"
    raise NonFiniteLossError(
        f"The loss is {losses[bad[0]]} at step {step - len(group) + int(bad[0]) + 1} "
        f"({place_of(at)}). Training stopped; the last good checkpoint was written at step "
        f"{last_good}. {what_to_do}.{_labels_of(at.batch, trainer)}"
    )


def _not_finite_data(batch: Batch) -> str | None:
    """Describe the examples of a batch that contain NaN or infinity; None if there are none."""
    for kind, tree in (("features", batch.features), ("labels", batch.labels)):
        named = tree.items() if isinstance(tree, Mapping) else [("", tree)]
        for name, arrays in named:
            for array in leaves(arrays):
                values = np.asarray(array)
                bad = _not_finite(values)
                if bad is not None:
                    # -inf may be intended, for example in an attention mask.
                    bad = np.isnan(values) | (values == np.inf)
                if bad is not None and bad.any():
                    what = "NaN" if np.isnan(values).any() else "infinity"
                    where = f"its {kind}, in {name!r}" if name else f"its {kind}"
                    rows = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1)).tolist()
                    names = batch.names_of(rows)
                    return (
                        f"{what} in {where}, in {counted(len(rows), 'example')} of "
                        f"{batch.num_examples}{f' ({names})' if names else ''}: correct or "
                        "leave out these records, or fill in missing values in the input function"
                    )
    return None


def _labels_of(batch: Batch | None, trainer: Trainer) -> str:
    """Return a line for an error on a NaN loss: the batch's out-of-range labels; "" if none.

    Such a label is a likely cause: on a GPU, a label that is not below the number of classes makes
    the loss NaN.

    Args:
        batch: The batch with that loss.
        trainer: Computes the outputs, whose shape gives the number of classes.
    """
    if batch is None:
        return ""
    try:
        outputs = leaves(trainer.predict(batch.features))
    except ElasticDLError:
        return ""
    stop = num_classes(outputs[0].shape, batch.labels) if len(outputs) == 1 else 0
    wrong = out_of_range(batch.labels, stop) if stop else []
    advice = f" {no_label_advice()}" * (wrong == [-1])
    return f"\n  The batch has {in_words(wrong, stop)}.{advice}" if wrong else ""


def check_sum(total: float, *, step: int, epoch: int) -> None:
    """Raise an error if the loss of a step, summed over all workers, is NaN or infinite.

    Called before the step is applied.

    Args:
        total: The summed loss.
        step: Number of the step, for the error.
        epoch: Its epoch, from 0, for the error.

    Raises:
        NonFiniteLossError: The loss is NaN or infinite.
    """
    if not np.isfinite(total):
        raise NonFiniteLossError(
            f"The loss is {total} at step {step} (epoch {epoch + 1}), summed over all workers. "
            f"Training stopped before this step was applied. {_WHAT_TO_DO}."
        )


class StateCheck:
    """Check of states for NaN and infinity, before they become checkpoints.

    Numbers that were not finite at the beginning may stay so: a mask of -inf, or an unused NaN in a
    buffer, does not mean that training has failed. All other numbers must be finite.

    Args:
        state: State of the trainer before its first step in this process.
    """

    def __init__(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._never_finite = {
            path: bad for path, array in state.items() if (bad := _not_finite(array)) is not None
        }

    def check(
        self, state: Mapping[str, np.ndarray[Any, Any]], *, step: int, last_good: int
    ) -> None:
        """Raise an error if a state contains NaN or infinity that the initial state did not.

        Args:
            state: State of the trainer: path -> tensor.
            step: Step of the state, for the error.
            last_good: Step of the last checkpoint, for the error.

        Raises:
            NonFiniteLossError: A tensor contains NaN or infinity where it used to be finite.
        """
        for path, array in state.items():
            # A callback's best value may be infinite; gradients that overflow are not applied.
            if path.startswith((CALLBACKS, MEASURED)) or path == GRADIENTS:
                continue
            bad = _not_finite(array)
            if bad is None:
                continue
            before = self._never_finite.get(path)
            if before is None or before.shape != bad.shape or (bad & ~before).any():
                raise NonFiniteLossError(
                    f"{path} contains NaN or infinity at step {step}. Training stopped; the last "
                    f"good checkpoint was written at step {last_good}. {_WHAT_TO_DO}; or clip "
                    "gradients."
                )


def _not_finite(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return a mask of NaN and infinity in an array; None if all values are finite."""
    if array.dtype.kind not in "fc":
        if array.dtype.name not in _NARROW_FLOATS:
            return None
        array = array.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        # One pass without a temporary array; if the sum overflows, each value is checked.
        if np.isfinite(np.sum(array)):
            return None
    bad: np.ndarray[Any, Any] = ~np.isfinite(array)
    return bad if bad.any() else None

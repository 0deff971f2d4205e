"""The error for a checkpoint whose tensors do not fit the model, in the words of all frameworks.

Callers: `keras/saved_variables.py` and `torch/trainer.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.errors import CheckpointMismatchError

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_NAMED = 5


def check_matches(problems: Sequence[str]) -> None:
    """Raise an error that lists how a checkpoint differs from the model, if it does.

    Args:
        problems: One text per difference, such as "model/w: float32[2] in the checkpoint, missing
            in the model".

    Raises:
        CheckpointMismatchError: There is a problem.
    """
    if not problems:
        return
    more = len(problems) - _MAX_NAMED
    raise CheckpointMismatchError(
        "The checkpoint does not match this model:\n  "
        + "\n  ".join(problems[:_MAX_NAMED])
        + (f"\n  and {more} more" if more > 0 else "")
        + "\n  The checkpoint is intact. If the model file was changed since, undo the change to "
        "resume, or use another --output to train the new model from the start."
    )

"""Rejects complex weights where gradients or weights are summed over batches, workers or parties.

A `Contribution` is one float32 buffer, and the weights of a federation's parties are averaged in
float64: both would drop the imaginary parts.

Callers: the trainers, before they compute gradients to be summed, and a federation's `party.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.definition import Origin

ALONE = "Such a model can only be trained in a single process and without --global_batch_size."
_MAX_NAMED = 3


def refuse_complex(names: Sequence[str], origin: Origin, instead: str) -> None:
    """Reject complex weights, which cannot be summed over minibatches, workers or parties.

    Args:
        names: Names of the parameters, variables and buffers that hold complex numbers.
        origin: Prefix of the error message.
        instead: A sentence with another way to train such a model.

    Raises:
        DefinitionError: `names` is not empty.
    """
    if not names:
        return
    listed = ", ".join(names[:_MAX_NAMED])
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    verb = "holds" if len(names) == 1 else "hold"
    raise DefinitionError(
        f"{origin}: {listed}{more} {verb} complex numbers; values that are summed over "
        f"minibatches, workers or parties must be real. {instead} Or keep each as two real arrays, "
        "its real and its imaginary part."
    )

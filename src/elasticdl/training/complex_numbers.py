"""Complex weights train in one process; where contributions are summed they are refused.

A `Contribution` is one buffer of float32, and the parties of a federation are averaged in float64:
both would drop the imaginary parts.

Callers: the trainers, before they compute gradients to be summed; `engines/federated/party.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.definition import Origin

ALONE = "It trains in one process without --global_batch_size."
_MOST_NAMED = 3


def refuse_complex(names: Sequence[str], origin: Origin, instead: str) -> None:
    """Refuse to sum up complex weights.

    Args:
        names: Of the parameters, variables and buffers that hold complex numbers.
        origin: For the error.
        instead: How such a model can be trained, as a sentence.

    Raises:
        DefinitionError: There is one.
    """
    if not names:
        return
    listed = ", ".join(names[:_MOST_NAMED])
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    verb = "holds" if len(names) == 1 else "hold"
    raise DefinitionError(
        f"{origin}: {listed}{more} {verb} complex numbers; what is summed over minibatches, "
        f"workers or parties must be real. {instead} Or keep each as two real arrays, its real "
        "and its imaginary part."
    )

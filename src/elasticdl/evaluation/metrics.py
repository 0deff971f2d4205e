"""Adds up metric states, without side effects.

The result is the same for one batch, for the batches of one worker and for those of many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates


def add_states(states: Iterable[MetricStates], ordered: Collection[str] = ()) -> MetricStates:
    """Return the sum of metric states, each weighted by its number of examples.

    The sums are computed in float64: in float32 the last of a million batches would be lost.

    Args:
        states: In any order; each may contain other metrics. In the order of the batches if there
            are names in `ordered`.
        ordered: Metrics whose states do not add up (`Metrics.ordered`): the last states are used.

    Returns:
        float64 arrays with the shapes of the inputs; those of `ordered` may be the inputs.

    Example:
        >>> one = {"loss": (np.float32(3.0), np.float32(2))}
        >>> [float(x) for x in add_states([one, one])["loss"]]
        [6.0, 4.0]
    """
    total: dict[str, tuple[np.ndarray, ...]] = {}
    for batch in states:
        for name, arrays in batch.items():
            if name in total and name not in ordered:
                for mine, other in zip(total[name], arrays, strict=True):
                    np.add(mine, other, out=mine)
            else:
                # States that are not added to are not copied, because they may hold everything seen
                # so far.
                copied = None if name in ordered else True
                total[name] = tuple(np.array(a, dtype=np.float64, copy=copied) for a in arrays)
    return total

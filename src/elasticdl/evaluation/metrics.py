"""Adding up metric states: pure, so that one batch, one worker and many are the same thing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates


def add_states(states: Iterable[MetricStates], ordered: Collection[str] = ()) -> MetricStates:
    """Return the sum of metric states, each counted by its number of examples.

    float64 while summing: in float32 a million batches would lose the last ones.

    Args:
        states: In any order; every one may name other metrics. In the order of the batches if
            there are names in `ordered`.
        ordered: Metrics whose states do not add up (`Metrics.ordered`): the last ones count.

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
                # What is not added to is not copied: it may be all that was seen so far.
                copied = None if name in ordered else True
                total[name] = tuple(np.array(a, dtype=np.float64, copy=copied) for a in arrays)
    return total

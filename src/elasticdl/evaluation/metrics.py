"""Sums metric states over batches and workers, without side effects.

The state of a metric is a tuple of arrays, from which its value is computed: for a mean, the sum
over examples and their number. The result does not depend on how the examples are divided into
batches and workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from elasticdl.training.trainer import MetricStates


def add_states(states: Iterable[MetricStates], ordered: Collection[str] = ()) -> MetricStates:
    """Return the element-wise sum of metric states (metric name -> tuple of arrays).

    The sums are computed in float64: in float32 the last of a million batches would be lost.

    Args:
        states: One per batch or worker. If `ordered` is not empty, they must be in the order of the
            batches. Not every state needs to have every metric.
        ordered: Names of metrics whose states cannot be summed, because each state already includes
            the batches before it (`Metrics.ordered`). Their last state is returned.

    Returns:
        The states over all batches, as float64 arrays of the inputs' shapes. Arrays of `ordered`
        metrics may be the inputs themselves, not copies.

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

"""Computes the mean of a scalar metric from its state: a total and a count, both summed.

Callers: the metrics of each framework.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def mean_of(total: Any, count: Any) -> float:
    """Return the mean of a scalar metric from its summed state; NaN if the count is 0.

    Args:
        total: The sum, of shape [].
        count: The divisor, of shape [].

    Raises:
        ValueError: The shape of one is not []. (A party of a federation may send anything.)

    Example:
        >>> mean_of(np.float64(6.0), np.float64(4.0))
        1.5
    """
    if np.ndim(total) or np.ndim(count):
        raise ValueError(f"A sum and a count of shapes {np.shape(total)} and {np.shape(count)}.")
    return float(total) / float(count) if count else float("nan")

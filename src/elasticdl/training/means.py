"""Scalar metrics: the mean that a summed state comes to.

Callers: the metrics of each framework.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def mean_of(total: Any, count: Any) -> float:
    """Return the mean that the summed state of a scalar metric comes to; NaN of nothing.

    Args:
        total: The sum, of shape [].
        count: What it is divided by, of shape [].

    Raises:
        ValueError: They have other shapes: what a party of a federation sends may be anything.

    Example:
        >>> mean_of(np.float64(6.0), np.float64(4.0))
        1.5
    """
    if np.ndim(total) or np.ndim(count):
        raise ValueError(f"A sum and a count of shapes {np.shape(total)} and {np.shape(count)}.")
    return float(total) / float(count) if count else float("nan")

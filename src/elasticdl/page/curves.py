"""Thins curves to what a screen can show, without losing a spike or a non-finite value.

A curve is divided into buckets with equal numbers of points, and the minimum and the maximum of
each bucket are kept at their positions. Values that are not finite cannot be drawn: their positions
are listed beside the curve.

Pure. Callers: `view.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

NUM_BUCKETS = 400
_MAX_BAD = 200


@dataclass(frozen=True)
class Curve:
    """A thinned curve.

    Attributes:
        x: Positions of the points, ascending.
        y: Values at these positions, all finite.
        bad: Positions of values that are not finite; an evenly spaced sample if there are many.
    """

    x: list[float]
    y: list[float]
    bad: list[float]

    def to_json(self) -> dict[str, Any]:
        """Convert the curve to JSON values."""
        return {"x": self.x, "y": self.y, "bad": self.bad}


def thinned(x: npt.ArrayLike, y: npt.ArrayLike, num_buckets: int = NUM_BUCKETS) -> Curve:
    """Thin a curve to at most two points per bucket, plus the first and the last point.

    Args:
        x: Positions of the points, ascending.
        y: Their values.
        num_buckets: Number of buckets.

    Example:
        >>> thinned([0, 1, 2, 3], [5.0, 7.0, float("nan"), 6.0], num_buckets=1)
        Curve(x=[0.0, 1.0, 3.0], y=[5.0, 7.0, 6.0], bad=[2.0])
    """
    places, heights = np.asarray(x, np.float64), np.asarray(y, np.float64)
    finite = np.isfinite(heights)
    bad = places[~finite]
    places, heights = places[finite], heights[finite]
    if len(places) > 2 * num_buckets:
        kept = _extremes(heights, num_buckets)
        places, heights = places[kept], heights[kept]
    return Curve(places.tolist(), heights.tolist(), _few(bad).tolist())


def _extremes(heights: Floats, num_buckets: int) -> npt.NDArray[np.int64]:
    """Return the sorted indices of the points that a thinned curve keeps.

    These are the minimum and the maximum of each bucket, and the first and last point of the curve.

    Args:
        heights: Values of the curve's points, all finite.
        num_buckets: Number of buckets.
    """
    edges = np.linspace(0, len(heights), num_buckets + 1).astype(np.int64)
    starts, stops = edges[:-1], edges[1:]
    spans = list(zip(starts.tolist(), stops.tolist(), strict=True))
    lows = [start + int(heights[start:stop].argmin()) for start, stop in spans]
    highs = [start + int(heights[start:stop].argmax()) for start, stop in spans]
    # The last point is the current value.
    return np.unique(np.array([0, *lows, *highs, len(heights) - 1], np.int64))


def _few(bad: Floats) -> Floats:
    if len(bad) <= _MAX_BAD:
        return bad
    kept = np.unique(np.linspace(0, len(bad) - 1, _MAX_BAD).astype(np.int64))
    return bad[kept]


def per_second(
    time: Floats,
    amount: Floats,
    start: float,
    stop: float,
    *,
    idle_ends: Sequence[float] = (),
    most_bins: int = NUM_BUCKETS,
) -> tuple[list[float], list[float]]:
    """Compute rates per second from logged amounts, averaged over bins of equal width.

    Args:
        time: When amounts were logged, ascending, in seconds.
        amount: The amount since the previous entry.
        start: Start of the first bin.
        stop: End of the last bin.
        idle_ends: End times of idle periods, in seconds, such as the times when later attempts
            started. An idle period begins at the last entry before its end, and its rate is 0. The
            next amount is spread only over the time since the end of the idle period.
        most_bins: Maximum number of bins; a bin is at least about one second wide.

    Returns:
        Centers of the bins, and rates per second.

    Example:
        >>> per_second(np.array([1.0, 3.0]), np.array([10.0, 30.0]), 0.0, 3.0)
        ([0.5, 1.5, 2.5], [10.0, 15.0, 15.0])
    """
    length = stop - start
    if length <= 0 or not len(time):
        return [], []
    # An amount covers the time since the previous entry and is spread evenly over it.
    moments = np.concatenate([[start], time, idle_ends])
    amounts = np.concatenate([[0.0], amount, np.zeros(len(idle_ends))])
    order = np.argsort(moments, kind="stable")
    num_bins = int(max(1, min(most_bins, length)))
    edges = np.linspace(start, stop, num_bins + 1)
    sums = np.interp(edges, moments[order], np.cumsum(amounts[order]))
    middles = (edges[:-1] + edges[1:]) / 2
    return middles.tolist(), (np.diff(sums) / (length / num_bins)).tolist()

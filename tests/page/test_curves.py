"""Thinning: what must not be lost."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.page.curves import per_second, thinned


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3000), st.integers(1, 50))
def test_no_spike_is_lost(heights, num_buckets) -> None:
    curve = thinned(range(len(heights)), heights, num_buckets)

    assert max(curve.y) == max(heights)
    assert min(curve.y) == min(heights)
    assert curve.y[-1] == heights[-1]
    assert curve.x == sorted(set(curve.x))
    assert len(curve.x) <= 2 * num_buckets + 2
    assert all(heights[int(x)] == y for x, y in zip(curve.x, curve.y, strict=True))


def test_a_single_nan_among_a_million_points_is_kept() -> None:
    heights = np.ones(1_000_000)
    heights[654_321] = np.nan

    assert thinned(np.arange(1_000_000), heights).bad == [654_321]


def test_a_curve_of_nothing_but_nan_has_no_points() -> None:
    assert thinned([1, 2], [float("nan")] * 2).x == []


def test_a_value_covers_the_time_since_the_previous_one() -> None:
    x, y = per_second(np.array([1.0, 2.0, 4.0]), np.array([10.0, 20.0, 40.0]), 0.0, 4.0)

    assert x == [0.5, 1.5, 2.5, 3.5]
    assert y == [10.0, 20.0, 20.0, 20.0]


def test_the_time_between_two_attempts_is_empty() -> None:
    _, y = per_second(np.array([1.0, 4.0]), np.array([10.0, 40.0]), 0.0, 4.0, idle_ends=[3.0])

    assert y == [10.0, 0.0, 0.0, 40.0]

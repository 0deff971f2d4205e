"""Numbers of mean 0 and variance 1, by statistics that add up."""

from __future__ import annotations

import numpy as np

from elasticdl.zoo.prebuilt.standardise import Standardise


def seen(*batches) -> Standardise:
    """Return the layer after some batches of training."""
    layer = Standardise()
    for values in batches:
        missing = np.isnan(values)
        layer(np.where(missing, 0, values), np.float32(missing), training=True)
    return layer


def standardised(layer: Standardise, values) -> np.ndarray:
    missing = np.isnan(values)
    return np.array(layer(np.float32(np.where(missing, 0, values)), np.float32(missing)))


def test_statistics_cover_all_known_values() -> None:
    rows = np.float32([[1, 100], [2, np.nan], [6, 200], [3, 0], [8, 400]])

    layer = seen(rows[:3], rows[3:])

    expected = (rows - np.nanmean(rows, axis=0)) / np.nanstd(rows, axis=0)
    np.testing.assert_allclose(standardised(layer, rows), np.nan_to_num(expected), rtol=1e-6)


def test_a_large_mean_does_not_lose_precision() -> None:
    rows = np.float32([[9000.25], [9000.5], [9000.75]])

    expected = np.float32([[-1], [0], [1]]) * np.sqrt(1.5)
    np.testing.assert_allclose(standardised(seen(rows), rows), expected, rtol=1e-5, atol=1e-6)


def test_a_batch_is_standardised_by_earlier_ones() -> None:
    layer = Standardise()
    rows, known = np.float32([[1.0], [3.0]]), np.zeros((2, 1), np.float32)

    first, second = (np.array(layer(rows, known, training=True)) for _ in range(2))

    assert (first.tolist(), second.tolist()) == ([[0], [0]], [[-1], [1]])


def test_a_constant_column_is_always_zero() -> None:
    layer = seen(np.full((7, 1), 0.1, np.float32))

    assert standardised(layer, np.float32([[0.1], [500.0]])).tolist() == [[0], [0]]


def test_statistics_do_not_depend_on_batching() -> None:
    rows = np.float32([[1, 100], [2, 300], [6, 200], [3, 0], [8, 400]])
    layer = Standardise()
    for start, stop in ((0, 3), (3, 3), (3, 4), (4, 5)):
        layer(rows[start:stop], training=True)

    expected = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    np.testing.assert_allclose(layer(rows, training=False), expected, rtol=1e-5)

"""Pictures: read back by a library that knows the format."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from elasticdl.evaluation.png import as_picture, encode, smaller


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_picture_survives_a_round_trip(channels) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (5, 7, channels), np.uint8)

    found = np.asarray(Image.open(io.BytesIO(encode(picture))))

    np.testing.assert_array_equal(found.reshape(picture.shape), picture)


@pytest.mark.parametrize(
    ("array", "levels"),
    [
        (np.array([[0.0, 1.0]]), [0, 255]),
        (np.array([[0.0, 128.0]]), [0, 128]),
        (np.array([[0, 1]]), [0, 1]),
        (np.uint8([[3, 255]]), [3, 255]),
        (np.array([[-1.0, 1.0]]), [0, 255]),
        (np.array([[False, True]]), [0, 255]),
        (np.array([[np.nan, 1.0]]), [0, 255]),
    ],
)
def test_values_are_fractions_or_levels(array, levels) -> None:
    assert as_picture(array)[0, :, 0].tolist() == levels


@pytest.mark.parametrize(
    "array", [np.zeros(784), np.zeros((4, 4, 2)), np.zeros((2, 4, 4, 3)), np.array([["a"]])]
)
def test_other_arrays_are_not_pictures(array) -> None:
    assert as_picture(array) is None


@pytest.mark.parametrize("shape", [(500, 300, 3), (1, 999, 1), (97, 96, 1), (3, 3, 1)])
def test_a_large_picture_is_scaled_down(shape) -> None:
    small = smaller(np.full(shape, 9, np.uint8), 96)

    assert max(small.shape[:2]) <= 96
    assert (small == 9).all()

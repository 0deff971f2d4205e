"""A summary of an object differs once the object has changed, and only then."""

import collections
import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from elasticdl.training.keras.object_digest import Digest, Held, is_compared


def seen_in(value):
    digest = Digest()
    digest.add(Held((0, ""), "x", value))
    return digest.found


class Holding:
    shared = 0

    def __init__(self, value):
        self.value = value
        self.itself = self


def advance(iterator):
    next(iterator)


@pytest.mark.parametrize(
    ("create", "change"),
    [
        (lambda: [1, [2]], lambda each: each[1].append(3)),
        (lambda: list(range(1000)), lambda each: each.append(3)),
        (lambda: {"a": {"b": 1}}, lambda each: each["a"].update(b=2)),
        (lambda: {1, 2}, lambda each: each.add(3)),
        (lambda: collections.deque([1, 2], 2), lambda each: each.append(3)),
        (lambda: np.zeros(3), lambda each: each.fill(1.0)),
        (lambda: np.random.default_rng(0), lambda each: each.normal()),
        (lambda: random.Random(0), lambda each: each.random()),
        (lambda: iter([1, 2]), advance),
        (lambda: itertools.cycle([1, 2]), advance),
        (lambda: (each for each in [1, 2]), advance),
        (lambda: [Holding(1)], lambda each: setattr(each[0], "value", 2)),
        (lambda: Holding(Holding(1)), lambda each: setattr(each.value, "value", 2)),
    ],
)
def test_a_change_changes_the_summary(create, change):
    value = create()
    before = seen_in(value)
    assert seen_in(value) == before

    change(value)

    assert seen_in(value) != before


def test_attributes_of_objects_and_classes_are_named():
    names = {name for name, _ in seen_in(Holding(Holding(1))).values()}

    assert {"x.value.value", "Holding.shared"} <= names


def test_a_value_of_a_library_is_not_compared():
    with Path(__file__).open() as file:
        before = seen_in(file)
        file.read()

        assert seen_in(file) == before
        assert not is_compared(file)
        assert not is_compared([file])
    assert is_compared([Holding(1), 2, {"a": print}])

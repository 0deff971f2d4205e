"""Parts get exact shares of the records, and of each class."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.data.split_parts import ClassCodes, SplitPart, assigned_parts, parse_parts
from elasticdl.errors import UsageError

PARTS = (SplitPart("train", 0.8), SplitPart("test", 0.2))


def hashes(number):
    return np.random.default_rng(0).integers(2**63, size=number).astype(np.uint64)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("train=0.8,test=0.3", "the shares add up to 1.1"),
        ("train=0.8,train=0.2", "two parts are named 'train'"),
        ("train=1", "'train=1' is not a part"),
        ("train=0.999999999", "expected 2 to 100 parts"),
        ("train=0.8,test", "'test' is not a part"),
        ("train=0.8,../test=0.2", "'../test=0.2' is not a part"),
        ("train=0.8,.test=0.2", "'.test=0.2' is not a part"),
        ("train=0.8,test=nan", "'test=nan' is not a part"),
        ("", "'' is not a part"),
    ],
)
def test_an_invalid_list_of_parts_is_refused(text, problem):
    with pytest.raises(UsageError) as error:
        parse_parts(text)
    assert str(error.value).startswith(f"--parts={text}: {problem}")


def test_spaces_between_parts_are_allowed():
    assert parse_parts("a=0.25, b = 0.25,c=0.5")[1] == SplitPart("b", 0.25)


@pytest.mark.parametrize("number", [5, 10, 23, 25_000])
def test_shares_are_exact_to_one_record(number):
    three = (SplitPart("a", 0.5), SplitPart("b", 0.3), SplitPart("c", 0.2))

    counts = np.bincount(assigned_parts(hashes(number), None, three))

    assert np.abs(counts - np.multiply(number, [0.5, 0.3, 0.2])).max() < 1


def test_each_class_is_distributed_evenly():
    codes = np.repeat([0, 1, 2], [900, 90, 10])

    assigned = assigned_parts(hashes(1000), codes, PARTS)

    tests = np.bincount(codes[assigned == 1])
    assert np.abs(tests - [180, 18, 2]).max() <= 1
    assert tests.sum() == 200


def test_the_split_depends_on_hashes_not_on_order():
    values = hashes(100)
    order = np.random.default_rng(1).permutation(100)

    np.testing.assert_array_equal(
        assigned_parts(values[order], None, PARTS), assigned_parts(values, None, PARTS)[order]
    )


def test_a_part_without_records_is_refused():
    with pytest.raises(UsageError, match=r"2 records cannot be divided .* test=0.2 would get none"):
        assigned_parts(hashes(2), None, PARTS)


def test_a_value_that_cannot_be_split_is_named():
    classes = ClassCodes("label")
    codes = np.array([classes.code(value) for value in [b"rare", *[b"cat", b"dog"] * 20]])

    with pytest.raises(UsageError, match=r"--stratify=label: the value 'rare' occurs in 1 record "):
        classes.check(codes, 2)


def test_a_measurement_is_not_a_class():
    classes = ClassCodes("size")
    codes = np.array([classes.code(value / 7) for value in range(40)])

    with pytest.raises(UsageError, match="40 different values in 40 records: it is not a class"):
        classes.check(codes, 2)


def test_missing_values_are_one_class():
    classes = ClassCodes("label")

    assert [classes.code(value) for value in [1.0, float("nan"), None, float("nan")]] == [
        0,
        1,
        1,
        1,
    ]

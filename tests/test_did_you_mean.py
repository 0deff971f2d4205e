"""A mistyped name is answered with the one that is meant, and never with another value."""

import pytest

from elasticdl.did_you_mean import did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "known", "meant"),
    [
        ("lable", ["image", "label"], "label"),
        ("A_GE", ["wage", "age"], "age"),
        ("val_acc", ["val_ce", "val_accuracy_top", "val_accuracy"], "val_accuracy"),
        ("x", ["image", "label"], None),
        ("va", ["val_accuracy"], None),
    ],
)
def test_only_a_similar_name_is_suggested(name, known, meant):
    assert nearest(name, known) == meant


def test_no_other_number_is_suggested_for_a_number():
    assert nearest("2019", ["2018", "201"]) is None


@pytest.mark.parametrize(
    ("name", "meant"), [("lable", "label"), ("LABEL", "label"), ("labe", "label"), ("lab", None)]
)
def test_only_a_very_similar_name_is_suggested_for_a_label(name, meant):
    """A column `new_label` may hold predictions."""
    assert nearest(name, ["new_label", "label"], is_label=True) == meant


def test_without_a_similar_name_the_sentence_just_ends():
    assert did_you_mean("x", ["image", "label"]) == "."
    assert did_you_mean("imag", ["image", "label"]) == "; did you mean 'image'?"

"""A model file names the classes of its outputs in `classes`, whatever its dialect."""

import pytest

from elasticdl.errors import DefinitionError

FILE = """
from fake_keras import Model

model = Model()

def input_fn(records):
    return records, "labels"

def loss(output, labels):
    return output - labels

def optimizer():
    return "SGD"
"""


def test_a_file_may_name_its_classes(define) -> None:
    assert define(FILE + 'classes = ["cat", "dog"]').classes == ("cat", "dog")


@pytest.mark.parametrize(
    "other", ["10", "[]", "{'cat': 0}", "{'cat'}", "[1, 2]", "lambda: ['cat', 'dog']"]
)
def test_a_file_may_use_the_name_for_something_else(define, other) -> None:
    assert define(f"{FILE}classes = {other}").classes == ()


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("'cat'", "is a str, 'cat'"),
        (
            "__import__('numpy').array(['cat', 'dog'])",
            "is a ndarray, array(['cat', 'dog'], dtype='<U3')",
        ),
        ("['cat']", "has only 'cat'"),
        ("['cat', 'dog', 'cat']", "has 'cat' more than once"),
        ("['cat', 3]", "has 3"),
    ],
)
def test_strings_that_cannot_be_names_of_classes_are_refused(define, value, found) -> None:
    with pytest.raises(DefinitionError) as caught:
        define(f"{FILE}classes = {value}\n")

    assert f"m.py:14: `classes` {found}; expected a list of at least two" in str(caught.value)


def test_a_definition_knows_the_line_of_its_classes(define) -> None:
    assert define(FILE + 'classes = ["cat", "dog"]').where("classes").line == 14

"""A model file names the classes of its outputs in `classes`, whatever its dialect."""

import pytest

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
    "other", ["10", "{'cat': 0}", "['cat']", "['a', 'a']", "[1, 2]", "lambda: ['cat', 'dog']"]
)
def test_a_file_may_use_the_name_for_something_else(define, other) -> None:
    assert define(f"{FILE}classes = {other}").classes == ()

"""The file decides how it is read; where it does not, the person is asked."""

from __future__ import annotations

import pytest

from elasticdl.errors import DefinitionError, UsageError

BOTH = """
from fake_keras import Model
class Mine(Model):
    def default_input(records): return records
    def default_loss(labels, outputs): return "of the class"
    def default_optimizer(): ...
def input_fn(records): ...
def loss(labels, outputs): return "of the file"
def optimizer(): ...
"""


def test_an_ambiguous_class_is_refused(refused) -> None:
    message = refused(BOTH, DefinitionError, model_def="m.Mine")

    assert message == (
        "m.py:3: m.Mine can be read as an ElasticDL module and as a Keras class.\n"
        "  Choose one: --dialect=elasticdl_module or --dialect=keras_class"
    )


@pytest.mark.parametrize(
    ("dialect", "loss"), [("keras_class", "of the class"), ("elasticdl_module", "of the file")]
)
def test_a_named_dialect_resolves_ambiguity(define, dialect, loss) -> None:
    assert define(BOTH, "m.Mine", dialect=dialect).loss(1, 2) == loss


def test_a_class_with_defaults_beside_a_lone_function_is_a_keras_class(define) -> None:
    text = BOTH.replace("def input_fn(records): ...\n", "").replace("def optimizer(): ...\n", "")

    assert define(text, "m.Mine").origin.dialect == "keras_class"


def test_an_unmatched_class_is_reported_with_the_needs_of_each_dialect(refused) -> None:
    message = refused("class Mine:\n    def fit(self): ...", DefinitionError, model_def="m.Mine")

    assert message.startswith("m.py:1: Mine is a class with fit; this does not match any dialect")
    for dialect in ("elasticdl_module", "elasticdl_spec", "keras_class"):
        assert f"    {dialect}: " in message


def test_an_unmatched_file_is_reported_with_its_names(refused) -> None:
    message = refused("import os\nX = 1\ndef f(): ...", DefinitionError)

    assert message.startswith("m.py:1: the file has X, f; this does not match any dialect")


@pytest.mark.parametrize("dialect", ["keras_class", "elasticdl_spec"])
def test_a_named_dialect_reports_what_is_missing(refused, dialect) -> None:
    message = refused("def model(): ...", DefinitionError, model_def="m.model", dialect=dialect)

    assert message.startswith("m.py:1: model is a function, not a class.")


def test_an_unknown_dialect_is_reported_with_a_similar_name(refused) -> None:
    message = refused(BOTH, UsageError, model_def="m.Mine", dialect="keras-class")

    assert "Did you mean 'keras_class'?" in message

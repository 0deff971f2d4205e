"""A model file says how data is prepared for it, in either form there has been."""

from __future__ import annotations

import pytest

from elasticdl.errors import DefinitionError
from elasticdl.job import ModelReference
from elasticdl.zoo import preparation

SCHEMA = "def data_schema(): return [{'name': 'x', 'shape': [], 'dtype': 'int64'}]\n"


@pytest.fixture
def prepare(write, tmp_path):
    def prepare(text: str, model_def: str = "m"):
        write(text)
        return preparation(ModelReference(str(tmp_path), model_def))

    return prepare


@pytest.mark.parametrize(("arguments", "takes"), [("name", False), ("file_object, filename", True)])
def test_the_number_of_arguments_determines_the_form(prepare, arguments, takes) -> None:
    found = prepare(f"{SCHEMA}def prepare_data_for_a_single_file({arguments}, scale=1): return 5,")

    assert found.takes_file_object is takes
    assert found.schema.names == ("x",)
    assert found.where == "m.py:2"


def test_the_function_may_be_in_the_named_class(prepare) -> None:
    found = prepare(
        f"class Mine:\n    {SCHEMA}    @staticmethod\n"
        "    def prepare_data_for_a_single_file(name): return 5,",
        "m.Mine",
    )

    assert found.function("x") == (5,)


def test_everything_missing_is_named_at_once(prepare) -> None:
    with pytest.raises(DefinitionError) as caught:
        prepare("model = 1")

    assert "prepare_data_for_a_single_file() and data_schema() missing" in str(caught.value)


def test_a_function_without_a_file_argument_is_refused(prepare) -> None:
    with pytest.raises(DefinitionError, match="takes 0 arguments; it is called as"):
        prepare(SCHEMA + "def prepare_data_for_a_single_file(): ...")

"""Keys and names of a prediction's rows, the same in every format."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from elasticdl.data.record_source import RecordFile
from elasticdl.errors import DefinitionError
from elasticdl.prediction.rows import (
    PredictionField,
    RecordKeys,
    fields_of,
    named_outputs,
    outputs_without_axes,
    rows_only,
)

TWO = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        (TWO, ["output"]),
        ([TWO, TWO], ["output_0", "output_1"]),
        ((TWO,), ["output_0"]),
        ({"b": TWO, "a": TWO}, ["b", "a"]),
        ({"a": [TWO, TWO], "b": {"c": TWO}}, ["a_0", "a_1", "b_c"]),
        ({"a_": TWO}, ["a_"]),
    ],
    ids=["array", "list", "tuple", "dict", "nested", "underscore"],
)
def test_outputs_are_named_after_their_position(outputs, names) -> None:
    assert list(named_outputs(outputs, 2)) == names


@pytest.mark.parametrize(
    ("outputs", "told"),
    [
        (np.float32(1), "first axis must be the example"),
        (np.zeros((3, 2)), "for 2 examples"),
        ({"key": TWO}, "the column of record keys"),
        ({"a_0": TWO, "a": [TWO]}, "another output"),
        (TWO.astype(complex), "complex128"),
        (np.array([{}, None], object), "object"),
        (np.zeros(2, "M8[s]"), "datetime64"),
    ],
    ids=["scalar", "length", "key", "same name", "complex", "objects", "dates"],
)
def test_outputs_that_are_not_rows_are_named(outputs, told) -> None:
    with pytest.raises(DefinitionError, match=told):
        named_outputs(outputs, 2)


def test_two_rows_for_each_example_are_called_so() -> None:
    with pytest.raises(DefinitionError) as refused:
        named_outputs(np.zeros((16, 4)), 8)

    message = str(refused.value)
    assert "'output' has shape [16, 4] for 8 examples. These are 2 rows for each example" in message
    assert "as [8, 2, 4], or as a tuple of 2 outputs [8, 4]." in message
    assert "squeeze" not in message


@pytest.mark.parametrize(
    ("shape", "num_examples"), [((4,), 2), ((4, 3), 1), ((5, 3), 2), ((1, 3), 2), ((), 2)]
)
def test_an_output_that_lost_the_axis_of_examples_is_called_so(shape, num_examples) -> None:
    with pytest.raises(DefinitionError, match="do not sum or squeeze it away"):
        named_outputs(np.zeros(shape), num_examples)


def test_fields_have_dtype_and_shape_of_one_example() -> None:
    columns = {"a": TWO, "b": np.array(["x", "y"]), "c": np.zeros(2, ml_dtypes.bfloat16)}

    assert fields_of(columns) == (
        PredictionField("a", "float32", (3,)),
        PredictionField("b", "bytes", ()),
        PredictionField("c", "bfloat16", ()),
    )


@pytest.mark.parametrize(
    ("uris", "keys"),
    [
        (["/data/a.recordio"], ["a.recordio:0"]),
        (["/data/a", "/data/b"], ["a:0", "b:0"]),
        (["/data/x/a", "/data/y/a"], ["x/a:0", "y/a:0"]),
        (["/data/a", "/data/x/a"], ["a:0", "x/a:0"]),
        (["s3://one/a", "s3://two/a"], ["one/a:0", "two/a:0"]),
        (["/data/ab/f", "/data/ac/f"], ["ab/f:0", "ac/f:0"]),
        (["a", "b"], ["a:0", "b:0"]),
    ],
)
def test_keys_start_after_the_common_path(uris, keys) -> None:
    assert RecordKeys([RecordFile(uri, 1) for uri in uris]).between(0, len(uris)) == keys


def test_keys_count_within_each_file() -> None:
    files = [RecordFile("d/a", 2), RecordFile("d/empty", 0), RecordFile("d/b", 3)]

    assert RecordKeys(files).between(1, 4) == ["a:1", "b:0", "b:1"]


def test_keys_of_missing_records_raise_index_error() -> None:
    with pytest.raises(IndexError):
        RecordKeys([RecordFile("a", 2)]).between(1, 3)


@pytest.mark.timeout(30)
def test_keys_of_a_batch_cost_the_same_with_many_files() -> None:
    keys = RecordKeys([RecordFile(f"data/part-{i}", 1) for i in range(100_000)])

    for record in range(10_000):
        assert keys.between(record, record + 1) == [f"part-{record}:0"]


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        ([TWO, np.float32(1)], ["output_1"]),
        ({"penalty": np.float32(1), "score": TWO, "cache": None}, ["penalty"]),
        ([TWO, TWO], []),
        (np.float32(1), []),
        ([np.float32(1), np.float32(2)], []),
    ],
    ids=["tuple", "dict", "rows", "only a number", "only numbers"],
)
def test_outputs_that_are_one_number_for_a_batch_are_named_if_others_have_rows(outputs, names):
    assert outputs_without_axes(outputs) == names


def test_the_other_outputs_keep_their_names():
    assert list(rows_only((np.float32(1), TWO), ["output_0"])) == ["output_1"]

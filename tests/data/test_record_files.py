"""Record files from Python: what is written is read, by number and in order."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl import data
from elasticdl.errors import NoDataError, OutputError, SchemaError, UsageError

NAMES = ["points.recordio", "points.tfrecord", "points.tfrecords"]


def record(number):
    return {
        "image": np.full((2, 3), number, np.float32),
        "label": number % 3,
        "name": f"n{number}",
        "is_odd": number % 2 == 1,
    }


@pytest.fixture(params=NAMES)
def written(request, tmp_path):
    """Return the file, and the schema of its 3,000 records."""
    with data.RecordWriter(tmp_path / request.param) as writer:
        for number in range(3000):
            writer.write(record(number))
    return tmp_path / request.param, writer.schema


def test_records_are_read_back_as_written(written):
    path, schema = written

    for number, each in enumerate(data.Records(path, schema)):
        np.testing.assert_array_equal(each["image"], np.full((2, 3), number))
        assert (each["label"], each["name"]) == (number % 3, f"n{number}".encode())
        assert bool(each["is_odd"]) == (number % 2 == 1)
    assert number == 2999


def test_records_are_a_sequence(written):
    path, schema = written
    records = data.Records(path, schema)

    assert len(records) == 3000
    assert records[-1]["name"] == b"n2999"
    assert [each["name"] for each in records[10:16:2]] == [b"n10", b"n12", b"n14"]
    assert records[5:2] == []
    assert len(records[2990:4000]) == 10
    with pytest.raises(IndexError, match="no record 3000: there are 3000"):
        records[3000]


def test_without_a_schema_fields_are_lists(written):
    first = data.Records(written[0])[1]

    assert first["image"].shape == (6,)
    assert first["label"].tolist() == [1]


def test_a_given_schema_is_kept(tmp_path):
    fields = [{"name": "x", "shape": [2], "dtype": "float32"}]
    with data.RecordWriter(tmp_path / "x.recordio", fields, compressor="gzip") as writer:
        writer.write({"x": [1, 2]})

    assert data.Records(tmp_path / "x.recordio", fields)[0]["x"].tolist() == [1.0, 2.0]


def test_the_folder_is_created(tmp_path):
    with data.RecordWriter(tmp_path / "a" / "b" / "x.recordio") as writer:
        writer.write({"x": 1})

    assert len(data.Records(tmp_path / "a" / "b")) == 1


def test_a_folder_that_cannot_be_created_raises(tmp_path):
    (tmp_path / "a").write_text("a file")

    with pytest.raises(OutputError, match="x.recordio cannot be written"):
        data.RecordWriter(tmp_path / "a" / "x.recordio")


def test_an_exception_leaves_no_file(tmp_path):
    def write():
        with data.RecordWriter(tmp_path / "x.recordio") as writer:
            writer.write({"x": 1})
            writer.write({"x": 1.5})

    with pytest.raises(SchemaError, match="Record 1, field 'x': holds 1.5"):
        write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"x": [[1], [1, 2]]}, "field 'x': its lists have different lengths"),
        ({"x": None}, "field 'x': expected numbers, text or bytes, got None"),
        ({"x": 1j}, "dtype complex128 cannot be stored"),
        ([1], "Record 0: expected a dict of fields, got"),
        ({}, "Record 0: expected a dict of fields, got"),
    ],
)
def test_a_first_record_that_cannot_be_stored_is_refused(tmp_path, value, complaint):
    writer = data.RecordWriter(tmp_path / "x.recordio")

    with pytest.raises(SchemaError, match=complaint), writer:
        writer.write(value)
    assert list(tmp_path.iterdir()) == []


def test_other_extensions_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"x.csv: expected a name that ends with .recordio"):
        data.RecordWriter(tmp_path / "x.csv")


def test_an_empty_file_has_no_records(tmp_path):
    with data.RecordWriter(tmp_path / "x.recordio"):
        pass

    with pytest.raises(NoDataError):
        data.Records(tmp_path / "x.recordio")


def test_an_unknown_name_of_the_package_raises_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Recordz'"):
        data.Recordz  # noqa: B018

"""Parquet: rows by number, of the row groups and columns that are needed."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import table
from elasticdl.data.parquet import ParquetSource
from elasticdl.data.schema import Schema
from elasticdl.errors import CorruptDataError, NoDataError, SchemaError
from elasticdl.testing.record_source import (
    check_damage_is_found,
    check_decoding,
    check_record_source,
)


def schema_of(**fields):
    return Schema.from_user(
        [{"name": name, "shape": shape, "dtype": dtype} for name, (shape, dtype) in fields.items()]
    )


@pytest.fixture
def write(tmp_path):
    def write(columns, name="a.parquet", **options):
        path = str(tmp_path / name)
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        pq.write_table(table, path, **options)
        return path

    return write


def read_all(path, schema=None):
    source = ParquetSource([path])
    return source.read_records(0, source.num_records, schema)


def test_a_parquet_source_satisfies_the_record_source_contract(write):
    columns = {"n": list(range(7)), "text": list("abcdefg"), "x": [[i, i / 2] for i in range(7)]}
    paths = [
        write(columns, "a.parquet", row_group_size=3),
        write({name: values[:0] for name, values in columns.items()}, "b.parquet"),
        write(columns, "c.parquet", row_group_size=1),
    ]
    # The columns of no rows have no type.
    expected = ParquetSource([paths[0], paths[2]]).read_bytes(0, 14)
    assert len(set(expected)) == 7

    check_record_source(ParquetSource(paths), expected)
    check_decoding(ParquetSource(paths))


def test_records_decoded_with_a_schema_match_those_read_as_bytes(write):
    path = write({"x": pa.array([[1.5, 2], [3, 4]], pa.list_(pa.float32())), "y": [1, 2]})

    check_decoding(ParquetSource([path]), schema_of(y=([1], "int64"), x=([2, 1], "float32")))


def test_numbers_that_float32_rounds_without_a_schema_are_named_once(write, caplog, monkeypatch):
    monkeypatch.setattr(table, "_rounded", set())
    path = write(
        {
            "stamp": [1700000012.75, 1.5],
            "price": [decimal.Decimal("123456789.12"), decimal.Decimal("1.00")],
            "whole": [2.0**30, np.nan],
            "number": [1700000012, 3],
            "small": [0.1, 12345.678],
        }
    )

    read_all(path)
    read_all(path)
    read_all(path, schema_of(stamp=([1], "float64")))

    stamp, price = sorted(caplog.messages, reverse=True)
    assert stamp.startswith("Column 'stamp' has values such as 1700000012.75, which becomes 17000")
    assert price.startswith("Column 'price' has values such as 123456789.12, which becomes 1234567")
    assert "float64 in data_schema()" in stamp


def test_without_a_schema_columns_keep_their_types(write):
    path = write(
        {
            "int": pa.array([1], pa.int8()),
            "bool": [True],
            "double": [1.5],
            "half": pa.array([np.float16(0.5)]),
            "decimal": [decimal.Decimal("2.25")],
            "text": ["ü"],
            "bytes": [b"\xff\0"],
            "fixed": pa.array([b"ab"], pa.binary(2)),
            "category": pa.array(["red"]).dictionary_encode(),
            "list": [[1, 2, 3]],
            "lists": [[[1.0], [2.0, 3.0]]],
            "texts": [["a", "b"]],
        }
    )

    (record,) = read_all(path)

    assert {name: array.tolist() for name, array in record.items()} == {
        "bool": [1],
        "bytes": [b"\xff\0"],
        "category": [b"red"],
        "decimal": [2.25],
        "double": [1.5],
        "fixed": [b"ab"],
        "half": [0.5],
        "int": [1],
        "list": [1, 2, 3],
        "lists": [1.0, 2.0, 3.0],
        "text": ["ü".encode()],
        "texts": [b"a", b"b"],
    }
    assert list(record) == sorted(record)
    assert record["double"].dtype == record["decimal"].dtype == record["lists"].dtype == np.float32
    assert record["int"].dtype == record["list"].dtype == np.int64
    assert record["bool"].dtype == bool
    check_decoding(ParquetSource([path]))


def test_without_a_schema_lists_may_differ_in_length(write):
    records = read_all(write({"x": [[], [1], [2, 3], []], "y": [[[]], [[1], []], [], [[2, 3]]]}))

    assert [record["x"].tolist() for record in records] == [[], [1], [2, 3], []]
    assert [record["y"].tolist() for record in records] == [[], [1], [], [2, 3]]


def test_lists_have_the_shape_of_the_schema(write):
    images = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    path = write(
        {
            "flat": list(images.reshape(2, 4)),
            "nested": images.tolist(),
            "fixed": pa.FixedSizeListArray.from_arrays(pa.array(images.ravel()), 4),
            "raw": [image.astype(np.uint8).tobytes() for image in images],
        }
    )
    schema = schema_of(
        flat=([2, 2], "float32"),
        nested=([2, 2], "float64"),
        fixed=([2, 2], "float16"),
        raw=([2, 2], "uint8"),
    )

    records = read_all(path, schema)

    for field in schema.fields:
        for record, image in zip(records, images, strict=True):
            assert record[field.name].dtype == field.dtype
            np.testing.assert_array_equal(record[field.name], image)


def test_a_field_of_several_values_is_made_of_numbered_columns(write):
    path = write({"x_1": [3, 4], "x_0": [1.5, 2.5], "y": [0, 1]})

    records = read_all(path, schema_of(x=([2], "float32")))

    assert [record["x"].tolist() for record in records] == [[1.5, 3], [2.5, 4]]


def test_numbers_are_converted_to_the_schemas_dtype_if_lossless(write):
    path = write({"whole": [1.0, 2.0], "int": [1, 0], "big": [2**53, 1]})

    first, _ = read_all(
        path, schema_of(whole=([], "int32"), int=([1], "bool"), big=([], "float64"))
    )

    assert first["whole"] == 1
    assert first["int"].tolist() == [True]
    assert first["big"] == 2**53


def test_decoded_arrays_are_writable_and_independent(write):
    source = ParquetSource([write({"x": [1, 2], "y": [[1.0], [2.0]]})])

    for record in source.read_records(0, 2, None):
        record["x"] += 1
        record["y"] += 1

    assert [record["x"].item() for record in source.read_records(0, 2, None)] == [1, 2]


def test_only_needed_columns_and_row_groups_are_read(write, monkeypatch):
    columns = {"x": list(range(10)), "y_0": list(range(10)), "z": list(range(10))}
    source = ParquetSource([write(columns, row_group_size=2)])
    read = []
    original = pq.ParquetFile.read_row_group

    def counted(self, index, columns, **options):
        read.append((index, columns))
        return original(self, index, columns=columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    schema = schema_of(x=([], "int64"), y=([1], "int64"))

    for start in (3, 4, 5):
        source.read_records(start, start + 1, schema)

    assert read == [(1, ["x", "y_0"]), (2, ["x", "y_0"])]


def test_one_source_may_be_read_with_several_schemas(write):
    source = ParquetSource([write({"x": [1], "y": [2]})])
    schemas = [schema_of(x=([], "int64")), None, schema_of(y=([], "float32")), None]

    read = [source.read_records(0, 1, schema)[0] for schema in schemas]

    assert [list(record) for record in read] == [["x"], ["x", "y"], ["y"], ["x", "y"]]


def test_row_groups_report_how_they_are_stored(write):
    path = write({"x": list(range(5))}, row_group_size=3, compression="zstd")

    groups = ParquetSource([path]).row_groups(0)

    assert [group.num_rows for group in groups] == [3, 2]
    assert {group.compression for group in groups} == {"ZSTD"}
    assert groups[0].offset_bytes == len(b"PAR1")
    assert groups[0].offset_bytes + groups[0].size_bytes <= groups[1].offset_bytes


def test_files_in_memory_are_read():
    import fsspec

    uri = "memory://parquet/a.parquet"
    with fsspec.open(uri, "wb") as file:
        pq.write_table(pa.table({"x": [1, 2]}), file)

    assert [record["x"].item() for record in read_all(uri)] == [1, 2]


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "schema", "message"),
    [
        ({"x": [1, None]}, None, "record 1: column 'x' has no value.*only the fields that the"),
        ({"x": [[1, 2], [3, None]]}, None, "record 1: column 'x' has no value"),
        ({"x": [[1, 2], None]}, None, "record 1: column 'x' has no value"),
        ({"x": pa.nulls(2)}, schema_of(x=([], "string")), "record 0: column 'x' has no value"),
        ({"x": ["a", None]}, schema_of(x=([], "string")), "record 1: column 'x' has no value"),
        (
            {"x": [{"y": 1}]},
            schema_of(x=([], "string")),
            r"record 0: column 'x' has the type struct<y: int64>, which is neither",
        ),
        (
            {"x": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))},
            schema_of(x=([], "string")),
            r"record 0: column 'x' has the type map<string, int64 .*>, which is neither",
        ),
        (
            {"x": [dt.date(2020, 1, 1)]},
            schema_of(x=([], "float32")),
            r"record 0: column 'x' has the type date32\[day\], which is read as seconds since",
        ),
        (
            {"x": [dt.datetime(2020, 1, 1, microsecond=500_000, tzinfo=dt.UTC)]},
            schema_of(x=([], "int64")),
            r"record 0: column 'x': holds 1577836800.5, which an int64 cannot hold",
        ),
        (
            {"x": [1, 2]},
            schema_of(xs=([], "int64")),
            r"record 0: field 'xs' is missing \(it has 'x'\); did you mean 'x'\?",
        ),
        (
            {"x": [[1, 2], [3]]},
            schema_of(x=([2], "int64")),
            r"record 1: field 'x' has 1 value; data_schema\(\) says shape \[2\]",
        ),
        (
            {"x": [1, 2]},
            schema_of(x=([2], "int64")),
            "record 0: field 'x' has 1 value",
        ),
        (
            {"x": [None, "b"]},
            schema_of(x=([], "int64")),
            (
                r"record 1: column 'x' holds text, such as 'b'; data_schema\(\) says int64\. "
                r"Correct the values, or give the field the dtype \"string\" in data_schema\(\), "
                r".*; for a label, name the classes in the model file, classes = \[\.\.\.\], and "
            ),
        ),
        (
            {"x": [None, "3.75"]},
            schema_of(x=([], "float32")),
            (
                r"record 1: column 'x' holds text, such as '3\.75'; data_schema\(\) says float32\. "
                r"Convert the column, as with pandas\.to_numeric\(\), or correct the dtype in"
            ),
        ),
        (
            {"x": ["yes", "no"]},
            schema_of(x=([], "float64")).undeclared(),
            (
                r"record 0: column 'x' holds text, such as 'yes'; the model needs numbers\. A "
                r"trained model expects the types of its training data, here numbers \(or "
                r"booleans\)\. Convert the column\.$"
            ),
        ),
        (
            {"x": ["?", "1"]},
            Schema.from_user(
                [{"name": "x", "shape": [], "dtype": "float64", "nullable": True}]
            ).undeclared(),
            r".* Convert the column, in .* pd\.to_numeric\(df\['x'\], errors='coerce'\), which",
        ),
        (
            {"x": ["04044", "1"]},
            schema_of(x=([], "float64")).undeclared(),
            r".* trained on a CSV file: digits are read as a number .* before them, as '04044'\.$",
        ),
        ({"x": [1, 2]}, schema_of(x=([], "string")), "record 0: field 'x' is stored as integers"),
        (
            {"x": [1.0, 2.5]},
            schema_of(x=([], "int64")),
            "record 1: column 'x': holds 2.5, which an int64 cannot hold",
        ),
        (
            {"x": [1, 300]},
            schema_of(x=([1], "uint8")),
            "record 1: column 'x': holds 300, which a uint8 cannot hold",
        ),
        (
            {"x_0": [1, 2], "x_1": [3, 400]},
            schema_of(x=([2], "uint8")),
            "record 1: column 'x_1': holds 400, which a uint8 cannot hold",
        ),
        (
            {"x_0": [[1], [2, 2]], "x_1": [3, 4]},
            schema_of(x=([2], "int64")),
            "record 0: column 'x_0' holds lists, but 'x' is made of 2 columns",
        ),
    ],
)
def test_an_unsuitable_row_is_named_with_its_column(write, columns, schema, message):
    path = write(columns)

    with pytest.raises(SchemaError, match=rf"a\.parquet, {message}"):
        read_all(path, schema)


def test_columns_with_the_same_name_are_refused(write):
    path = write(pa.table([[1], [2]], names=["a", "a"]))

    with pytest.raises(SchemaError, match=r"a\.parquet: two of its columns are named 'a'"):
        ParquetSource([path])


@pytest.mark.parametrize("content", [b"", b"PAR1", b"x" * 100, b"PAR1" + b"\xff" * 40 + b"PAR1"])
def test_a_file_that_is_not_parquet_is_refused(tmp_path, content):
    path = tmp_path / "a.parquet"
    path.write_bytes(content)

    with pytest.raises(CorruptDataError, match=r"a\.parquet: damaged at byte"):
        ParquetSource([str(path)])


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(NoDataError, match="there is no such file"):
        ParquetSource([str(tmp_path / "a.parquet")])


def test_a_truncated_file_is_refused(write):
    path = write({"x": list(range(1000))})
    Path(path).write_bytes(Path(path).read_bytes()[:-20])

    with pytest.raises(CorruptDataError, match="expected the end of a Parquet file"):
        ParquetSource([path])


def test_a_damaged_page_is_detected_if_checksums_are_stored(write, tmp_path):
    path = write({"x": list(range(40))}, write_page_checksum=True, compression="none")
    content = Path(path).read_bytes()
    source = ParquetSource([path])
    group = source.row_groups(0)[0]
    pages = range(group.offset_bytes, group.offset_bytes + group.size_bytes)

    check_damage_is_found(ParquetSource, content, source.read_bytes(0, 40), tmp_path, pages[::7])


def test_a_file_that_changed_after_opening_is_refused(write):
    source = ParquetSource([write({"x": [1, 2, 3]})])
    write({"x": [1]})

    with pytest.raises(CorruptDataError, match="expected 3 rows in 1 row group, found 1"):
        source.read_records(0, 3, None)


# --- dates, times and what is missing ------------------------------------------------------------

NOON = dt.datetime(2020, 1, 2, 12, 0, 0, 250_000, tzinfo=dt.UTC)
NOON_S = 1_577_966_400.25


@pytest.mark.parametrize(
    ("value", "arrow_type", "seconds"),
    [
        (dt.date(2020, 1, 2), pa.date32(), NOON_S - 12 * 3600 - 0.25),
        (dt.date(2020, 1, 2), pa.date64(), NOON_S - 12 * 3600 - 0.25),
        (dt.date(1969, 12, 31), pa.date32(), -86400.0),
        (NOON, pa.timestamp("us"), NOON_S),
        (NOON, pa.timestamp("ns"), NOON_S),
        (NOON, pa.timestamp("ms", tz="Europe/Berlin"), NOON_S),
        (dt.time(1, 0, 1), pa.time32("s"), 3601.0),
        (dt.time(1, 0, 1, 500_000), pa.time64("us"), 3601.5),
        (dt.timedelta(minutes=-1), pa.duration("ms"), -60.0),
    ],
)
def test_dates_and_times_are_seconds(write, value, arrow_type, seconds):
    path = write({"x": pa.array([value], arrow_type)})

    (record,) = read_all(path)
    (by_schema,) = read_all(path, schema_of(x=([], "float64")))

    assert (record["x"].dtype, record["x"].tolist()) == (np.float64, [seconds])
    assert by_schema["x"].item() == seconds
    (again,) = schema_of(x=([1], "float64")).decode_batch(
        ParquetSource([path]).read_bytes(0, 1), str
    )
    assert again["x"].item() == seconds


def nullable(**fields):
    return Schema.from_user(
        [
            {"name": name, "shape": shape, "dtype": dtype, "nullable": True}
            for name, (shape, dtype) in fields.items()
        ]
    )


@pytest.mark.parametrize(
    ("values", "shape", "dtype", "expected"),
    [
        ([7, None], [], "float64", [7.0, np.nan]),
        ([2**53, None], [1], "float64", [[2.0**53], [np.nan]]),
        ([0.5, np.nan], [], "float32", [0.5, np.nan]),
        ([True, None], [], "float32", [1.0, np.nan]),
        ([decimal.Decimal("1.25"), None], [], "float64", [1.25, np.nan]),
        ([dt.date(1970, 1, 2), None], [], "float64", [86400.0, np.nan]),
        ([None, None], [], "float32", [np.nan, np.nan]),
        ([[1, 2], None], [2], "float64", [[1, 2], [np.nan, np.nan]]),
        ([[1, 2], [None, 3]], [2], "float64", [[1, 2], [np.nan, 3]]),
        (pa.array([[1, 2], None], pa.list_(pa.int64(), 2)), [2], "float32", [[1, 2], [np.nan] * 2]),
        (["a", None], [], "string", [b"a", None]),
        (["", None], [], "string", [b"", None]),
        ([["a", "b"], None], [2], "string", [[b"a", b"b"], [None, None]]),
    ],
)
def test_missing_values_are_nan_or_none(write, values, shape, dtype, expected):
    schema = nullable(x=(shape, dtype))
    source = ParquetSource([write({"x": values})])

    records = source.read_records(0, 2, schema)
    encoded = schema.decode_batch([schema.encode(record) for record in records], str)

    for found in (records, encoded):
        for record, value in zip(found, expected, strict=True):
            assert record["x"].shape == tuple(shape)
            np.testing.assert_array_equal(record["x"], np.array(value, record["x"].dtype))


def test_columns_of_one_field_may_miss_values_independently(write):
    path = write({"x_0": [1, None], "x_1": [None, 4]})

    records = read_all(path, nullable(x=([2], "float32")))

    np.testing.assert_array_equal([r["x"] for r in records], [[1, np.nan], [np.nan, 4]])


def test_a_missing_column_is_not_a_missing_value(write):
    with pytest.raises(SchemaError, match=r"field 'xs' is missing \(it has 'x'\)"):
        read_all(write({"x": [1.0]}), nullable(xs=([], "float32")))


def test_the_error_for_a_missing_column_lists_the_others_in_the_order_of_the_table(write):
    with pytest.raises(SchemaError, match=r"is missing \(it has 'z', 'b', 'a'\)"):
        read_all(write({"z": [1.0], "b": [1], "a": [2]}), nullable(xs=([], "float32")))


def test_a_large_whole_number_beside_a_missing_one_is_not_rounded(write):
    with pytest.raises(SchemaError, match="record 1: column 'x': holds 9007199254740993, which a"):
        read_all(write({"x": [None, 2**53 + 1]}), nullable(x=([], "float64")))


def test_lists_of_any_length_are_a_field(write):
    path = write({"x": [[1, 2], [], [3]], "tag": [["a"], ["b", "c"], []]})
    schema = schema_of(x=([None], "float32"), tag=([None], "string"))

    records = read_all(path, schema)
    encoded = schema.decode_batch([schema.encode(record) for record in records], str)

    for found in (records, encoded):
        assert [record["x"].tolist() for record in found] == [[1, 2], [], [3]]
        assert [record["tag"].tolist() for record in found] == [[b"a"], [b"b", b"c"], []]


def test_text_of_any_kind_is_text(write):
    texts = pa.array(["a", None])
    kinds = {
        "large": texts.cast(pa.large_string()),
        "dictionary": texts.dictionary_encode(),
        "list": pa.array([["a"], None], pa.list_(pa.dictionary(pa.int32(), pa.string()))),
    }
    path = write(kinds)

    records = read_all(path, nullable(**{name: ([], "string") for name in kinds}))

    assert [[record[name].item() for name in kinds] for record in records] == [
        [b"a"] * 3,
        [None] * 3,
    ]

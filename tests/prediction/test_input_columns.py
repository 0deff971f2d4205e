"""Columns of the input are copied beside the outputs, with their types and their gaps."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.data.sources import open_source
from elasticdl.errors import DataError, UsageError
from elasticdl.prediction.input_columns import InputColumns
from elasticdl.prediction.writers import open_writer


def read(path, names, start=0, stop=None):
    source = open_source(str(path))
    columns = InputColumns(source, names)
    found = columns.between(start, source.num_records if stop is None else stop)
    return {name: array.tolist() for name, array in found.items()}


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.parquet"
    rows = {
        "id": pa.array([7, 8, None], pa.int32()),
        "name": ["ann", None, "zoë"],
        "share": [0.1, 0.2, 0.3],
        "day": [dt.date(2020, 1, 31)] * 3,
        "ok": [True, False, None],
        "list": [[1], [2], [3]],
    }
    pq.write_table(pa.table(rows), path, row_group_size=2)
    return path


def test_columns_of_a_table_keep_their_type(table) -> None:
    assert read(table, ["id", "share", "ok"]) == {
        "id": [7, 8, None],
        "share": [0.1, 0.2, 0.3],
        "ok": [True, False, None],
    }


def test_text_dates_and_missing_values_are_read_across_row_groups(table) -> None:
    found = read(table, ["name", "day"], 1, 3)

    assert found == {"name": [None, "zoë"], "day": ["2020-01-31", "2020-01-31"]}


TYPED = {
    "price": pa.array([Decimal("1.20"), None, Decimal("30.00")], pa.decimal128(7, 2)),
    "day": pa.array([dt.date(2020, 1, 31), None, dt.date(2020, 2, 1)]),
    "at": pa.array(
        [dt.datetime(2020, 1, 31, 5, tzinfo=dt.UTC), None, None],
        pa.timestamp("ns", "Europe/Berlin"),
    ),
    "wait": pa.array([dt.timedelta(seconds=90), None, dt.timedelta(days=1, milliseconds=5)]),
}


def copied(tmp_path, table, file_format):
    """Copy the columns of a table into a prediction, in two batches; return the file."""
    pq.write_table(table, tmp_path / "typed.parquet", row_group_size=2)
    source = open_source(str(tmp_path / "typed.parquet"))
    columns = InputColumns(source, table.column_names)
    path = tmp_path / f"p.{file_format}"
    with open_writer(str(path)) as writer:
        writer.write(0, ["a:0"], columns.between(0, 1))
        writer.write(1, ["a:1", "a:2"], columns.between(1, 3))
    return path


def test_decimals_dates_and_durations_keep_their_type_in_parquet(tmp_path) -> None:
    table = pa.table(TYPED)

    found = pq.read_table(copied(tmp_path, table, "parquet"))

    assert found.drop_columns("key").equals(table)


def test_decimals_dates_and_durations_are_text_and_seconds_in_csv(tmp_path) -> None:
    path = copied(tmp_path, pa.table(TYPED), "csv")

    assert path.read_text().splitlines()[1:] == [
        "a:0,1.20,2020-01-31,2020-01-31 06:00:00+0100,90.0",
        "a:1,,,,",
        "a:2,30.00,2020-02-01,,86400.005",
    ]


def test_decimals_of_later_files_get_the_type_of_the_first(tmp_path) -> None:
    prices = [pa.array([Decimal("1.20")], pa.decimal128(7, 2)),
              pa.array([Decimal("2.500")], pa.decimal128(9, 3)),
              pa.array([Decimal("2.505")], pa.decimal128(9, 3))]  # fmt: skip
    for number, price in enumerate(prices):
        pq.write_table(pa.table({"price": price}), tmp_path / f"{number}.parquet")
    columns = InputColumns(open_source(str(tmp_path)), ["price"])

    assert columns.between(0, 2)["price"].tolist() == ["1.20", "2.50"]
    with pytest.raises(DataError, match=r"'price' is decimal128\(7, 2\) in the first file"):
        columns.between(2, 3)


def test_durations_are_seconds_in_recordio(tmp_path) -> None:
    path = copied(tmp_path, pa.table({"wait": TYPED["wait"]}), "recordio")

    found = open_source(str(path)).read_records(0, 2, None)

    assert [record["wait"].tolist() for record in found] == [[90.0], []]


def test_columns_of_a_csv_file_may_have_missing_values(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("id,name,empty,x\n1,ann,,0.5\n,,,0.25\n")

    assert read(tmp_path / "a.csv", ["id", "x"]) == {"id": [1, None], "x": [0.5, 0.25]}
    assert read(tmp_path / "a.csv", ["name"])["name"] == ["ann", None]


def test_an_empty_binary_value_of_parquet_is_not_missing(tmp_path) -> None:
    pq.write_table(pa.table({"name": pa.array([b"ann", b"", None])}), tmp_path / "a.parquet")

    assert read(tmp_path / "a.parquet", ["name"])["name"] == ["ann", "", None]


def write_records(path, *records):
    with recordio.Writer(str(path)) as writer:
        for record in records:
            writer.write(encode(record))


def test_fields_of_other_records_are_copied_if_of_fixed_size(tmp_path) -> None:
    path = tmp_path / "a.recordio"
    write_records(
        path,
        {"id": np.int64([1]), "x": np.float32([1, 2]), "n": np.int64([1])},
        {"x": np.float32([3, 4]), "n": np.int64([1, 2])},
    )

    assert read(path, ["id", "x"]) == {"id": [1, None], "x": [[1, 2], [3, 4]]}
    with pytest.raises(DataError, match="'n' has 2 values in record 1 and 1 before"):
        read(path, ["n"])


def test_an_unknown_column_is_refused_with_a_similar_one(table) -> None:
    for other in ("nam", "NAME"):
        with pytest.raises(UsageError, match=rf"no column '{other}'; did you mean 'name'\?"):
            read(table, ["id", other])


def test_list_columns_are_refused(table) -> None:
    with pytest.raises(UsageError, match="'list' holds lists; only columns"):
        read(table, ["list"])


def test_the_error_for_an_unknown_column_lists_the_others_in_the_order_of_the_table(
    tmp_path,
) -> None:
    pq.write_table(pa.table({"z": [1], "b": [2], "a": [3]}), tmp_path / "t.parquet")

    with pytest.raises(UsageError, match="It has 'z', 'b', 'a'"):
        read(tmp_path / "t.parquet", ["c"])


def test_a_time_in_csv_has_no_trailing_zeros_in_its_fraction_of_a_second(tmp_path) -> None:
    whole = dt.datetime(2020, 1, 31, 5)  # noqa: DTZ001
    times = [whole, whole + dt.timedelta(seconds=0.5), None]
    table = pa.table({"at": pa.array(times, pa.timestamp("us"))})

    assert copied(tmp_path, table, "csv").read_text().splitlines()[1:] == [
        "a:0,2020-01-31 05:00:00",
        "a:1,2020-01-31 05:00:00.5",
        "a:2,",
    ]


@pytest.mark.parametrize("file_format", ["csv", "parquet", "recordio"])
def test_missing_values_stay_missing_in_each_format(table, tmp_path, file_format) -> None:
    path = tmp_path / f"p.{file_format}"
    columns = InputColumns(open_source(str(table)), ["id", "name"])
    with open_writer(str(path)) as writer:
        writer.write(0, ["a:0", "a:1", "a:2"], columns.between(0, 3))

    if file_format == "csv":
        assert path.read_text().splitlines()[1:] == ["a:0,7,ann", "a:1,8,", "a:2,,zoë"]
    elif file_format == "parquet":
        rows = pq.read_table(path)
        assert rows["id"].to_pylist() == [7, 8, None]
        assert rows["name"].to_pylist() == ["ann", None, "zoë"]
    else:
        found = open_source(str(path)).read_records(0, 3, None)
        assert [r["id"].tolist() for r in found] == [[7], [8], []]
        assert [r["name"].tolist() for r in found] == [[b"ann"], [], ["zoë".encode()]]


def test_the_label_of_one_class_folder_is_in_the_folder_above(tmp_path) -> None:
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("L", (2, 2)).save(tmp_path / name / "1.png")

    with pytest.raises(UsageError, match=f"pass the folder above it, .* --data={tmp_path}$"):
        read(tmp_path / "cat", ["label"])

"""Every column of a table is shown, with the reason if a model cannot use it."""

from __future__ import annotations

import datetime as dt
import gzip
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import overview, table
from elasticdl.data.overview import summarize_files
from elasticdl.data.sources import open_source

if TYPE_CHECKING:
    from pathlib import Path

ODD = {
    "struct": pa.array([{"x": 1}, {"x": 2}]),
    "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
    "none": pa.nulls(2),
}


@pytest.fixture
def parquet(tmp_path: Path) -> str:
    columns = {
        "z": pa.array([1, None]),
        **ODD,
        "day": pa.array([dt.date(2024, 1, 31), None]),
        "at": pa.array([dt.datetime(2024, 1, 31, 12), dt.datetime(2024, 2, 1)]),  # noqa: DTZ001
        "gaps": pa.array([[1, None], [2]]),
        "word": pa.array(["a", "b"]).dictionary_encode(),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    return str(tmp_path / "a.parquet")


def test_every_column_is_shown_in_the_order_of_the_file(parquet: str) -> None:
    found = {
        field.name: (field.dtype, field.values) for field in summarize_files(parquet, 2).fields
    }

    assert found == {
        "z": ("int64", "1 .. 1, missing in 1 record"),
        "struct": ("struct", "not usable: a model cannot read structs"),
        "map": ("map", "not usable: a model cannot read maps"),
        "none": ("null", "not usable: all missing"),
        "day": ("date", "2024-01-31 .. 2024-01-31, missing in 1 record"),
        "at": ("timestamp", "2024-01-31 12:00:00 .. 2024-02-01 00:00:00"),
        "gaps": ("list", "not usable: its lists have missing values"),
        "word": ("string", "2 different, 1 character"),
    }
    assert list(found) == ["z", "struct", "map", "none", "day", "at", "gaps", "word"]


@pytest.mark.parametrize("unit", ["s", "us"])
def test_a_time_with_a_zone_has_no_dot_after_whole_seconds(unit: str, tmp_path: Path) -> None:
    berlin = dt.timezone(dt.timedelta(hours=1))
    times = pa.array([dt.datetime(2024, 1, 2, 3, 4, 5, tzinfo=berlin)])
    table = pa.table({"at": times.cast(pa.timestamp(unit, tz="Europe/Berlin"))})
    pq.write_table(table, tmp_path / "a.parquet")

    (field,) = summarize_files(str(tmp_path / "a.parquet"), 1).fields

    assert field.values == "2024-01-02 03:04:05+0100 .. 2024-01-02 03:04:05+0100"


def test_a_missing_value_is_not_in_the_record(parquet: str) -> None:
    first, second = summarize_files(parquet, 2).records

    assert first["z"].tolist() == [1]
    assert sorted(second) == ["at", "word"]


def test_a_column_without_a_value_in_the_first_rows_is_shown(tmp_path: Path) -> None:
    rows = "\n".join(["1,"] * 150 + ["2,late"])
    (tmp_path / "a.csv").write_text("x,y\n" + rows)

    (_, field) = summarize_files(str(tmp_path / "a.csv"), 1).fields

    assert (field.name, field.values) == ("y", "all missing")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_only_the_beginning_of_a_large_compressed_csv_file_is_shown(
    tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_WHOLE_BYTES", 100)
    monkeypatch.setattr(overview, "_HEAD_BYTES", 500)
    text = "größe;y\n" + "".join(f"{i};{i * i}\n" for i in range(2000))
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(text.encode(encoding)))

    found = summarize_files(str(path), 1)

    assert found.is_estimate
    assert [field.name for field in found.fields] == ["größe", "y"]


def test_other_columns_are_read_beside_an_unsupported_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table._note_left_out.cache_clear()
    pq.write_table(pa.table({"x": [1, 2], **ODD}), tmp_path / "a.parquet")
    source = open_source(str(tmp_path / "a.parquet"))

    records = source.read_records(0, 2, None)

    assert [list(record) for record in records] == [["x"], ["x"]]
    assert len(source.read_bytes(0, 1)) == 1
    (message,) = caplog.messages
    assert (
        "Columns 'struct', 'map', 'none' are left out of the records: 'struct' has structs, 'map' "
        "has maps, 'none' has no values and no type, which a model cannot read." in message
    )

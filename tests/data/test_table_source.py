"""All columns of a table are looked at, whatever is in them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data.csv_index import index_rows
from elasticdl.data.record_source import TableSource
from elasticdl.data.sources import open_source
from elasticdl.data.table_source import summarise
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from elasticdl.data.column_summary import ColumnSummary

CSV = """\
age,ok,city,day,at,none
31,true,Rom,2024-01-31,2024-01-31 12:00:00,
,,,,,
NA,False,Köln,2024-02-01,2024-02-01T01:02:03,
2.5,TRUE,Rom,2024-02-01,2024-02-01,
"""


def summaries(data: str) -> dict[str, ColumnSummary]:
    source = open_source(data)
    assert isinstance(source, TableSource)
    return {column.name: column for column in summarise(source)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_first_row_without_a_value_is_named_with_its_file(folder: Path) -> None:
    pq.write_table(pa.table({"a": [1.0, 2.0], "b": [1, 2]}), "1.parquet")
    gaps = pa.table({"a": [3.0, float("nan"), None], "b": [3, 4, 5]})
    pq.write_table(gaps, "2.parquet", row_group_size=1)

    found = summaries("*.parquet")

    assert found["a"].missing_at == "2.parquet, record 1"
    assert not found["b"].missing_at


@pytest.mark.parametrize(
    ("others", "warned"),
    [
        (["4o,2"], "because of 1 of its 21 values: '4o,2'. The others are numbers."),
        (["a"] * 3, ""),
    ],
)
def test_a_text_column_with_numbers_and_few_other_values_is_named(
    folder: Path, caplog: pytest.LogCaptureFixture, others: list[str], warned: str
) -> None:
    ages = [str(age) for age in range(20)]
    pq.write_table(pa.table({"age": [*ages, *others, None]}), "a.parquet", row_group_size=15)
    Path("a.csv").write_text("age;x\n" + "".join(f"{age};1\n" for age in [*ages, *others]))

    summaries("a.parquet")

    assert len(caplog.messages) == bool(warned)
    assert warned in "".join(caplog.messages)
    caplog.clear()

    # Once, with its line.
    summaries("a.csv")

    assert len(caplog.messages) == bool(warned)


@pytest.mark.parametrize("mark", ["?", " ? ", "-", "NA", "n/a", ""])
def test_any_number_of_marks_for_missing_values_is_warned_of(
    folder: Path, caplog: pytest.LogCaptureFixture, mark: str
) -> None:
    ages = [*map(str, range(20)), *[mark] * 30]
    pq.write_table(pa.table({"age": ages}), "a.parquet")
    Path("a.csv").write_text("age;x\n" + "".join(f"{age};1\n" for age in ages))

    summaries("a.parquet")

    assert (
        f"Column 'age' is text because of 30 of its 50 values, such as {mark!r}. The others are "
        "numbers. If all should be, correct them, or make them missing (in pandas: pd.to_numeric"
    ) in caplog.text
    caplog.clear()

    # In a CSV file, some of them are read as missing.
    kind = summaries("a.csv")["age"].kind

    assert ("because of 30 of its 50 values" in caplog.text) == (kind == "text")
    assert kind == ("text" if mark.strip() in "?-" and mark else "number")


@pytest.mark.parametrize(
    "values",
    [
        ["a", "NA", "?"] * 20,
        ["?", "NA", ""] * 20,
        ["1", "2", "3", "?", "NA", ""],
        [""] * 900 + [f"text {number}" for number in range(90)] + ["1"] * 10,
        # Codes, which are text on purpose.
        [*map(str, range(700, 720)), "00720", ""],
        [*map(str, range(1700, 2700)), "00720", "00721", "00722", ""],
    ],
)
def test_marks_for_missing_values_among_words_codes_or_few_numbers_have_no_warning(
    folder: Path, caplog: pytest.LogCaptureFixture, values: list[str]
) -> None:
    pq.write_table(pa.table({"age": values}), "a.parquet")

    summaries("a.parquet")

    assert not caplog.messages


def test_a_single_code_among_many_numbers_does_not_hide_a_mark(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = [*map(str, range(1000)), "007", "?"]
    pq.write_table(pa.table({"age": values}), "a.parquet", row_group_size=100)

    summaries("a.parquet")

    assert "because of 1 of its 1,002 values: '?'. The others are numbers" in caplog.text


@pytest.mark.parametrize("block_bytes", [1, 1000])
def test_the_kind_of_a_csv_column_fits_all_its_cells(
    folder: Path, block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_rows, "__defaults__", (block_bytes, 1000))
    (folder / "a.csv").write_text(CSV)

    found = summaries("a.csv")

    kinds = {name: column.kind for name, column in found.items()}
    assert kinds == {
        "age": "number", "ok": "boolean", "city": "text", "day": "time", "at": "time",
        "none": "empty",
    }  # fmt: skip
    assert {name: column.num_missing for name, column in found.items()} == {
        "age": 2, "ok": 1, "city": 1, "day": 1, "at": 1, "none": 4,
    }  # fmt: skip
    assert found["city"].values == (("Rom", 2), ("Köln", 1))
    assert found["age"].mean == (31 + 2.5) / 2


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        (["31.12.2024", "1.2.2023", ""], "time"),
        (["31.12.2024 23:59", "01.02.2023 00:01:02", "2024-01-31"], "time"),
        (["2024/12/31", "2023/2/1", "NA"], "time"),
        (["1.2.3", "10.11.12", "2.0.1"], "text"),
        (["31.12.2024", "1.2.03", "1.2.2023"], "text"),
        (["5/6/2024", "7/8/2024", "12/31/2024"], "text"),
    ],
)
def test_dates_with_an_unambiguous_order_are_times(
    folder: Path, cells: list[str], kind: str
) -> None:
    (folder / "a.csv").write_text("\n".join(["at;x", *(f"{cell};1" for cell in cells)]))

    assert summaries("a.csv")["at"].kind == kind


def test_every_type_of_parquet_has_a_kind(folder: Path) -> None:
    columns = {
        "decimal": pa.array([Decimal("1.5"), None]),
        "words": pa.array(["a", None]).dictionary_encode(),
        "view": pa.array(["a", "b"], pa.string_view()),
        "day": pa.array([dt.date(2024, 1, 1), None]),
        "struct": pa.array([{"x": 1}, None]),
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        "none": pa.nulls(2),
        "ok": pa.array([True, None]),
    }
    pq.write_table(pa.table(columns), folder / "a.parquet")

    found = summaries("a.parquet")

    assert {name: column.kind for name, column in found.items()} == {
        "decimal": "number", "words": "text", "view": "text", "day": "time", "struct": "other",
        "map": "other", "none": "empty", "ok": "boolean",
    }  # fmt: skip


def test_a_column_has_a_type_that_fits_all_files(folder: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2], pa.int32()), "y": pa.nulls(2)}), "a.parquet")
    pq.write_table(pa.table({"y": ["a", "b"], "x": [0.5, 1.5]}), "b.parquet")

    found = summaries(str(folder))

    assert found["x"].values == ((0.5, 1), (1.0, 1), (1.5, 1), (2.0, 1))
    assert (found["y"].kind, found["y"].num_missing) == ("text", 2)


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"z": [1]}, "b.parquet has the columns 'z'; .*a.parquet has 'x'"),
        ({"x": ["a"]}, "have different types in one column: .*x"),
    ],
)
def test_incompatible_files_are_refused(
    folder: Path, other: dict[str, list[object]], problem: str
) -> None:
    pq.write_table(pa.table({"x": [1]}), "a.parquet")
    pq.write_table(pa.table(other), "b.parquet")

    with pytest.raises(SchemaError, match=problem):
        summaries(str(folder))

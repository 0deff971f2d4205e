"""Rows as tables, CSV and JSON, in characters that can be counted."""

from __future__ import annotations

import csv
import decimal
import io
import json

import pyarrow as pa

from elasticdl.sql.database_interface import RowSource
from elasticdl.sql.rendering import bars, write_rows


def written(columns: dict, form: str = "table", width: int | None = None) -> str:
    table = pa.table(columns)
    stream = io.StringIO()
    write_rows(RowSource(table.schema, table.to_batches()), stream, form, width)
    return stream.getvalue()


def test_numbers_are_right_aligned_and_null_is_shown() -> None:
    lines = written({"n": [1, 200], "t": ["a", None]}).splitlines()

    assert lines[0] == "╭─────┬──────╮"
    assert lines[1:] == [
        "│   n │ t    │",
        "├─────┼──────┤",
        "│   1 │ a    │",
        "│ 200 │ NULL │",
        "╰─────┴──────╯",
        "2 rows",
    ]


def test_a_table_truncated_to_the_terminal_says_so() -> None:
    text = written({"long": ["x" * 100], "b": [1], "c": ["y" * 50], "d": [2]}, width=50)

    assert max(len(line) for line in text.splitlines()[:-1]) <= 50
    assert "x…" in text
    assert text.splitlines()[-1] == "1 row; 3 columns not shown (terminal too narrow): b, c, d"
    # Elsewhere all of it is there.
    assert "x" * 100 in written({"long": ["x" * 100]})


def test_only_the_first_thousand_of_many_rows_are_shown() -> None:
    lines = written({"a": list(range(2500))}).splitlines()

    assert lines[-1] == "2,500 rows, of which 1,000 are shown"
    assert len(lines) == 1000 + 5


def test_an_empty_table_shows_its_columns() -> None:
    assert "│ a │" in written({"a": pa.array([], pa.string())})


def test_values_cannot_control_the_terminal() -> None:
    text = written({"\x1b[2Ja": ["\x1b]0;title\x07", "two\nlines"], "[red]": ["[bold]x", "y"]})

    assert "\x1b" not in text
    assert "\x07" not in text
    assert "two\\nlines" in text
    # Nor are they rich's markup.
    assert "[red]" in text
    assert "[bold]x" in text


def test_csv_output_distinguishes_null_from_empty_text() -> None:
    text = written({"a,b": ['say "hi"\nthere', "", None], "n": [1.5, None, float("nan")]}, "csv")

    assert list(csv.reader(io.StringIO(text))) == [
        ["a,b", "n"],
        ['say "hi"\nthere', "1.5"],
        ["", ""],
        ["", "nan"],
    ]
    assert text.splitlines()[-2:] == ['"",', ",nan"]


def test_json_output_is_valid() -> None:
    values = {
        "f": [1.5, float("nan"), None],
        "d": [decimal.Decimal("0.10"), decimal.Decimal("12345678901234567890.12"), None],
        "l": [[1, None], [], None],
        "b": [b"\x00", b"", None],
    }

    assert json.loads(written(values, "json")) == [
        {"f": 1.5, "d": 0.1, "l": [1, None], "b": "AA=="},
        {"f": "NaN", "d": "12345678901234567890.12", "l": [], "b": ""},
        {"f": None, "d": None, "l": None, "b": None},
    ]
    assert json.loads(written({"a": pa.array([], pa.int64())}, "json")) == []


def test_bars_are_proportional_and_never_negative() -> None:
    lines = bars(["a", "bb", "c"], [1.0, 0.5, -0.1]).splitlines()

    assert [line.count("█") for line in lines] == [40, 20, 0]
    assert lines[2] == "c   -0.1"

"""CSV files as spreadsheets and other programs write them are read as they are."""

from __future__ import annotations

import gzip
import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from elasticdl.data.csv import CSVSource
from elasticdl.data.csv_index import index_rows
from elasticdl.data.data_index import decode, encode
from elasticdl.data.sources import open_source
from elasticdl.errors import CorruptDataError, SchemaError
from elasticdl.testing.record_source import check_record_source

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "a.csv") -> str:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def rows(path: str) -> list[dict[str, Any]]:
    source = CSVSource([path])
    records = source.read_records(0, source.num_records, None)
    return [{name: array.item() for name, array in record.items()} for record in records]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_is_detected_in_the_first_line(write: Write, delimiter: str) -> None:
    path = write(f'x{delimiter}"a, b; c"\n1{delimiter}two\n')

    assert rows(path) == [{"x": 1, "a, b; c": b"two"}]


def test_a_delimiter_that_fits_all_rows_is_preferred(write: Write) -> None:
    path = write("price (EUR, net);amount\n3;4\n")

    assert rows(path) == [{"price (EUR, net)": 3, "amount": 4}]


def test_a_delimiter_that_makes_all_cells_numbers_is_preferred(write: Write) -> None:
    path = write("price, net;amount\n1,5;2,25\n")

    assert rows(path) == [{"price, net": 1.5, "amount": 2.25}]


def test_a_delimiter_that_cannot_be_determined_is_an_error(write: Write) -> None:
    path = write("a,b;c\nx,y;z\n")

    with pytest.raises(SchemaError, match=r"a comma and a semicolon could both .*'a,b;c'\. Put"):
        CSVSource([path])


def test_a_row_of_another_length_does_not_change_the_delimiter(write: Write) -> None:
    source = CSVSource([write("x;y\n1;2\n1;2;3\n")])

    with pytest.raises(SchemaError, match=r"line 3 \(record 1\): the row .* contains ';' in q"):
        source.read_records(0, 2, None)


def test_a_tsv_file_is_split_at_tabs(write: Write) -> None:
    path = write("a,b\tc\nx,y\tz\n", "a.tsv")

    source = open_source(path)

    assert list(source.read_records(0, 1, None)[0]) == ["a,b", "c"]


def test_a_quote_opens_a_field_after_the_file_s_own_delimiter(write: Write) -> None:
    path = write('x;y\n1;"two\nlines"\n2;5" disk\n')

    assert [row["y"] for row in rows(path)] == [b"two\nlines", b'5" disk']


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("1,5;a\n-2;b\n", [1.5, -2.0]),
        # With points there are two ways to write a number, so that none is certain.
        ("1,5;2.5\n2,5;3\n", [b"1,5", b"2,5"]),
        # Either thousands or decimals.
        ("1,234;a\n5,678;b\n", [b"1,234", b"5,678"]),
        ("0,125;a\n5,75;b\n", [0.125, 5.75]),
        ("01.02.2024;1,5\n01.03.2024;2\n", [b"01.02.2024", b"01.03.2024"]),
    ],
)
def test_a_comma_is_a_decimal_separator_only_if_unambiguous(
    write: Write, text: str, cells: list[Any]
) -> None:
    path = write("x;y\n" + text)

    np.testing.assert_equal([row["x"] for row in rows(path)], np.array(cells, dtype=object))


@pytest.mark.parametrize(
    ("text", "is_noted"),
    [
        ("52,5;1.25\n11,26;2\n", True),
        # German thousands beside decimals.
        ("52,5;299.157\n11,26;8.400\n", True),
        ("52,5;2\n11,26;3\n", False),
        ("01.02.2024;1,5\n01.03.2024;2\n", False),
        # English thousands.
        ("1,234;2.5\n5,678;3\n", False),
    ],
)
def test_mixed_decimal_points_and_commas_are_reported(
    write: Write, caplog: pytest.LogCaptureFixture, text: str, is_noted: bool
) -> None:
    CSVSource([write("x;y\n" + text)]).read_records(0, 1, None)

    assert ("written with both decimal points and decimal commas" in caplog.text) == is_noted


def test_a_file_that_is_not_utf_8_is_windows_1252_with_one_message(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    paths = [write("größe;preis\n1;5 €\n".encode("cp1252"), name) for name in ("a.csv", "b.csv")]

    records = CSVSource(paths).read_records(0, 2, None)

    assert records[1]["preis"].item().decode() == "5 €"
    assert list(records[0]) == ["größe", "preis"]
    (message,) = caplog.messages
    assert "a.csv and 1 more file are not UTF-8 and read as Windows-1252" in message


def test_a_byte_undefined_in_windows_1252_means_latin_1(write: Write) -> None:
    assert rows(write(b"x\n\xe9\x81\n")) == [{"x": "é\x81".encode()}]


def test_a_character_split_between_reads_is_still_utf_8(write: Write) -> None:
    path = write("x\n" + "ß" * 99 + "\n")
    source = CSVSource([path])
    for read_bytes in (1, 2, 3, 5):
        index = index_rows(source._files[0][0], 16, read_bytes)
        assert index == source._files[0][1]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_byte_order_mark_determines_the_encoding(write: Write, encoding: str) -> None:
    mark = b"\xfe\xff" if encoding == "utf-16-be" else b""
    text = 'größe\tname\r\n1\t"zwei\r\nZeilen"\r\n\r\n2\t☃\r\n'
    path = write(mark + text.encode(encoding), "a.tsv")

    found = rows(path)

    assert [row["größe"] for row in found] == [1, 2]
    assert [row["name"].decode() for row in found] == ["zwei\r\nZeilen", "☃"]


def test_half_a_utf_16_character_is_a_corruption(write: Write) -> None:
    with pytest.raises(CorruptDataError, match="expected text in utf-16-le, found half a char"):
        CSVSource([write("x\n1\n".encode("utf-16") + b"3")])


def test_files_of_different_formats_satisfy_the_record_source_contract(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_rows, "__defaults__", (16, 16))
    text = "größe;y\n1,5;é\n2,5;é\n"
    paths = [
        write(gzip.compress(text.encode("cp1252")), "a.csv.gz"),
        write(text.encode("utf-16"), "b.csv"),
        write(text, "c.csv"),
    ]
    source = open_source(",".join(paths))
    expected = source.read_bytes(0, 6)
    assert expected[:2] == expected[2:4] == expected[4:]

    check_record_source(source, expected)


def test_an_index_stores_the_format_of_the_files(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(gzip.compress("1,5;4\n2;2,75\n".encode("latin-1")), "a.csv.gz")
    source = CSVSource([path])
    assert "without a header" in caplog.text
    caplog.clear()

    other = CSVSource([path], decode(encode(source.index()), "index"))

    assert other.read_bytes(0, 2) == source.read_bytes(0, 2)
    # The process that made the index has reported it.
    assert not caplog.messages


def test_a_first_line_of_numbers_is_not_a_header(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write("\n5.1,3.5,0\n4.9,3.0,1\n")

    assert rows(path) == [
        {"column_1": pytest.approx(5.1), "column_2": 3.5, "column_3": 0},
        {"column_1": pytest.approx(4.9), "column_2": 3.0, "column_3": 1},
    ]
    assert "has only numbers. The columns are named column_1 to column_3" in caplog.text


def test_an_unnamed_column_is_named_by_its_position(write: Write) -> None:
    # As pandas writes an index.
    assert rows(write(",x,\n0,1.5,a\n")) == [{"column_1": 0, "x": 1.5, "column_3": b"a"}]


@pytest.mark.parametrize("word", ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "<NA>"])
def test_placeholders_for_missing_numbers_keep_a_column_numeric(write: Write, word: str) -> None:
    path = write(f"x,y\n1.5,a\n{word},b\n2,c\n")

    source = CSVSource([path])
    source.infer_types()

    assert source.index().types == (("x", "double"), ("y", "binary"))


def test_plain_files_are_opened_without_a_message(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        CSVSource([write("größe,y\n1,2\n")])

    assert not caplog.messages

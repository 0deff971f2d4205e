"""CSV: each row is found by number, read as the schema says or as all its column is."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv as arrow_csv

from elasticdl.data import csv as csv_source
from elasticdl.data import csv_index
from elasticdl.data.csv import CSVSource
from elasticdl.data.csv_index import index_rows
from elasticdl.data.data_index import decode, encode
from elasticdl.data.schema import Schema
from elasticdl.data.stored_file import open_stored
from elasticdl.errors import CorruptDataError, SchemaError
from elasticdl.testing.record_source import check_decoding, check_record_source

TABLE = 'age,name,score,ok\n31,"Ann, B",1.5,true\n\n40,"two\nlines",2,false\n5,"""q""",-3e2,true\n'
ONE_EACH = Schema.from_user(
    [
        {"name": "age", "shape": [1], "dtype": "int64"},
        {"name": "score", "shape": [1], "dtype": "float32"},
        {"name": "name", "shape": [1], "dtype": "string"},
    ]
)


@pytest.fixture
def write(tmp_path):
    def write(text, name="a.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


@pytest.fixture
def small_blocks(monkeypatch):
    """Make blocks of a row or two, so that a few rows show what many do."""
    small = 16
    monkeypatch.setattr(index_rows, "__defaults__", (small, small))


def read_all(path, schema=None):
    source = CSVSource([path])
    return source.read_records(0, source.num_records, schema)


def schema_of(**fields):
    return Schema.from_user(
        [{"name": name, "shape": shape, "dtype": dtype} for name, (shape, dtype) in fields.items()]
    )


@pytest.mark.usefixtures("small_blocks")
def test_a_csv_source_satisfies_the_record_source_contract(write):
    paths = [write(TABLE, "a.csv"), write("age,name,score,ok\n", "b.csv")]
    paths += [write(TABLE.replace("\n", "\r\n"), "c.csv")]
    expected = CSVSource(paths).read_bytes(0, 6)
    assert len(set(expected)) == 4  # the text of two lines is another one in c.csv

    check_record_source(CSVSource(paths), expected)
    check_decoding(CSVSource(paths))


@pytest.mark.usefixtures("small_blocks")
def test_records_decoded_with_a_schema_match_those_read_as_bytes(write):
    path = write("x,y\n1.5,7\n-2,8\n0.5,9\n")

    check_decoding(CSVSource([path]), schema_of(y=([1], "int64"), x=([], "float32")))


def test_without_a_schema_column_types_are_inferred_from_cells(write):
    first, second, third = read_all(write(TABLE))

    assert list(first) == ["age", "name", "ok", "score"]
    assert first["age"].dtype == np.int64
    assert first["score"].dtype == np.float32
    assert [record["age"].tolist() for record in (first, second, third)] == [[31], [40], [5]]
    assert first["name"].tolist() == [b"Ann, B"]
    assert second["name"].tolist() == [b"two\nlines"]
    assert third["name"].tolist() == [b'"q"']
    assert third["score"].tolist() == [-300]
    assert [record["ok"].tolist() for record in (first, second)] == [[1], [0]]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("last", "dtype"), [("7", np.int64), ("7.5", np.float32), ("seven", object), ("1.5.2", object)]
)
def test_types_are_inferred_from_all_cells_of_all_files(write, last, dtype):
    first = write("x,y\n" + "1,aaaaaaaaaa\n" * 5, "a.csv")
    second = write("x,y\n" + "2,aaaaaaaaaa\n" * 5 + f"{last},a\n", "b.csv")

    (record,) = CSVSource([first, second]).read_records(0, 1, None)

    assert record["x"].dtype == dtype


def test_an_index_has_the_types_that_were_inferred(write, monkeypatch):
    paths = [write("x,y,t\n1,a,true\n", "a.csv"), write("x,y,t\n1.5,b,false\n", "b.csv")]
    source = CSVSource(paths)
    assert source.index().types is None
    source.infer_types()
    index = decode(encode(source.index()), "index")
    monkeypatch.setattr(csv_source, "arrow_types", None)

    other = CSVSource(paths, index)

    assert index.types == (("x", "double"), ("y", "binary"), ("t", "bool"))
    assert other.read_bytes(0, 1) == source.read_bytes(0, 1)
    assert other.index() == index


@pytest.mark.parametrize(
    ("values", "warning"),
    [
        (
            [*range(15), "4o,2", *range(15, 30), ""],
            (
                "Column 'x' is read as text because of 1 of its 31 values: '4o,2' (a.csv, line 17 "
                "(record 15)). The others are numbers. If all should be, correct the value, or "
                "leave the cell empty."
            ),
        ),
        (
            [*range(20), "?", "unknown", "1.5", "-.5e3", "inf", "NA"],
            (
                "because of 2 of its 25 values, such as '?' (a.csv, line 22 (record 20)). The "
                "others are numbers. If all should be, correct them, or leave the cells empty."
            ),
        ),
        (
            ["31.12.2024"] * 8 + ["2024-12-31", "2024/12/31 23:59", "soon"],
            "1 of its 11 values: 'soon' (a.csv, line 12 (record 10)). The others are dates or",
        ),
        (["true", "False"] * 5 + ["tru"], ": 'tru' (a.csv, line 12 (record 10)). The others are "),
        # Few values are an accident, many are on purpose, and words that repeat are classes.
        ([*range(9), "?"], None),
        ([*range(17), "2b", "3b"], None),
        ([*range(17), "?", "?"], "because of 2 of its 19 values, such as '?'"),
        ([1, 2, 3] * 10 + ["more"] * 2, None),
        ([1, 2, 3] * 10 + ["2b"], "because of 1 of its 31 values: '2b'"),
        ([1, 2, 3] * 10 + ["?"] * 2, "because of 2 of its 32 values, such as '?'"),
        (["1.2.3"] * 20, None),
        (range(20), None),
    ],
)
def test_a_column_that_a_few_cells_turn_into_text_is_named(write, caplog, values, warning):
    path = write("x;y\n" + "".join(f'"{value}";a\n' for value in values))
    source = CSVSource([path])

    source.infer_types()
    source.arrow_schema()

    assert len(caplog.messages) == bool(warning)
    assert (warning or "") in "".join(caplog.messages).replace(path, "a.csv")


def test_leading_zeros_that_are_lost_are_reported(write, caplog):
    path = write("x,id,name\n0,10,01\n10,00700,b\n5,7,c\n")

    CSVSource([path]).infer_types()

    (message,) = caplog.messages
    assert message == (
        f"Column 'id' is read as numbers, so leading zeros are lost: '00700' ({path}, line 3 "
        "(record 1)) is 700. To keep them, read the file as a DataFrame: "
        'data=pandas.read_csv(..., dtype={"id": str}).'
    )


def test_an_odd_cell_is_named_in_any_file_and_block(write, small_blocks, caplog):
    paths = [write("x,y\n" + "1,a\n" * 9), write("y,x\nb,2\nb,2.5\nb,3\n\nb,4o\nb,5\n", "b.csv")]

    CSVSource(paths).infer_types()

    (message,) = caplog.messages
    assert f"1 of its 14 values: '4o' ({paths[1]}, line 6 (record 3))" in message


def test_an_index_of_more_files_does_not_determine_types(write):
    paths = [write("x\n1\n", "a.csv"), write("x\n1.5\n", "b.csv")]
    source = CSVSource(paths)
    source.infer_types()

    (record,) = CSVSource(paths[:1], source.index()).read_records(0, 1, None)

    assert record["x"].dtype == np.int64


def test_an_unknown_type_in_an_index_is_refused(write):
    path = write("x\n1\n")
    index = replace(CSVSource([path]).index(), types=(("x", "complex"),))

    with pytest.raises(CorruptDataError, match=r"one of the types .*'double'.*'complex' of the"):
        CSVSource([path], index)


def test_one_source_may_be_read_with_several_schemas(write):
    source = CSVSource([write("x,y\n1,2\n")])
    schemas = [schema_of(x=([], "string")), None, schema_of(y=([], "float32")), None]

    read = [source.read_records(0, 1, schema)[0] for schema in schemas]

    assert [{name: array.item() for name, array in record.items()} for record in read] == [
        {"x": b"1"},
        {"x": 1, "y": 2},
        {"y": 2.0},
        {"x": 1, "y": 2},
    ]


def test_dates_are_text(write):
    (record,) = read_all(write("day,time\n2020-01-02,2020-01-02 03:04:05\n"))

    assert record["day"].tolist() == [b"2020-01-02"]
    assert record["time"].tolist() == [b"2020-01-02 03:04:05"]


def test_with_a_schema_fields_have_its_order_shape_and_dtype(write):
    records = read_all(write(TABLE), schema_of(score=([], "float64"), age=([1, 1], "uint8")))

    assert [list(record) for record in records] == [["score", "age"]] * 3
    assert records[2]["score"].dtype == np.float64
    assert records[2]["score"].shape == ()
    assert records[2]["age"].dtype == np.uint8
    assert records[2]["age"].tolist() == [[5]]


def test_numbers_may_be_read_as_text_and_as_booleans(write):
    (record,) = read_all(
        write("zip,ok,yes\n01234,true,1\n"),
        schema_of(zip=([1], "string"), ok=([1], "bool"), yes=([1], "bool")),
    )

    assert record["zip"].tolist() == [b"01234"]
    assert record["ok"].tolist() == record["yes"].tolist() == [True]


def test_a_field_of_several_values_is_made_of_numbered_columns(write):
    path = write("x_0,x_1,x_2,x_3,y\n" + "1,2,3,4.5,9\n" + "5,6,7,8,9\n")

    records = read_all(path, schema_of(x=([2, 2], "float32"), y=([1], "int64")))

    assert records[0]["x"].tolist() == [[1, 2], [3, 4.5]]
    assert records[1]["x"].tolist() == [[5, 6], [7, 8]]


def test_an_integer_may_be_written_with_a_point(write):
    assert read_all(write("y\n3.0\n"), schema_of(y=([], "int64")))[0]["y"] == 3


def test_files_may_have_reordered_and_additional_columns(write):
    first = write("x,y\n1,2\n", "a.csv")
    second = write("z,y,x\n9,4,3\n", "b.csv")

    records = CSVSource([first, second]).read_records(0, 2, schema_of(x=([1], "int64")))

    assert [record["x"].item() for record in records] == [1, 3]


def test_a_byte_order_mark_is_not_part_of_the_header(write):
    assert list(read_all(write("\ufeffx,y\n1,2\n"))[0]) == ["x", "y"]


def test_a_file_with_only_a_header_has_no_records(write):
    assert CSVSource([write("x,y")]).num_records == 0


def test_a_range_reads_only_its_blocks(write, monkeypatch):
    source = CSVSource([write("x\n" + "".join(f"{i:09}\n" for i in range(200_000)))])
    read = []
    original = type(open_stored(__file__)).read
    monkeypatch.setattr(
        type(open_stored(__file__)),
        "read",
        lambda self, start, stop: read.append(stop - start) or original(self, start, stop),
    )

    records = source.read_records(150_000, 150_003, schema_of(x=([], "int64")))

    assert [record["x"].item() for record in records] == [150_000, 150_001, 150_002]
    assert sum(read) <= 2 * csv_index.BLOCK_BYTES


# --- rows are counted as pyarrow counts them -----------------------------------------------------


@given(
    st.lists(st.lists(st.text('a",\r\n ', max_size=4), min_size=2, max_size=2), max_size=12),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(3, 40),
)
@settings(max_examples=200)
def test_output_of_pythons_writer_is_read_in_blocks_of_any_size(
    tmp_path_factory, rows, line_end, size
):
    text = io.StringIO(newline="")
    # Told of one line end, Python's writer would leave the others without quotes.
    quoting = csv.QUOTE_MINIMAL if line_end == "\r\n" else csv.QUOTE_ALL
    writer = csv.writer(text, lineterminator=line_end, quoting=quoting)
    writer.writerows([["x", "y"], *rows])
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(text.getvalue().encode())

    index = index_rows(open_stored(str(path)), size, size)

    assert index.firsts[-1] == len(rows)
    source = CSVSource.__new__(CSVSource)
    CSVSource.__init__(source, [str(path)])
    source._files = [(open_stored(str(path)), index)]
    records = source.read_records(0, len(rows), schema_of(x=([], "string"), y=([], "string")))
    assert [[r["x"].item().decode(), r["y"].item().decode()] for r in records] == rows


@given(st.text('a",\r\n', max_size=30), st.integers(1, 30))
@settings(max_examples=500)
def test_rows_are_counted_as_by_pyarrow_for_any_quotes(tmp_path_factory, text, read_bytes):
    data = text.encode()
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    path.write_bytes(b"head\n" + data)
    rows = 0

    def count(row):
        nonlocal rows
        rows += 1
        return "skip"

    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            arrow_csv.ReadOptions(use_threads=False, column_names=["a"], block_size=1000),
            arrow_csv.ParseOptions(newlines_in_values=True, invalid_row_handler=count),
        )
        rows += table.num_rows
    except pa.ArrowInvalid as error:
        # No row at all is an error to pyarrow; an open quote is one to us.
        if "Empty CSV" not in str(error):
            with pytest.raises(SchemaError, match="is not closed"):
                index_rows(open_stored(str(path)), 8, read_bytes)
            return

    try:
        index = index_rows(open_stored(str(path)), 8, read_bytes)
    except SchemaError:
        # pyarrow takes what is there as the field.
        assert text.count('"')
        return

    assert index.firsts[-1] == rows


# --- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.csv is empty; its first line should be the names"),
        ("\n\n", r"a\.csv is empty"),
        ("0,1,2\n3,4,5\n", r"first line is '0,1,2', which may be the names .* or the first row"),
        ("7\n", r"first line is '7', which may be the names"),
        ("x,x\n", "its header has several columns named 'x'"),
        (b"\xff\xfex\x00\x00\xd8\n\x00", "its header is not utf-16-le"),
        ("x" * 200_000 + ",y\n", "its first line is not a header"),
    ],
)
def test_an_unusable_header_is_refused(write, text, message):
    with pytest.raises(SchemaError, match=message):
        CSVSource([write(text)])


def test_a_header_with_many_columns_is_read_in_linear_time(write):
    names = [f"c{i}" for i in range(50_000)]

    source = CSVSource([write(",".join(names) + "\n")])

    assert source.num_records == 0


def test_an_unclosed_quote_is_detected_when_opening(write):
    path = write('x,y\n1,"a\nb"\n3,"4\n5,6\n')

    with pytest.raises(SchemaError, match=r"a\.csv, line 4: the quote that begins '\"4' is not "):
        CSVSource([path])


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(
    ("row", "schema", "message"),
    [
        ("1,2,x", ONE_EACH, r"the row has 3 cells, the header 4: '1,2,x'\. Add what is"),
        ("9,a,1,true,,", None, "the row has 6 cells, the header 4: .* Put text that contains ','"),
        ("abc,a,1,true", ONE_EACH, "column 'age' holds 'abc'; expected a number"),
        ("1,a,?,true", ONE_EACH, r"column 'score' holds '\?'"),
        ("3.5,a,1,true", ONE_EACH, "column 'age': holds 3.5, which an int64 cannot hold"),
        (",a,1,true", ONE_EACH, "column 'age' has no value"),
        ("1,a,nan,true", ONE_EACH, "column 'score' has no value"),
        ("1,a,,true", None, "column 'score' has no value"),
        ("1,a,1e300,true", ONE_EACH, r"column 'score': holds 1e\+300, which a float32"),
        (
            "1,a,1,maybe",
            schema_of(ok=([], "bool")),
            "column 'ok' holds 'maybe'; .* true, false",
        ),
        ("300,a,1,true", schema_of(age=([], "uint8")), "column 'age': holds 300"),
    ],
)
def test_an_unsuitable_row_is_named_with_its_column(write, row, schema, message):
    good = "31,a,1.5,true\n"
    source = CSVSource([write("age,name,score,ok\n" + good * 7 + row + "\n" + good)])
    assert source.num_records == 9

    with pytest.raises(SchemaError, match=rf"a\.csv, line 9 \(record 7\): {message}"):
        source.read_records(0, 9, schema)


@pytest.mark.parametrize("cell", ["$35.47", '"1,234.50"', "-€ 7", "12%"])
def test_the_advice_for_a_number_with_signs_tells_how_to_remove_them(write, cell):
    source = CSVSource([write(f"price;n\n1;1\n{cell};2\n")])
    schema = schema_of(price=([], "float32")).undeclared()
    found = re.escape(cell.strip('"'))

    with pytest.raises(
        SchemaError,
        match=rf"line 3 \(record 1\): column 'price' holds '{found}'; expected a number\. .* "
        r"remove the signs, in pandas with df\['price'\]\.str\.replace\(",
    ):
        source.read_records(0, 2, schema)


def test_the_advice_for_a_wrong_cell_names_a_schema_only_if_there_is_one(write):
    source = CSVSource([write("age\n1\nabc\n")])

    with pytest.raises(
        SchemaError,
        match=r"Correct the cell, or give the field the dtype \"string\" in data_schema\(\), and .*"
        r"; for a label, name the classes in the model file, classes = \[\.\.\.\], and return "
        r"classes\.index\(record\['age'\]\.item\(\)\.decode\(\)\)\. If "
        r"the value is missing, leave the cell empty; the field needs \"nullable\": True\.$",
    ):
        source.read_records(0, 2, schema_of(age=([], "int64")))
    with pytest.raises(
        SchemaError, match=r"Correct the cell\. .* accepts missing .*, leave the cell empty\.$"
    ):
        source.read_records(0, 2, schema_of(age=([], "int64")).undeclared())


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_the_line_of_a_cell_matches_an_editor(write, end, encoding):
    text = end.join(['"a', 'b",c', "x,1", f'"y{end}z",2', "", "x,?", ""])

    with pytest.raises(SchemaError, match=r"a\.csv, line 7 \(record 2\): column 'c' holds '\?'"):
        CSVSource([write(text.encode(encoding))]).read_records(0, 3, schema_of(c=([], "int64")))


def test_the_line_is_correct_if_a_character_spans_two_reads(write, monkeypatch):
    monkeypatch.setattr(csv_index, "_READ_BYTES", 2)
    source = CSVSource([write("b,c\n\U0001f600,1\ny,?\n".encode("utf-16"))])

    with pytest.raises(SchemaError, match=r"a\.csv, line 3 \(record 1\): column 'c'"):
        source.read_records(0, 2, schema_of(c=([], "int64")))


def test_a_missing_column_is_named_with_a_similar_one(write):
    with pytest.raises(SchemaError, match=r"field 'score' is missing .*; did you mean 'scores'\?"):
        read_all(write("age,name,scores\n1,a,2\n"), ONE_EACH)


def test_files_with_different_columns_need_a_schema(write):
    source = CSVSource([write("x,y\n1,2\n", "a.csv"), write("x,z\n1,2\n", "b.csv")])

    with pytest.raises(
        SchemaError, match=r"b\.csv has the columns 'x', 'z'; .*a\.csv has 'x', 'y'"
    ):
        source.read_records(0, 1, None)


def test_a_file_that_changed_after_opening_is_refused(write):
    source = CSVSource([write("x\n1\n2\n")])
    write("x\n123\n")

    with pytest.raises(CorruptDataError, match="expected 2 rows, as when it was opened, found 1"):
        source.read_records(0, 2, schema_of(x=([], "int64")))


# --- what is missing, dates and truth ------------------------------------------------------------

OF_ANY = Schema.from_user(
    [
        {"name": "age", "shape": [], "dtype": "float32", "nullable": True},
        {"name": "name", "shape": [], "dtype": "string", "nullable": True},
        {"name": "hired", "shape": [], "dtype": "float64", "nullable": True, "time": True},
        {"name": "ok", "shape": [], "dtype": "float64", "nullable": True},
    ]
)


def test_an_empty_cell_of_a_nullable_field_is_missing(write):
    path = write('age,name,hired,ok\n31,NA,1970-01-02,true\n,,,\n2.5,"",1970-01-01T00:00:01.5,0\n')

    records = read_all(path, OF_ANY)

    found = [[record[name].item() for name in OF_ANY.names] for record in records]
    # "NA" is a text like others; an empty one is no value.
    np.testing.assert_equal(
        found,
        [[31.0, b"NA", 86400.0, 1.0], [np.nan, None, np.nan, np.nan], [2.5, None, 1.5, 0.0]],
    )


def test_an_empty_cell_of_a_required_field_is_refused_with_advice(write):
    with pytest.raises(
        SchemaError, match=r"line 2 \(record 0\): column 'age' has no value\..*\"nullable\": T"
    ):
        read_all(write("age,name\n,x\n"), schema_of(age=([], "float32")))


def test_an_empty_cell_of_a_required_text_field_is_an_empty_text(write):
    (record,) = read_all(write("age,name\n1,\n"), schema_of(name=([], "string")))

    assert record["name"].item() == b""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2020-01-02", 1577923200),
        ("2020-01-02 00:00:01", 1577923201),
        ("2020-01-02T01:00:00+01:00", 1577923200),
        ("2020-01-02T00:00:00Z", 1577923200),
        ("1577923200", 1577923200),
        ("02.01.2020", 1577923200),
        ("2020/1/2 00:00", 1577923200),
    ],
)
def test_text_of_a_time_field_is_seconds(write, text, seconds):
    entry = {"name": "t", "shape": [], "dtype": "int64", "time": True}

    (record,) = read_all(write(f"t,x\n{text},1\n"), Schema.from_user([entry]))

    assert (record["t"].dtype, record["t"].item()) == (np.int64, seconds)


def test_text_of_a_time_field_may_have_several_forms(write):
    schema = Schema.from_user([{"name": "t", "shape": [], "dtype": "float64", "time": True}])
    times = ["02.01.2020", "2020-01-02", "02.01.2020 00:00:01"]

    records = read_all(write("\n".join(["t,x", *(f"{time},1" for time in times)]) + "\n"), schema)

    assert [record["t"].item() for record in records] == [1577923200, 1577923200, 1577923201]


@pytest.mark.parametrize("text", ["soon", "1.2.3", "5/6/2024"])
def test_text_that_is_not_a_time_is_named(write, text):
    entry = {"name": "t", "shape": [], "dtype": "float64", "time": True}

    with pytest.raises(
        SchemaError,
        match=rf"line 4 \(record 2\): column 't' holds '{text}', which is not a date or time\. "
        r"Write it like 31\.12\.2024\.$",
    ):
        read_all(write(f"t\nNA\n31.12.2024\n{text}\n"), Schema.from_user([entry]))


def test_true_is_1_in_a_field_of_numbers(write):
    schema = schema_of(ok=([], "float32"), n=([], "int64"))

    records = read_all(write("ok,n\ntrue,true\nFalse,0\n"), schema)

    assert [(record["ok"].item(), record["n"].item()) for record in records] == [(1, 1), (0, 0)]


@pytest.mark.usefixtures("small_blocks")
def test_a_column_may_have_booleans_and_numbers_in_different_blocks(write):
    path = write("ok\n" + "true\n" * 20 + "0\n" * 20)

    records = read_all(path, schema_of(ok=([], "float32")))

    assert [record["ok"].item() for record in records] == [1] * 20 + [0] * 20


@pytest.mark.parametrize("cell", ["x" * 200, '"' + "x,\n" * 70 + '"'])
def test_a_row_that_is_too_long_is_refused_before_it_is_read(write, monkeypatch, cell):
    monkeypatch.setattr(csv_index, "MAX_ROW_BYTES", 100)
    path = write(f"a,b\n1,2\n3,{cell}\n5,6\n")

    with pytest.raises(CorruptDataError, match=r"byte 8: expected a row of at most 100 bytes"):
        index_rows(open_stored(str(path)), 8, 16)

"""Features follow from what all rows of a column hold."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from elasticdl.data.column_summary import MAX_DISTINCT, ColumnSummary, Summarizer
from elasticdl.zoo.prebuilt.derived import derive


def summary(name: str, values, arrow_type=None):
    array = pa.array(values, arrow_type)
    summarizer = Summarizer(name, array.type)
    summarizer.add(array)
    return summarizer.summary()


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([1, 2], {"kind": "number"}),
        ([1.5, None], {"kind": "number", "nullable": True}),
        ([True, False], {"kind": "number"}),
        (["b", "a", "b", "a"], {"kind": "category", "vocabulary": ["a", "b"]}),
        (["a", "a", "once"], {"kind": "category", "vocabulary": ["a"]}),
        ([[1, 2], [3, 4]], {"kind": "number", "size": 2}),
        ([f"{i // 2}" for i in range(4000)], {"kind": "category", "buckets": 2048}),
    ],
)
def test_a_column_becomes_a_feature_of_its_kind(values, feature) -> None:
    column = summary("x", values)

    assert derive([column], "y").columns == [{"column": "x", **feature}]


@pytest.mark.parametrize(
    ("type_", "cycles"),
    [
        (pa.timestamp("s"), {}),
        (pa.timestamp("us", "UTC"), {}),
        (pa.date32(), {"cycles": ["year", "week"]}),
        (pa.time64("us"), {"cycles": ["day"]}),
    ],
)
def test_times_have_the_cycles_they_can_resolve(type_, cycles) -> None:
    column = summary("x", [0, 1], type_)

    (feature,) = derive([column], "y").columns
    feature.pop("offset")
    assert feature == {"kind": "time", "column": "x", **cycles}


@pytest.mark.parametrize(
    ("values", "offset"),
    [
        ([1_700_000_000, 1_700_000_600], 1_700_000_300),
        ([-1e6, -1e6 - 2, None], -1e6 - 1),
        (
            [
                dt.datetime(2024, 5, 1, tzinfo=dt.UTC),
                dt.datetime(2024, 5, 1, 0, 0, 2, tzinfo=dt.UTC),
            ],
            1_714_521_601,
        ),
        ([10, 30], None),
        ([dt.datetime(2020, 5, 1, tzinfo=dt.UTC), dt.datetime(2024, 5, 1, tzinfo=dt.UTC)], None),
        ([[1e9, 1e9 + 1], [1e9, None]], 1e9 + 1 / 3),
        ([[1e9, 1.0], [1e9 + 1, 2.0]], None),
    ],
)
def test_large_values_that_differ_little_have_an_offset(values, offset) -> None:
    (feature,) = derive([summary("x", values)], "y").columns

    assert feature.get("offset") == offset


def test_values_whose_squares_are_infinite_have_a_summary() -> None:
    column = Summarizer("x", pa.float64())
    for values in ([1e300, 2e300], [-1e300]):
        column.add(pa.array(values))

    assert (column.summary().maximum, column.summary().minimum) == (2e300, -1e300)
    assert derive([column.summary()], "y").columns == [{"kind": "number", "column": "x"}]


def test_a_duration_is_a_number_of_seconds() -> None:
    column = summary("x", [1500, None, 500], pa.duration("ms"))

    assert (column.kind, column.minimum, column.maximum, column.num_missing) == (
        "number",
        0.5,
        1.5,
        1,
    )
    assert derive([column], "y").columns == [{"kind": "number", "column": "x", "nullable": True}]


def test_a_summary_of_times_counts_in_seconds() -> None:
    for type_, seconds in [(pa.date32(), 86400.0), (pa.time32("s"), 1.0), (pa.time64("us"), 1e-6)]:
        column = summary("x", [0, 1], type_)

        assert (column.minimum, column.maximum) == (0.0, seconds)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None, None], "no value"),
        ([3, 3], "same in every row"),
        ([f"id{i}" for i in range(100)], "no value occurs twice"),
        ([{"a": 1}, {"a": 2}], "nothing can be learned"),
        ([[1], [1, 2]], "differ in length"),
        ([["a"], ["b"]], "nothing can be learned from lists of text"),
        ([f"text {i}" for i in range(95)] + ["text 0"] * 5, "almost every row has a text of its"),
    ],
)
def test_uninformative_columns_are_omitted_with_the_reason(values, reason) -> None:
    derived = derive([summary("x", values)], "y")

    assert derived.columns == []
    assert reason in derived.left_out["x"]


def test_the_reason_for_free_text_counts_the_rows_without_a_value() -> None:
    cabins = [f"C{i}" for i in range(95)] + ["C0"] * 5 + [None] * 300

    assert derive([summary("x", cabins)], "y").left_out["x"] == (
        "300 of 400 rows have no value, and almost every other row has a text of its own"
    )


@pytest.mark.parametrize(
    ("values", "signs", "conversion"),
    [
        (["863.02", "1,146.73"], "thousands separators", ".str.replace(',', '')"),
        (
            ["863,02", "1.146,73"],
            "thousands separators",
            ".str.replace('.', '').str.replace(',', '.')",
        ),
        (["35.47", "-$1,135.47"], "currency signs", ".str.replace('[$€£¥, ]', '', regex=True)"),
        (["6.5 %", "12%"], "percent signs", ".str.rstrip(' %')"),
    ],
)
def test_text_that_looks_like_numbers_has_a_hint_at_the_conversion(
    values, signs, conversion
) -> None:
    derived = derive([summary("x", [*values, values[1]])], "y")

    assert [each["kind"] for each in derived.columns] == ["category"]
    [note] = derived.notes()
    assert note == (
        f"Column 'x' is a category: its values look like numbers with {signs}, such as "
        f"{values[1]!r}. To use it as a number, convert it, in pandas with df['x']{conversion}"
        ".astype(float)."
    )


def test_unique_texts_that_look_like_numbers_are_left_out_with_the_hint() -> None:
    derived = derive([summary("x", [f"{i},500.25" for i in range(1, 100)])], "y")

    assert derived.left_out["x"].startswith("its values look like numbers with thousands separ")


@pytest.mark.parametrize("values", [["1,2", "1,234"], ["12%", "low"], ["a", "b"], ["863", "7"]])
def test_other_texts_have_no_hint_at_numbers(values) -> None:
    assert derive([summary("x", values)], "y").notes() == []


def test_periods_are_to_be_converted_to_times() -> None:
    periods = ColumnSummary("x", "extension<pandas.period<M>>", "other", num_rows=3, num_missing=0)

    assert derive([periods], "y").left_out["x"] == (
        "nothing can be learned from periods. Convert them to times, in pandas with "
        "df['x'].dt.to_timestamp()"
    )


def test_the_label_is_not_a_feature() -> None:
    assert derive([summary("y", [1, 2])], "y").columns == []


@pytest.mark.parametrize("differing", [1, 100, 255_000])
def test_integers_that_float64_rounds_to_few_different_ones_have_a_note(differing) -> None:
    first = 2**60 + 1
    values = [first, first + differing, first]

    [note] = derive([summary("x", values)], "y").notes()

    assert note == (
        "Column 'x' is rounded: its values, near 1.15e+18, differ little, and the network reads "
        "them as float64, which holds only multiples of 256 in this range. Subtract the same "
        "number from them in all data, in pandas with df['x'] -= 1152921504606846976. If they "
        'are identifiers, leave the column out, as the param ignore=["x"] does.'
    )


@pytest.mark.parametrize("values", [[2**60, 2**61], [2**52, 2**52 + 1], [2.0**60, 2.0**60 + 256]])
def test_numbers_that_float64_can_hold_have_no_note(values) -> None:
    assert derive([summary("x", values)], "y").notes() == []


OTHER = summary("other", [0.5, 1.5])


@pytest.mark.parametrize(
    ("form", "day_first"),
    [("%d.%m.%Y", ", dayfirst=True"), ("%Y-%m-%d", ""), ("%Y/%m/%d 09:30", "")],
)
def test_text_that_looks_like_dates_has_a_hint_at_the_conversion(form, day_first) -> None:
    first = dt.date(1980, 3, 1)
    days = [(first + dt.timedelta(days=i)).strftime(form) for i in range(60)]
    hint = (
        f"its values look like dates, such as {days[0]!r}. To use it as a time, convert it, in "
        f"pandas with pd.to_datetime(df['x']{day_first})"
    )

    assert derive([summary("x", days), OTHER], "y").left_out == {"x": hint}
    assert derive([summary("x", [*days[:2], *days[:2]])], "y").doubtful == {"x": hint}
    assert "look like" not in derive([summary("x", [*days, "soon"]), OTHER], "y").left_out["x"]


def test_an_ignored_column_is_not_a_feature() -> None:
    assert derive([summary("x", [1, 2])], "y", ["x"]).columns == []


@pytest.mark.parametrize(
    ("name", "is_left_out"),
    [
        ("id", True), ("user_id", True), ("PassengerId", True), ("ID", True), ("index", True),
        ("paid", False), ("valid", False), ("salary", False), ("Grid", False),
    ],
)  # fmt: skip
def test_unique_integers_are_identifiers_by_their_name(name: str, is_left_out: bool) -> None:
    column = summary(name, [7 * i for i in range(100)])

    assert (name in derive([column, OTHER], "y").left_out) == is_left_out


@pytest.mark.parametrize("first", [0, 1])
def test_a_row_number_is_not_a_feature_beside_others(first: int) -> None:
    column = summary("x", list(range(first, first + 100)))

    assert derive([column, OTHER], "y").left_out == {"x": "it looks like an identifier"}
    assert derive([column], "y").left_out == {}


@pytest.mark.parametrize(
    "values",
    [
        # A year per row is a trend.
        list(range(1900, 2000)),
        [*range(99), 98],
        # In a few rows, nothing repeats by chance.
        list(range(20)),
        [float(i) for i in range(100)],
    ],
)
def test_other_numbers_stay_numbers(values) -> None:
    assert [each["kind"] for each in derive([summary("x", values), OTHER], "y").columns] == [
        "number"
    ] * 2


@pytest.mark.parametrize(("every", "is_left_out"), [(1, True), (3, False)])
def test_free_text_is_detected_beyond_the_counted_values(every, is_left_out) -> None:
    column = summary("x", [f"text {i // every}" for i in range(every * (MAX_DISTINCT + 5))])

    assert column.values is None
    assert bool(derive([column], "y").left_out) == is_left_out


@pytest.mark.parametrize("year", [1, 1600, 9999])
def test_a_distant_date_is_an_ordinary_number(year) -> None:
    dates = [dt.datetime(2024, 1, 1), dt.datetime(year, 12, 31)]  # noqa: DTZ001

    [feature] = derive([summary("x", dates, pa.timestamp("us"))], "y").columns

    assert feature["column"] == "x"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("__index_level_0__", "it is the index of a DataFrame; write it with a name to use it"),
        ("column_1", "it has no name, as the index that pandas writes"),
        ("Unnamed: 0", "it has no name, as the index that pandas writes"),
    ],
)
def test_the_index_that_pandas_wrote_is_no_feature(name, reason) -> None:
    column = summary(name, [5 * i % 11 for i in range(60)])

    assert derive([column, OTHER], "y").left_out == {name: reason}


@pytest.mark.parametrize("label", ["column_3", "label"])
def test_the_first_column_of_a_file_without_names_is_a_feature(label) -> None:
    names = ["column_1", "column_2", label]
    columns = [summary(name, [7 * i % 101 for i in range(60)]) for name in names]

    assert derive(columns, label).left_out == {}


def test_a_first_column_of_dates_without_a_name_is_a_feature() -> None:
    column = summary("column_1", [dt.date(2024, 1, day) for day in range(1, 29)])

    assert derive([column, OTHER], "y").left_out == {}

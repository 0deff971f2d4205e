"""Features as values: an entry of `columns` says how a column becomes numbers."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.data.column_summary import Summarizer
from elasticdl.data.schema import Schema
from elasticdl.definition import Mode
from elasticdl.errors import SchemaError, UsageError
from elasticdl.zoo.prebuilt import columns as module
from elasticdl.zoo.prebuilt import lost_differences
from elasticdl.zoo.prebuilt.columns import Columns
from elasticdl.zoo.prebuilt.derived import derive

NAN = float("nan")
PAIR = {"kind": "number", "column": "x", "size": 2}


def columns(*entries) -> Columns:
    return Columns.of(json.loads(json.dumps(entries)), "label")


def rows(**fields) -> list[dict[str, np.ndarray]]:
    """Return records as a reader decodes them: arrays of shape () or of a list."""
    number = len(next(iter(fields.values())))

    def value(one):
        if one is None or isinstance(one, bytes):
            array = np.empty((), object)
            array[()] = one
            return array
        return np.array(one, object if isinstance(one, list) and b"" in map(type, one) else None)

    return [{name: value(values[i]) for name, values in fields.items()} for i in range(number)]


def arrays(entry, values) -> dict[str, np.ndarray]:
    return columns(entry).arrays(rows(**{entry.get("column"): values}))


def test_a_missing_number_is_marked() -> None:
    found = arrays({"kind": "number", "column": "age"}, [31.0, NAN])

    assert found["numbers"].tolist() == [[31.0], [0.0]]
    assert found["missing"].tolist() == [[0.0], [1.0]]
    assert found["numbers"].dtype == np.float32


def test_an_offset_keeps_the_differences_of_large_numbers() -> None:
    number = {"kind": "number", "column": "x", "offset": 1.7e9}
    found = arrays(number, [1.7e9 + 0.25, NAN, 1.7e9 - 0.5])
    assert found["numbers"].tolist() == [[0.25], [0.0], [-0.5]]
    assert found["missing"].tolist() == [[0.0], [1.0], [0.0]]

    time = {"kind": "time", "column": "x", "cycles": [], "offset": 1.7e9}
    assert arrays(time, [1.7e9 + 43_200.0])["numbers"].tolist() == [[0.5]]


@pytest.mark.parametrize(
    ("kind", "values", "offset"),
    [
        ("number", [1.7e9, NAN, 1.7e9 + 600], "1700000300"),
        ("number", [4.5e6 + 1, 4.5e6 - 1], "4500000"),
        ("time", [1.7e9, 1.7e9 + 60], "1700000030"),
        ("number", [1.7e9, 1.7e9], None),
        ("number", [1.7e9], None),
        ("number", [NAN, NAN], None),
        ("number", [1.0, 2.0], None),
    ],
)
@pytest.mark.filterwarnings("error")
def test_values_that_float32_cannot_tell_apart_have_a_warning(
    monkeypatch, caplog, kind, values, offset
) -> None:
    monkeypatch.setattr(lost_differences, "_warned", set())
    entry = {"kind": kind, "column": "x"}

    arrays(entry, values * 1000)
    arrays(entry, values * 1000)

    assert len(caplog.messages) == (0 if offset is None else 1)
    assert offset is None or f'Add "offset": {offset} to its entry' in caplog.text
    assert offset is None or "add 'x' to the param ignore" in caplog.text
    if offset is not None:
        monkeypatch.setattr(lost_differences, "_warned", set())
        arrays({**entry, "offset": float(offset)}, values * 1000)
        assert len(caplog.messages) == 1


@pytest.mark.parametrize(
    ("step_s", "mode", "is_warned"),
    [
        (3600, Mode.TRAINING, False),
        (1e-3, Mode.TRAINING, True),
        (1e-3, Mode.PREDICTION, False),
    ],
)
def test_batches_of_a_sorted_table_are_judged_together(
    monkeypatch, caplog, step_s, mode, is_warned
) -> None:
    monkeypatch.setattr(lost_differences, "_warned", set())
    times = (1.7e9 + step_s * np.arange(1000)).tolist()
    read = columns({"kind": "time", "column": "x"})

    for i in range(0, 1000, 2):
        assert not caplog.messages
        read.arrays(rows(x=times[i : i + 2]), mode)

    assert bool(caplog.messages) == is_warned


@pytest.mark.parametrize(
    ("values", "advice"),
    [
        ([[1.7e9, 1.7e9 + 100], [1.7e9 + 600, 1.7e9 + 700]], 'Add "offset": 1700000300 to its'),
        ([[1.7e9, 1.0], [1.7e9 + 600, 2.0]], "Split its lists into columns"),
    ],
)
def test_lists_that_float32_cannot_tell_apart_have_a_warning(
    monkeypatch, caplog, values, advice
) -> None:
    monkeypatch.setattr(lost_differences, "_warned", set())

    arrays({"kind": "number", "column": "x", "size": 2}, values * 500)

    assert advice in caplog.text


SEX = {"kind": "category", "column": "sex", "vocabulary": ["female", "male"]}
ALIKE = (
    "differ only by case or surrounding space from values that it knows ('female', 'male'). If "
    "these values mean the same as known ones, write them as the known ones are."
)


@pytest.mark.parametrize(
    ("entry", "values", "warning"),
    [
        (SEX, [b"M", None, b"F"] * 10, "none of its first values; it knows 'female', 'male'. If "),
        (SEX, [b"MALE", None, b"FEMALE"] * 3, ALIKE),
        (SEX, [b"male"] * 30 + [b"MALE", b" male ", b"Male", b"Female", b"0", b"FEMALE"], ALIKE),
        (SEX, [b"male"] * 30 + [b"MALE"] * 4 + [b"0"] * 20, ""),
        (SEX, [b"0"] * 19 + [None], ""),
        (SEX, [b"0"] * 20 + [b"male"], ""),
        (SEX, [None] * 9, ""),
        ({"kind": "category", "column": "sex", "buckets": 8}, [b"0"] * 20, ""),
        (
            SEX | {"vocabulary": [1, 2, 3, 4]},
            [7.0] * 20,
            "none of its first values; it knows 1, 2, 3, ...",
        ),
        (SEX | {"kind": "sequence", "delimiter": " "}, [b"a b", b"e"] * 7, "knows none of its"),
        (SEX | {"kind": "sequence", "delimiter": " "}, [b"male MALE", b"0"] * 5, ALIKE),
        (SEX | {"kind": "sequence", "delimiter": " "}, [b"male 0", b"MALE"] * 4, ""),
    ],
)
@pytest.mark.parametrize("mode", [Mode.EVALUATION, Mode.PREDICTION])
def test_values_written_differently_than_the_vocabulary_have_a_warning(
    entry, values, warning, mode, caplog
) -> None:
    found = columns(entry)
    records = rows(sex=values)

    for used in (Mode.TRAINING, mode):
        found.arrays(records, used)

    assert len(caplog.messages) == bool(warning)
    assert warning in caplog.text
    assert ("add 'sex' to the param ignore" in caplog.text) == (
        "none of " in warning or "knows none" in warning
    )


@pytest.mark.parametrize("first", [b"male", b"0"])
def test_the_first_20_values_are_compared_with_the_vocabulary_in_batches_of_any_size(
    first, caplog
) -> None:
    found = columns(SEX)

    found.arrays(rows(sex=[first, b"0", None, b"0"]), Mode.PREDICTION)
    for number in range(4, 40, 4):
        found.arrays(rows(sex=[b"0"] * 4), Mode.PREDICTION)
        assert len(caplog.messages) == (first == b"0" and number >= 20)


def test_only_records_with_unknown_values_are_compared_and_none_after_the_warning(
    monkeypatch, caplog
) -> None:
    read = []
    values_of = module._values
    monkeypatch.setattr(module, "_values", lambda *args: read.append(args) or values_of(*args))
    found = columns(SEX)

    for _ in range(7):
        found.arrays(rows(sex=[b"MALE", b"male", None]), Mode.PREDICTION)

    assert ALIKE in caplog.text
    assert len(read) == 5


def test_a_few_rare_values_before_known_ones_have_no_warning(caplog) -> None:
    found = columns(SEX)

    for values in ([b"0"] * 5, [b"0"] * 10, [b"male"] * 5, [b"0"] * 20):
        found.arrays(rows(sex=values), Mode.PREDICTION)

    assert not caplog.messages


def test_values_of_another_case_are_counted_over_batches_for_each_feature(caplog) -> None:
    found = columns(SEX, SEX | {"vocabulary": ["m", "f"]})

    for number in range(7):
        found.arrays(rows(sex=[b"MALE", b"m", b"f"]), Mode.PREDICTION)
        assert len(caplog.messages) == (number >= 4)

    assert ALIKE in caplog.text


def test_the_rows_of_the_training_data_have_no_warning(caplog) -> None:
    cabins = pa.array(["C23"] * 5 + ["B5"] * 5 + [f"A{number}" for number in range(40)])
    summarizer = Summarizer("cabin", cabins.type)
    summarizer.add(cabins)
    (entry,) = derive([summarizer.summary()], "label").columns
    assert entry["vocabulary"] == ["B5", "C23"]

    columns(entry).arrays(
        rows(cabin=[cabin.encode() for cabin in cabins.to_pylist()]), Mode.EVALUATION
    )

    assert not caplog.messages


def test_text_with_a_delimiter_is_split_into_an_array() -> None:
    entry = {"kind": "number", "column": "x", "size": 3, "delimiter": ","}

    found = arrays(entry, [b"1, 2,3", b"4,,6", None])

    assert found["numbers"].tolist() == [[1, 2, 3], [4, 0, 6], [0, 0, 0]]
    assert found["missing"].tolist() == [[0, 0, 0], [0, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize("text", [b"1,2", b"1,2,x"])
def test_an_array_of_another_length_is_named(text) -> None:
    entry = {"kind": "number", "column": "x", "size": 3, "delimiter": ","}

    with pytest.raises(SchemaError, match="Column 'x' holds '1,2.*expected 3 numbers with ','"):
        arrays(entry, [text])


def test_a_number_that_is_not_finite_is_named() -> None:
    with pytest.raises(SchemaError, match="Column 'x' holds 1e\\+300, which is not a number"):
        arrays({"kind": "number", "column": "x"}, [1.0, 1e300])


def test_unknown_values_share_an_id_and_missing_ones_another() -> None:
    entry = {"kind": "category", "column": "role", "vocabulary": ["clerk", "boss"]}

    found = arrays(entry, [b"boss", b"clerk", b"cook", b"king", None])

    assert found["ids"].tolist() == [[1], [0], [2], [2], [3]]


def test_a_vocabulary_of_numbers_reads_numbers() -> None:
    entry = {"kind": "category", "column": "floor", "vocabulary": [10, 20]}

    assert arrays(entry, [20.0, 10.0, 11.0, NAN])["ids"].tolist() == [[1], [0], [2], [3]]
    assert columns(entry).schema()[0]["dtype"] == "float64"


def test_hashed_ids_are_the_same_everywhere() -> None:
    entry = {"kind": "category", "column": "role", "buckets": 1000}

    found = arrays(entry, [b"clerk", None])

    # As any CRC-32 says, and the bucket after the last one.
    expected = zlib.crc32(b"roleclerk") % 1000
    assert found["ids"].tolist() == [[expected], [1000]]


def test_integers_are_hashed_as_strings() -> None:
    as_text = {"kind": "category", "column": "zip", "buckets": 1000}

    texts = arrays(as_text, [b"8001"])["ids"]
    numbers = arrays({**as_text, "dtype": "int64"}, [8001.0])["ids"]

    np.testing.assert_array_equal(texts, numbers)


def test_a_time_becomes_days_and_cycle_positions() -> None:
    # A Monday at 06:00, the first day of a year.
    monday = (np.datetime64("2018-01-01T06:00") - np.datetime64("1970-01-01T00:00")).astype(int)
    seconds = float(monday) * 60

    found = arrays({"kind": "time", "column": "hired"}, [seconds, NAN])

    days = (np.datetime64("2018-01-01") - np.datetime64("2000-01-01")).astype(int) + 0.25
    assert found["numbers"].tolist() == [[days], [0.0]]
    sines, cosines = np.split(found["plain"][0], 2)
    np.testing.assert_allclose(sines, np.sin(2 * np.pi * np.array([0.25 / 365, 0.25 / 7, 0.25])))
    np.testing.assert_allclose(cosines[2], 0, atol=1e-7)
    assert found["plain"][1].tolist() == [0] * 6


def test_a_time_has_the_given_cycles() -> None:
    entry = {"kind": "time", "column": "hired", "cycles": ["week"]}

    assert arrays(entry, [0.0])["plain"].shape == (1, 2)
    assert "plain" not in arrays({**entry, "cycles": []}, [0.0])


def test_sequences_are_padded_to_the_longest() -> None:
    entry = {"kind": "sequence", "column": "tags", "vocabulary": ["a", "b"], "delimiter": ","}

    found = arrays(entry, [b"a, b,z", b"b", b"", None])

    assert found["sequence_tags"].tolist() == [[0, 1, 2], [1, 3, 3], [3, 3, 3], [3, 3, 3]]


def test_a_sequence_may_be_a_column_of_lists() -> None:
    entry = {"kind": "sequence", "column": "tags", "vocabulary": [5, 7]}

    found = arrays(entry, [[7.0, 5.0], [], [NAN, 7.0]])

    assert found["sequence_tags"].tolist() == [[1, 0], [3, 3], [1, 3]]
    assert Schema.from_user(columns(entry).schema()).fields[0].varies


def test_sparse_text_becomes_a_vector() -> None:
    entry = {"kind": "sparse", "column": "f", "size": 4, "delimiter": " "}

    found = arrays(entry, [b"0:1.5 3:-2", b"1  2", None])

    assert found["plain"].tolist() == [[1.5, 0, 0, -2], [0, 1, 1, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("text", [b"4:1", b"-1:1", b"x:1", b"1:x", b"1:nan"])
def test_an_index_outside_the_vector_is_named(text) -> None:
    with pytest.raises(SchemaError, match="Column 'f' holds '.*with an index from 0 to 3"):
        arrays({"kind": "sparse", "column": "f", "size": 4}, [text])


def test_a_column_of_several_features_is_read_once() -> None:
    number = {"kind": "number", "column": "age"}
    found = columns(number, {"kind": "bucket", "of": number, "boundaries": [30]})

    assert [entry["name"] for entry in found.schema()] == ["age"]
    assert found.arrays(rows(age=[1.0]))["numbers"].shape == (1, 1)


def test_a_crossed_column_may_be_described_elsewhere() -> None:
    role = {"kind": "category", "column": "role", "vocabulary": ["clerk"]}
    found = columns({"kind": "cross", "of": ["role", "city"], "buckets": 10}, role)

    assert found.arrays(rows(role=[b"clerk"], city=[b"Rome"]))["ids"][0, 0] == 0
    assert [source.column for source in found.sources] == ["role", "city"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"kind": "numbr", "column": "x"}, r"kind 'numbr'; did you mean 'number'\? The kinds are"),
        ({"column": "x"}, r"columns\[0\] has the kind None. The kinds are number, category"),
        ("age", r"columns\[0\] is 'age'; expected a dict"),
        ({"kind": "number", "colum": "x"}, r"unknown key 'colum'; did you mean 'column'\?"),
        ({"kind": "number"}, r"columns\[0\] \(number\) has no 'column'"),
        ({"kind": "number", "column": ""}, "column is ''; expected its name"),
        ({"kind": "number", "column": "label"}, "is the label, 'label', so it cannot be a feature"),
        ({"kind": "number", "column": "x", "size": 0}, "size is 0; expected a whole number above"),
        ({"kind": "number", "column": "x", "nullable": 1}, "nullable is 1; expected true or false"),
        (
            {"kind": "number", "column": "x", "delimiter": ""},
            "delimiter is ''; expected a non-empty string",
        ),
        ({"kind": "category", "column": "x"}, "needs either a vocabulary or a number of buckets"),
        (
            {"kind": "category", "column": "x", "vocabulary": ["a"], "buckets": 3},
            "needs either a vocabulary or a number of buckets",
        ),
        ({"kind": "category", "column": "x", "vocabulary": []}, r"vocabulary is \[\]; expected"),
        ({"kind": "category", "column": "x", "vocabulary": ["a", 1]}, "expected a list of strings"),
        ({"kind": "category", "column": "x", "vocabulary": [1, 1.0]}, "has 1 twice"),
        (
            {"kind": "category", "column": "x", "vocabulary": ["a"], "dtype": "int64"},
            "dtype is 'int64', but its vocabulary has strings",
        ),
        ({"kind": "category", "column": "x", "buckets": 3, "dtype": "text"}, "dtype is 'text'"),
        (
            {"kind": "time", "column": "x", "cycles": ["weak"]},
            r"cycles has 'weak'; did you mean 'week'\?",
        ),
        ({"kind": "time", "column": "x", "cycles": "week"}, "cycles is 'week'; expected a list"),
        (
            {"kind": "bucket", "of": {"kind": "time", "column": "x"}, "boundaries": [1]},
            r"columns\[0\] \(bucket\).of is a time; expected a number",
        ),
        (
            {"kind": "bucket", "of": {"kind": "number", "column": "x"}, "boundaries": [2, 1]},
            r"boundaries is \[2, 1\]; expected ascending numbers",
        ),
        (
            {
                "kind": "bucket",
                "of": {"kind": "number", "column": "x", "size": 2},
                "boundaries": [1],
            },
            "its number has size 2; expected 1",
        ),
        ({"kind": "cross", "of": ["x"], "buckets": 3}, "expected a list of at least two"),
        ({"kind": "cross", "of": ["x", "label"], "buckets": 3}, "is the label"),
        ({"kind": "embedding", "of": "role", "dimension": 2}, "'role', which no other entry"),
        (
            {
                "kind": "embedding",
                "of": {"kind": "category", "column": "x", "buckets": 3},
                "dimension": 2,
                "combiner": "men",
            },
            r"combiner is 'men'; did you mean 'mean'\?",
        ),
    ],
)
def test_an_invalid_entry_is_refused(entry, message) -> None:
    with pytest.raises(UsageError, match=message):
        columns(entry)


def test_an_unknown_column_is_reported_with_a_similar_one() -> None:
    roles = {"kind": "number", "column": "roles"}

    with pytest.raises(UsageError, match=r"'role', which no other .*; did you mean 'roles'\?"):
        columns(roles, {"kind": "indicator", "of": "role"})


def test_reading_a_column_in_two_ways_is_refused() -> None:
    with pytest.raises(UsageError, match="read 'x' as a number and as a category of another type"):
        columns(
            {"kind": "number", "column": "x"}, {"kind": "category", "column": "x", "buckets": 3}
        )


@pytest.mark.parametrize("entries", [[], {}, "age"])
def test_columns_must_be_a_list(entries) -> None:
    with pytest.raises(UsageError, match="expected a list with one dict per feature"):
        Columns.of(entries, "label")

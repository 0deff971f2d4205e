"""What the user leaves out is completed from the training table, or refused with the way out."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from elasticdl.data.column_summary import Summarizer
from elasticdl.errors import DataError, UsageError, as_keywords
from elasticdl.zoo.params import parse_params
from elasticdl.zoo.prebuilt.table_params import (
    classifier_completion,
    misnamed_column,
    regressor_completion,
)

X = [0.5, 1.5, 2.5, 3.5]


def table(**columns: list[Any]) -> list[Any]:
    found = []
    for name, values in columns.items():
        array = pa.array(values)
        summarizer = Summarizer(name, array.type)
        summarizer.add(array)
        found.append(summarizer.summary())
    return found


def completed(values: list[Any], **params: Any) -> dict[str, Any]:
    complete = classifier_completion({"label": "y", **params}, "classifier.DNN")
    assert complete is not None
    return dict(complete(table(x=X, y=values)).params)


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (["yes", "no", "yes", "no"], ["no", "yes"]),
        ([3, 1, 3, 2], [1, 2, 3]),
        ([True, False, True, True], [False, True]),
        # Whole numbers as a file with gaps has them.
        ([1.0, 0.0, 1.0, 0.0], [0, 1]),
    ],
)
def test_the_values_of_the_label_become_the_classes(label, classes) -> None:
    found = completed(label)["classes"]

    assert found == classes
    assert [type(value) for value in found] == [type(value) for value in classes]


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (
            [f"passenger {i}" for i in range(60)],
            "a text of its own, so it looks like an identifier",
        ),
        (
            [f"street {i % 60}" for i in range(600)],
            "60 different values, and each becomes a class.",
        ),
        ([i % 60 for i in range(600)], "To predict a number, use a regressor."),
        (
            [f"street {i if i < 100 else i % 30}" for i in range(600)],
            "70 of them occur in one row only, so it looks like an identifier or free text",
        ),
        (
            [i if i < 100 else i % 30 for i in range(600)],
            "number or an identifier; a class can hardly be learned from one row. Use a regressor",
        ),
        ([i if i < 60 else i % 25 for i in range(2000)], "To predict a number, use a regressor."),
    ],
)
def test_many_classes_have_a_note_that_fits_their_kind(values, note) -> None:
    complete = classifier_completion({"label": "y"}, "classifier.DNN")
    assert complete is not None

    notes = complete(table(x=[0.5 * i for i in range(len(values))], y=values)).notes

    assert [each for each in notes if each.endswith(note) or note in each]
    assert ("regressor" in " ".join(notes)) == ("regressor" in note)


@pytest.mark.parametrize(("num_rows", "is_doubtful"), [(300, True), (2000, False)])
def test_a_label_with_a_long_tail_of_classes_has_no_warning(num_rows, is_doubtful) -> None:
    complete = classifier_completion({"label": "y"}, "classifier.DNN")
    assert complete is not None
    streets = [f"street {i if i < 60 else i % 25}" for i in range(num_rows)]

    notes = complete(table(x=[0.5 * i for i in range(num_rows)], y=streets)).notes

    assert any(each.startswith("WARNING") for each in notes) == is_doubtful


def test_text_only_data_are_advised_to_read_words() -> None:
    complete = classifier_completion({"label": "y"}, "classifier.DNN")
    assert complete is not None
    texts = [f"word {i} of many" for i in range(60)]

    with pytest.raises(DataError) as raised:
        complete(table(review=texts, y=["a", "A"] * 30))

    # Without the note on the classes 'a' and 'A'.
    assert str(raised.value) == (
        "No column is left to predict 'y' from. Column 'review' is left out: no value occurs "
        "twice. To learn from the words in 'review', read it as a sequence of words: "
        '--params=\'label="y", columns=[{"kind": "sequence", "column": "review", "delimiter": " ", '
        '"buckets": 5000}]\''
    )


def test_the_other_columns_become_features() -> None:
    assert completed(["a", "b", "a", "b"])["columns"] == [{"kind": "number", "column": "x"}]


def test_params_given_by_the_user_are_kept() -> None:
    given = [{"kind": "number", "column": "x"}]

    assert completed(["a", "b", "a", "b"], columns=given)["columns"] == given
    assert completed([0, 1, 0, 1], classes=[1, 0])["classes"] == [1, 0]
    assert "classes" not in completed([0, 1, 0, 1], num_classes=5)


def test_string_classes_are_completed_despite_num_classes() -> None:
    assert completed(["a", "b", "a", "b"], num_classes=2)["classes"] == ["a", "b"]


def test_complete_params_are_not_changed() -> None:
    columns = [{"kind": "number", "column": "x"}]

    assert classifier_completion({"columns": columns, "classes": [0, 1]}, "m") is None
    assert regressor_completion({"columns": columns, "label_mean": 3.0}, "m") is None


def test_a_regressor_scales_labels_by_their_spread() -> None:
    complete = regressor_completion({"label": "y"}, "regressor.DNN")
    assert complete is not None

    params = complete(table(x=X, y=[10, 20, 10, 20])).params

    assert (params["label_mean"], params["label_scale"]) == (15.0, 5.0)


def test_a_column_that_is_not_a_feature_is_reported() -> None:
    complete = classifier_completion({"label": "y", "ignore": ["z"]}, "classifier.DNN")
    assert complete is not None

    found = complete(table(x=X, y=[0, 1, 0, 1], same=[1] * 4, z=[1, 2, 3, 4]))

    assert found.notes == ["Column 'same' is left out: it is the same in every row."]
    assert "ignore" not in found.params


@pytest.mark.parametrize(
    ("label", "params", "problem"),
    [
        ([1, None, 1, 0], {}, "'y', the label, has no value in 1 row of 4. Leave .*dropna.*'y'"),
        ([None] * 4, {}, "'y' has no values at all"),
        # The type first: without the rows that lack a label, it would be the next error.
        ([0.5, None, 2, 1], {}, "'y' is a number with fractions, such as 0.5 .*Use a regressor"),
        ([1, 1, 1, 1], {}, "'y' is 1 in every row, so .*--params='label"),
        ([0.5, 1, 2, 1], {}, "'y' is a number with fractions, such as 0.5 .*Use a regressor"),
        ([{"a": 1}, {"a": 2}] * 2, {}, "'y' holds structs, which cannot be classes"),
        ([1, 0, 1, 0], {"ignore": ["x"]}, "No column is left to predict 'y' from"),
    ],
)
def test_an_unsuitable_table_is_refused(label, params, problem) -> None:
    with pytest.raises(DataError, match=problem):
        completed(label, **params)


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ([1, None, 1, 0], r"in 1 row of 4 \(a.csv, record 1\)\. Leave"),
        ([1, None, None, 0], r"in 2 rows of 4 \(the first is a.csv, record 1\)\. Leave"),
    ],
)
def test_the_first_row_without_a_label_is_named(label, words) -> None:
    complete = classifier_completion({"label": "y"}, "classifier.DNN")
    assert complete is not None
    columns = [replace(each, missing_at="a.csv, record 1") for each in table(x=X, y=label)]

    with pytest.raises(DataError, match=words):
        complete(columns)


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"label": "Y"}, r"no column 'Y', the label; it has 'x', 'y'.*label=\"y\""),
        ({"ignore": ["X"]}, "ignore has 'X', which is not a column"),
        ({"columns": [{"kind": "number", "column": "X"}]}, "columns has 'X', which is not a col"),
        (
            {"columns": [{"kind": "cross", "of": ["x", {"kind": "number", "column": "z"}]}]},
            "columns has 'z', which is not a column",
        ),
    ],
)
def test_a_param_with_a_missing_column_is_a_usage_error(params, problem) -> None:
    with pytest.raises(UsageError, match=problem):
        completed([1, 0, 1, 0], **params)


def test_a_regressor_refuses_strings() -> None:
    complete = regressor_completion({"label": "y"}, "regressor.DNN")
    assert complete is not None

    with pytest.raises(DataError, match="'y' holds text. Use a classifier, or another column as"):
        complete(table(x=X, y=["a", "b", "a", "b"]))


@pytest.mark.parametrize(
    ("names", "suggested"),
    [
        (["x", "table"], "NAME"),
        (["x", "labels"], "labels"),
        (["x", 'it\'s "new" label'], "NAME"),
        (["x", "y"], "y"),
        (["y", "x"], "NAME"),
    ],
)
def test_only_y_or_a_column_named_like_the_default_label_is_suggested(names, suggested) -> None:
    error = misnamed_column({}, names)

    assert error is not None
    assert str(error).endswith(f"Name one of them: --params='label=\"{suggested}\"'")


def test_an_advised_param_fits_a_shell_and_a_call() -> None:
    complete = classifier_completion({"label": "y"}, "classifier.DNN")
    assert complete is not None
    name = 'it\'s "new"'

    with pytest.raises(DataError) as raised:
        complete(table(**{name: [f"word {i} of many" for i in range(60)], "y": ["a", "b"] * 30}))

    message = str(raised.value)
    entry = {"kind": "sequence", "column": name, "delimiter": " ", "buckets": 5000}
    option = shlex.split(message[message.index("--params=") :])[0]
    assert parse_params(option.removeprefix("--params=")) == {"label": "y", "columns": [entry]}
    assert as_keywords(message, ["params"]).endswith(
        f'params={{"label": "y", "columns": [{json.dumps(entry)}]}}'
    )

"""`--params` is read as literals, and a mistake in it is shown where it is."""

from __future__ import annotations

import pytest

from elasticdl.errors import UsageError
from elasticdl.zoo.params import parse_params


def refused(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_params(text)
    return str(caught.value)


def test_documented_params_are_read() -> None:
    assert parse_params("hidden_units=[10, 100, 20, 5], learning_rate=0.01") == {
        "hidden_units": [10, 100, 20, 5],
        "learning_rate": 0.01,
    }


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("  ", {}),
        ("a=-1.5e-3", {"a": -0.0015}),
        ("a=1;b=2", {"a": 1, "b": 2}),
        ("a=1; b=2,", {"a": 1, "b": 2}),
        ("a = True , b = None", {"a": True, "b": None}),
        ("a='x, y; z=[', b=\"it's\"", {"a": "x, y; z=[", "b": "it's"}),
        ("a={'k': [1, (2, 3)], 'm': {}}", {"a": {"k": [1, (2, 3)], "m": {}}}),
        ("a='\\'', b=1", {"a": "'", "b": 1}),
        ("a='=', b=(1,)", {"a": "=", "b": (1,)}),
        ("a='ä',\nb=1", {"a": "ä", "b": 1}),
    ],
)
def test_literals_are_read(text: str, values: dict) -> None:
    assert parse_params(text) == values


EXPECTED = '  Expected a number, or a string in quotes: "relu"'


def test_a_bare_word_is_pointed_at_with_advice_to_quote_it() -> None:
    lines = refused("units=3, activation=relu").splitlines()

    assert lines == [
        "--params: relu is not a value of activation (at position 21).",
        "    units=3, activation=relu",
        "                        ^^^^",
        EXPECTED + """, such as --params='units=3, activation="relu"'""",
    ]


def test_a_bare_word_in_a_list_is_pointed_at() -> None:
    message = refused("a=['ä', relu]")

    assert message.splitlines()[1:3] == ["    a=['ä', relu]", "            ^^^^"]


@pytest.mark.parametrize(("word", "literal"), [("true", "True"), ("null", "None")])
def test_literals_of_other_languages_are_answered_with_the_python_form(
    word: str, literal: str
) -> None:
    assert f"In Python this is {literal}." in refused(f"a={word}")


def test_no_code_is_executed(tmp_path) -> None:
    trace = tmp_path / "ran"

    assert "not a literal" in refused(f"a=open({str(trace)!r}, 'w')")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a", "a has no name"),
        ("a=1, 2", "use brackets:  a=[..., 2]"),
        ("{'a': 'b', 'c': 1}", """For this dict: --params='a="b", c=1'"""),
        ("{'a': [\"it's\"]}", "Expected NAME=VALUE, NAME=VALUE, ..."),
        ("{3: 4}", "Expected NAME=VALUE, NAME=VALUE, ..."),
        ("a=", "a has no value"),
        ("a=1, a=2", "a is given twice"),
        ("a=[1, 2", "'[' is not closed"),
        ("a=1]", "']' has no opening bracket"),
        ("a=(1]", "']' has no opening bracket"),
        ("a='x", "unterminated string"),
        ("a==1", "not a literal"),
        ("a=1/3", "not a literal"),
        ("a=f'{1}'", "not a literal"),
        ("a={1, 2}", "holds a set"),
        ("a=b'x'", "holds a bytes"),
        ("1a=2", "'1a' is not a name"),
        ("class=2", "'class' is not a name"),
        ("a=1,,b=2", "nothing before this ','"),
        ("a=1 # b=2", "'#' is not expected"),
        ("a=" + "[" * 5000 + "]" * 5000, "not a literal"),
    ],
)
def test_anything_else_is_refused_with_its_place(text: str, problem: str) -> None:
    message = refused(text)

    assert problem in message
    assert "at position" in message


def test_carets_stay_aligned_in_a_long_text() -> None:
    text = ", ".join(f"name{i}={i}" for i in range(50)) + ", last=oops, more=1"

    _, shown, carets, _ = refused(text).splitlines()

    assert shown[carets.index("^") : carets.rindex("^") + 1] == "oops"

"""`${VAR}`: every text comes out of the database as it went in, and none of it is SQL."""

from __future__ import annotations

import datetime as dt
import decimal

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot.dialects.dialect import Dialect

from elasticdl.gc_tuning import collect_at_exit
from elasticdl.sql.literals import literal, with_values
from elasticdl.sql.parse import parse
from elasticdl.sql.statements import StatementError

collect_at_exit()
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(TEXTS)
def test_a_string_survives_a_round_trip_in_duckdb(text: str) -> None:
    program = with_values("SELECT ${text} AS a", {"text": text})

    with duckdb.connect() as connection:
        assert connection.execute(program).fetchone() == (text,)


@given(TEXTS, st.sampled_from(["duckdb", "postgres", "mysql", "sqlite"]))
def test_a_string_is_one_literal_in_every_dialect(text: str, dialect: str) -> None:
    program = "SELECT * FROM t TO TRAIN m WITH a=${text} INTO b;"
    try:
        (train,) = parse(with_values(program, {"text": text}, dialect), dialect)
    except StatementError as error:
        # Its SELECT and its WITH would not read it alike.
        assert (dialect, "\\" in text) == ("mysql", True), error  # noqa: PT017
    else:
        assert [each.value for each in train.attributes.values()] == [text]
    (token,) = Dialect.get_or_raise(dialect).tokenize(literal(text, dialect))
    assert token.text == text


def test_values_of_other_types_have_their_literals() -> None:
    values = {
        "a": None, "b": True, "c": np.int64(-3), "d": 1.5, "e": decimal.Decimal("0.10"),
        "f": dt.date(2026, 1, 2), "g": dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC), "h": [1, 2],
        "i": ("x", "y"),
    }  # fmt: skip
    program = " | ".join(f"${{{name}}}" for name in values)

    assert [each.strip() for each in with_values(program, values).split("|")] == [
        "NULL", "TRUE", "-3", "1.5", "0.10", "'2026-01-02'", "'2026-01-02 03:04:00+00:00'",
        "[1, 2]", "('x', 'y')",
    ]  # fmt: skip


def test_a_minus_before_a_negative_number_is_not_a_comment() -> None:
    assert with_values("SELECT 5-${n};", {"n": -1}) == "SELECT 5- -1 ;"


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("SELECT '${x}'", "without quotes"),
        ('SELECT "${x}"', "without quotes"),
        ("SELECT a${x}", "separate from other words"),
        ("SELECT $$ ${x} $$", "without quotes"),
        ("SELECT ${xx}", "no variable 'xx'; did you mean 'x'?"),
        ("SELECT ${x.y}", "no variable"),
        ("SELECT ${nul}", "cannot be quoted"),
        ("SELECT ${inf}", "no literal"),
        ("SELECT ${thing}", "a object cannot be written as an SQL literal"),
        ("SELECT ${none}", "at least one member"),
    ],
)
def test_an_unsupported_value_is_refused_with_its_place(program: str, problem: str) -> None:
    values = {"x": "a", "nul": "a\0b", "inf": float("inf"), "thing": object(), "none": ()}

    with pytest.raises(StatementError, match="line 1, column ") as caught:
        with_values(program, values)
    assert problem in str(caught.value)
    assert caught.value.column == program.index("${") + 1


def test_comments_and_escapes_are_kept() -> None:
    program = "SELECT 1 -- ${x}\n /* ${x} */, '$${x}'"

    assert with_values(program, {}) == "SELECT 1 -- ${x}\n /* ${x} */, '${x}'"

"""Statements are found in a program, and everything else is left to the database."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.sql.parse import parse
from elasticdl.sql.statements import (
    Call,
    Evaluate,
    Explain,
    Predict,
    Query,
    ShowTrain,
    StatementError,
    Train,
)

SEED = """\
SELECT name, role, salary FROM employee
TRAIN regressor.DNN
WITH hidden_units=[10, 100, 20, 5], learning_rate=0.01
INTO my_trained_model;

SELECT name, role FROM testdata
PREDICT testdata.predicted_salary
USING my_trained_model;
"""


def values(attributes):
    return {name.text: value.value for name, value in attributes.items()}


def test_the_statements_of_the_seed_are_read_as_written() -> None:
    train, predict = parse(SEED)

    assert isinstance(train, Train)
    assert train.select == "SELECT name, role, salary FROM employee"
    assert train.model.text == "regressor.DNN"
    assert train.into.text == "my_trained_model"
    assert values(train.attributes) == {"hidden_units": [10, 100, 20, 5], "learning_rate": 0.01}
    assert train.label is None
    assert isinstance(predict, Predict)
    assert predict.select == "SELECT name, role FROM testdata"
    assert (predict.table.text, predict.column.text) == ("testdata", "predicted_salary")
    assert predict.using.text == "my_trained_model"


def test_clauses_of_the_later_grammar_may_have_any_order() -> None:
    [train] = parse(
        "SELECT * FROM t TO TRAIN classifier.DNN INTO iris.v1 LABEL class "
        "COLUMN INDICATOR(BUCKET(age, [10, 20])), DENSE(a, 3), b "
        "WITH model.n=-1, train.batch_size=+10, s='it''s', q=\"x\", on=TRUE, off=null USING old;"
    )

    assert isinstance(train, Train)
    assert train.into.text == "iris.v1"
    assert train.label is not None
    assert train.label.text == "class"
    assert train.using is not None
    assert train.using.text == "old"
    assert values(train.attributes) == {
        "model.n": -1, "train.batch_size": 10, "s": "it's", "q": "x", "on": True, "off": None,
    }  # fmt: skip
    bucket, dense, plain = train.columns
    assert isinstance(bucket, Call)
    assert bucket.function == "INDICATOR"
    assert isinstance(dense, Call)
    assert plain.text == "b"


def test_evaluate_explain_and_show_statements_are_parsed() -> None:
    evaluate, explain, show = parse(
        "SELECT 1 TO EVALUATE m LABEL y INTO t; SELECT 1 EXPLAIN m WITH a=1; SHOW TRAIN m"
    )

    assert isinstance(evaluate, Evaluate)
    assert evaluate.into is not None
    assert evaluate.into.text == "t"
    assert isinstance(explain, Explain)
    assert isinstance(show, ShowTrain)
    assert show.model.text == "m"


@pytest.mark.parametrize("dialect", ["duckdb", "postgres", "mysql", "sqlite"])
@pytest.mark.parametrize(
    "statement",
    [
        "SELECT 'TO TRAIN m INTO x' AS a FROM t",
        "SELECT a FROM t -- TO TRAIN m INTO x",
        "SELECT a /* TO TRAIN m INTO x; */ FROM t",
        "SELECT a FROM (SELECT b FROM t) train",
        "SELECT train FROM predict",
        "SELECT a FROM t JOIN predict p USING (id)",
        "SELECT a train FROM t explain WHERE a > 1",
        "CREATE TABLE train (a INTEGER)",
        "SHOW TABLES",
    ],
)
def test_keywords_elsewhere_belong_to_the_database(statement, dialect) -> None:
    [query] = parse(statement, dialect)

    assert isinstance(query, Query)
    assert query.text == statement


def test_subqueries_and_comments_may_contain_extension_keywords() -> None:
    [train] = parse(
        "SELECT a FROM (SELECT 1 a WHERE 'TO TRAIN x' <> '') s -- TO PREDICT\n"
        "TO /* now */ TRAIN regressor.DNN INTO m"
    )

    assert isinstance(train, Train)
    assert train.select == "SELECT a FROM (SELECT 1 a WHERE 'TO TRAIN x' <> '') s"


@pytest.mark.parametrize(
    ("program", "line", "column", "problem"),
    [
        ("SELECT 1\n  TO TRAIN x WITH a= INTO y", 2, 22, "Expected a value"),
        ("SELECT 1 TO TRAIN", 1, 18, "Expected the name of a model"),
        ("SELECT 1 TO TRAIN x", 1, 20, "TRAIN needs INTO"),
        ("SELECT 1 TO PREDICT t USING m", 1, 21, "TABLE.COLUMN"),
        ("SELECT 1 TO PREDICT t.c", 1, 24, "PREDICT needs USING"),
        ("SELECT 1 TO TRAIN x INTO ../m", 1, 26, "found '.'"),
        ('SELECT 1 TO TRAIN x INTO "../m"', 1, 26, "is not a valid name"),
        ("SELECT 1 TO TRAIN x LABLE y INTO m", 1, 21, "did you mean 'LABEL'?"),
        ("SELECT 1 TO TRAIN x LABEL a b c INTO m", 1, 29, 'in double quotes: LABEL "a b c"'),
        ("SELECT 1 TO TRAIN x WITH a=1, a=2 INTO m", 1, 31, "given twice"),
        ("SELECT 1 TO TRAIN x WITH a=[1, 2 INTO m", 1, 34, "Expected ',' or ']'"),
        ("SELECT 1 TO TRAIN x INTO m INTO n", 1, 28, "is given twice"),
        ("TO TRAIN x INTO m", 1, 1, "no SELECT before TO. Expected SELECT ... TO TRAIN"),
        ("SELECT 1; EVALUATE m", 1, 11, "Expected SELECT ... TO EVALUATE"),
        ("SHOW TRAIN", 1, 11, "Expected the name"),
        ("SHOW TRAIN a b", 1, 14, "nothing else"),
        ("SELECT 1;\nSELECT 'abc", 2, 8, "nterminated"),
    ],
)
def test_an_error_points_at_the_place(program, line, column, problem) -> None:
    with pytest.raises(StatementError, match=problem) as caught:
        parse(program)

    assert (caught.value.line, caught.value.column) == (line, column)
    *_, shown, caret = str(caught.value).splitlines()
    assert shown.strip() in program
    assert caret.index("^") - 2 == column - 1


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_parsed_or_refused(text) -> None:
    for program in (text, f"SELECT 1 TO TRAIN {text}", f"SELECT 1 TO TRAIN m WITH {text} INTO x"):
        with contextlib.suppress(StatementError):
            parse(program)


@pytest.mark.parametrize("text", ["'", "' ", '"a"x"', "/* "])
def test_a_program_full_of_quotes_is_refused_quickly(text: str) -> None:
    begun_s = time.monotonic()

    with pytest.raises(StatementError, match="nterminated"):
        parse("SELECT 'a', " + text * 20_001)
    # It took minutes when the place was searched for.
    assert time.monotonic() - begun_s < 20

"""Labels: rows without one, rare ones, and columns that cannot be features beside them."""

from __future__ import annotations

import pytest

from elasticdl.errors import DataError, ElasticDLError
from elasticdl.sql.execute import SqlSession, execute

SHORT = "hidden_units=[4], train.num_epochs=1"


def run(program: str, tmp_path) -> None:
    list(execute(program, SqlSession("duckdb://", str(tmp_path))))


@pytest.mark.parametrize(
    ("select", "clauses", "problem", "place"),
    [
        ("i AS a, NULL::INT AS y", "LABEL y", "'y' has no value in any of the 20 rows", "y"),
        (
            "i AS a, CASE WHEN i < 3 THEN 'inf'::DOUBLE ELSE i END AS y",
            "LABEL y",
            "line 1, .*'y' is infinite in 3 rows",
            "y",
        ),
        ("i AS a, i AS y", "WITH validation.fraction=0.99", "All 20 rows are held out", None),
        ("i AS z, i AS y", "COLUMN z, y LABEL y", "'y' is the label, .*cannot be a feature", "y"),
        ("i AS z, i AS y", "COLUMN INDICATOR(y)", "'y' is the label, .*cannot be a feature", "y"),
        ("i AS a, i AS b, 1 AS a", "LABEL b", "line 1, column 29: Two columns are called", "a"),
    ],
)
def test_an_unsuitable_label_is_refused(select, clauses, problem, place, tmp_path) -> None:
    with pytest.raises(ElasticDLError, match=problem) as caught:
        run(
            f"SELECT {select} FROM range(20) r(i) TO TRAIN regressor.DNN {clauses} INTO m;",
            tmp_path,
        )

    if place is not None:
        *_, line, caret = str(caught.value).splitlines()
        assert line[len(caret) - len(caret.lstrip()) : len(caret)] == place


def test_rows_without_a_label_are_counted(tmp_path, capfd) -> None:
    rows = "SELECT i AS a, CASE WHEN i > 2 THEN i END AS income FROM range(60) r(i)"
    run(f"{rows} TO TRAIN regressor.DNN WITH {SHORT} INTO m;", tmp_path)

    assert "Left out: 3 rows without a value in 'income'." in capfd.readouterr().err


def test_rare_classes_are_named(tmp_path, capfd) -> None:
    table = (
        "CREATE TABLE t AS SELECT i AS a, CASE WHEN i = 0 THEN 'rare' WHEN i < 5 THEN 'pos' "
        "ELSE 'neg' END AS y FROM range(200) r(i);"
    )
    train = f"{table}SELECT * FROM t TO TRAIN classifier.DNN WITH {SHORT}"
    run(f"{train} INTO m;", tmp_path)

    said = capfd.readouterr().err
    assert "Classes of y with fewer than 10 rows: pos (4), rare (1)." in said
    assert "Classes of y missing from the validation rows" in said
    assert "WITH class_counts=[195, 4, 1] makes" in said
    with pytest.raises(DataError, match="not one of the classes") as caught:
        run("SELECT 1 AS a, 'new' AS y TO EVALUATE m;", tmp_path)
    assert "--params" not in str(caught.value)
    assert "Label: y, the last selected column." in said

    run(f"{train}, class_counts=[195, 4, 1] LABEL y INTO m;", tmp_path)
    said = capfd.readouterr().err
    assert "WITH class_counts" not in said
    assert "the last selected column" not in said


@pytest.mark.parametrize("extension", ["EVALUATE m", "EXPLAIN m WITH explain.num_rows=5"])
def test_an_infinite_label_is_refused_in_evaluation(extension, tmp_path) -> None:
    with pytest.raises(DataError, match="'y' is infinite in 1 row"):
        run(
            "CREATE TABLE t AS SELECT i AS a, 2.0::DOUBLE * i AS y FROM range(20) r(i);"
            f"SELECT * FROM t TO TRAIN regressor.DNN WITH {SHORT} INTO m;"
            f"UPDATE t SET y = '-inf' WHERE a = 2; SELECT * FROM t TO {extension}",
            tmp_path,
        )

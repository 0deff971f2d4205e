"""Statements from the text to the table: trained, filled, measured; killed and gone on with."""

from __future__ import annotations

import json
import signal
import time

import pytest

from elasticdl.sql.database_interface import open_database
from elasticdl.sql.execute import SqlSession, execute
from elasticdl.sql.statements import StatementError

TRAIN = (
    "SELECT name, role, salary FROM employee "
    "TRAIN regressor.DNN WITH hidden_units=[8], learning_rate=0.01 INTO my_trained_model;"
)
PREDICT = (
    "SELECT name, role FROM testdata PREDICT testdata.predicted_salary USING my_trained_model;"
)
SHORT = "train.num_epochs=2, hidden_units=[4]"


def table(url: str, select: str) -> list[dict]:
    with open_database(url) as database, database.read(select) as rows:
        return [row for batch in rows.batches for row in batch.to_pylist()]


def ended(process) -> str:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return output + errors


def test_a_terminated_training_says_how_to_resume(shop) -> None:
    class TerminatedError(BaseException):
        pass

    def submitter(path, environment) -> int:
        raise TerminatedError

    with pytest.raises(TerminatedError) as caught:
        list(execute(TRAIN, SqlSession(shop, run_submitter=submitter)))

    assert caught.value.__notes__ == [
        "Training progress is saved; run the same statement to resume."
    ]


@pytest.mark.slow
@pytest.mark.exhaustive  # the same door and database in `test_seed.py`; values in `test_filling.py`
def test_the_statements_of_the_seed_fill_the_column(shop, sql, tmp_path) -> None:
    before = table(shop, "SELECT name, role FROM testdata")
    printed = ended(sql(TRAIN + PREDICT))

    assert "Label: salary, the last selected column. LABEL selects another." in printed
    assert "held out for validation" in printed
    rows = table(shop, "SELECT * FROM testdata")
    assert [{"name": row["name"], "role": row["role"]} for row in rows] == before
    for row in rows:
        base = {"clerk": 0, "boss": 1000, "chef": 2000}[row["role"]]
        assert row["predicted_salary"] == pytest.approx(base + 100, abs=150)
    # What `elasticdl predict` writes of the same rows with the same model.
    from elasticdl import api

    with open_database(shop) as database, database.read("SELECT name, role FROM testdata") as read:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_batches(read.batches), tmp_path / "rows.parquet")
    api.predict(
        trained_model=str(tmp_path / "models" / "my_trained_model" / "v1"),
        data=str(tmp_path / "rows.parquet"),
        output=str(tmp_path / "predicted"),
        format="parquet",
    )
    [part] = (tmp_path / "predicted").glob("*.parquet")
    outputs = [value[0] for value in pq.read_table(part)["output"].to_pylist()]
    assert [row["predicted_salary"] for row in rows] == outputs


@pytest.mark.slow
def test_a_killed_training_resumes_with_the_rows_it_has_read(shop, sql, tmp_path) -> None:
    statement = TRAIN.replace(
        "learning_rate=0.01", "train.checkpoint_steps=20, train.num_epochs=300"
    )
    first = sql(statement)
    folder = tmp_path / "models" / "my_trained_model"
    deadline = time.monotonic() + 60
    while not list(folder.glob("v1/checkpoints/step-*/manifest.json")):
        assert first.poll() is None, first.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    # The rows are not asked for again, and meanwhile the file is anybody's.
    with open_database(shop) as database, database.run("DELETE FROM employee"):
        pass
    assert first.poll() is None
    import psutil

    for process in [*psutil.Process(first.pid).children(recursive=True), first]:
        process.send_signal(signal.SIGKILL)
    first.communicate()

    printed = ended(sql(statement + "SHOW TRAIN my_trained_model;"))

    assert "Resuming version 1" in printed
    assert json.loads((folder / "current.json").read_text()) == {"version": 1}
    assert not (folder / "v1.rows").exists()


def run(session: SqlSession, program: str) -> list[list[dict]]:
    return [
        [row for batch in result.rows.batches for row in batch.to_pylist()] if result.rows else []
        for result in execute(program, session)
    ]


@pytest.fixture
def session(shop, tmp_path) -> SqlSession:
    return SqlSession(shop, str(tmp_path / "models"))


def test_a_model_can_be_evaluated_explained_and_shown(tmp_path) -> None:
    *_, metrics, importances, shown, stored = run(
        SqlSession("duckdb://", str(tmp_path / "models")),
        "CREATE TABLE t AS SELECT i % 5 AS a, i % 7 AS b, 2.0 * (i % 5) AS c FROM range(99) r(i);"
        "SELECT a, b, c FROM t TRAIN regressor.DNN WITH learning_rate=0.01, train.num_epochs=40 "
        "INTO m; SELECT a, b, c AS d FROM t TO EVALUATE m LABEL d INTO metrics;"
        "SELECT * FROM t TO EXPLAIN m WITH explain.repeats=2; SHOW TRAIN m; SELECT * FROM metrics",
    )

    assert {row["metric"] for row in metrics} >= {"loss", "mean_absolute_error"}
    assert [{name: row[name] for name in ("metric", "value")} for row in stored] == metrics
    assert {(row["model"], row["version"]) for row in stored} == {("m", 1)}
    assert all(row["time"].utcoffset() is not None for row in stored)
    assert [row["column"] for row in importances] == ["a", "b"]
    assert {row["section"] for row in shown} == {
        "model", "metric", "version", "training", "validation",
    }  # fmt: skip


def test_in_memory_tables_are_trained_on_in_this_process(tmp_path) -> None:
    made = "CREATE TABLE t AS SELECT i % 5 AS a, 2.0 * (i % 5) AS b FROM range(60) rows(i);"
    statement = f"SELECT a, b FROM t TO TRAIN regressor.DNN WITH {SHORT} INTO m;"
    predict = "SELECT a FROM t TO PREDICT t.p USING m; SELECT count(p) AS n FROM t"

    *_, [row] = run(SqlSession("duckdb://", str(tmp_path / "models")), made + statement + predict)

    assert row == {"n": 60}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("SELECT * FROM employee TO TRAIN regresor.DNN INTO m", "did you mean 'regressor.DNN'?"),
        ("SELECT * FROM employee TO TRAIN regressor.DNN WITH unit=1 INTO m", "not a parameter"),
        ("SELECT * FROM employee TO TRAIN regressor.DNN LABEL salry INTO m", "mean 'salary'?"),
        ("SELECT role FROM testdata TO PREDICT testdata.x USING m", "no trained model 'm'"),
        ("SELECT 1 AS a TO EVALUATE m", "no trained model 'm'"),
        ("SHOW TRAIN m", "no trained model 'm'"),
    ],
)
def test_errors_are_reported_before_a_row_is_read(session, statement, problem) -> None:
    with pytest.raises(StatementError, match=problem):
        run(session, statement)


def test_the_explained_program_compiles_and_has_no_password(tmp_path) -> None:
    statement = "SELECT 1 AS a, 2 AS b TO TRAIN regressor.DNN INTO m"
    [result] = execute(statement, SqlSession("duckdb://", str(tmp_path)), explain=True)

    assert result.program is not None
    compile(result.program, "submitter.py", "exec")
    assert "label='b'" in result.program
    assert "$ELASTICDL_DATABASE" in result.program

"""The two statements of the design, as written there: on each database, from each door.

They are the contract of `elasticdl sql`: never change them here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from elasticdl.cli.main import cli
from elasticdl.sql.database_interface import open_database

TRAIN = """\
SELECT name, role, salary FROM employee
TRAIN regressor.DNN
WITH hidden_units=[10, 100, 20, 5], learning_rate=0.01
INTO my_trained_model;
"""
PREDICT = """\
SELECT name, role FROM testdata
PREDICT testdata.predicted_salary
USING my_trained_model;
"""

TESTDATA = """
CREATE TABLE testdata (
    id INTEGER PRIMARY KEY, name VARCHAR(20), role VARCHAR(20), predicted_salary DOUBLE PRECISION
)"""
SALARIES = {"clerk": 30_000, "boss": 90_000, "chef": 60_000}
ROWS = "SELECT name, role, predicted_salary FROM testdata ORDER BY id"
# One door for each database, and one database for each door, is enough for every change.
PLACES = [
    pytest.param(database, door, marks=[pytest.mark.slow, *[pytest.mark.exhaustive][: number % 4]])
    for number, (database, door) in enumerate(
        (database, door)
        for database in ("duckdb", "postgresql", "mariadb")
        for door in ("shell", "server", "notebook")
    )
]


def rows_of(url: str, statement: str) -> list[dict]:
    with open_database(url) as database, database.run(statement) as rows:
        return [] if rows is None else [r for b in rows.batches for r in b.to_pylist()]


def made(kind: str, name: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of an empty database."""
    if kind == "duckdb":
        return f"duckdb:///{folder / name}.db"
    server = request.getfixturevalue(kind)
    rows_of(server.url, f"CREATE DATABASE {name}")
    return f"{server.url.removesuffix('/test')}/{name}"


def fill(url: str) -> None:
    """Make the tables of the design: 60 employees, and 6 people to predict a salary for."""
    roles = list(SALARIES)
    people = [(f"n{i}", roles[i % 3], SALARIES[roles[i % 3]] + 100 * (i % 5)) for i in range(60)]
    employees = ", ".join(f"('{name}', '{role}', {salary})" for name, role, salary in people)
    others = ", ".join(f"({i}, 'm{i}', '{roles[i % 3]}')" for i in range(6))
    for statement in (
        "CREATE TABLE employee (name VARCHAR(20), role VARCHAR(20), salary INTEGER)",
        f"INSERT INTO employee VALUES {employees}",
        TESTDATA,
        f"INSERT INTO testdata (id, name, role) VALUES {others}",
    ):
        rows_of(url, statement)


def from_shell(url: str, folder: Path, _: pytest.FixtureRequest) -> None:
    # A file of the analyst's which is called as one of Python's own is not run.
    (folder / "csv.py").write_text("raise RuntimeError")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "elasticdl.cli.main", "sql", TRAIN + PREDICT],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "ELASTICDL_DATABASE": url,
        },
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "testdata.predicted_salary: 6 rows filled." in done.stderr
    printed = done.stdout + done.stderr
    assert "Label: salary, the last selected column. LABEL selects another." in printed
    assert "held out for validation" in printed


def from_server(url: str, folder: Path, request: pytest.FixtureRequest) -> None:
    from elasticdl.sql.client import Client

    server = request.getfixturevalue("start_server")(url, folder / "models")
    with Client(server.address) as client:
        [metrics, filled] = client.execute(TRAIN + PREDICT).to_tables()
    assert "val_loss" in metrics.column("metric").to_pylist()
    assert filled.to_pylist() == [{"table": "testdata", "column": "predicted_salary", "rows": 6}]


def from_notebook(url: str, folder: Path, request: pytest.FixtureRequest) -> None:
    run_cells = request.getfixturevalue("run_cells")
    begin = f"%env ELASTICDL_DATABASE={url}\n%load_ext elasticdl.sql\n%sql --models={folder}/models"
    _, trained, filled = run_cells(begin, f"%%sql\n{TRAIN}", f"%%sql\n{PREDICT}")
    for outputs in (trained, filled):
        assert "error" not in {each.output_type for each in outputs}, outputs
    (result,) = [each for each in filled if each.output_type == "execute_result"]
    assert "predicted_salary     6" in result.data["text/plain"]


DOORS: dict[str, Callable[[str, Path, pytest.FixtureRequest], None]] = {
    "shell": from_shell,
    "server": from_server,
    "notebook": from_notebook,
}


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
@pytest.mark.parametrize(("kind", "door"), PLACES)
def test_the_statements_of_the_design_fill_the_column(kind, door, request, tmp_path) -> None:
    url = made(kind, f"seed_{door}", request, tmp_path)
    fill(url)
    employees = rows_of(url, "SELECT * FROM employee")

    DOORS[door](url, tmp_path, request)

    rows = rows_of(url, ROWS)
    assert [(row["name"], row["role"]) for row in rows] == [
        (f"m{i}", list(SALARIES)[i % 3]) for i in range(6)
    ]
    assert rows_of(url, "SELECT * FROM employee") == employees
    predicted = [row.pop("predicted_salary") for row in rows]
    assert predicted == predicted_by_command(rows, tmp_path)
    for role in SALARIES:
        of_role = {p for p, row in zip(predicted, rows, strict=True) if row["role"] == role}
        assert len(of_role) == 1


def predicted_by_command(rows: list[dict], folder: Path) -> list[float]:
    """Return what `elasticdl predict` writes of the same rows with the same model."""
    pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    result = CliRunner().invoke(
        cli,
        [
            "predict",
            f"--trained_model={folder / 'models' / 'my_trained_model' / 'v1'}",
            f"--data={folder / 'rows.parquet'}",
            f"--output={folder / 'predicted'}",
            "--format=parquet",
        ],
    )
    assert result.exit_code == 0, result.output
    [part] = (folder / "predicted").glob("*.parquet")
    predicted: list[float] = pq.read_table(part)["output"].to_pylist()
    return predicted

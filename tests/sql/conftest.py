"""A DuckDB file with the tables of the documents, and the command that is run on it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("duckdb")


@pytest.fixture
def shop(tmp_path: Path) -> str:
    """Return the URL of a database with employees and people to predict a salary for."""
    import duckdb

    path = tmp_path / "shop.db"
    with duckdb.connect(str(path)) as connection:
        connection.sql(
            "CREATE TABLE employee AS SELECT 'n' || i AS name, "
            "['clerk', 'boss', 'chef'][1 + i % 3] AS role, 1000.0 * (i % 3) + i AS salary "
            "FROM range(200) rows(i)"
        )
        connection.sql(
            "CREATE TABLE testdata AS SELECT name, role, NULL::DOUBLE AS predicted_salary "
            "FROM employee LIMIT 30"
        )
    return f"duckdb:///{path}"


@pytest.fixture
def sql(shop: str, tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts `elasticdl sql` on the shop."""

    def start(statements: str, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "elasticdl.cli.main", "sql", statements]
        return subprocess.Popen(
            [*command, f"--database={shop}", f"--models={tmp_path / 'models'}", *more],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    return start

"""Databases for tests, a shop with the tables of the documents, and the command run on it."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("duckdb")

# Test files are no package.
_SPEC = importlib.util.spec_from_file_location("servers", Path(__file__).with_name("servers.py"))
servers: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["servers"] = servers
_SPEC.loader.exec_module(servers)


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Any]:
    """Return a PostgreSQL server, shared by the tests of a process."""
    pytest.importorskip("adbc_driver_postgresql")
    if servers.postgresql_folder() is None:
        pytest.skip("PostgreSQL is not installed (apt-get install postgresql)")
    # A socket's path must be short.
    with tempfile.TemporaryDirectory() as folder, servers.postgresql(Path(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[Any]:
    """Return a MariaDB server, shared by the tests of a process."""
    pytest.importorskip("pymysql")
    if servers.mariadb_program() is None:
        pytest.skip("MariaDB is not installed (apt-get install mariadb-server)")
    with tempfile.TemporaryDirectory() as folder, servers.mariadb(Path(folder)) as server:
        yield server


@pytest.fixture(scope="module", autouse=True)
def weights_only(weights_only: None) -> None:
    """Export nothing here."""


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


@dataclass
class Running:
    """A server: its process, and where it listens."""

    process: subprocess.Popen[str]
    address: str


@pytest.fixture
def start_server() -> Iterator[Callable[..., Running]]:
    """Return a function that starts `elasticdl sql-server` on a database and a models folder."""
    started: list[Running] = []

    def start(url: str, models: Path, *more: str) -> Running:
        command = [sys.executable, "-m", "elasticdl.cli.main", "sql-server", "--listen=127.0.0.1:0"]
        process = subprocess.Popen(
            [*command, f"--models={models}", *more],
            stderr=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "ELASTICDL_DATABASE": url,
            },
        )
        line = process.stderr.readline()
        found = re.match(r"Listening on (\S+)", line)
        assert found, line + process.stderr.read()
        started.append(Running(process, found[1]))
        return started[-1]

    yield start
    for running in started:
        running.process.terminate()
        try:
            running.process.wait(30)
        except subprocess.TimeoutExpired:
            running.process.kill()
            running.process.wait()
        running.process.stderr.close()

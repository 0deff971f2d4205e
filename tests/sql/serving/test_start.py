"""A server that starts or refuses to, and clients that connect in another way than it expects."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from elasticdl.errors import UsageError
from elasticdl.sql.client import Client, RemoteError
from elasticdl.sql.serving.execution import ExecutionSettings
from elasticdl.sql.serving.security import Security
from elasticdl.sql.serving.service import Server


@pytest.mark.parametrize(
    "url", ["duckdb://", "duckdb:///:memory:", "sqlite://", "sqlite+pysqlite:///:memory:"]
)
def test_a_server_on_an_in_memory_database_does_not_start(url, tmp_path) -> None:
    with pytest.raises(UsageError, match="would be empty for every program"):
        Server("127.0.0.1:0", url, ExecutionSettings(str(tmp_path)), Security())


def test_clients_without_the_servers_ca_get_an_explanation(certificates, tmp_path) -> None:
    certificate, key = ((certificates / f"server.{kind}").read_bytes() for kind in ("pem", "key"))
    security = Security(token="t", certificate=certificate, key=key)
    server = Server(
        "127.0.0.1:0", f"duckdb:///{tmp_path}/t.db", ExecutionSettings(str(tmp_path)), security
    )
    try:
        with Client(server.address, token="t") as client:
            for call in (lambda: list(client.execute("SELECT 1")), lambda: client.submit("")):
                with pytest.raises(RemoteError, match=r"does not use TLS.*ca=FILE"):
                    call()
    finally:
        server.stop()


def test_a_refused_start_prints_only_its_reason() -> None:
    command = [sys.executable, "-m", "elasticdl.cli.main", "sql-server", "--listen=0.0.0.0:1"]
    done = subprocess.run(
        [*command, "--database=postgresql://me@nowhere/shop"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )

    assert done.returncode == UsageError.exit_code
    assert done.stderr.startswith("error: --listen=0.0.0.0:1 can be reached")
    assert len(done.stderr.splitlines()) == 1

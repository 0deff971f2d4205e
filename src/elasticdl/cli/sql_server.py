"""`elasticdl sql-server`: runs the SQL statements of clients, over gRPC."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import click

from elasticdl.cli.options import check_place
from elasticdl.errors import MissingExtraError, UsageError
from elasticdl.job import without_password

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("sql-server", short_help="Serve SQL statements over gRPC.")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:50051",
    show_default=True,
    help="Address to listen on. If other machines can reach it, TLS is required, and a token or "
    "--tls_ca.",
)
@click.option(
    "--database",
    metavar="URL",
    envvar="ELASTICDL_DATABASE",
    required=True,
    help="Database of the statements, as for `elasticdl sql`; it cannot be in memory.",
)
@click.option(
    "--models",
    metavar="DIR",
    default="models",
    show_default=True,
    envvar="ELASTICDL_MODELS",
    callback=check_place,
    help="Folder of the trained models, by name.",
)
@click.option(
    "--model_zoo",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with your model files. Without it, the models of `elasticdl zoo list`.",
)
@click.option("--token_file", metavar="FILE", type=_FILE, help="File with the clients' token.")
@click.option("--tls_cert", metavar="FILE", type=_FILE, help="The server's certificate, PEM.")
@click.option("--tls_key", metavar="FILE", type=_FILE, help="Private key of --tls_cert, PEM.")
@click.option(
    "--tls_ca",
    metavar="FILE",
    type=_FILE,
    help="CA certificates that sign those of the clients; without it, clients need no certificate.",
)
@click.option(
    "--max_sessions",
    type=click.IntRange(1, 1000),
    default=8,
    show_default=True,
    help="Maximum number of programs that run at once; further ones are rejected.",
)
@click.option("--allow_any_database", is_flag=True, help="Allow clients to choose a database.")
@click.option(
    "--allow_files",
    is_flag=True,
    help="Allow statements on DuckDB to read and write the files that this process can.",
)
def sql_server(
    *,
    listen: str,
    database: str,
    models: str,
    model_zoo: Path | None,
    token_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    max_sessions: int,
    allow_any_database: bool,
    allow_files: bool,
) -> None:
    """Run the SQL statements of clients concurrently.

    Supports SQLFlow clients and elasticdl.sql.client.Client. If a client disconnects, its statement
    is cancelled. A cancelled training keeps its progress: run the same statement again to resume
    it.

    \b
    Example:
      elasticdl sql-server --database=postgresql://me@db/shop --listen=0.0.0.0:50051 \\
          --token_file=token --tls_cert=server.pem --tls_key=server.key
    """
    try:
        from elasticdl.sql.databases.duckdb import NO_FILES  # noqa: PLC0415 - packages of an extra
        from elasticdl.sql.serving.execution import ExecutionSettings  # noqa: PLC0415
        from elasticdl.sql.serving.security import Security  # noqa: PLC0415
        from elasticdl.sql.serving.service import Server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "sql", "`elasticdl sql-server`") from error
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls_cert and --tls_key must be used together.")
    if tls_ca is not None and tls_cert is None:
        raise UsageError("--tls_ca needs --tls_cert and --tls_key.")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    if not allow_files:
        # Its submitter processes inherit the environment of this process.
        os.environ[NO_FILES] = "1"
    security = Security(
        token=None if token_file is None else _token(token_file),
        certificate=None if tls_cert is None else tls_cert.read_bytes(),
        key=None if tls_key is None else tls_key.read_bytes(),
        authorities=None if tls_ca is None else tls_ca.read_bytes(),
        allow_any_database=allow_any_database,
    )
    server = Server(listen, database, ExecutionSettings(models, model_zoo), security, max_sessions)
    how = "TLS" if security.certificate is not None else "no TLS"
    who = (
        "a token" if security.token is not None else "no token: only your own processes may connect"
    )
    click.echo(
        f"Listening on {server.address} ({how}, {who}); database {without_password(database)}",
        err=True,
    )
    try:
        server.wait()
    finally:
        server.stop()


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError as error:
        raise UsageError(f"--token_file={path}: expected text in UTF-8.") from error
    if not token:
        raise UsageError(f"--token_file={path} is empty. Write a long random string into it.")
    return token

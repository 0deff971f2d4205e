"""`elasticdl sql`: runs SQL statements that train models and predict, or an interactive shell."""

from __future__ import annotations

import runpy
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticdl.cli.options import check_place
from elasticdl.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from elasticdl.sql.execute import SqlSession


@click.command(short_help="Train and predict with SQL statements.")
@click.argument("statements", required=False)
@click.option(
    "-f", "--file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run the statements of a file, up to the first error.",
)  # fmt: skip
@click.option(
    "--database",
    metavar="URL",
    help="duckdb:///FILE, sqlite:///FILE, postgresql://USER@HOST/NAME, mysql://..., or any "
    "SQLAlchemy URL. [default: $ELASTICDL_DATABASE, else an in-memory DuckDB, which reads Parquet "
    "and CSV files by name]",
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
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "json"]),
    default="table",
    show_default=True,
    help="Format of the rows on standard output; everything else goes to standard error.",
)
@click.option("--explain", is_flag=True, help="Print the Python programs without running them.")
@click.option("--run_submitter", metavar="FILE", hidden=True)
@click.pass_context
def sql(
    ctx: click.Context,
    *,
    statements: str | None,
    file: Path | None,
    database: str | None,
    models: str,
    model_zoo: Path | None,
    form: str,
    explain: bool,
    run_submitter: str | None,
) -> None:
    """Train a model on a table and fill a column with its predictions.

    \b
    Examples:
      elasticdl sql --database=duckdb:///shop.db "
          SELECT name, role, salary FROM employee
          TO TRAIN regressor.DNN WITH hidden_units=[64, 32] LABEL salary INTO my_model;"
      elasticdl sql --database=duckdb:///shop.db "
          SELECT name, role FROM testdata
          TO PREDICT testdata.predicted_salary USING my_model;"
      elasticdl sql -f report.sql
      echo "SELECT 1;" | elasticdl sql --format=csv
      elasticdl sql                                       interactive, on a terminal

    Run the same statement to resume after a crash. Models are in --models, by name and version;
    they are trained models as written by `elasticdl train`.
    """
    if run_submitter is not None:
        _submit(ctx, run_submitter)
        return
    if statements is not None and file is not None:
        raise click.UsageError("Give statements or a file with -f, not both.")
    try:
        from elasticdl.sql.execute import SqlSession  # noqa: PLC0415 - packages of an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "sql", "`elasticdl sql`") from error
    session = SqlSession(database, models, model_zoo)
    if statements is None and file is None and sys.stdin.isatty():
        if explain:
            raise click.UsageError("--explain needs statements.")
        _interact(session, form)
        return
    _run(ctx, session, _program(statements, file), form, explain=explain)


def _program(statements: str | None, file: Path | None) -> str:
    """Read the statements from the argument, the file or standard input."""
    if statements is not None:
        return statements
    where = "standard input" if file is None else str(file)
    content = sys.stdin.buffer.read() if file is None else file.read_bytes()
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{where}, line {line}: byte {error.start} is not UTF-8. Save the statements as UTF-8."
        ) from error


def _interact(session: SqlSession, form: str) -> None:
    try:
        from elasticdl.sql.shell import Shell  # noqa: PLC0415 - packages of an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "sql", "The interactive shell") from error
    # As in psql: the process that started the shell may have set Ctrl-C to be ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    Shell(session, form).run()


def _run(
    ctx: click.Context, session: SqlSession, program: str, form: str, *, explain: bool
) -> None:
    from elasticdl.sql.execute import SubmitterError, execute  # noqa: PLC0415 - as above
    from elasticdl.sql.results import show  # noqa: PLC0415 - as above

    try:
        for result in execute(program, session, explain=explain):
            show(result, form)
    except SubmitterError as error:
        # The process has already printed the reason, on the same standard error.
        if error.exit_code > 143:  # noqa: PLR2004 - not Ctrl-C and SIGTERM, which it answers
            click.echo(
                "The statement was killed. Run the same statement to resume training.", err=True
            )
        ctx.exit(error.exit_code)


def _submit(ctx: click.Context, path: str) -> None:
    """Run a submitter (the Python program generated for a statement) in this process.

    If another ElasticDL process started this one, this one also exits when that process ends. After
    Ctrl-C, the exit code is 130.

    Args:
        ctx: Context of the command.
        path: File of the submitter.
    """
    from elasticdl.sql.submitter_process import end_with_stdin  # noqa: PLC0415 - an extra

    end_with_stdin()
    try:
        runpy.run_path(path, run_name="__main__")
    except KeyboardInterrupt as error:
        kept = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
        kept = kept.replace("the same command", "the same statement")
        click.echo(f"\nInterrupted.{kept}", err=True)
        ctx.exit(130)

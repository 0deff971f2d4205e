"""`elasticdl sql`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from elasticdl.errors import MissingExtraError

if TYPE_CHECKING:
    from elasticdl.sql.database import Rows
    from elasticdl.sql.execute import Session

_SHOWN_ROWS = 1000


@click.command(short_help="Train and predict with SQL statements.")
@click.argument("statements", required=False)
@click.option(
    "-f", "--file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Run the statements of a file.",
)  # fmt: skip
@click.option(
    "--database",
    metavar="URL",
    help="duckdb:///FILE, sqlite:///FILE, postgresql://USER@HOST/NAME, mysql://..., or any URL of "
    "SQLAlchemy's. Without it $ELASTICDL_DATABASE, else a DuckDB in memory, which reads Parquet "
    "and CSV files by name.",
)
@click.option(
    "--models",
    metavar="DIR",
    default="models",
    show_default=True,
    envvar="ELASTICDL_MODELS",
    help="Folder of the trained models, by name.",
)
@click.option(
    "--model_zoo",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with your model files. Without it, the models of `elasticdl zoo list`.",
)
@click.option("--explain", is_flag=True, help="Print the Python programs and run nothing.")
@click.option("--run_submitter", metavar="FILE", hidden=True)
def sql(
    *,
    statements: str | None,
    file: Path | None,
    database: str | None,
    models: str,
    model_zoo: Path | None,
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

    The same statement resumes after a crash. Models are in --models, by name and version; they
    are trained models as `elasticdl train` writes them.
    """
    if run_submitter is not None:
        runpy.run_path(run_submitter, run_name="__main__")
        return
    if (statements is None) == (file is None):
        raise click.UsageError("Give statements, or a file with -f.")
    try:
        from elasticdl.sql.execute import Session, execute  # noqa: PLC0415 - packages of an extra
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "sql", "`elasticdl sql`") from error
    text = statements if file is None else file.read_text(encoding="utf-8")
    session: Session = Session(database, models, model_zoo)
    for result in execute(str(text), session, explain=explain):
        if result.program is not None:
            click.echo(result.program)
        if result.rows is not None:
            _show(result.rows)


def _show(rows: Rows) -> None:
    """Print rows as a table, as many as a person would read."""
    from rich.console import Console  # noqa: PLC0415 - not for `--help`
    from rich.table import Table  # noqa: PLC0415

    table = Table(*rows.schema.names)
    count = 0
    for batch in rows.batches:
        for row in batch.slice(0, max(0, _SHOWN_ROWS - count)).to_pylist():
            table.add_row(*("NULL" if row[n] is None else str(row[n]) for n in rows.schema.names))
        count += batch.num_rows
    # Wide enough for every column where nobody looks at it.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)
    more = f", of which {_SHOWN_ROWS:,} are shown" if count > _SHOWN_ROWS else ""
    click.echo(f"{count:,} row{'' if count == 1 else 's'}{more}")

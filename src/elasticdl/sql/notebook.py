"""Notebook magics `%sql` and `%%sql`: run statements, return DataFrames.

    %load_ext elasticdl.sql
    %sql --database=duckdb:///shop.db --models=models

    %%sql --to=clerks
    SELECT * FROM employee WHERE role = ${role};

`${role}` is replaced by the notebook variable `role`, as a literal and never as SQL text; see
`literals.py`. A cell returns the rows of its last statement; `--to` stores them in a variable
instead. An interrupted TRAIN statement has saved its progress: run the same cell to resume it.

Loaded by `%load_ext elasticdl.sql`.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from IPython.core.error import UsageError as MagicUsageError
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display

from elasticdl.errors import ElasticDLError, MissingExtraError, UsageError
from elasticdl.job import without_password
from elasticdl.sql.execute import Connection, Result, SqlSession, SubmitterError, execute
from elasticdl.sql.literals import with_values
from elasticdl.sql.models import DEFAULT_FOLDER
from elasticdl.sql.results import importance_bars
from elasticdl.sql.statements import Explain
from elasticdl.sql.submitter_process import run_piped

if TYPE_CHECKING:
    from collections.abc import Callable

_ENDED_BY_SIGNAL = {130, 143}


class StatementFailedError(ElasticDLError):
    """A statement of a cell failed or was cancelled; the output above this error explains why."""


@magics_class
class SqlMagics(Magics):
    """The magics `%sql` and `%%sql`.

    Args:
        shell: The notebook's InteractiveShell.
    """

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._notebook = shell
        self._session = SqlSession(run_submitter=_run_submitter)
        self._connection: Connection | None = None

    @magic_arguments()
    @argument("--database", metavar="URL", help="URL of the database, for this and later cells.")
    @argument(
        "--models", metavar="DIR", help="Folder of the trained models, for this and later cells."
    )
    @argument(
        "--model_zoo", metavar="DIR", help="Folder with your model files, for this and later cells."
    )
    @argument(
        "--to", metavar="NAME", help="Variable in which to store the rows of the last statement."
    )
    @argument("statements", nargs="*", help="Statements, on one line.")
    @no_var_expand  # IPython's own expansion would insert variables as SQL text.
    @line_cell_magic
    def sql(self, line: str, cell: str | None = None) -> Any:
        """Run SQL statements; return the rows of the last one as a DataFrame."""
        if line.split()[:1] in (["--help"], ["-h"]):
            parser: Any = self.sql.parser
            print(parser.format_help())  # noqa: T201
            return None
        settings, program = self._parsed(line, cell)
        return _quietly(lambda: self._do(settings, program))

    def _parsed(self, line: str, cell: str | None) -> tuple[Any, str]:
        """Split the input of a magic into its settings and the statements.

        Args:
            line: The rest of the line of `%sql` or `%%sql`.
            cell: The lines below `%%sql`; None for `%sql`.

        Raises:
            MagicUsageError: `%%sql` has statements in its line as well.
        """
        words = line.split()
        number = next((n for n, word in enumerate(words) if not word.startswith("--")), len(words))
        settings = parse_argstring(self.sql, " ".join(words[:number]))
        # The rest starts at the first word that is not a setting and keeps its quotes and spaces.
        rest = line
        for word in words[:number]:
            rest = rest[rest.index(word) + len(word) :]
        if cell is not None and rest.strip():
            raise MagicUsageError(
                f"Put the statements on the lines below %%sql, not after it: {rest}"
            )
        return settings, rest if cell is None else cell

    def _do(self, settings: Any, program: str) -> Any:
        given = {"database": settings.database, "models": settings.models}
        if any(given.values()) or settings.model_zoo:
            self._configure(settings)
        if not program.strip():
            database = without_password(self._session.database or "") or "$ELASTICDL_DATABASE"
            print(f"database: {database}\nmodels: {self._session.models}")  # noqa: T201
            return None
        if self._connection is None:
            self._connection = Connection(self._session)
        program = with_values(program, self._notebook.user_ns, self._connection.dialect)
        last = None
        for result in execute(program, self._session, connection=self._connection):
            if result.rows is None:
                continue
            if last is not None:
                display(last)
            last = _frame(result)
        if settings.to:
            self._notebook.user_ns[settings.to] = last
            return None
        return last

    def _configure(self, settings: Any) -> None:
        zoo = Path(settings.model_zoo) if settings.model_zoo else self._session.zoo
        if zoo is not None and not zoo.is_dir():
            raise UsageError(f"--model_zoo={zoo}: there is no such folder.")
        session = SqlSession(
            settings.database or self._session.database,
            settings.models or self._session.models or DEFAULT_FOLDER,
            zoo,
            _run_submitter,
        )
        connection = Connection(session)
        if self._connection is not None:
            self._connection.__exit__()
        self._session, self._connection = session, connection


def _frame(result: Result) -> Any:
    """Return the rows of a statement as a DataFrame; also plot them if it is an EXPLAIN."""
    rows = result.rows
    if rows is None:
        return None
    table = pa.Table.from_batches(rows.batches, rows.schema)
    if isinstance(result.statement, Explain):
        _show_importances(table, result.statement.model.text)
    try:
        return table.to_pandas()
    except ModuleNotFoundError as error:
        raise MissingExtraError(str(error.name), "sql", "A DataFrame") from error


def _quietly(do: Callable[[], Any]) -> Any:
    """Call a function, and convert Ctrl-C and a failed submitter to a `StatementFailedError`.

    A notebook shows an `ElasticDLError` such as this one without a traceback. Other exceptions of
    the function pass unchanged. Its result is returned.
    """
    try:
        return do()
    except KeyboardInterrupt:
        failure: ElasticDLError = StatementFailedError(
            "Cancelled. Training progress is saved; run the same cell to resume."
        )
    except SubmitterError as error:
        cancelled = error.exit_code in _ENDED_BY_SIGNAL
        failure = StatementFailedError(
            "Cancelled. Training progress is saved; run the same cell to resume."
            if cancelled
            else f"The statement failed (exit code {error.exit_code}); see above."
        )
        failure.exit_code = error.exit_code
    except ElasticDLError as error:
        failure = error
    raise failure


def _run_submitter(path: Path, environment: dict[str, str]) -> int:
    def show(line: str) -> None:
        print(line, file=sys.stderr, flush=True)  # noqa: T201

    return run_piped(path, environment, show)


def _show_importances(table: pa.Table, model: str) -> None:
    """Plot the result of an EXPLAIN: as an image if Matplotlib is installed, else as text.

    Args:
        table: The result, with the columns `column`, `importance` and `deviation`.
        model: The model's name, for the title.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - optional
    except ModuleNotFoundError:
        print(importance_bars(table))  # noqa: T201
        return
    names = table["column"].to_pylist()[::-1]
    figure = Figure(figsize=(6, 0.6 + 0.35 * len(names)), layout="constrained")
    axes = figure.subplots()
    axes.barh(
        # Names are plain text, but Matplotlib would read $...$ as mathematics.
        [name.replace("$", r"\$") for name in names],
        table["importance"].to_pylist()[::-1],
        xerr=table["deviation"].to_pylist()[::-1],
    )
    axes.set_xlabel("increase of the loss when shuffled")
    axes.set_title(f"{model}: importance of columns")
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    image = base64.b64encode(picture.getvalue()).decode()
    display({"image/png": image, "text/plain": importance_bars(table)}, raw=True)

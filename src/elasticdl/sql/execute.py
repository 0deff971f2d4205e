r"""Runs the statements of a program, in order.

    program --parse--> statements --check--> requests --submitter--> a separate process
                            \-- a plain statement --> the database, here

The separate process runs the statement's function in `training.py`, `prediction.py`,
`evaluation.py` or `explanation.py`.

A failing statement ends the program: earlier statements are complete, later ones never start.

Used by the shell, the notebook and the server.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from elasticdl.errors import ElasticDLError
from elasticdl.scratch import TemporaryFolder
from elasticdl.sql.check import (
    check_trained,
    evaluate_request,
    explain_request,
    predict_request,
    train_request,
)
from elasticdl.sql.database_interface import ENVIRONMENT, Database, RowSource, open_database
from elasticdl.sql.error_locations import located
from elasticdl.sql.models import DEFAULT_FOLDER, Models
from elasticdl.sql.parse import parse
from elasticdl.sql.showing import show_train
from elasticdl.sql.statements import (
    Evaluate,
    Explain,
    Predict,
    Query,
    ShowTrain,
    Statement,
    Train,
)
from elasticdl.sql.submitter import RESULT, program_of, run_here, take_over
from elasticdl.sql.submitter_process import run_process

if TYPE_CHECKING:
    import pyarrow as pa

    from elasticdl.sql.submitter import Request

RESUMES = "Training progress is saved; run the same statement to resume."

RunSubmitter = Callable[[Path, "dict[str, str]"], int]


class SubmitterError(ElasticDLError):
    """A submitter, the process that runs one statement, failed after printing the reason.

    The error has the exit code of the process.
    """

    def __init__(self, exit_code: int) -> None:
        # A process killed by signal N has the exit code -N; shells report 128 + N.
        code = 128 - exit_code if exit_code < 0 else exit_code
        super().__init__(f"The statement failed (exit code {code}).")
        self.exit_code = code


@dataclass(frozen=True)
class SqlSession:
    """Settings for running statements.

    Attributes:
        database: URL of the database. None: the environment variable ELASTICDL_DATABASE, or else a
            database in memory.
        models: Folder of the trained models.
        zoo: Folder of model files; None is the prebuilt zoo.
        run_submitter: Function (path, environment) that runs a submitter, the generated program for
            one statement (`submitter.py`), as a process and returns its exit code.
    """

    database: str | None = None
    models: str = DEFAULT_FOLDER
    zoo: Path | None = None
    run_submitter: RunSubmitter = run_process


@dataclass(frozen=True)
class Result:
    """The result of a statement.

    Attributes:
        statement: The statement.
        rows: The rows that it returned, to be read before the next result is requested; None if it
            returns no rows.
        program: Source of the program that would run the statement (see `submitter.py`), if
            `execute` was called with `explain`; else None.
    """

    statement: Statement
    rows: RowSource | None = None
    program: str | None = None


def execute(
    program: str,
    session: SqlSession,
    *,
    explain: bool = False,
    connection: Connection | None = None,
) -> Iterator[Result]:
    """Run the statements of a program; yield the result of each as soon as it has finished.

    Args:
        program: Statements, each ended by `;`.
        session: The settings.
        explain: Return the program that would be generated and run for each TRAIN or similar
            statement (a submitter), instead of running it.
        connection: Connection to reuse when several programs run in one session. None: open a new
            one and close it at the end.

    Raises:
        ElasticDLError: A statement is invalid or failed.
    """
    opened = Connection(session) if connection is None else contextlib.nullcontext(connection)
    with opened as there:
        for statement in parse(program, there.dialect):
            if isinstance(statement, Query):
                with (
                    there.opened() as database,
                    located(database, program, statement.span),
                    database.run(statement.text) as rows,
                ):
                    yield Result(statement, rows=rows)
                continue
            yield there.submit(statement, program, explain=explain)


class Connection:
    """Connection of a session to its database, open only while this process needs it.

    Only one process at a time can open a DuckDB file for writing, and a submitter (the process that
    runs a TRAIN or similar statement) needs it too. A database in memory stays open, and such
    statements then run in this process.

    Args:
        session: The settings: database, models and zoo.

    Attributes:
        dialect: Name of the database's SQL dialect in sqlglot.
        name: The database's address without a password.
        is_in_memory: Whether the database disappears when the connection is closed.

    Raises:
        ElasticDLError: The database cannot be opened.
    """

    def __init__(self, session: SqlSession) -> None:
        self._session = session
        self._models = Models(session.models)
        with open_database(session.database) as database:
            self.dialect, self.name = database.dialect, database.name
            self.is_in_memory = database.is_in_memory
        self._kept = open_database(session.database) if self.is_in_memory else None
        self._open: Database | None = self._kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kept is not None:
            self._kept.close()

    @contextlib.contextmanager
    def opened(self) -> Iterator[Database]:
        """Context manager that opens the database and yields it, then closes it.

        A database in memory is open already, and stays open.
        """
        if self._kept is not None:
            yield self._kept
            return
        with open_database(self._session.database) as database:
            self._open = database
            try:
                yield database
            finally:
                self._open = None

    def interrupt(self) -> None:
        """Cancel the query that another thread runs on this connection."""
        database = self._open
        if database is not None:
            database.interrupt()

    def submit(self, statement: Statement, program: str, *, explain: bool) -> Result:
        """Run a statement of the SQL extension, such as TRAIN, to its end.

        Args:
            statement: The statement.
            program: The whole program, for errors.
            explain: Return the generated submitter instead of running it; see `execute`.

        Raises:
            ElasticDLError: The statement is invalid or failed.
        """
        if isinstance(statement, ShowTrain):
            check_trained(statement.model, program, self._models)
            return _result(statement, show_train(statement.model.text, self._models))
        with self.opened() as database, located(database, program, statement.span):
            request = self._request(statement, program, database)
        text = program_of(request, statement.text, self._models.uri)
        if explain:
            return Result(statement, program=text)
        if self._kept is not None:
            return _result(statement, run_here(request, self._kept, self._models))
        with TemporaryFolder() as folder:
            path, result = folder / "submitter.py", folder / "result.arrow"
            path.write_text(text, encoding="utf-8")
            environment = {**os.environ, RESULT: str(result)}
            if self._session.database is not None:
                environment[ENVIRONMENT] = self._session.database
            try:
                code = self._session.run_submitter(path, environment)
            except BaseException as error:
                # The submitter ends with this process, without a message.
                if isinstance(statement, Train) and not isinstance(error, Exception):
                    error.add_note(RESUMES)
                raise
            if code != 0:
                raise SubmitterError(code)
            return _result(statement, take_over(result))

    def _request(self, statement: Statement, program: str, database: Database) -> Request:
        match statement:
            case Train():
                return train_request(statement, program, database, self._session.zoo)
            case Predict():
                return predict_request(statement, program, database, self._models)
            case Evaluate():
                return evaluate_request(statement, program, database, self._models)
            case Explain():
                return explain_request(statement, program, database, self._models)
        raise TypeError(f"{type(statement).__name__} has no submitter.")


def _result(statement: Statement, table: pa.Table) -> Result:
    return Result(statement, RowSource(table.schema, table.to_batches()))

r"""Running a program of statements, in order.

    program --parse--> statements --check--> requests --submitter--> a process of its own
                            \-- a plain statement --> the database, here

A statement that fails ends the program: those before it are done, those after it are not begun.

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
from elasticdl.sql.complaints import located
from elasticdl.sql.database import ENVIRONMENT, Database, Rows, open_database
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

RunSubmitter = Callable[[Path, "dict[str, str]"], int]


class SubmitterError(ElasticDLError):
    """A submitter failed and has said why; its exit code is the program's.

    Args:
        exit_code: Of the submitter.
    """

    def __init__(self, exit_code: int) -> None:
        # A process that was killed has the signal's number, negative; a shell would say 128 + N.
        code = 128 - exit_code if exit_code < 0 else exit_code
        super().__init__(f"The statement failed (exit code {code}).")
        self.exit_code = code


@dataclass(frozen=True)
class Session:
    """Where statements run.

    Attributes:
        database: URL of the database; None takes the environment's, else one in memory.
        models: Folder of the trained models.
        zoo: Folder of model files; None is the prebuilt zoo.
        run_submitter: Runs the program in a file with an environment; returns its exit code.
    """

    database: str | None = None
    models: str = DEFAULT_FOLDER
    zoo: Path | None = None
    run_submitter: RunSubmitter = run_process


@dataclass(frozen=True)
class Result:
    """What a statement came to.

    Attributes:
        statement: The statement.
        rows: Its rows, to be read before the next result is asked for; None if it has none.
        program: The submitter, if it was only to be explained.
    """

    statement: Statement
    rows: Rows | None = None
    program: str | None = None


def execute(
    program: str,
    session: Session,
    *,
    explain: bool = False,
    connection: Connection | None = None,
) -> Iterator[Result]:
    """Run the statements of a program; yields each one's result when it is done.

    Args:
        program: The text.
        session: Where to run them.
        explain: Only show the submitters of statements that would have one.
        connection: The session's, if programs follow each other; None opens and closes one.

    Raises:
        ElasticDLError: A statement is wrong or failed.
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
    """The database of a session, open only while this process needs it.

    A DuckDB file can be written by one process at a time, and the submitter is another one. A
    database in memory stays open, and its submitters run in this process.

    Attributes:
        dialect: sqlglot's name of the database's SQL dialect.
        name: The database's address without a password.
        is_in_memory: Whether the database is gone when the connection is closed.

    Args:
        session: Where statements run.

    Raises:
        ElasticDLError: The database cannot be opened.
    """

    def __init__(self, session: Session) -> None:
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
        """Yield the database."""
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
        """End the query that another thread runs here."""
        database = self._open
        if database is not None:
            database.interrupt()

    def submit(self, statement: Statement, program: str, *, explain: bool) -> Result:
        """Run a statement of the extension; see `execute`."""
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
            code = self._session.run_submitter(path, environment)
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
    return Result(statement, Rows(table.schema, table.to_batches()))

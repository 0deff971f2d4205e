r"""Execution of a client's program: runs its statements and sends the responses.

    waiting for its turn --> statement, statement, ... --> done
              \------------------ cancel --------------/
                 (the submitter gets SIGTERM, then SIGKILL; a query is interrupted)

Only one process at a time can open a DuckDB file, and each submitter is a process: programs on the
same file take turns. Other databases serve all sessions at the same time.

Used by `service.py`.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.errors import ElasticDLError, UsageError
from elasticdl.sql.execute import Connection, SqlSession, SubmitterError, execute
from elasticdl.sql.serving import sqlflow_pb2
from elasticdl.sql.serving.wire import packed
from elasticdl.sql.submitter_process import GRACE_S, run_piped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from elasticdl.sql.database_interface import RowSource

MAX_PROGRAM_BYTES = 1 << 20

_DUCKDB_FILE = re.compile(r"duckdb:///(.+)")
_IN_MEMORY = re.compile(r"(duckdb|sqlite(\+\w+)?)://(/?(:memory:)?)?")
_POLL_S = 0.2
_KEPT_LINES = 100
_ERROR = re.compile(r"(?:internal )?error: ")


def check_not_in_memory(url: str) -> None:
    """Raise a `UsageError` if a URL is that of a database in memory.

    Each program of a client opens the database again, so tables in memory would be lost between
    programs. Only the URL is checked; no connection is made.
    """
    if _IN_MEMORY.fullmatch(url):
        raise _empty(url)


def _empty(name: str) -> UsageError:
    return UsageError(
        f"{name}: an in-memory database would be empty for every program. Use a database file or a "
        "server."
    )


class CancelledError(ElasticDLError):
    """The client has disconnected, or the server is shutting down."""

    exit_code = 143


@dataclass(frozen=True)
class ExecutionSettings:
    """Settings for the programs of a server.

    Attributes:
        models: Folder of the trained models.
        zoo: Folder of model files; None is the prebuilt zoo.
        grace_s: Seconds that a cancelled submitter, the process that runs a statement, has to save
            its progress before it is killed.
    """

    models: str
    zoo: Path | None = None
    grace_s: float = GRACE_S


class DatabaseLocks:
    """Locks for DuckDB files, so that only one SQL program at a time uses a file."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turns: dict[Path, threading.Lock] = {}

    @contextlib.contextmanager
    def turn(self, url: str, stop: threading.Event, waiting: Callable[[], None]) -> Iterator[None]:
        """Context manager that waits until no other program uses a DuckDB file, and locks the file.

        For other databases it does nothing.

        Args:
            url: URL of the database.
            stop: Event that ends the wait when it is set.
            waiting: Function () that is called once if the file is in use, before the wait.

        Raises:
            CancelledError: `stop` was set.
        """
        file = _DUCKDB_FILE.fullmatch(url)
        if file is None:
            yield
            return
        with self._lock:
            turn = self._turns.setdefault(Path(file[1]).resolve(), threading.Lock())
        if not turn.acquire(blocking=False):
            waiting()
            while not turn.acquire(timeout=_POLL_S):
                if stop.is_set():
                    raise CancelledError("Cancelled while waiting in the queue.")
        try:
            yield
        finally:
            turn.release()


class Execution:
    """The execution of one client's program.

    Args:
        program: The statements.
        database: URL of the database.
        settings: The settings for running them.
        locks: The locks of DuckDB files, shared by all executions of a server.
        send: Function (response), called with the responses in order. It may block, and raises
            `CancelledError` to stop the execution.
    """

    def __init__(
        self,
        program: str,
        database: str,
        settings: ExecutionSettings,
        locks: DatabaseLocks,
        send: Callable[[sqlflow_pb2.Response], None],
    ) -> None:
        self._program, self._database, self._settings = program, database, settings
        self._locks, self._send = locks, send
        self.stop = threading.Event()
        self._done = threading.Event()
        self._connection: Connection | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def cancel(self) -> None:
        """Request the end of the execution; does not wait, and may be called repeatedly."""
        if not self.stop.is_set():
            self.stop.set()
            threading.Thread(target=self._interrupt, daemon=True).start()

    def _interrupt(self) -> None:
        # Repeated, because a query may start just after an interrupt.
        while not self._done.wait(_POLL_S):
            connection = self._connection
            if connection is not None:
                connection.interrupt()

    def wait(self, timeout_s: float) -> bool:
        """Wait until `run` has ended; return False after the timeout."""
        return self._done.wait(timeout_s)

    def run(self) -> None:
        """Run the statements.

        Raises:
            ElasticDLError: A statement is invalid or failed, or the execution was cancelled.
        """
        try:
            self._check_size()
            with self._locks.turn(self._database, self.stop, self._report_wait):
                self._run()
        except SubmitterError as error:
            self._check_stop()
            error.args = (self._reason(error),)
            raise
        except ElasticDLError:
            self._check_stop()
            raise
        finally:
            self._done.set()

    def _check_size(self) -> None:
        size = len(self._program.encode())
        if size > MAX_PROGRAM_BYTES:
            raise UsageError(
                f"The program has {size:,} bytes; at most {MAX_PROGRAM_BYTES:,} are allowed. Load "
                "data with the database's own client."
            )

    def _report_wait(self) -> None:
        self._message(
            "Waiting for another session: a DuckDB file can be used by one program at a time. "
            "PostgreSQL and MySQL serve several."
        )

    def _run(self) -> None:
        session = SqlSession(
            self._database,
            self._settings.models,
            self._settings.zoo,
            run_submitter=self._run_submitter,
        )
        with Connection(session) as connection:
            if connection.is_in_memory:
                raise _empty(connection.name)
            self._connection = connection
            begun_s = time.monotonic()
            try:
                for result in execute(self._program, session, connection=connection):
                    self._check_stop()
                    if result.rows is not None:
                        self._send_rows(result.rows)
                    seconds = int(time.monotonic() - begun_s)
                    end = sqlflow_pb2.EndOfExecution(
                        sql=result.statement.text, spent_time_seconds=seconds
                    )
                    self._send(sqlflow_pb2.Response(eoe=end))
                    begun_s = time.monotonic()
            finally:
                self._connection = None

    def _send_rows(self, rows: RowSource) -> None:
        head = sqlflow_pb2.Head(column_names=rows.schema.names)
        self._send(sqlflow_pb2.Response(head=head))
        for batch in rows.batches:
            for start in range(0, batch.num_rows, 1000):
                part = batch.slice(start, 1000)
                columns = [column.to_pylist() for column in part.columns]
                for row in zip(*columns, strict=True):
                    data = [packed(value) for value in row]
                    self._send(sqlflow_pb2.Response(row=sqlflow_pb2.Row(data=data)))
            self._check_stop()

    def _run_submitter(self, path: Path, environment: Mapping[str, str]) -> int:
        self._lines.clear()

        def on_line(line: str) -> None:
            self._lines.append(line)
            # After a stop the client is gone, while the submitter still saves its progress.
            if not self.stop.is_set():
                self._message(line)

        return run_piped(path, environment, on_line, self.stop, self._settings.grace_s)

    def _message(self, text: str) -> None:
        self._send(sqlflow_pb2.Response(message=sqlflow_pb2.Message(message=text)))

    def _check_stop(self) -> None:
        if self.stop.is_set():
            raise CancelledError(
                "Cancelled. Training progress is saved; run the same statement to resume."
            )

    def _reason(self, error: SubmitterError) -> str:
        """Return the error message that a failed submitter printed, or else a general one."""
        lines = list(self._lines)
        for at in range(len(lines) - 1, -1, -1):
            if _ERROR.match(lines[at]):
                return _ERROR.sub("", "\n".join(lines[at:]), count=1)
        return f"{error} Run the same statement to resume training."

"""The gRPC service of `elasticdl sql-server`: checks callers, limits sessions, runs programs.

    Run                      returns responses until the end; cancelling it cancels the program
    Run with exit_on_submit  returns a Job immediately; the program continues
    Fetch                    returns the output of a job since the last call

The token of each Run call is checked in constant time before anything else.

Called by `cli/sql_server.py`; the wire format is in `wire.py` and `sqlflow.proto`.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import queue
import re
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from elasticdl.errors import ElasticDLError, UsageError
from elasticdl.sql.serving import sqlflow_pb2
from elasticdl.sql.serving.execution import (
    CancelledError,
    DatabaseLocks,
    Execution,
    check_not_in_memory,
)
from elasticdl.sql.serving.jobs import Jobs
from elasticdl.sql.serving.security import bind, check_address, is_forbidden_user
from elasticdl.sql.serving.wire import EXIT_CODE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from elasticdl.sql.serving.execution import ExecutionSettings
    from elasticdl.sql.serving.security import Security

_LOG = logging.getLogger(__name__)
_OUTBOX = 256
_POLL_S = 0.2
# Threads for short calls: Fetch, and rejected calls.
_MORE_THREADS = 8
_MAX_DETAILS = 4000
_NUMBER = re.compile(r"[0-9]{0,18}")
_OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.so_reuseport", 0),
    # With these settings, a vanished client is detected within a minute.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
)
_CODES = {
    2: grpc.StatusCode.INVALID_ARGUMENT,
    3: grpc.StatusCode.INVALID_ARGUMENT,
    4: grpc.StatusCode.FAILED_PRECONDITION,
    5: grpc.StatusCode.ABORTED,
    6: grpc.StatusCode.FAILED_PRECONDITION,
    75: grpc.StatusCode.UNAVAILABLE,
    130: grpc.StatusCode.CANCELLED,
    143: grpc.StatusCode.CANCELLED,
}


class Server:
    """The gRPC server for SQL programs; it listens from its construction until `stop`.

    Attributes:
        address: HOST:PORT on which it listens.

    Args:
        address: HOST:PORT; port 0 selects a free one.
        database: URL of the database.
        settings: The settings for running programs.
        security: The access rules.
        max_sessions: Maximum number of concurrent programs; more are rejected.

    Raises:
        UsageError: The access rules forbid the address, or the database is in memory.
        UnavailableError: The address is in use, or the certificate is unusable.
    """

    def __init__(
        self,
        address: str,
        database: str,
        settings: ExecutionSettings,
        security: Security,
        max_sessions: int = 8,
    ) -> None:
        check_address(address, security)
        check_not_in_memory(database)
        self._database, self._settings, self._security = database, settings, security
        self._slots = threading.BoundedSemaphore(max_sessions)
        self._max_sessions = max_sessions
        self._locks, self._jobs = DatabaseLocks(), Jobs()
        self._running: set[Execution] = set()
        self._lock = threading.Lock()
        threads = futures.ThreadPoolExecutor(max_sessions + _MORE_THREADS)
        self._server = grpc.server(threads, options=_OPTIONS)
        self._server.add_generic_rpc_handlers((self._handlers(),))
        self._host = address.rpartition(":")[0]
        self._port = bind(self._server, address, security)
        self.address = f"{self._host}:{self._port}"
        self._server.start()

    def wait(self) -> None:
        """Wait until the server has stopped; a signal may end the wait."""
        self._server.wait_for_termination()

    def stop(self) -> None:
        """Reject new calls, cancel all executions, and wait until their progress is saved."""
        with self._lock:
            running = list(self._running)
        for execution in running:
            execution.cancel()
        stopped = self._server.stop(grace=1.0)
        deadline_s = time.monotonic() + self._settings.grace_s + 5
        for execution in running:
            execution.wait(max(0.0, deadline_s - time.monotonic()))
        stopped.wait()

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            "proto.SQLFlow",
            {
                "Run": grpc.unary_stream_rpc_method_handler(
                    self._run,
                    request_deserializer=_reader(sqlflow_pb2.Request),
                    response_serializer=sqlflow_pb2.Response.SerializeToString,
                ),
                "Fetch": grpc.unary_unary_rpc_method_handler(
                    self._fetch,
                    request_deserializer=_reader(sqlflow_pb2.FetchRequest),
                    response_serializer=sqlflow_pb2.FetchResponse.SerializeToString,
                ),
            },
        )

    def _run(
        self, request: sqlflow_pb2.Request | _Unreadable, context: grpc.ServicerContext
    ) -> Iterator[sqlflow_pb2.Response]:
        checked = self._checked(request, context)
        database = self._chosen_database(checked.session.db_conn_str, context)
        if not self._slots.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{self._max_sessions} programs are already running (--max_sessions). Try again "
                "later.",
            )
        if checked.session.exit_on_submit:
            number, output = self._jobs.add()
            job = self._execution(checked.stmts, database, output.add)
            self._start(job, output.end)
            yield sqlflow_pb2.Response(job=sqlflow_pb2.Job(id=number))
            return
        outbox = _Outbox()
        execution = self._execution(checked.stmts, database, outbox.put)
        outbox.stop = execution.stop
        if not context.add_callback(execution.cancel):
            execution.cancel()
        self._start(execution, outbox.end)
        failure = yield from outbox.responses()
        if failure is not None:
            _abort(context, failure)

    def _execution(
        self, program: str, database: str, send: Callable[[sqlflow_pb2.Response], None]
    ) -> Execution:
        return Execution(program, database, self._settings, self._locks, send)

    def _start(self, execution: Execution, end: Callable[[BaseException | None], None]) -> None:
        """Run an execution in a new thread.

        At its end, the thread releases the session slot and calls `end` with the error, or with
        None after success.
        """

        def run() -> None:
            failure: BaseException | None = None
            try:
                execution.run()
            except ElasticDLError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - reported to the client
                _LOG.exception("Internal error in ElasticDL.")
                failure = error
            finally:
                with self._lock:
                    self._running.discard(execution)
                self._slots.release()
                end(failure)

        with self._lock:
            self._running.add(execution)
        threading.Thread(target=run, daemon=True).start()

    def _fetch(
        self, request: sqlflow_pb2.FetchRequest | _Unreadable, context: grpc.ServicerContext
    ) -> sqlflow_pb2.FetchResponse:
        if isinstance(request, _Unreadable):
            _refuse_bytes(context)
        try:
            output = self._jobs.output(request.job.id)
        except UsageError as error:
            context.abort(grpc.StatusCode.NOT_FOUND, str(error))
        if not _NUMBER.fullmatch(request.step_id):
            context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "step_id: expected that of updated_fetch_since."
            )
        responses, following, is_end = output.since(int(request.step_id or "0"))
        if is_end and not responses and output.failure is not None:
            _abort(context, output.failure)
        since = sqlflow_pb2.FetchRequest(
            job=request.job, step_id=str(following), step_phase="Ended" if is_end else "Running"
        )
        return sqlflow_pb2.FetchResponse(
            updated_fetch_since=since,
            # A failure is reported by the next call.
            eof=is_end and output.failure is None,
            responses=sqlflow_pb2.FetchResponse.Responses(response=responses),
        )

    def _checked(
        self, request: sqlflow_pb2.Request | _Unreadable, context: grpc.ServicerContext
    ) -> sqlflow_pb2.Request:
        if isinstance(request, _Unreadable):
            _refuse_bytes(context)
        if is_forbidden_user(context.peer(), self._host, self._port, self._security):
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "Without --token_file or --tls_ca, the server accepts only processes of the user "
                "who started it.",
            )
        token = self._security.token
        given = request.session.token.encode()
        if token is not None and not hmac.compare_digest(given, token.encode()):
            context.abort(
                grpc.StatusCode.UNAUTHENTICATED,
                "The token in the session is missing or wrong; it must be the one in the server's "
                "--token_file.",
            )
        return request

    def _chosen_database(self, given: str, context: grpc.ServicerContext) -> str:
        if given in {"", self._database}:
            return self._database
        if not self._security.allow_any_database:
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "The session sets its own database (db_conn_str), which this server does not "
                "allow: it was started without --allow_any_database.",
            )
        return given


class _Outbox:
    """Queue of responses, from the thread that runs a program to the gRPC call that sends them.

    It is bounded, so a program waits for a client that reads slowly.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self._queue: queue.Queue[sqlflow_pb2.Response | None] = queue.Queue(_OUTBOX)
        self._failure: BaseException | None = None

    def put(self, response: sqlflow_pb2.Response | None) -> None:
        """Queue a response, or None to mark the end; wait for space if necessary.

        Raises:
            CancelledError: The client has disconnected.
        """
        while not self.stop.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(response, timeout=_POLL_S)
                return
        raise CancelledError("The client disconnected.")

    def end(self, failure: BaseException | None) -> None:
        self._failure = failure
        try:
            self.put(None)
        except CancelledError:
            # Make space for the end mark, in case a reader still waits.
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(None)

    def responses(self) -> Any:
        """Yield the responses until the end of the program.

        The generator's return value is the error that ended the program; None after success.
        """
        while (response := self._queue.get()) is not None:
            yield response
        return self._failure


class _Unreadable:
    """A request that cannot be parsed, for which the client gets a clear error.

    The parser returns it, because gRPC reports an internal error if it returns None or raises.
    """


def _reader(message: Any) -> Callable[[bytes], Any]:
    """Return a parser of requests of one type; it returns `_Unreadable` for invalid bytes."""

    def read(content: bytes) -> Any:
        try:
            return message.FromString(content)
        except DecodeError:
            return _Unreadable()

    return read


def _refuse_bytes(context: grpc.ServicerContext) -> NoReturn:
    context.abort(
        grpc.StatusCode.INVALID_ARGUMENT,
        "The request is not a message of this protocol, or a string in it is not UTF-8.",
    )
    raise AssertionError  # `abort` never returns


def _abort(context: grpc.ServicerContext, failure: BaseException) -> NoReturn:
    if isinstance(failure, ElasticDLError):
        code, text = failure.exit_code, str(failure)
        status = _CODES.get(code, grpc.StatusCode.UNKNOWN)
    else:
        code, status = 1, grpc.StatusCode.INTERNAL
        text = (
            f"{type(failure).__name__}: {failure}\nThis is a bug in ElasticDL, not in your program."
        )
    context.set_trailing_metadata(((EXIT_CODE, str(code)),))
    context.abort(status, text[:_MAX_DETAILS])
    raise AssertionError  # `abort` never returns

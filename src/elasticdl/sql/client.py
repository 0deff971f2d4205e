"""Client of `elasticdl sql-server`: sends SQL statements and returns typed results.

    with Client("sql.example.com:50051", token=token, ca="ca.pem") as client:
        frame = client.execute("SELECT role, salary FROM employee;").to_dataframe()
        for item in client.execute("SELECT ... TO TRAIN ... INTO my_model;"):
            if isinstance(item, Message): print(item.text)

Used by programs; it needs neither a database nor a framework.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import grpc
import pyarrow as pa

from elasticdl.errors import ElasticDLError, MissingExtraError, UsageError
from elasticdl.sql.serving import sqlflow_pb2
from elasticdl.sql.serving.security import is_loopback
from elasticdl.sql.serving.wire import EXIT_CODE, FETCH, RUN, unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_LONGEST_MESSAGE = 64 << 20
_FETCH_INTERVAL_S = 1.0
_UNAVAILABLE = 75
# gRPC's wording when client and server disagree about TLS or the certificate.
_NOT_UNDERSTOOD = ("Socket closed", "Connection reset", "CERTIFICATE_VERIFY_FAILED")
_HINT = " This client does not use TLS. If the server does, pass its CA certificate: ca=FILE."
_HINT_CA = (
    " If the server's certificate is signed by a private CA, pass the CA certificate: ca=FILE."
)


class RemoteError(ElasticDLError):
    """The server rejected a request or a statement failed; the message comes from the server.

    Attributes:
        exit_code: Exit code that the command line would have returned.
        status: Name of the gRPC status, such as "UNAUTHENTICATED".
    """

    def __init__(self, message: str, exit_code: int, status: str) -> None:
        super().__init__(message)
        self.exit_code, self.status = exit_code, status


@dataclass(frozen=True)
class Message:
    """A line of text about the progress of a statement."""

    text: str


@dataclass(frozen=True)
class Head:
    """The column names of a statement's result; the rows follow as `Row` items."""

    column_names: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A result row: its values in the order of the columns; timestamps are UTC, without a zone."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class End:
    """Mark of the end of a statement's results.

    Attributes:
        statement: Text of the statement.
        seconds: Run time of the statement, in seconds.
    """

    statement: str
    seconds: int


Item = Message | Head | Row | End


class Results:
    """Iterator of a program's results, usable once; each statement's results end with `End`."""

    def __init__(self, items: Iterable[Item], call: Any = None) -> None:
        self._items, self._call = iter(items), call

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def cancel(self) -> None:
        """Cancel the program; a TRAIN statement saves its progress first."""
        if self._call is not None:
            self._call.cancel()

    def to_tables(self) -> list[pa.Table]:
        """Return one Arrow table for each statement that returned rows.

        Raises:
            RemoteError: A statement failed.
        """
        found: list[tuple[tuple[str, ...], list[tuple[Any, ...]]]] = []
        for item in self:
            if isinstance(item, Head):
                found.append((item.column_names, []))
            elif isinstance(item, Row):
                found[-1][1].append(item.values)
        return [
            pa.table(
                [pa.array([row[at] for row in rows]) for at in range(len(names))], names=list(names)
            )
            for names, rows in found
        ]

    def to_dataframe(self) -> Any:
        """Return the rows of the last statement that returned rows, as a pandas DataFrame.

        Raises:
            RemoteError: A statement failed.
            UsageError: No statement has rows.
        """
        tables = self.to_tables()
        if not tables:
            raise UsageError("No statement of the program returned rows.")
        try:
            return tables[-1].to_pandas()
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), "sql", "A DataFrame") from error


class Client:
    """A connection to a server.

    Args:
        address: HOST:PORT.
        token: The server's token.
        ca: File with the certificates of the authority that signed the server's certificate. None:
            trust the authorities built into gRPC or, for an address of this machine, connect
            without TLS.
        certificate: File with this client's certificate, if the server requires one.
        key: File with the private key of `certificate`.
        database: URL of the database to use, if the server lets clients choose one; empty means
            the server's default.

    Raises:
        UsageError: A file cannot be read.
    """

    def __init__(
        self,
        address: str,
        *,
        token: str = "",
        ca: str | Path | None = None,
        certificate: str | Path | None = None,
        key: str | Path | None = None,
        database: str = "",
    ) -> None:
        self._token, self._database = token, database
        options = (("grpc.max_receive_message_length", _LONGEST_MESSAGE),)
        self._hint = ""
        if ca is None and is_loopback(address.rpartition(":")[0]):
            self._channel = grpc.insecure_channel(address, options)
            self._hint = _HINT
        else:
            self._hint = _HINT_CA if ca is None else ""
            credentials = grpc.ssl_channel_credentials(
                _content(ca, "ca"), _content(key, "key"), _content(certificate, "certificate")
            )
            self._channel = grpc.secure_channel(address, credentials, options)
        self._run = self._channel.unary_stream(
            RUN,
            request_serializer=sqlflow_pb2.Request.SerializeToString,
            response_deserializer=sqlflow_pb2.Response.FromString,
        )
        self._fetch = self._channel.unary_unary(
            FETCH,
            request_serializer=sqlflow_pb2.FetchRequest.SerializeToString,
            response_deserializer=sqlflow_pb2.FetchResponse.FromString,
        )

    def execute(self, program: str) -> Results:
        """Run the statements of a program in order; results arrive while they run.

        Args:
            program: The statements, each ended by `;`.

        Returns:
            The results. Reading them raises `RemoteError` if a statement fails.
        """
        call = self._run(self._request(program))
        return Results(_items(call, self._hint), call)

    def submit(self, program: str) -> str:
        """Start statements as a job that keeps running without this client; return the job's id.

        Raises:
            RemoteError: The server rejects the request.
        """
        with _errors(self._hint):
            for response in self._run(self._request(program, exit_on_submit=True)):
                return str(response.job.id)
        raise RemoteError("The server did not start a job.", 1, "INTERNAL")

    def fetch(self, job: str, interval_s: float = _FETCH_INTERVAL_S) -> Results:
        """Return the results of a submitted job from its beginning, as they become available.

        Args:
            job: Id of the job.
            interval_s: Seconds to wait between polls when there is nothing new.
        """
        return Results(self._fetched(job, interval_s))

    def _fetched(self, job: str, interval_s: float) -> Iterator[Item]:
        request = sqlflow_pb2.FetchRequest(job=sqlflow_pb2.Job(id=job))
        with _errors(self._hint):
            while True:
                response = self._fetch(request)
                yield from _items(response.responses.response, self._hint)
                if response.eof:
                    return
                request = response.updated_fetch_since
                if not response.responses.response:
                    time.sleep(interval_s)

    def _request(self, program: str, *, exit_on_submit: bool = False) -> sqlflow_pb2.Request:
        session = sqlflow_pb2.Session(
            token=self._token, db_conn_str=self._database, exit_on_submit=exit_on_submit
        )
        return sqlflow_pb2.Request(stmts=program, session=session)

    def close(self) -> None:
        """Close the connection, which cancels running programs; submitted jobs continue."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()


def _items(responses: Iterable[sqlflow_pb2.Response], hint: str) -> Iterator[Item]:
    with _errors(hint):
        for response in responses:
            match response.WhichOneof("response"):
                case "head":
                    yield Head(tuple(response.head.column_names))
                case "row":
                    yield Row(tuple(unpacked(each) for each in response.row.data))
                case "message":
                    yield Message(response.message.message)
                case "eoe":
                    yield End(response.eoe.sql, response.eoe.spent_time_seconds)


@contextlib.contextmanager
def _errors(hint: str) -> Iterator[None]:
    """Context manager that converts gRPC errors to `RemoteError`.

    Args:
        hint: Text to add to the message if the error suggests that the client should have used TLS,
            or another CA certificate.
    """
    try:
        yield
    except grpc.RpcError as error:
        status: Any = error
        code = status.code()
        given = dict(status.trailing_metadata() or ()).get(EXIT_CODE)
        known = {grpc.StatusCode.UNAVAILABLE: _UNAVAILABLE, grpc.StatusCode.CANCELLED: 130}
        exit_code = int(given) if given is not None else known.get(code, 2)
        details = str(status.details())
        if hint and any(words in details for words in _NOT_UNDERSTOOD):
            details = f"{details.rstrip('.')}.{hint}"
        raise RemoteError(details, exit_code, str(code.name)) from error


def _content(path: str | Path | None, name: str) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{name}={path} cannot be read: {error.strerror}.") from error

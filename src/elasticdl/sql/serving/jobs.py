"""Jobs: SQL programs that run without a connected client, which fetches their output later.

An id cannot be guessed, so any client that has it may fetch. Only the newest part of the output is
kept; a message reports the number of dropped responses. A finished job is kept for an hour, and at
most a hundred of them are kept.

Used by `service.py`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from elasticdl.data.wording import counted
from elasticdl.errors import UsageError
from elasticdl.sql.serving import sqlflow_pb2

MAX_BYTES = 16 << 20
FETCHED_BYTES = 1 << 20
KEPT_S = 3600.0
MAX_ENDED = 100


@dataclass
class JobOutput:
    """The buffered output of a job.

    Attributes:
        failure: The error that ended the job early; None if it is running or has completed.
    """

    failure: BaseException | None = None
    _responses: deque[sqlflow_pb2.Response] = field(default_factory=deque)
    _first: int = 0
    _num_bytes: int = 0
    _ended_s: float | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, response: sqlflow_pb2.Response) -> None:
        """Store a response; drop the oldest responses if the buffer is full."""
        with self._lock:
            self._responses.append(response)
            self._num_bytes += response.ByteSize()
            while self._num_bytes > MAX_BYTES and len(self._responses) > 1:
                self._num_bytes -= self._responses.popleft().ByteSize()
                self._first += 1

    def end(self, failure: BaseException | None = None) -> None:
        """Record that the job has ended, and its error if it failed. Call after the last `add`."""
        with self._lock:
            self.failure, self._ended_s = failure, time.monotonic()

    @property
    def ended_s(self) -> float | None:
        """When the job ended, in seconds on the monotonic clock; None while it runs."""
        return self._ended_s

    def since(self, number: int) -> tuple[list[sqlflow_pb2.Response], int, bool]:
        """Return the next responses, about `FETCHED_BYTES` at most.

        Args:
            number: Number of the first response to return; the job's responses are numbered from 0.

        Returns:
            The responses; the number to continue with; and whether the job has ended and these are
            its last responses. If responses were dropped, the first one is a message about them.
        """
        with self._lock:
            found, size = [], 0
            if number < self._first:
                dropped = counted(self._first - number, "response")
                text = f"{dropped} dropped: at most 16 MiB are kept per job."
                found.append(sqlflow_pb2.Response(message=sqlflow_pb2.Message(message=text)))
                number = self._first
            for response in list(self._responses)[number - self._first :]:
                size += response.ByteSize()
                if size > FETCHED_BYTES and found:
                    break
                found.append(response)
                number += 1
            at_end = number >= self._first + len(self._responses)
            return found, number, at_end and self._ended_s is not None


class Jobs:
    """Registry of a server's jobs; drops the output of old ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outputs: dict[str, JobOutput] = {}

    def add(self) -> tuple[str, JobOutput]:
        """Create a job; return its id and its output."""
        number, output = secrets.token_urlsafe(24), JobOutput()
        with self._lock:
            self._forget()
            self._outputs[number] = output
        return number, output

    def output(self, number: str) -> JobOutput:
        """Return the output of a job.

        Args:
            number: Id of the job, as returned by `add`.

        Raises:
            UsageError: There is no such job, or it is no longer kept.
        """
        with self._lock:
            self._forget()
            found = self._outputs.get(number)
        if found is None:
            raise UsageError(
                "No such job. Its output is kept for an hour after it ends, and only while the "
                "server runs."
            )
        return found

    def _forget(self) -> None:
        ended = sorted(
            (output.ended_s, number)
            for number, output in self._outputs.items()
            if output.ended_s is not None
        )
        too_many = len(ended) - MAX_ENDED
        for at, (ended_s, number) in enumerate(ended):
            if at < too_many or time.monotonic() - ended_s > KEPT_S:
                del self._outputs[number]

"""Job messages: copies the messages that a job shows to the user into its event log.

    reporter.note(...)              --> the user, and a `Noted` event
    logging.getLogger("elasticdl")  --> the user, and a `Noted` event

Messages are recorded from the beginning of an attempt at the job to its end. Those that arrive
before the attempt's `JobStarted` event are written after that event. Those that arrive after its
`JobFinished` or `JobFailed` event are not written. Passwords in addresses are removed. Output that
a model's code prints is not captured.

Callers: `attempt.py`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from elasticdl.errors import ElasticDLError
from elasticdl.events import JobFailed, JobFinished, JobStarted, Noted
from elasticdl.job import without_password

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.engines.engine import Reporter
    from elasticdl.events import Event
    from elasticdl.tracking.follow import Log

_log = logging.getLogger("elasticdl")

_MAX_MESSAGES = 1_000
_MAX_CHARACTERS = 2_000
_NO_MORE = "Further messages of this attempt are not recorded."


class MessageLog(logging.Filter):
    """An event log that also records messages, as `Noted` events; safe for several threads.

    It is attached to ElasticDL's logger as a filter. As a handler it would keep Python from
    printing the warnings in a program that has not configured its logging.

    Attributes:
        path: The file of the log.
        started: Whether a `JobStarted` was written.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log
        self.path = log.path
        self._lock = threading.RLock()
        self._waiting: list[Noted] = []
        self.started = False
        self._runs = False
        self._num_messages = 0

    def write(self, event: Event) -> None:
        """Write an event to the log.

        Raises:
            OutputError: The log cannot be written.
        """
        with self._lock:
            if isinstance(event, (JobFinished, JobFailed)):
                self._write_waiting()
            self._log.write(event)
            if isinstance(event, JobStarted):
                self.started = self._runs = True
                self._num_messages = 0
                self._write_waiting()
            elif isinstance(event, (JobFinished, JobFailed)):
                self._runs = False

    def publish(self) -> None:
        """Make all events written so far durable.

        Raises:
            OutputError: The log cannot be written to the disk or the remote output.
        """
        self._log.publish()

    def take(self, text: str, level: str = "info") -> None:
        """Record a message: write it at once, or after the attempt's start event, if still to come.

        Only the first 1,000 messages of an attempt are recorded. If writing fails, the next `write`
        raises the error.
        """
        with self._lock:
            if self._num_messages > _MAX_MESSAGES:
                return
            self._num_messages += 1
            if self._num_messages > _MAX_MESSAGES:
                text, level = _NO_MORE, "info"
            self._waiting.append(
                Noted(message=without_password(text)[:_MAX_CHARACTERS], level=level)
            )
            if self._runs:
                with contextlib.suppress(ElasticDLError):
                    self._write_waiting()

    def filter(self, record: logging.LogRecord) -> bool:
        """Record a warning of ElasticDL's code, and let it pass; see `logging.Filter`."""
        if record.levelno >= logging.WARNING:
            self.take(record.getMessage(), record.levelname.lower())
        return True

    @contextlib.contextmanager
    def attached(self) -> Iterator[Self]:
        """Context manager that records the warnings that ElasticDL logs during its block."""
        _log.addFilter(self)
        try:
            yield self
        finally:
            _log.removeFilter(self)

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            self._log.write(message)


def without_recording(reporter: Reporter) -> Reporter:
    """Return a reporter that shows notes without recording them in the event log.

    It is used for notes on what has an event of its own in the log, such as an evaluation.
    """
    return reporter.reporter if isinstance(reporter, RecordingReporter) else reporter


class RecordingReporter:
    """A reporter that also records its notes in a log; see `engine.Reporter`.

    Args:
        reporter: Shows the notes to the user.
        messages: Records the notes.

    Attributes:
        reporter: The wrapped reporter, which does not record notes.
    """

    def __init__(self, reporter: Reporter, messages: MessageLog) -> None:
        self.reporter, self._messages = reporter, messages

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Forward to the wrapped reporter."""
        self.reporter.started(title, total, unit, done)

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Forward to the wrapped reporter."""
        self.reporter.advanced(done, facts)

    def note(self, message: str) -> None:
        """Forward to the wrapped reporter, and record the message."""
        self.reporter.note(message)
        self._messages.take(message)

    def ended(self) -> None:
        """Forward to the wrapped reporter."""
        self.reporter.ended()

"""Event file: writes and reads the log of a run, `events.jsonl`, one line of JSON per event.

    attempt 1   started ... step 100, checkpointed 100 ... step 140   (killed)
    attempt 2   started (resumed from 100) ... step 120 ... finished
    history     started ... step 100, checkpointed 100, started ... step 120 ... finished

A log only grows, so after a resume it contains some steps twice. `read_events` returns the history
of the model that resulted: it leaves out events that a later attempt superseded.

The writers keep two rules, so that no event is lost or counted twice:

* The steps up to a checkpoint are logged before the checkpoint is published. No `StepCommitted` has
  steps from both before and after it, so that a resume never drops only a part of an event.
* Within an attempt, steps never decrease.

Callers: the engines write; `page/`, `tracking/` and the audit read.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from elasticdl import user_files
from elasticdl.errors import DataError, OutputError
from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    Event,
    JobStarted,
    RecordsSkipped,
    RoundFinished,
    parse_event,
    to_json,
)


class EventLog:
    """Event log of one output, open for appending; threads of this process may share it.

    Each line is handed to the operating system immediately and as a whole, so it survives the
    death of the process. Only `publish` waits until the lines are on disk: a power cut may lose
    lines written since the last `publish`. If the process died in the middle of a line, the torn
    line is cut off when the log is opened again.

    Args:
        path: The file; it is created, with its folder, if it does not exist.
        sync: Called by `publish` with the path, to upload the file to an output that is not on this
            machine. None: the file itself is in the output.

    Attributes:
        path: The file.

    Raises:
        OutputError: The file cannot be opened.
    """

    def __init__(
        self, path: str | os.PathLike[str], sync: Callable[[Path], None] | None = None
    ) -> None:
        self.path = Path(path)
        self._sync = sync
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._error(error) from error
        try:
            os.ftruncate(self._descriptor, _whole_bytes(self._descriptor))
        except OSError as error:
            os.close(self._descriptor)
            raise self._error(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def write(self, event: Event) -> None:
        """Append an event.

        Raises:
            OutputError: The disk is full; then no part of the event is in the log.
        """
        line = (to_json(event) + "\n").encode()
        with self._lock:
            before = os.fstat(self._descriptor).st_size
            try:
                written = 0
                while written < len(line):
                    written += os.write(self._descriptor, line[written:])
            except OSError as error:
                os.ftruncate(self._descriptor, before)
                raise self._error(error) from error

    def publish(self) -> None:
        """Wait until all events so far are on disk and, for remote outputs, stored by `sync`.

        Raises:
            OutputError: The events cannot be written to the disk or the remote output.
        """
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._error(error) from error
        if self._sync is not None:
            self._sync(self.path)

    def close(self) -> None:
        """Publish and close; closing twice is harmless."""
        if self._descriptor < 0:
            return
        try:
            self.publish()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _error(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self.path}: the event log cannot be written: {error.strerror}. Free some space, "
            "give this user permission to write there, or use another --output."
        )


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """Read a run's events from its log, without those that a later attempt superseded.

    The steps of an attempt after the step from which a later attempt resumed are left out, and
    so are repeated events: each epoch's end, and each step's evaluation and checkpoint, appears
    once, as it was logged last.

    Args:
        path: Path or URI of the log. An incomplete last line is not read.

    Raises:
        DataError: The file does not exist or cannot be read.
        CorruptDataError: A line is damaged.
    """
    where = os.fspath(path)
    return parse_events(_read(where), where)


def parse_events(data: bytes, where: str = "events.jsonl") -> list[Event]:
    """Parse the bytes of an event log, without the events that a later attempt superseded.

    `read_events` describes which events are left out.

    Args:
        data: The content of the file.
        where: The name of the log in errors.

    Raises:
        CorruptDataError: A line is damaged.
    """
    history: list[Event] = []
    for event in parse_all_events(data, where):
        if isinstance(event, JobStarted):
            history = [item for item in history if _step_of(item) <= event.resumed_from_step]
        history.append(event)
    last = {_superseding_key(event): at for at, event in enumerate(history)}
    return [event for at, event in enumerate(history) if last[_superseding_key(event)] == at]


def parse_all_events(data: bytes, where: str = "events.jsonl") -> Iterator[Event]:
    """Yield all events of a log in their order, also those that a later attempt superseded.

    They tell the history of the attempts, such as lost workers; `parse_events` that of the model.

    Args:
        data: The content of the file.
        where: The name of the log in errors.

    Raises:
        CorruptDataError: A line is damaged.
    """
    offset = 0
    for line in data.split(b"\n")[:-1]:
        yield parse_event(line, where, offset)
        offset += len(line) + 1


def _step_of(event: Event) -> int:
    match event:
        case JobStarted():
            return event.resumed_from_step
        case RecordsSkipped():
            # Counts as the next step: a checkpoint of the same step may precede this event.
            return event.step + 1
        case _:
            return event.step


def _superseding_key(event: Event) -> tuple[Any, ...]:
    """Return a key by which an event replaces all earlier events of the log with an equal key.

    An event that replaces no other, such as `StepCommitted`, gets a unique key.
    """
    match event:
        case EpochFinished():
            return (event.event, event.epoch)
        case Evaluated() | Checkpointed() | RoundFinished():
            return (event.event, event.step)
        case RecordsSkipped():
            return (event.event, event.epoch, event.shard, event.batch)
        case _:
            return (id(event),)


def _read(where: str) -> bytes:
    try:
        if "://" not in where:
            return user_files.read_bytes(where)
        import fsspec  # noqa: PLC0415 - only a remote log needs it

        with fsspec.open(where, "rb") as file:
            return bytes(file.read())
    except OSError as error:
        raise DataError(
            f"{where}: the event log cannot be read: {error.strerror or error}. Check that its "
            "folder is the output of a run."
        ) from error


_BLOCK_BYTES = 1 << 16


def _whole_bytes(descriptor: int) -> int:
    """Return the length of a log's complete lines, in bytes; anything after them is damaged."""
    end = os.fstat(descriptor).st_size
    tail = b""
    while True:
        # Read from the end, a block at a time: a log may be large, but its torn part is small.
        start = max(0, end - len(tail) - _BLOCK_BYTES)
        tail = os.pread(descriptor, end - start, start)
        lines = tail.split(b"\n")
        keep = len(tail) - len(lines[-1])
        for line in reversed(lines[1:-1] if start else lines[:-1]):
            if _is_json(line):
                return start + keep
            keep -= len(line) + 1
        if start == 0:
            return keep


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False

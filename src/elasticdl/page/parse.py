"""Fast parser for event logs that skips damaged lines.

Nearly all lines of a long log are `step_committed`. msgspec parses them about ten times as fast as
`json`, into columns instead of one event object per line. All other lines become events. The page
should show whatever is readable in a damaged log, so a damaged line is counted and skipped, whereas
`event_file.read_events` raises an error.

Pure: bytes in, values out. Callers: `history.py`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

from elasticdl.errors import CorruptDataError
from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    Event,
    StepCommitted,
    from_json,
)

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

_NUM_ROW_FIELDS = 5
# If a block of lines has an irregular one, blocks of at most this size are parsed line by line.
_FEW_LINES = 16
_SHOWN_BYTES = 60
# The first second of the year 10000, which calendars cannot represent.
_END_OF_TIME_S = 253_402_300_800.0


class _Line(msgspec.Struct, gc=False):
    """A decoded line of the log, with the fields of a `StepCommitted` event.

    If the line is another event, the fields that it lacks have default values.
    """

    event: str
    time: float
    step: int = -1
    epoch: int = -1
    num_records: int = -1
    loss: float | str = ""
    rows: msgspec.Raw = msgspec.Raw(b"[]")
    num_left_out: int = 0
    longest_s: float = 0.0


_DECODER = msgspec.json.Decoder(_Line)
_STEP = StepCommitted.event
# Packing all numbers into one array takes half as long as making an array for each field.
_PACK = struct.Struct("<dqqqdqd").pack
_NUMBERS: Mapping[str, type] = {
    "time": np.float64,
    "step": np.int64,
    "epoch": np.int64,
    "num_records": np.int64,
    "loss": np.float64,
    "num_left_out": np.int64,
    "longest_s": np.float64,
}
_PACKED = np.dtype(list(_NUMBERS.items()))
_COMMAS = bytes.maketrans(b";", b",")


@dataclass(frozen=True, eq=False)
class StepColumns:
    """Consecutive `StepCommitted` events as columns, one entry each.

    Attributes:
        time: In seconds since 1970-01-01 UTC.
        step: Number of updates so far.
        epoch: From 0.
        num_records: Number of records trained on.
        loss: Mean loss over these records.
        num_left_out: Number of records that all workers skipped.
        longest_s: Longest time between two commits, in seconds; 0 if unknown.
        row_ends: Index in `rows` one past the last row of the event.
        rows: The committed batches of all events, one `events.CommittedRow` (five integers) per
            row.
    """

    time: Floats
    step: Ints
    epoch: Ints
    num_records: Ints
    loss: Floats
    num_left_out: Ints
    longest_s: Floats
    row_ends: Ints
    rows: Ints

    def __len__(self) -> int:
        return len(self.time)

    def part(self, start: int, stop: int) -> StepColumns:
        """Return the columns restricted to the events `start` to `stop` (exclusive)."""
        first = int(self.row_ends[start - 1]) if start else 0
        last = int(self.row_ends[stop - 1])
        return StepColumns(
            self.time[start:stop],
            self.step[start:stop],
            self.epoch[start:stop],
            self.num_records[start:stop],
            self.loss[start:stop],
            self.num_left_out[start:stop],
            self.longest_s[start:stop],
            self.row_ends[start:stop] - first,
            self.rows[first:last],
        )


@dataclass(frozen=True)
class Damage:
    """A damaged line of the log, which is not a valid event.

    Attributes:
        offset: Offset of the line in the log, in bytes.
        text: Its first characters.
    """

    offset: int
    text: str


Item: TypeAlias = StepColumns | Event | Damage

_APART_FROM_STEPS = (Evaluated, Checkpointed, EpochFinished, Damage, NoneType)


def parse(data: bytes, offset: int = 0) -> Iterator[Item]:
    r"""Parse complete lines of a log; yield its steps (as columns), other events and damaged lines.

    They are yielded in the order of the log, with one exception: steps separated only by
    evaluations, checkpoints and ends of epochs are yielded together, after these events. The
    meaning of these events does not depend on the steps, and many short blocks of steps would be
    slow.

    Args:
        data: The lines, each with its line feed.
        offset: Offset of the first line in the log, in bytes.

    Example:
        >>> line = b'{"event": "job_finished", "time": 1.0, "step": 3, "metrics": {}}'
        >>> list(parse(line + b"\n{\n"))
        [JobFinished(time=1.0, step=3, metrics={}, restored=''), Damage(offset=65, text='{')]
    """
    lines = _Lines(data)
    for first, steps, others in _blocks(lines, 0, len(lines)):
        done = 0
        for number, at in enumerate(others):
            seen = at - first - number
            item = _parse_line(lines[at])
            if steps is not None and seen > done and not isinstance(item, _APART_FROM_STEPS):
                yield steps.part(done, seen)
                done = seen
            if item is None:
                yield Damage(offset + lines.start(at), repr(lines[at][:_SHOWN_BYTES])[2:-1])
            else:
                yield item
        if steps is not None and len(steps) > done:
            yield steps.part(done, len(steps)) if done else steps


class _Lines:
    """Index of the lines in a piece of a log; a line is copied only when accessed."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
        self._starts = np.append(0, ends)

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, at: int) -> bytes:
        return self.part(at, at + 1)[:-1]

    def start(self, at: int) -> int:
        """Return the byte offset, in this piece of the log, of line number `at` (from 0)."""
        return int(self._starts[at])

    def part(self, first: int, stop: int) -> bytes:
        """Return the lines `first` to `stop` (exclusive), each with its line feed."""
        return self._data[self._starts[first] : self._starts[stop]]


def _parse_line(line: bytes) -> StepColumns | Event | None:
    """Parse one line into an event (a step into columns of length 1); None if it is damaged."""
    try:
        event = from_json(line.decode(errors="surrogateescape"))
        if not 0 <= event.time < _END_OF_TIME_S:
            return None
        # The log may have been edited by hand, and readers rely on the types of the fields.
        msgspec.convert(vars(event), type(event))
    except (
        CorruptDataError,
        UnicodeError,
        RecursionError,
        OverflowError,
        TypeError,
        msgspec.ValidationError,
    ):
        return None
    return _of_event(event) if isinstance(event, StepCommitted) else event


def _of_event(event: StepCommitted) -> StepColumns | None:
    try:
        rows = np.array(event.rows, np.int64).reshape(-1, _NUM_ROW_FIELDS)
        return StepColumns(
            np.array([event.time], np.float64),
            np.array([event.step], np.int64),
            np.array([event.epoch], np.int64),
            np.array([event.num_records], np.int64),
            np.array([event.loss], np.float64),
            np.array([event.num_left_out], np.int64),
            np.array([event.longest_s], np.float64),
            np.array([len(rows)], np.int64),
            rows,
        )
    except (TypeError, ValueError, OverflowError):
        return None


def _blocks(
    lines: _Lines, first: int, stop: int
) -> Iterator[tuple[int, StepColumns | None, Sequence[int]]]:
    """Parse the lines `first` to `stop` (exclusive) in blocks, as large as possible for speed.

    All lines are tried as one block. If one of them is damaged, each half is tried as a block, and
    so on. The caller parses the few lines around the damaged one by one.

    Yields:
        (first, steps, others) for each block. `first` is the index of its first line. `steps` are
        the steps in it; None if it has none, or if its lines have to be parsed one by one. `others`
        are the indices of the lines that are not in `steps`.
    """
    count = stop - first
    try:
        decoded = _DECODER.decode_lines(lines.part(first, stop))
        # msgspec ignores empty lines.
        found = decoded if len(decoded) == count else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        found = None
    steps = None
    others: Sequence[int] = range(count)
    if found is not None:
        others = [at for at, line in enumerate(found) if line.event != _STEP]
        steps = _of_lines(found if not others else [each for each in found if each.event == _STEP])
    if found is not None and (steps is not None or len(others) == count):
        yield first, steps, [first + at for at in others]
    elif count <= _FEW_LINES:
        yield first, None, range(first, stop)
    else:
        half = first + count // 2
        yield from _blocks(lines, first, half)
        yield from _blocks(lines, half, stop)


def _of_lines(steps: Sequence[_Line]) -> StepColumns | None:
    """Convert decoded steps to columns; None if there are no steps, or one has invalid values."""
    parsed = _rows([line.rows for line in steps]) if steps else None
    if parsed is None:
        return None
    rows, row_ends = parsed
    try:
        packed = b"".join(
            [
                _PACK(
                    x.time,
                    x.step,
                    x.epoch,
                    x.num_records,
                    float(x.loss),
                    x.num_left_out,
                    x.longest_s,
                )
                for x in steps
            ]
        )
    except (TypeError, ValueError, struct.error):
        # The loss is missing or is not a number, or a number is too large for an integer.
        return None
    table = np.frombuffer(packed, _PACKED)
    columns = StepColumns(
        **{name: np.ascontiguousarray(table[name]) for name in _NUMBERS},
        row_ends=row_ends,
        rows=rows,
    )
    is_sound = (
        min(columns.step.min(), columns.epoch.min(), columns.num_records.min()) >= 0
        and columns.time.min() >= 0
        and columns.time.max() < _END_OF_TIME_S
    )
    return columns if is_sound else None


def _rows(texts: Sequence[msgspec.Raw]) -> tuple[Ints, Ints] | None:
    """Parse the batch rows (`events.CommittedRow`) of several steps, one JSON string per step.

    Returns:
        All rows, and for each step the index one past its last row. None if a string is not a list
        of rows of five integers.
    """
    text = b";".join(texts)
    brackets = text.translate(None, b"0123456789,- ")
    if brackets.translate(None, b"[];"):
        return None
    marks = np.frombuffer(brackets, np.uint8)
    ends = np.append(np.flatnonzero(marks == ord(";")), len(marks))
    # Half of the brackets are opening ones, and each string has one outer pair.
    before = np.arange(len(texts))
    row_ends = (ends - before) // 2 - (before + 1)
    plain = text.translate(_COMMAS, b"[] ")
    if np.diff(row_ends, prepend=0).min() == 0:
        # A string without rows leaves nothing between two commas.
        while b",," in plain:
            plain = plain.replace(b",,", b",")
    plain = plain.strip(b",")
    try:
        numbers = np.fromstring(plain, np.int64, sep=",") if plain else np.zeros(0, np.int64)
    except ValueError:
        # A row is empty, or something other than a number is in it.
        return None
    if len(numbers) != _NUM_ROW_FIELDS * int(row_ends[-1]):
        return None
    return numbers.reshape(-1, _NUM_ROW_FIELDS), row_ends

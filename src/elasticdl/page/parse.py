"""Parses the bytes of a log of events quickly, and passes over what is damaged.

Nearly all lines of a long log are `step_committed`. They are parsed together into columns by
Arrow's JSON reader, several times as fast as line by line; all others become events. A person who
looks at a job wants to see what can be read of a damaged log, so a damaged line is counted and
skipped (`events.read_events` refuses it).

Pure: bytes in, values out. Callers: `history.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import NoneType
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import json as arrow_json

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

_STEPS = b'{"event": "step_committed"'
# A loss that is not finite is a text in JSON, and Arrow wants one type in a column.
_NOT_FINITE = b'"loss": "'
_NUM_ROW_FIELDS = 5
_BLOCK_BYTES = 1 << 22
# Below this, a call of Arrow's costs more than it saves.
_FEW_LINES = 20
_SHOWN_BYTES = 60
_SCHEMA = pa.schema(
    [
        ("time", pa.float64()),
        ("step", pa.int64()),
        ("epoch", pa.int64()),
        ("num_records", pa.int64()),
        ("loss", pa.float64()),
        ("rows", pa.list_(pa.list_(pa.int64()))),
        ("num_left_out", pa.int64()),
        ("longest_s", pa.float64()),
    ]
)
_REQUIRED = ("time", "step", "epoch", "num_records", "loss")


@dataclass(frozen=True, eq=False)
class Steps:
    """Consecutive `StepCommitted` events as columns, one entry each.

    Attributes:
        time: When, in seconds since 1970-01-01 UTC.
        step: Updates made so far.
        epoch: From 0.
        num_records: Records trained on.
        loss: Mean over them.
        num_left_out: Records that were left out.
        longest_s: Longest time between two commits, in seconds; 0 if unknown.
        row_ends: How many of `rows` belong to the events up to and including this one.
        rows: [rows, 5]: see `events.CommittedRow`.
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

    def part(self, start: int, stop: int) -> Steps:
        """Return the events `start` to `stop` (exclusive)."""
        first = int(self.row_ends[start - 1]) if start else 0
        last = int(self.row_ends[stop - 1])
        return Steps(
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
    """A line that is no event.

    Attributes:
        offset: Where it starts in the log, in bytes.
        text: Its beginning.
    """

    offset: int
    text: str


Item: TypeAlias = Steps | Event | Damage

_APART_FROM_STEPS = (Evaluated, Checkpointed, EpochFinished, Damage, NoneType)


def parse(data: bytes, offset: int = 0) -> Iterator[Item]:
    r"""Yield what whole lines of a log tell, in their order.

    But steps that evaluations, checkpoints and ends of epochs lie between come together, after
    these: what is known of them does not depend on steps, and many short runs would take long.

    Args:
        data: The lines, each with its line feed.
        offset: Where they start in the log, in bytes.

    Example:
        >>> line = b'{"event": "job_finished", "time": 1.0, "step": 3, "metrics": {}}'
        >>> list(parse(line + b"\n{\n"))
        [JobFinished(time=1.0, step=3, metrics={}), Damage(offset=65, text='{')]
    """
    lines = data.split(b"\n")[:-1]
    is_step = [line.startswith(_STEPS) and _NOT_FINITE not in line for line in lines]
    steps = _columns([line for line, chosen in zip(lines, is_step, strict=True) if chosen])
    # Of a log that is whole nobody asks.
    starts: list[int] = []
    done = seen = 0
    for at, (line, chosen) in enumerate(zip(lines, is_step, strict=True)):
        if chosen and steps is not None:
            seen += 1
            continue
        item = _one(line)
        if steps is not None and seen > done and not isinstance(item, _APART_FROM_STEPS):
            yield steps.part(done, seen)
            done = seen
        if item is None:
            starts = starts or list(accumulate((len(each) + 1 for each in lines), initial=offset))
            yield Damage(starts[at], repr(line[:_SHOWN_BYTES])[2:-1])
        else:
            yield item
    if steps is not None and seen > done:
        yield steps.part(done, seen)


def _one(line: bytes) -> Steps | Event | None:
    """Return what a line tells; None if it is damaged."""
    try:
        event = from_json(line.decode(errors="surrogateescape"))
    except (CorruptDataError, UnicodeError, RecursionError, OverflowError):
        return None
    return _of_event(event) if isinstance(event, StepCommitted) else event


def _of_event(event: StepCommitted) -> Steps | None:
    try:
        rows = np.array(event.rows, np.int64).reshape(-1, _NUM_ROW_FIELDS)
        return Steps(
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


def _columns(lines: Sequence[bytes]) -> Steps | None:
    """Return the columns of lines of steps; None if they are few, or one of them is odd."""
    if len(lines) < _FEW_LINES:
        return None
    try:
        table = arrow_json.read_json(
            pa.BufferReader(b"\n".join(lines)),
            arrow_json.ReadOptions(block_size=max(_BLOCK_BYTES, 2 * max(map(len, lines)))),
            arrow_json.ParseOptions(
                explicit_schema=_SCHEMA,
                unexpected_field_behavior="ignore",
                newlines_in_values=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if len(table) != len(lines) or any(table[name].null_count for name in _REQUIRED):
        return None
    rows = table["rows"].combine_chunks()
    inner = rows.flatten()
    numbers = inner.flatten()
    if len(numbers) != _NUM_ROW_FIELDS * len(inner) or numbers.null_count:
        return None
    lengths = rows.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    widths = inner.value_lengths().to_numpy(zero_copy_only=False)
    if len(widths) and not (widths == _NUM_ROW_FIELDS).all():
        return None
    values = {name: table[name].to_numpy() for name in _REQUIRED}
    return Steps(
        **values,
        num_left_out=table["num_left_out"].fill_null(0).to_numpy(),
        longest_s=np.nan_to_num(table["longest_s"].fill_null(math.nan).to_numpy()),
        row_ends=np.cumsum(lengths, dtype=np.int64),
        rows=numbers.to_numpy(zero_copy_only=False).reshape(-1, _NUM_ROW_FIELDS),
    )

"""What can happen in a run, and the log it is told in: `events.jsonl`, one JSON line each.

The log is what the job page, the trackers and the audit read, so names and units of the fields
are a contract: a field may be added, and is never renamed or given another meaning.

    attempt 1   started ... step 100, checkpointed 100 ... step 140   (killed)
    attempt 2   started (resumed from 100) ... step 120 ... finished
    history     started ... step 100, checkpointed 100, started ... step 120 ... finished

A log only grows, so after a resume it tells some steps twice. `read_events` returns the history
as it stands: what a later attempt took back is not in it.

Two laws are kept by whoever writes, so that nothing is lost or told twice:

* The steps up to a checkpoint are told before the checkpoint is published, and no `StepCommitted`
  spans one: then a resume cuts between two events.
* Within an attempt, steps never go back.

A federation writes the same events, and its updates are rounds: `step`, `resumed_from_step` and
the `epoch` of `Evaluated` count rounds there, from 1. It writes `RoundFinished` and no
`StepCommitted`.

Callers: the engines write; `page/`, `tracking/` and the audit read.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

from elasticdl import user_files
from elasticdl.errors import CorruptDataError, DataError, OutputError

MetricValues: TypeAlias = Mapping[str, float | Sequence[float]]
"""Metric name -> its value, or one value a class or threshold; NaN where nothing was counted."""

CommittedRow: TypeAlias = tuple[int, int, int, int, int]
"""(epoch, slot, shard, first_batch, stop_batch): batches `first_batch` to `stop_batch`
(exclusive) of a shard that a slot trained on, all numbered from 0."""


@dataclass(frozen=True, kw_only=True)
class _Event:
    """Something that happened.

    Attributes:
        time: When, in seconds since 1970-01-01 UTC.
    """

    time: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class JobStarted(_Event):
    """An attempt at a job began.

    Attributes:
        job_id: Names the job; the same in all its attempts.
        attempt: Which start of the job this is, from 1 (`Claim.generation`). An aggregator that is
            told to train once more begins anew under the same number.
        command: `train`, `evaluate` or `predict`.
        resumed_from_step: Updates already made: what the attempt takes over. Whatever an
            earlier attempt did past it never happened.
        num_records: Records in one epoch of the data.
        num_epochs: Epochs asked for; 0 where there are none.
        minibatch_size: Records in one step.
        model_def: What is trained, in the user's words.
        framework: What runs it; empty if unknown.
        host: Name of the machine.
        pid: Number of the process.
        resume: How an attempt goes on in the middle of an epoch: `exact` where a batch is found by
            its number, `replayed` where those before are read again and compared.
        trust_used: What somebody allowed to run that would have been refused, one line each.
        versions: Package -> version of what trains; empty if unknown.
        num_shards: Shards in one epoch; 0 if unknown.
        batches_per_shard: Batches in each shard but the last; 0 if only a pipeline of the user's
            knows.
    """

    event: ClassVar[str] = "job_started"

    job_id: str
    attempt: int = 1
    command: str = "train"
    resumed_from_step: int = 0
    num_records: int = 0
    num_epochs: int = 0
    minibatch_size: int = 0
    model_def: str = ""
    framework: str = ""
    host: str = ""
    pid: int = 0
    resume: str = ""
    trust_used: Sequence[str] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    num_shards: int = 0
    batches_per_shard: int = 0


@dataclass(frozen=True, kw_only=True)
class StepCommitted(_Event):
    """Steps are in the model, told together about once a second.

    Attributes:
        step: Updates made so far, the last one of this event included.
        epoch: Epoch of the last of them, from 0.
        num_records: Records these steps trained on (not the total so far).
        loss: Mean loss over those records; NaN if there are none.
        records_per_s: Their number by the seconds since the event before.
        rows: Which batches were committed, in order: `CommittedRow`s.
        num_left_out: Records of those batches that were left out (`--skip_bad_records`).
        longest_s: Longest time from one of these commits to the next, in seconds: how long the
            training stood still. 0 if unknown.
    """

    event: ClassVar[str] = "step_committed"

    step: int
    epoch: int
    num_records: int
    loss: float
    records_per_s: float = 0.0
    rows: Sequence[CommittedRow] = ()
    num_left_out: int = 0
    longest_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RecordsSkipped(_Event):
    """The records of a batch that killed workers again and again are left out from here on.

    An attempt that takes over a model tells it of what was left out before, once more.

    Attributes:
        step: Updates made by then; the next one may be the first without them.
        epoch: Epoch of the batch, from 0; in this one and those after it they are left out.
        shard: Position of its shard in that epoch's order.
        batch: Its number in the shard, from 0.
        records: Their numbers over all files, from 0, sorted.
    """

    event: ClassVar[str] = "records_skipped"

    step: int
    epoch: int
    shard: int
    batch: int
    records: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class EpochFinished(_Event):
    """Each record of an epoch was trained on, or a callback ended the training within it.

    Attributes:
        epoch: Which one, from 0.
        step: Updates made so far.
        metrics: Training metrics over the epoch; validation metrics as `val_...`.
        stopped: A callback ended the training before all records were trained on.
    """

    event: ClassVar[str] = "epoch_finished"

    epoch: int
    step: int
    metrics: MetricValues
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class Evaluated(_Event):
    """The validation data was gone through.

    Attributes:
        step: Updates in the model that was evaluated.
        epoch: Epoch the training was in, from 0.
        metrics: What came of it, the loss among it; no `val_` before the names.
        party_metrics: Name of a party -> what came of it on its validation data alone; empty where
            metrics stay at home, and without parties.
    """

    event: ClassVar[str] = "evaluated"

    step: int
    epoch: int
    metrics: MetricValues
    party_metrics: Mapping[str, MetricValues] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checkpointed(_Event):
    """A checkpoint was taken.

    Attributes:
        step: Updates in it.
        blocked_s: How long the training stood still for it, in seconds.
        num_bytes: Its size.
        best: Whether it is the best so far.
    """

    event: ClassVar[str] = "checkpointed"

    step: int
    blocked_s: float
    num_bytes: int
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerJoined(_Event):
    """A worker takes part from now on.

    Attributes:
        step: Updates in the model it joined with.
        slot: Its number.
        incarnation: Which process of the job it is, counted from 1.
        host: Name of its machine.
        pid: Number of its process.
        replaces: Number of the process that had the slot before; 0 if none had.
        started: When its process was started, in seconds since 1970-01-01 UTC; 0 if unknown.
    """

    event: ClassVar[str] = "worker_joined"

    step: int
    slot: int
    incarnation: int
    host: str = ""
    pid: int = 0
    replaces: int = 0
    started: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkerLeft(_Event):
    """A worker takes part no more; what it held is trained on by others.

    Attributes:
        step: Updates in the model by then.
        slot: Its number.
        incarnation: Which process of the job it was.
        reason: What became of it, such as `died` or `hung`.
    """

    event: ClassVar[str] = "worker_left"

    step: int
    slot: int
    incarnation: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RoundFinished(_Event):
    """The models of some parties became one.

    Attributes:
        step: Which round, from 1: so many updates are in the global model.
        parties: Names of those whose model is in it.
        left_out: Name of a party that was asked -> why its answer does not count.
        num_examples: Examples the parties trained on in it.
        metrics: Training metrics over all of them; empty where they stay at home.
        seconds: From the first question to the new model.
        party_metrics: Name of a party -> its own training metrics; empty where they stay at home.
    """

    event: ClassVar[str] = "round_finished"

    step: int
    parties: Sequence[str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    num_examples: int = 0
    metrics: MetricValues = field(default_factory=dict)
    seconds: float = 0.0
    party_metrics: Mapping[str, MetricValues] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PartyJoined(_Event):
    """A party was heard of for the first time since the aggregator was started, or came back.

    Attributes:
        step: Rounds that were over.
        party: Its name.
        num_examples: Records it trains on.
    """

    event: ClassVar[str] = "party_joined"

    step: int
    party: str
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class JobFinished(_Event):
    """All that was asked for is done and published.

    Attributes:
        step: Updates made over all attempts.
        metrics: Final values; validation metrics as `val_...`.
    """

    event: ClassVar[str] = "job_finished"

    step: int
    metrics: MetricValues = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class JobFailed(_Event):
    """An attempt ended before the job was done; a killed one leaves no event.

    Attributes:
        kind: Class of the error, such as `NonFiniteLossError`.
        message: What the user was told.
        step: Updates made when it happened.
    """

    event: ClassVar[str] = "job_failed"

    kind: str
    message: str
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Noted(_Event):
    """A person was told something; it is of no step, and no later attempt takes it back.

    Attributes:
        message: What, without passwords.
        level: `info`, `warning` or `error`.
    """

    event: ClassVar[str] = "noted"

    message: str
    level: str = "info"

    @property
    def step(self) -> int:
        """Return 0: it is of none."""
        return 0


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(_Event):
    """An event of a newer elasticdl, as it stands in the log.

    Attributes:
        values: All of its line.
    """

    values: Mapping[str, Any]

    @property
    def event(self) -> str:
        """What it calls itself."""
        return str(self.values.get("event"))

    @property
    def step(self) -> int:
        """The step it belongs to, 0 if it does not say."""
        step = self.values.get("step", 0)
        return step if isinstance(step, int) else 0


Event: TypeAlias = (
    JobStarted
    | StepCommitted
    | EpochFinished
    | Evaluated
    | Checkpointed
    | WorkerJoined
    | WorkerLeft
    | RecordsSkipped
    | PartyJoined
    | RoundFinished
    | JobFinished
    | JobFailed
    | Noted
    | UnknownEvent
)

_KNOWN: Mapping[str, type[Event]] = {
    known.event: known
    for known in (
        JobStarted,
        StepCommitted,
        EpochFinished,
        Evaluated,
        Checkpointed,
        WorkerJoined,
        WorkerLeft,
        RecordsSkipped,
        PartyJoined,
        RoundFinished,
        JobFinished,
        JobFailed,
        Noted,
    )
}


_FIELDS: Mapping[str, frozenset[str]] = {
    name: frozenset(item.name for item in dataclasses.fields(known))
    for name, known in _KNOWN.items()
}


# --- Writing ----------------------------------------------------------------------------------


class EventLog:
    """The log of one output, appended to by one process; its threads may share it.

    Each line is given to the operating system at once and as a whole: it survives the death of
    the process. It is not waited for until it is on the disk, except in `publish`: a power cut
    may cost what was written since then. What a death in the middle of a line left behind is cut
    off when the log is opened again.

    Args:
        path: The file; it is made, with its folder, if it is not there.
        sync: Called by `publish` with the path, for an output that is not on this machine.

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def write(self, event: Event) -> None:
        """Append an event.

        Raises:
            OutputError: There is no room; nothing of the event is in the log then.
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
        """Return when all events so far are on the disk, and where `sync` brings them.

        Raises:
            OutputError: They cannot be brought there.
        """
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._error(error) from error
        if self._sync is not None:
            self._sync(self.path)

    def close(self) -> None:
        """Publish and end; doing it twice does no harm."""
        if self._descriptor < 0:
            return
        try:
            self.publish()
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _error(self, error: OSError) -> OutputError:
        return OutputError(
            f"{self.path}: the log of events cannot be written: {error.strerror}. Free some room "
            "or give this user the right to write there, or name another --output."
        )


def to_json(event: Event) -> str:
    """Return an event as one line of JSON.

    JSON has no word for NaN and infinity: they become the texts "NaN", "Infinity" and
    "-Infinity".

    Example:
        >>> to_json(Checkpointed(step=3, blocked_s=0.5, num_bytes=8, time=1.0))
        '{"event": "checkpointed", "time": 1.0, "step": 3, "blocked_s": 0.5, "num_bytes": 8, \
"best": false}'
    """
    if isinstance(event, UnknownEvent):
        return json.dumps(_plain(event.values))
    values = {item.name: getattr(event, item.name) for item in dataclasses.fields(event)}
    return json.dumps({"event": event.event, **_plain(values)})


def from_json(line: str) -> Event:
    """Return the event `to_json` wrote.

    Raises:
        CorruptDataError: It is not one.
    """
    return _parse(line.encode(), "an event", 0)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's numbers and arrays, without importing numpy
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


_BLOCK_BYTES = 1 << 16


def _whole_bytes(descriptor: int) -> int:
    """Return how much of a log is whole lines of JSON; what follows was torn by a death."""
    end = os.fstat(descriptor).st_size
    tail = b""
    while True:
        # From the end, a block at a time: a log of a long job is large, its torn part is not.
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


# --- Reading ----------------------------------------------------------------------------------


def read_events(path: str | os.PathLike[str]) -> list[Event]:
    """Return the history in a log as it stands, oldest first.

    What an attempt did past the step from which a later one resumed is left out, and so is what
    was told once more after a resume: each epoch's end, and each step's evaluation and
    checkpoint, is there once, as it was told last.

    Args:
        path: A path, or an address fsspec knows. A line that is being written is not read.

    Raises:
        DataError: The file is not there or cannot be read.
        CorruptDataError: A line is damaged.
    """
    where = os.fspath(path)
    return parse_events(_read(where), where)


def parse_events(data: bytes, where: str = "events.jsonl") -> list[Event]:
    """Return the history in the bytes of a log; see `read_events`.

    Args:
        data: The content of the file.
        where: What an error names.

    Raises:
        CorruptDataError: A line is damaged.
    """
    history: list[Event] = []
    offset = 0
    for line in data.split(b"\n")[:-1]:
        event = _parse(line, where, offset)
        offset += len(line) + 1
        if isinstance(event, JobStarted):
            history = [item for item in history if _step_of(item) <= event.resumed_from_step]
        history.append(event)
    last = {_told_as(event): at for at, event in enumerate(history)}
    return [event for at, event in enumerate(history) if last[_told_as(event)] == at]


def _step_of(event: Event) -> int:
    match event:
        case JobStarted():
            return event.resumed_from_step
        case RecordsSkipped():
            # It makes no step: a checkpoint of the same step may be of before it.
            return event.step + 1
        case _:
            return event.step


def _told_as(event: Event) -> tuple[Any, ...]:
    """Return what two events share if they tell the same thing."""
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
            f"{where}: the log of events cannot be read: {error.strerror or error}. Check that its "
            "folder is the output of a run."
        ) from error


def _parse(line: bytes, where: str, offset: int) -> Event:
    try:
        values = json.loads(line)
        name, at = values["event"], float(values["time"])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptDataError(
            where, offset, "a line of JSON with an event and its time", repr(line[:40])
        ) from error
    known = _KNOWN.get(name)
    if known is None:
        return UnknownEvent(time=at, values=values)
    names = _FIELDS[name]
    try:
        # Fields of a newer version are passed over.
        return known(**{key: _restored(key, values[key]) for key in values if key in names})
    except (TypeError, ValueError, AttributeError):
        # A field is missing, or is not what this version counts on: better raw than wrong.
        return UnknownEvent(time=at, values=values)


def _restored(key: str, value: Any) -> Any:
    """Return a field's value as it was before it became JSON."""
    if key == "rows":
        return tuple(tuple(row) for row in value)
    if key in {"parties", "trust_used", "records"}:
        return tuple(value)
    if key == "metrics":
        return {
            name: [float(v) for v in item] if isinstance(item, list) else float(item)
            for name, item in value.items()
        }
    if key == "party_metrics":
        return {party: _restored("metrics", metrics) for party, metrics in value.items()}
    if key == "versions":
        return {str(package): str(version) for package, version in value.items()}
    if key == "loss":
        return float(value)
    return value

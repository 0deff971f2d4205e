"""Events of a run: the content of each line of its log, `events.jsonl`.

The job page, the trackers and the audit read the log, so names and units of the fields are a
contract: a field may be added, but is never renamed or given another meaning.

A federation writes the same events, except `RoundFinished` instead of `StepCommitted`. Each of its
updates is a round: `step`, `resumed_from_step` and the `epoch` of `Evaluated` count rounds, from 1.

Callers: the engines make events; `event_file.py` writes and reads them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from elasticdl.errors import CorruptDataError

MetricValues: TypeAlias = Mapping[str, float | Sequence[float]]
"""Metric name -> its value, or one value per class or threshold; NaN where nothing was counted."""

CommittedRow: TypeAlias = tuple[int, int, int, int, int]
"""Batches of a shard that a rank trained on, as epoch, rank, shard, first batch and the batch after
the last one; all numbered from 0."""


@dataclass(frozen=True, kw_only=True)
class _Event:
    """Base of all events.

    Attributes:
        time: Time of the event, in seconds since 1970-01-01 UTC.
    """

    time: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class JobStarted(_Event):
    """An attempt to run a job began.

    Attributes:
        job_id: Identifies the job; the same in all its attempts.
        attempt: Number of this start of the job, from 1 (`Claim.generation`). An aggregator that
            was started with `--serve` keeps the number when it begins another training run.
        command: `train`, `evaluate` or `predict`.
        resumed_from_step: Number of updates that the model from which the attempt resumes has
            received. Everything that earlier attempts did after this step is void.
        num_records: Records in one epoch of the data.
        num_epochs: Epochs requested; 0 if the job has none.
        minibatch_size: Records in one step.
        model_def: The model's dotted name, as the user gave it (`--model_def`).
        framework: The framework that runs it; empty if unknown.
        host: Name of the machine.
        pid: ID of the process.
        resume: How an attempt resumes in the middle of an epoch: `exact` if it starts reading at
            the next batch, `replayed` if it reads the epoch's earlier batches again and checks that
            they have not changed.
        trust_used: Code that ran only because the user had explicitly trusted it, one line
            each.
        versions: Package -> version of the training software; empty if unknown.
        num_shards: Shards in one epoch; 0 if unknown.
        batches_per_shard: Batches in each shard except the last; 0 if a user's pipeline
            determines it.
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
    """Training steps whose updates are part of the model, logged together about once a second.

    Attributes:
        step: Number of updates that the model has received, including those of this event.
        epoch: Epoch of the last of these steps, from 0.
        num_records: Records these steps trained on (not the total so far).
        loss: Mean loss over those records; NaN if there are none.
        records_per_s: `num_records` divided by the seconds since the previous event.
        rows: The committed batches, in order, each a `CommittedRow`.
        num_left_out: Records of those batches that were left out (`--skip_bad_records`).
        longest_s: Longest time between the commits of two successive steps, in seconds: how long
            training paused. 0 if unknown.
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
    """From now on, training skips the records of a batch that repeatedly killed workers.

    An attempt that resumes a model logs this event again for each batch that is already skipped.

    Attributes:
        step: Number of updates that the model has received before the event. The next update is
            the first one that may lack these records.
        epoch: Epoch of the batch, from 0. The records are skipped in this epoch and later ones.
        shard: Position of the batch's shard in the order of that epoch, from 0.
        batch: Number of the batch in its shard, from 0.
        records: Numbers of the skipped records over all files, from 0, sorted.
    """

    event: ClassVar[str] = "records_skipped"

    step: int
    epoch: int
    shard: int
    batch: int
    records: Sequence[int] = ()


@dataclass(frozen=True, kw_only=True)
class EpochFinished(_Event):
    """Every record of an epoch was trained on, or a callback ended training within it.

    Attributes:
        epoch: The epoch, from 0.
        step: Number of updates that the model has received.
        metrics: Training metrics over the epoch; validation metrics as `val_...`.
        stopped: Whether a callback ended training before all records were trained on.
    """

    event: ClassVar[str] = "epoch_finished"

    epoch: int
    step: int
    metrics: MetricValues
    stopped: bool = False


@dataclass(frozen=True, kw_only=True)
class Evaluated(_Event):
    """An evaluation on the validation data finished.

    Attributes:
        step: Number of updates that the evaluated model has received.
        epoch: The epoch being trained at that time, from 0.
        metrics: The results, including the loss; their names have no `val_` prefix.
        party_metrics: Name of a party -> the results on its validation data alone; empty if the
            parties keep their metrics private, or if there are no parties.
    """

    event: ClassVar[str] = "evaluated"

    step: int
    epoch: int
    metrics: MetricValues
    party_metrics: Mapping[str, MetricValues] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Checkpointed(_Event):
    """A checkpoint was published.

    Attributes:
        step: Number of updates that the model in the checkpoint has received.
        blocked_s: How long training paused for it, in seconds.
        num_bytes: Size of the checkpoint.
        best: Whether it is the best checkpoint so far.
    """

    event: ClassVar[str] = "checkpointed"

    step: int
    blocked_s: float
    num_bytes: int
    best: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkerJoined(_Event):
    """A worker joined the job and got a rank.

    Attributes:
        step: Number of updates that the model had received when the worker joined.
        rank: Rank of the worker.
        incarnation: Number of the worker's process; all processes of the job are numbered from 1.
        host: Name of the worker's machine.
        pid: ID of the worker's process.
        replaces: The `incarnation` that held the rank before; 0 if none did.
        started: When its process was started, in seconds since 1970-01-01 UTC; 0 if unknown.
    """

    event: ClassVar[str] = "worker_joined"

    step: int
    rank: int
    incarnation: int
    host: str = ""
    pid: int = 0
    replaces: int = 0
    started: float = 0.0


@dataclass(frozen=True, kw_only=True)
class WorkerLeft(_Event):
    """A worker left the job; other workers train on its batches.

    Attributes:
        step: Number of updates that the model had received when the worker left.
        rank: Rank of the worker.
        incarnation: Number of the worker's process; all processes of the job are numbered from 1.
        reason: The cause, such as `died` or `hung`.
    """

    event: ClassVar[str] = "worker_left"

    step: int
    rank: int
    incarnation: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RoundFinished(_Event):
    """A round of a federation finished: updates of parties were combined.

    Attributes:
        step: The round, from 1: the number of updates in the global model.
        parties: Names of the parties whose update was used.
        left_out: Name of a party whose update was requested but not used -> the reason.
        num_examples: Examples the parties trained on in this round.
        metrics: Training metrics over all parties; empty where metrics stay with the parties.
        seconds: Time from the first request to the new model.
        party_metrics: Name of a party -> its own training metrics; empty where metrics stay with
            the parties.
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
    """A party joined the federation: the aggregator accepted its answer to a join request.

    Logged once per party and start of the aggregator.

    Attributes:
        step: Always 0: joining belongs to no round.
        party: Name of the party.
        num_examples: Records it trains on.
    """

    event: ClassVar[str] = "party_joined"

    step: int
    party: str
    num_examples: int


@dataclass(frozen=True, kw_only=True)
class JobFinished(_Event):
    """The job is done and its result is published.

    Attributes:
        step: Number of updates that the model has received, over all attempts.
        metrics: Final values; validation metrics as `val_...`.
        restored: If the model has the weights of an earlier epoch: a sentence that names the epoch.
    """

    event: ClassVar[str] = "job_finished"

    step: int
    metrics: MetricValues = field(default_factory=dict)
    restored: str = ""


@dataclass(frozen=True, kw_only=True)
class JobFailed(_Event):
    """An attempt ended before the job was done; a killed attempt leaves no event.

    Attributes:
        kind: Class of the error, such as `NonFiniteLossError`.
        message: The message shown to the user.
        step: Number of updates that the model had received when the attempt failed.
    """

    event: ClassVar[str] = "job_failed"

    kind: str
    message: str
    step: int = 0


@dataclass(frozen=True, kw_only=True)
class Noted(_Event):
    """A notice to the user; it is not tied to a step, so later attempts do not supersede it.

    Attributes:
        message: The message, without passwords.
        level: `info`, `warning` or `error`.
    """

    event: ClassVar[str] = "noted"

    message: str
    level: str = "info"

    @property
    def step(self) -> int:
        """Always 0: a notice belongs to no step."""
        return 0


@dataclass(frozen=True, kw_only=True)
class UnknownEvent(_Event):
    """An event of a newer elasticdl, exactly as it is in the log.

    Attributes:
        values: All values of its line.
    """

    values: Mapping[str, Any]

    @property
    def event(self) -> str:
        """Name of the event in the log."""
        return str(self.values.get("event"))

    @property
    def step(self) -> int:
        """The step the event belongs to; 0 if it has none."""
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


def to_json(event: Event) -> str:
    """Format an event as one line of JSON.

    JSON has no NaN and infinity: they become the strings "NaN", "Infinity" and "-Infinity".

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
    """Parse an event from the line that `to_json` wrote.

    Raises:
        CorruptDataError: The line is not an event.
    """
    return parse_event(line.encode(), "an event", 0)


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


def parse_event(line: bytes, where: str, offset: int) -> Event:
    """Parse one line of a log as an event.

    Args:
        line: The line.
        where: The name of the log in errors.
        offset: Position of the line in the log, in bytes.

    Raises:
        CorruptDataError: The line is not an event.
    """
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
        # Fields of a newer version are ignored.
        return known(**{key: _restored(key, values[key]) for key in values if key in names})
    except (TypeError, ValueError, AttributeError):
        # A field is missing or has an unexpected type: keep the raw values.
        return UnknownEvent(time=at, values=values)


def _restored(key: str, value: Any) -> Any:
    """Convert a field's value from its JSON form to the type that the event class declares."""
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

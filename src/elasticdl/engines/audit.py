"""Audit: checks from a job's log and newest checkpoint that every record was trained on once.

It only reads the output folder, so it also works on a running job, and without access to the data
or the model. `sharding/audit.py` does the comparison; this module translates batches into the files
and record numbers that users know.

Callers: `api.py`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.event_log import EVENTS_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.record_source import RecordFile
from elasticdl.data.split import SplitNumbering
from elasticdl.errors import DataError, OutputError
from elasticdl.event_file import parse_all_events, parse_events
from elasticdl.events import (
    CommittedRow,
    EpochFinished,
    Event,
    JobFinished,
    JobStarted,
    RecordsSkipped,
    StepCommitted,
    UnknownEvent,
    WorkerLeft,
)
from elasticdl.sharding import audit as sharding_audit
from elasticdl.sharding.epoch_order import ShardPlan
from elasticdl.sharding.left_out import BatchId, records_left_out, records_of

if TYPE_CHECKING:
    import os

    from elasticdl.sharding.audit import EpochAudit, Ints

_NUM_COLUMNS = 5


class RecordLocation(NamedTuple):
    """A record, with the file that contains it and its number there.

    Attributes:
        record: Number of the record over all files, from 0.
        file: The file that contains the record.
        number: Number of the record in that file, from 0.
    """

    record: int
    file: str
    number: int


@dataclass(frozen=True)
class WrongBatch:
    """A batch that was not trained on exactly once.

    Attributes:
        epoch: Epoch, from 0.
        shard: Position of the shard in the epoch's order.
        batch: Number of the batch in the shard, from 0.
        count: Number of times it was trained on.
        rows: The rows of the log that contain it, each a range of batches; see
            `events.CommittedRow`.
        records: Records of the batch; if a pipeline yields the batches, the records of the whole
            shard, some of which are in the batch.
    """

    epoch: int
    shard: int
    batch: int
    count: int
    rows: Sequence[CommittedRow]
    records: Sequence[RecordLocation]


@dataclass(frozen=True)
class LeftOut:
    """Records excluded from training because their batch crashed workers.

    Attributes:
        epoch: First epoch without them, from 0.
        shard: Position of their shard in that epoch's order.
        batch: Number of their batch in the shard, from 0.
        records: The records.
        name: Text that names the files and record numbers of these records.
    """

    epoch: int
    shard: int
    batch: int
    records: Sequence[RecordLocation]
    name: str


@dataclass(frozen=True, eq=False)
class EpochReport:
    """Result of the audit of one epoch.

    Attributes:
        counts: How often the log contains each batch of the epoch. `counts.findings` are the
            batches that it does not contain exactly once.
        lost_workers: Number of workers that left during the epoch, including those that left in
            steps that a later attempt repeated.
        unlogged_steps: Minimum number of batches that are missing from the log: each step trains on
            at least one batch, so the step numbers show that batches are missing.
        num_left_out: Number of records missing from the epoch's batches because they were skipped
            (`--skip_bad_records`), according to the step events.
        unexplained: `num_left_out` minus the number of records in the batches that the log names
            as skipped. 0 if these explain all missing records. Also 0 if the difference is negative
            in an unfinished epoch, which may not have reached every skipped batch.
    """

    counts: EpochAudit
    lost_workers: int
    unlogged_steps: int
    num_left_out: int = 0
    unexplained: int = 0

    @property
    def num_records(self) -> int | None:
        """Number of records trained on at least once; None if a pipeline yields the batches."""
        num_records = self.counts.num_records
        return None if num_records is None else num_records - self.num_left_out

    @property
    def clean(self) -> bool:
        """Whether the log shows that every batch of the epoch was trained on exactly once."""
        return not self.counts.findings and not self.unlogged_steps and not self.unexplained


@dataclass(frozen=True, eq=False)
class AuditReport:
    """Result of an audit of all epochs of a job.

    Attributes:
        output: The output folder that was read.
        plan: The shard plan of the job's data.
        files: (URI, number of records) of each file.
        by_record: Whether the plan defines the records of a batch, so that each record can be
            verified. Otherwise batches come from a pipeline, and only batches can be verified.
        epochs: The epochs that were started, in order.
        impossible_rows: Logged ranges of batches that do not exist in the data.
        damaged_events: Number of step events that cannot be read.
        left_out: Records excluded from training; one entry for each batch that crashed workers.
        validation_split: Share of the records held out for validation; None if none are.
        counted: What the numbers in `plan` and `files` count: "records", or "batches" if the user's
            own code makes the batches and their number is known.
    """

    output: str
    plan: ShardPlan
    files: Sequence[tuple[str, int]]
    by_record: bool
    epochs: Sequence[EpochReport]
    impossible_rows: Sequence[CommittedRow]
    damaged_events: int
    left_out: Sequence[LeftOut] = ()
    validation_split: float | None = None
    counted: str = "records"

    @property
    def clean(self) -> bool:
        """Whether the log is readable and shows that no batch was missed or repeated."""
        is_readable = not self.impossible_rows and not self.damaged_events
        return is_readable and all(epoch.clean for epoch in self.epochs)

    def wrong_batches(self) -> Iterator[WrongBatch]:
        """Yield each batch that was not trained on exactly once; there may be very many."""
        numbering, bounds = _numbering(self.files, self.validation_split), _bounds(self.files)
        for report in self.epochs:
            epoch = report.counts.epoch
            for finding in report.counts.findings:
                rows = [_as_row(row) for row in report.counts.rows_of(finding)]
                order = self.plan.record_numbers(epoch, finding.shard)
                size = self.plan.minibatch_size
                for batch in range(finding.first, finding.stop):
                    chosen = order[batch * size : (batch + 1) * size] if self.by_record else order
                    records = _places(_in_files(chosen, numbering), self.files, bounds)
                    yield WrongBatch(epoch, finding.shard, batch, finding.times, rows, records)


def _numbering(files: Sequence[tuple[str, int]], validation_split: float | None) -> Numbering:
    """Return a look-up from the number of a training record to its file and position in the file.

    Training records are numbered from 0 over all files; held-out (validation) records are skipped.
    """
    in_files = [RecordFile(uri, num_records) for uri, num_records in files]
    if validation_split is None:
        return Numbering(in_files)
    return SplitNumbering(in_files, validation_split, held_out=False)


def _in_files(records: Ints, numbering: Numbering) -> Ints:
    """Convert numbers of training records to numbers that also count held-out records.

    Both numberings continue from one file to the next. They differ only if records are held out
    for validation.

    Args:
        records: The numbers to convert, from 0.
        numbering: Look-up of the training records' files, from `_numbering`.
    """
    return numbering.in_source(records) if isinstance(numbering, SplitNumbering) else records


def _bounds(files: Sequence[tuple[str, int]]) -> Ints:
    """Return the index of each file's first record among all records, then the total number.

    For example, files of 3 and 2 records give [0, 3, 5].
    """
    bounds: Ints = np.cumsum([0, *(num_records for _, num_records in files)])
    return bounds


def _places(records: Ints, files: Sequence[tuple[str, int]], bounds: Ints) -> list[RecordLocation]:
    records = np.sort(records)
    at = np.searchsorted(bounds, records, "right") - 1
    return [
        RecordLocation(record, files[file][0], record - first)
        for record, file, first in zip(
            records.tolist(), at.tolist(), bounds[at].tolist(), strict=True
        )
    ]


def audit(output: str | os.PathLike[str]) -> AuditReport:
    """Check for each epoch of a job whether every record was trained on exactly once.

    Args:
        output: Folder that `train` wrote or is writing. Only its `events.jsonl` and its newest
            checkpoint are read.

    Raises:
        OutputError: There is no log or no checkpoint yet, or they cannot be read.
        DataError: The log is too damaged to count batches.
    """
    folder = OutputFolder(output)
    if not folder.exists(EVENTS_FILE):
        raise OutputError(
            f"{folder.where(EVENTS_FILE)}: no training log found. Pass the folder that a "
            "training wrote, its output."
        )
    # Read before the log: events are written before the checkpoint that contains their steps, so
    # steps of a job that is still running do not look as if they were missing.
    with CheckpointStore(folder) as store:
        restored = store.latest()
    if restored is None:
        raise OutputError(
            f"{folder.where()}: there is no checkpoint yet; it is needed to know how the data is "
            "split into batches. Try again after the first checkpoint."
        )
    where = folder.where(EVENTS_FILE)
    log = folder.read_bytes(EVENTS_FILE)
    history = parse_events(log, where)
    metadata = restored.checkpoint.metadata
    ledger = metadata["progress"]["ledger"]
    plan = ShardPlan(**metadata["plan"])
    # The ledger can split shards, which is possible only if the plan defines the batches.
    by_record = ledger["batches_per_shard"] > 0
    finished = {
        event.epoch for event in history if isinstance(event, EpochFinished) and not event.stopped
    }
    finished = {epoch for epoch in finished if epoch >= 0} | set(range(ledger["epoch"]))
    counts, impossible = sharding_audit.audit(
        plan, _rows(history, where), finished, by_record=by_record
    )
    lost, unlogged = _lost_workers(parse_all_events(log, where)), _steps_without_rows(history)
    files = [(str(uri), int(num_records)) for uri, num_records in metadata["files"]]
    share = metadata.get("validation_split")
    left_out = [
        BatchId(event.epoch, event.shard, event.batch)
        for event in history
        if isinstance(event, RecordsSkipped)
    ]
    missing = _missing_records(history)
    return AuditReport(
        output=folder.uri,
        plan=plan,
        files=files,
        by_record=by_record,
        epochs=[
            EpochReport(
                each,
                lost[each.epoch],
                unlogged[each.epoch],
                missing[each.epoch],
                _unexplained(plan, left_out, each, missing[each.epoch]),
            )
            for each in counts
        ],
        left_out=[
            _left_out(plan, files, _numbering(files, share), batch) for batch in sorted(left_out)
        ],
        validation_split=share,
        counted=metadata.get("counted", "records"),
        impossible_rows=[_as_row(row) for row in impossible.tolist()],
        damaged_events=sum(
            isinstance(event, UnknownEvent) and event.event == StepCommitted.event
            for event in history
        ),
    )


def _rows(history: Sequence[Event], where: str) -> Ints:
    """Return the rows of all step events as one table, int64 [rows, 5].

    The columns are epoch, rank, shard, first batch, and one past the last batch.

    Args:
        history: The events.
        where: Name of the log, for the error.

    Raises:
        DataError: A row is not five integers.
    """
    by_event = [event.rows for event in history if isinstance(event, StepCommitted)]
    rows = list(itertools.chain.from_iterable(by_event))
    try:
        return np.array(rows, np.int64).reshape(len(rows), _NUM_COLUMNS)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{where}: a row of a step is not five integers (epoch, rank, shard, first batch, stop "
            "batch), so the batches cannot be counted. The log was changed after it was written: "
            "restore it from a copy."
        ) from error


def _lost_workers(log: Iterable[Event]) -> Counter[int]:
    """Return epoch -> the number of workers that left in it, also in steps that were repeated.

    Args:
        log: All events, including those that a later resume made void: the loss of a worker that
            led to the resume is one of them.
    """
    lost: Counter[int] = Counter()
    ends: dict[int, int] = {}
    for event in log:
        if isinstance(event, JobStarted):
            ends = {epoch: step for epoch, step in ends.items() if step <= event.resumed_from_step}
        elif isinstance(event, EpochFinished) and not event.stopped:
            ends[event.epoch] = event.step
        elif isinstance(event, WorkerLeft):
            lost[max(ends, default=-1) + 1] += 1
    return lost


def _steps_without_rows(history: Sequence[Event]) -> Counter[int]:
    """Return, for each epoch, the minimum number of batches that are missing from the log.

    Each step trains on at least one batch, so an event that lists fewer batches than steps were
    made since the previous event is incomplete.
    """
    steps: list[tuple[int, int, int]] = []
    for event in history:
        if isinstance(event, StepCommitted):
            steps.append((event.epoch, event.step, sum(row[4] - row[3] for row in event.rows)))
        elif isinstance(event, EpochFinished):
            steps.append((event.epoch, event.step, 0))
        elif isinstance(event, JobFinished) and steps:
            steps.append((steps[-1][0], event.step, 0))
    table = np.array(steps, np.int64).reshape(-1, 3)
    missing = sharding_audit.unlogged_steps(table[:, 1], table[:, 2])
    unlogged: Counter[int] = Counter()
    for epoch, count in zip(table[:, 0].tolist(), missing.tolist(), strict=True):
        unlogged[epoch] += count
    return unlogged


def _missing_records(history: Sequence[Event]) -> Counter[int]:
    """Return epoch -> the number of records skipped in it (`--skip_bad_records`)."""
    missing: Counter[int] = Counter()
    for event in history:
        if isinstance(event, StepCommitted):
            missing[event.epoch] += event.num_left_out
    return missing


def _unexplained(
    plan: ShardPlan, left_out: Sequence[BatchId], epoch: EpochAudit, num_missing: int
) -> int:
    expected = len(records_left_out(plan, left_out, epoch.epoch))
    return num_missing - expected if epoch.finished else max(0, num_missing - expected)


def _left_out(
    plan: ShardPlan, files: Sequence[tuple[str, int]], numbering: Numbering, batch: BatchId
) -> LeftOut:
    records = records_of(plan, batch)
    return LeftOut(
        *batch,
        records=_places(_in_files(records, numbering), files, _bounds(files)),
        name=numbering.name_some(records, most=len(records)),
    )


def _as_row(row: Sequence[Any]) -> CommittedRow:
    epoch, rank, shard, first, stop = row
    return epoch, rank, shard, first, stop

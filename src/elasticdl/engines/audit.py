"""Which records a training was trained on: its log and its newest checkpoint, read and compared.

Only what lies in the output is read, and nothing is written: it may be asked of a job that is
running, by somebody who has neither the data nor the model. The comparing is done in
`sharding/audit.py`; here batches become the records people know.

Callers: `api.py`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from elasticdl.artifacts.checkpoint import CheckpointStore
from elasticdl.artifacts.event_log import EVENTS_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.file_ranges import Numbering
from elasticdl.data.record_source import RecordFile
from elasticdl.errors import DataError, OutputError
from elasticdl.events import (
    CommittedRow,
    EpochFinished,
    Event,
    JobFinished,
    RecordsSkipped,
    StepCommitted,
    UnknownEvent,
    WorkerLeft,
    parse_events,
)
from elasticdl.sharding import audit as sharding_audit
from elasticdl.sharding.left_out import BatchId, records_left_out, records_of
from elasticdl.sharding.shard import ShardPlan, plan_from

if TYPE_CHECKING:
    import os

    from elasticdl.sharding.audit import EpochAudit, Ints

_NUM_COLUMNS = 5


class RecordPlace(NamedTuple):
    """A record, and where it lies.

    Attributes:
        record: Its number over all files, from 0.
        file: Its file.
        number: Its number in that file, from 0.
    """

    record: int
    file: str
    number: int


@dataclass(frozen=True)
class WrongBatch:
    """A batch that was trained on another number of times than once.

    Attributes:
        epoch: From 0.
        shard: Position in the epoch's order.
        batch: Number in the shard, from 0.
        count: How often it was trained on.
        rows: Who told of it.
        records: What is in it; where a pipeline makes the batches, the records of the whole
            shard, some of which are in it.
    """

    epoch: int
    shard: int
    batch: int
    count: int
    rows: Sequence[CommittedRow]
    records: Sequence[RecordPlace]


@dataclass(frozen=True)
class LeftOut:
    """Records that are left out, for the batch they were in killed workers.

    Attributes:
        epoch: The first one without them, from 0.
        shard: Position of their shard in that epoch's order.
        batch: Number of their batch in the shard, from 0.
        records: Which they are.
        name: Their files and numbers, in words.
    """

    epoch: int
    shard: int
    batch: int
    records: Sequence[RecordPlace]
    name: str


@dataclass(frozen=True, eq=False)
class EpochReport:
    """What is known of an epoch.

    Attributes:
        counts: What the rows say of it.
        lost_workers: How many workers left while it was trained.
        untold_steps: Steps that were made and whose batches nobody told.
        num_left_out: Records that its batches lacked, as the steps say.
        unexplained: ... less those that the events name; of an epoch that is not finished, 0 if
            they are no more.
    """

    counts: EpochAudit
    lost_workers: int
    untold_steps: int
    num_left_out: int = 0
    unexplained: int = 0

    @property
    def num_records(self) -> int | None:
        """Records trained on at least once; None if a pipeline makes the batches."""
        told = self.counts.num_records
        return None if told is None else told - self.num_left_out

    @property
    def clean(self) -> bool:
        """Nothing speaks against every batch having been trained on exactly once."""
        return not self.counts.findings and not self.untold_steps and not self.unexplained


@dataclass(frozen=True, eq=False)
class AuditReport:
    """What came of an audit.

    Attributes:
        output: The output that was read.
        plan: The cut of its data.
        files: (URI, number of records) of each file.
        by_record: Batches are cut by the plan, so that each record can be vouched for; else they
            come from a pipeline, and batches can.
        epochs: Those that were begun, in order.
        impossible_rows: Rows of batches that the data do not have.
        damaged_events: Events of steps that cannot be read.
        left_out: Which records are left out, from which epoch on.
    """

    output: str
    plan: ShardPlan
    files: Sequence[tuple[str, int]]
    by_record: bool
    epochs: Sequence[EpochReport]
    impossible_rows: Sequence[CommittedRow]
    damaged_events: int
    left_out: Sequence[LeftOut] = ()

    @property
    def clean(self) -> bool:
        """Nothing speaks against each finished epoch having been trained on exactly once."""
        told_well = not self.impossible_rows and not self.damaged_events
        return told_well and all(epoch.clean for epoch in self.epochs)

    def wrong_batches(self) -> Iterator[WrongBatch]:
        """Yield what is wrong, batch by batch: there may be as many as the data have."""
        bounds = _bounds(self.files)
        for report in self.epochs:
            epoch = report.counts.epoch
            for finding in report.counts.findings:
                rows = [_as_row(row) for row in report.counts.rows_of(finding)]
                order = self.plan.record_numbers(epoch, finding.shard)
                size = self.plan.minibatch_size
                for batch in range(finding.first, finding.stop):
                    chosen = order[batch * size : (batch + 1) * size] if self.by_record else order
                    records = _places(chosen, self.files, bounds)
                    yield WrongBatch(epoch, finding.shard, batch, finding.times, rows, records)


def _bounds(files: Sequence[tuple[str, int]]) -> Ints:
    """Return the first record of each file, and the end of the last one."""
    bounds: Ints = np.cumsum([0, *(num_records for _, num_records in files)])
    return bounds


def _places(records: Ints, files: Sequence[tuple[str, int]], bounds: Ints) -> list[RecordPlace]:
    # `data.record_source.locate`, for many at once.
    records = np.sort(records)
    at = np.searchsorted(bounds, records, "right") - 1
    return [
        RecordPlace(record, files[file][0], record - first)
        for record, file, first in zip(
            records.tolist(), at.tolist(), bounds[at].tolist(), strict=True
        )
    ]


def audit(output: str | os.PathLike[str]) -> AuditReport:
    """Say of each epoch of a training whether every record was trained on exactly once.

    Args:
        output: Folder that `train` wrote or is writing: its `events.jsonl` and its newest
            checkpoint are read, nothing else.

    Raises:
        OutputError: It has no log or no checkpoint yet, or they cannot be read.
        DataError: The log is damaged in a way that leaves nothing to count.
    """
    folder = OutputFolder(output)
    if not folder.exists(EVENTS_FILE):
        raise OutputError(
            f"{folder.where(EVENTS_FILE)}: there is no log of a training. Name the folder that was "
            "the --output of `elasticdl train`."
        )
    # Before the log: what is in a checkpoint was told before it was published, so that a training
    # that goes on meanwhile cannot look as if it had left something out.
    with CheckpointStore(folder) as store:
        restored = store.latest()
    if restored is None:
        raise OutputError(
            f"{folder.where()}: there is no checkpoint yet, which says how the data are cut into "
            "batches. Ask again when the training has made its first one."
        )
    where = folder.where(EVENTS_FILE)
    history = parse_events(folder.read_bytes(EVENTS_FILE), where)
    metadata = restored.checkpoint.metadata
    ledger = metadata["place"]["ledger"]
    plan = plan_from(metadata["plan"], folder.where())
    # The ledger may split a shard only if the plan knows its batches.
    by_record = ledger["batches_per_shard"] > 0
    finished = {
        event.epoch for event in history if isinstance(event, EpochFinished) and not event.stopped
    }
    finished = {epoch for epoch in finished if epoch >= 0} | set(range(ledger["epoch"]))
    counts, impossible = sharding_audit.audit(
        plan, _rows(history, where), finished, by_record=by_record
    )
    lost, untold = _lost_workers(history), _untold_steps(history)
    files = [(str(uri), int(num_records)) for uri, num_records in metadata["files"]]
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
                untold[each.epoch],
                missing[each.epoch],
                _unexplained(plan, left_out, each, missing[each.epoch]),
            )
            for each in counts
        ],
        left_out=[_left_out(plan, files, batch) for batch in sorted(left_out)],
        impossible_rows=[_as_row(row) for row in impossible.tolist()],
        damaged_events=sum(
            isinstance(event, UnknownEvent) and event.event == StepCommitted.event
            for event in history
        ),
    )


def _rows(history: Sequence[Event], where: str) -> Ints:
    """Return all rows of a history as one table.

    Raises:
        DataError: One of them is not five whole numbers.
    """
    told = [event.rows for event in history if isinstance(event, StepCommitted)]
    rows = list(itertools.chain.from_iterable(told))
    try:
        return np.array(rows, np.int64).reshape(len(rows), _NUM_COLUMNS)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{where}: a row of a step is not the five whole numbers (epoch, slot, shard, first "
            "batch, stop batch), so that the batches cannot be counted. The log was changed after "
            "it was written: put a copy back."
        ) from error


def _lost_workers(history: Sequence[Event]) -> Counter[int]:
    """Return how many workers left in each epoch."""
    lost: Counter[int] = Counter()
    epoch = 0
    for event in history:
        if isinstance(event, EpochFinished):
            epoch = event.epoch + 1
        elif isinstance(event, WorkerLeft):
            lost[epoch] += 1
    return lost


def _untold_steps(history: Sequence[Event]) -> Counter[int]:
    """Return how many steps of each epoch nobody told the batches of."""
    told: list[tuple[int, int, int]] = []
    for event in history:
        if isinstance(event, StepCommitted):
            told.append((event.epoch, event.step, sum(row[4] - row[3] for row in event.rows)))
        elif isinstance(event, EpochFinished):
            told.append((event.epoch, event.step, 0))
        elif isinstance(event, JobFinished) and told:
            told.append((told[-1][0], event.step, 0))
    table = np.array(told, np.int64).reshape(-1, 3)
    missing = sharding_audit.untold_steps(table[:, 1], table[:, 2])
    untold: Counter[int] = Counter()
    for epoch, count in zip(table[:, 0].tolist(), missing.tolist(), strict=True):
        untold[epoch] += count
    return untold


def _missing_records(history: Sequence[Event]) -> Counter[int]:
    """Return how many records the batches of each epoch lacked."""
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


def _left_out(plan: ShardPlan, files: Sequence[tuple[str, int]], batch: BatchId) -> LeftOut:
    records = records_of(plan, batch)
    numbering = Numbering([RecordFile(uri, num_records) for uri, num_records in files])
    return LeftOut(
        *batch,
        records=_places(records, files, _bounds(files)),
        name=numbering.name_some(records, most=len(records)),
    )


def _as_row(row: Sequence[Any]) -> CommittedRow:
    epoch, slot, shard, first, stop = row
    return epoch, slot, shard, first, stop

"""History of a job: computes what the page shows from the job's event log, read piece by piece.

The curves of a model show only the steps that the model contains: they leave out steps that a later
attempt rolled back, by the rule of `event_file.read_events`. Charts over time follow the whole log:
the death of a worker and the time spent count even if the steps were repeated later.

    events in the log     1 2 3 4 | resumed from 2: 3' 4' 5'
    loss, metrics         1 2 3' 4' 5'
    lanes, examples/s     1 2 3 4 ... 3' 4' 5'

Pure: uses only the times of events. Callers: `view.py` shows it; `outputs.py` feeds it from a file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    Event,
    JobFailed,
    JobFinished,
    JobStarted,
    PartyJoined,
    RecordsSkipped,
    RoundFinished,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
)
from elasticdl.page.parse import Damage, Item, StepColumns
from elasticdl.page.table import GrowingTable
from elasticdl.page.timelines import GAP_S, RankTenure

_MAX_RECENT_EVENTS = 400
_MAX_DAMAGES = 20
# A number edited by hand must not make the page allocate all memory.
_MAX_SHARDS, _MAX_RANKS = 50_000_000, 1_000_000
_STEP_COLUMNS = {
    "time": np.float64,
    "step": np.int64,
    "epoch": np.int32,
    "num_records": np.int64,
    "loss": np.float64,
    "num_left_out": np.int64,
    "longest_s": np.float64,
    "attempt": np.int32,
    "counts": np.bool_,
}


@dataclass(frozen=True)
class _Block:
    """Committed batches of consecutive steps, kept to recount them if some are rolled back.

    Attributes:
        first: Index in `JobHistory.steps` of the first of these steps.
        event_of: For each row of `rows`, which step (one `StepCommitted` event) it belongs to:
            the step's index in `JobHistory.steps` minus `first`.
        rows: The batches, one `events.CommittedRow` per row: epoch, rank, shard, first batch, one
            past the last batch.
        newest_epoch: The highest epoch in `rows`.
    """

    first: int
    event_of: npt.NDArray[np.int32]
    rows: npt.NDArray[Any]
    newest_epoch: int


class JobHistory:
    """Values for the page, computed from a job's event log and updated piece by piece.

    An attempt that resumes from a step rolls back the later events of earlier attempts. Attributes
    cover the whole log, including these events, unless their description says otherwise.

    Attributes:
        steps: All `StepCommitted` events as columns; `counts` is false for rolled-back steps.
        has_batches: Whether any step lists the batches it committed.
        starts: All `JobStarted` events.
        evaluations: Step -> its latest `Evaluated`, without rolled-back events.
        checkpoints: Step -> its latest `Checkpointed`, without rolled-back events.
        rounds: Round -> its latest `RoundFinished`, without rolled-back events.
        parties: Name -> its latest `PartyJoined`.
        epoch: The epoch of the latest batches, from 0.
        shard_batches: Number of committed batches of that epoch, by shard.
        shard_of: Rank -> the shard to which its last committed batch of that epoch belongs.
        tenures: Every period in which a worker held a rank (its position in the job).
        end: `JobFinished` or `JobFailed` of the last attempt; None while it is running.
        refusal: The failure of a later attempt to continue a finished job, whose training did not
            start; None if there was none. The trained model is unchanged.
        recent_events: The latest events other than steps, oldest first.
        damages: The damaged lines of the log; if there are many, only the first ones.
        num_damaged: Number of damaged lines.
        num_unknown: Number of events of an unknown type or with unexpected values.
        first_time: Time of the first event; 0 if there is none.
        last_time: Time of the last event; of a finished job, that of its end.
        first_times: Attempt -> time of its first event.
        last_times: Attempt -> time of its last event.
    """

    def __init__(self) -> None:
        self.steps = GrowingTable(_STEP_COLUMNS)
        self.has_batches = False
        self.starts: list[JobStarted] = []
        self.evaluations: dict[int, Evaluated] = {}
        self._epochs: list[EpochFinished] = []
        self.checkpoints: dict[int, Checkpointed] = {}
        self.rounds: dict[int, RoundFinished] = {}
        self.parties: dict[str, PartyJoined] = {}
        self.epoch = 0
        self.shard_batches = np.zeros(0, np.int64)
        self.shard_of: dict[int, int] = {}
        self._skipped: list[RecordsSkipped] = []
        self.tenures: list[RankTenure] = []
        self.end: JobFinished | JobFailed | None = None
        self.refusal: JobFailed | None = None
        self.recent_events: deque[Event] = deque(maxlen=_MAX_RECENT_EVENTS)
        self.damages: list[Damage] = []
        self.num_damaged = self.num_unknown = 0
        self.first_time = self.last_time = 0.0
        self.first_times: dict[int, float] = {}
        self.last_times: dict[int, float] = {}
        self._blocks: list[_Block] = []
        self._open: dict[int, RankTenure] = {}
        self._last_batch: dict[int, float] = {}

    def add(self, items: Iterable[Item]) -> None:
        """Process the next parsed events of the log, and update all attributes.

        Args:
            items: The result of `parse.parse`.
        """
        for item in items:
            match item:
                case Damage():
                    self.num_damaged += 1
                    if len(self.damages) < _MAX_DAMAGES:
                        self.damages.append(item)
                case StepColumns():
                    self._take_steps(item)
                case _:
                    self.recent_events.append(item)
                    self._take(item)
                    # Notes and errors of later attempts to continue do not belong to its run time.
                    if self.end is item or not isinstance(self.end, JobFinished):
                        self._note_time(item.time, item.time)

    @property
    def start(self) -> JobStarted | None:
        """Start event of the last attempt; None before the first one."""
        return self.starts[-1] if self.starts else None

    @property
    def attempt(self) -> int:
        """Number of the last attempt; 0 before the first one."""
        return self.starts[-1].attempt if self.starts else 0

    @property
    def run_time_s(self) -> float:
        """Seconds for which the job ran, without the pauses between two attempts."""
        return sum(last - self.first_times[at] for at, last in self.last_times.items())

    @property
    def epochs(self) -> dict[int, EpochFinished]:
        """Epoch -> its latest `EpochFinished` event, without events that were rolled back."""
        ends: dict[int, EpochFinished] = {}
        for end in self._epochs:
            _put(ends, end.epoch, end)
        return ends

    @property
    def skipped(self) -> list[RecordsSkipped]:
        """Latest `RecordsSkipped` event of each batch, without events that were rolled back."""
        batches: dict[tuple[int, int, int], RecordsSkipped] = {}
        for event in self._skipped:
            _put(batches, (event.epoch, event.shard, event.batch), event)
        return list(batches.values())

    @property
    def unit(self) -> str:
        """What the `step` of an event counts: "step", or "round" in a federation."""
        return "round" if self.rounds or self.parties else "step"

    @property
    def step(self) -> int:
        """Number of updates (in a federation, rounds) that the current model has received."""
        counts = self.steps["counts"].nonzero()[0]
        last = int(self.steps["step"][counts[-1]]) if len(counts) else 0
        resumed = self.starts[-1].resumed_from_step if self.starts else 0
        return max(last, resumed, max(self.rounds, default=0))

    @property
    def present(self) -> list[RankTenure]:
        """A `RankTenure` for each worker that is in the job now, sorted by rank."""
        return [self._open[rank] for rank in sorted(self._open)]

    @property
    def tenures_so_far(self) -> list[RankTenure]:
        """`tenures`, with the current gap of each present worker that has stopped committing.

        A gap is a long period without a batch. One that has not ended is listed as if it ended at
        the last logged step.
        """
        now = float(self.steps["time"][-1]) if len(self.steps) else 0.0
        return [
            replace(tenure, gaps=[*tenure.gaps, (last, now)])
            if self._open.get(tenure.rank) is tenure
            and (last := self._last_batch.get(tenure.rank, now)) < now - GAP_S
            else tenure
            for tenure in self.tenures
        ]

    def last_batch(self, rank: int) -> float | None:
        """Return when the worker that holds a rank last committed a batch; None if it never did."""
        return self._last_batch.get(rank)

    # --- steps --------------------------------------------------------------------------------

    def _take_steps(self, steps: StepColumns) -> None:
        count = len(steps)
        if not self.tenures and self.starts:
            self._add_own_process()
        first = len(self.steps)
        self._note_time(float(steps.time[0]), float(steps.time.max()))
        self.steps.append(
            {
                "time": steps.time,
                "step": steps.step,
                "epoch": steps.epoch,
                "num_records": steps.num_records,
                "loss": steps.loss,
                "num_left_out": steps.num_left_out,
                "longest_s": steps.longest_s,
                "attempt": np.full(count, self.attempt),
                "counts": np.ones(count, np.bool_),
            }
        )
        if not len(steps.rows):
            return
        self.has_batches = True
        per_event = np.diff(steps.row_ends, prepend=0)
        event_of = np.repeat(np.arange(count, dtype=np.int32), per_event)
        epoch, rank, _, _, _ = steps.rows.T
        self._blocks.append(_Block(first, event_of, _compact(steps.rows), int(epoch.max())))
        self._note_batches(rank, steps.time[event_of])
        self._count_shards(*steps.rows.T)

    def _note_batches(self, ranks: npt.NDArray[Any], times: npt.NDArray[Any]) -> None:
        """Record when each worker committed its first batch, and long periods without a batch.

        Args:
            ranks: Rank of the worker that committed each batch.
            times: When each batch was logged, ascending.
        """
        # Times are sorted already. Short integers get a radix sort, which is ten times faster.
        few = 0 <= int(ranks.min()) <= int(ranks.max()) < np.iinfo(np.int16).max
        order = np.argsort(ranks.astype(np.int16) if few else ranks, kind="stable")
        ranks, times = ranks[order], times[order]
        firsts = np.flatnonzero(np.diff(ranks, prepend=ranks[:1] - 1))
        stops = np.append(firsts[1:], len(ranks))
        for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
            rank = int(ranks[first])
            tenure = self._open.get(rank)
            if tenure is None:
                continue
            mine = times[first:stop]
            if tenure.first_batch is None:
                tenure.first_batch = float(mine[0])
                self._last_batch.pop(rank, None)
            before = self._last_batch.get(rank, float(mine[0]))
            gaps = np.diff(mine, prepend=before)
            for at in np.flatnonzero(gaps > GAP_S).tolist():
                tenure.gaps.append((float(mine[at] - gaps[at]), float(mine[at])))
            self._last_batch[rank] = float(mine[-1])

    def _count_shards(
        self,
        epoch: npt.NDArray[Any],
        rank: npt.NDArray[Any],
        shard: npt.NDArray[Any],
        first: npt.NDArray[Any],
        stop: npt.NDArray[Any],
    ) -> None:
        """Add new batches of the newest epoch to `shard_batches` and `shard_of`.

        Both attributes are reset when a new epoch begins. The arguments are the columns of
        `events.CommittedRow`: one entry per row, with the batches `first` to `stop` (exclusive).
        """
        newest = int(epoch.max())
        if newest > self.epoch:
            self.epoch, self.shard_of = newest, {}
            self.shard_batches = np.zeros(0, np.int64)
        mine = (epoch == self.epoch) & (shard >= 0) & (shard < _MAX_SHARDS)
        mine &= (rank >= 0) & (rank < _MAX_RANKS)
        rank, shard, counts = rank[mine], shard[mine], (stop - first)[mine]
        if not len(shard):
            return
        size = int(shard.max()) + 1
        if size > len(self.shard_batches):
            grown = np.zeros(max(size, 2 * len(self.shard_batches)), np.int64)
            grown[: len(self.shard_batches)] = self.shard_batches
            self.shard_batches = grown
        np.add.at(self.shard_batches, shard, counts)
        # If an index occurs several times, the last value is kept.
        last = np.full(int(rank.max()) + 1, -1, np.int64)
        last[rank] = shard
        there = np.flatnonzero(last >= 0)
        self.shard_of.update(zip(there.tolist(), last[there].tolist(), strict=True))

    def _add_own_process(self) -> None:
        """Add a `RankTenure` for each attempt of a job without workers; its process has rank 0."""
        for start in self.starts:
            tenure = RankTenure(0, 0, start.attempt, start.time, host=start.host, pid=start.pid)
            self.tenures.append(tenure)
        for tenure, following in zip(self.tenures, self.starts[1:], strict=False):
            tenure.end(following.time, "was restarted")
        self._open[0] = self.tenures[-1]

    # --- events -------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        match event:
            case JobStarted():
                self._begin(event)
            case Evaluated():
                _put(self.evaluations, event.step, event)
            case EpochFinished():
                self._epochs.append(event)
            case Checkpointed():
                _put(self.checkpoints, event.step, event)
            case RoundFinished():
                _put(self.rounds, event.step, event)
            case RecordsSkipped():
                self._skipped.append(event)
            case JobFinished() | JobFailed():
                self._finish(event)
            case UnknownEvent():
                self.num_unknown += 1
            case _:
                self._take_member(event)

    def _take_member(self, event: Event) -> None:
        """Process an event about a party or worker joining, or a worker leaving."""
        match event:
            case PartyJoined():
                self.parties[event.party] = event
            case WorkerJoined():
                self._join(event)
            case WorkerLeft():
                tenure = self._open.pop(event.rank, None)
                if tenure is not None:
                    tenure.end(event.time, event.reason, step=event.step, is_lost=True)
            case _:
                pass

    def _begin(self, event: JobStarted) -> None:
        step = event.resumed_from_step
        self.steps["counts"][self.steps["step"] > step] = False
        self._count_shards_again()
        kept: dict[int, Any]
        for kept in (self.evaluations, self.checkpoints, self.rounds):
            for later in [each for each in kept if each > step]:
                del kept[later]
        self._epochs = [each for each in self._epochs if each.step <= step]
        self._skipped = [each for each in self._skipped if each.step + 1 <= step]
        same = self.attempt == event.attempt
        for tenure in self._open.values():
            if same:
                tenure.end(event.time, f"was restarted from step {step}", step=step)
            else:
                before = max(tenure.joined, self._last_batch.get(tenure.rank, 0.0))
                tenure.end(before, "ended with its attempt", step=step)
        self._open.clear()
        self._last_batch.clear()
        has_own_process = bool(self.tenures) and not self.tenures[-1].incarnation
        self.starts.append(event)
        self.end = self.refusal = None
        if has_own_process:
            tenure = RankTenure(0, 0, event.attempt, event.time, host=event.host, pid=event.pid)
            self.tenures.append(tenure)
            self._open[0] = tenure

    def _count_shards_again(self) -> None:
        """Recount the batches of the newest epoch, after some were rolled back."""
        counts = self.steps["counts"]
        self.epoch, self.shard_of = 0, {}
        self.shard_batches = np.zeros(0, np.int64)
        kept = [
            (block, rows)
            for block in self._blocks
            if len(rows := block.rows[counts[block.first + block.event_of]])
        ]
        newest = max((int(rows[:, 0].max()) for _, rows in kept), default=0)
        of_newest = [rows for block, rows in kept if block.newest_epoch >= newest]
        if of_newest:
            self._count_shards(*np.concatenate(of_newest).T)

    def _join(self, event: WorkerJoined) -> None:
        before = self._open.pop(event.rank, None)
        if before is not None:
            before.end(event.time, "was replaced", step=event.step, is_lost=True)
        tenure = RankTenure(
            rank=event.rank,
            incarnation=event.incarnation,
            attempt=self.attempt,
            joined=event.time,
            host=event.host,
            pid=event.pid,
            started=event.started,
            replaces=event.replaces,
        )
        self._open[event.rank] = tenure
        self._last_batch.pop(event.rank, None)
        self.tenures.append(tenure)

    def _finish(self, event: JobFinished | JobFailed) -> None:
        if isinstance(self.end, JobFinished) and isinstance(event, JobFailed):
            self.refusal = event
            return
        self.end, self.refusal = event, None
        done = isinstance(event, JobFinished)
        for tenure in self._open.values():
            tenure.end(
                event.time, "the job was complete" if done else "the job ended", step=event.step
            )
        self._open.clear()

    def _note_time(self, first: float, last: float) -> None:
        self.first_time = self.first_time or first
        self.last_time = max(self.last_time, last)
        self.first_times.setdefault(self.attempt, first)
        self.last_times[self.attempt] = max(self.last_times.get(self.attempt, 0.0), last)


def _put(events: dict[Any, Any], key: Any, event: Event) -> None:
    """Store an event under a key and make it the last entry of the dict.

    An existing entry of the key is removed first, so that entries stay in the order of the log.
    """
    events.pop(key, None)
    events[key] = event


def _compact(rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Convert rows to int32 if their numbers fit, which halves their memory."""
    low, high = int(rows.min()), int(rows.max())
    limits = np.iinfo(np.int32)
    return rows.astype(np.int32) if limits.min <= low and high <= limits.max else rows

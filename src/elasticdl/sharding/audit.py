"""Audit of a training run: checks in its log that each planned batch was trained on once.

The audit uses the plan and the rows of the log. It does not use the ledger that assigned the
batches, so it can find mistakes of the ledger. A row of the log says that a worker trained on a
range of batches of one shard. The audit places all shards on one line and counts the rows that
cover each batch; the count can change only where a row or a shard begins or ends:

    shard 0          shard 1
    |----------------|----------------|
     row row row  row row row row row
              row row
    1        2   1  0 1                     batches with a count of 2 or 0 are wrong

So the cost is that of sorting the rows, however many batches each of them has.

If a user's pipeline yields the batches, the plan does not contain their number. The audit then
assumes that a shard ends where its last row ends. It finds any batch before that end that was
repeated or skipped. Only `unlogged_steps` can find a batch that is missing at the end of the shard,
and only if no other batch was trained on in the same step.

Callers: `engines/audit.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from elasticdl.sharding.epoch_order import ShardPlan

Ints: TypeAlias = npt.NDArray[np.int64]

# The columns of `events.CommittedRow`.
_EPOCH, _RANK, _SHARD, _FIRST, _STOP = range(5)
_NUM_COLUMNS = 5
# A pipeline yields fewer batches per shard than this; more would not fit on the line.
_MAX_BATCHES = 2**31


class AuditFinding(NamedTuple):
    """Batches of one shard that were not trained on exactly once.

    Attributes:
        shard: Position in the epoch's order.
        first: Number of the first of these batches, from 0.
        stop: One past the last of them.
        times: Number of log rows that contain each of these batches: 0 if they were skipped, else
            at least 2.
    """

    shard: int
    first: int
    stop: int
    times: int


@dataclass(frozen=True, eq=False)
class EpochAudit:
    """The result of the audit for one epoch.

    Attributes:
        epoch: From 0.
        finished: Whether the epoch is over, so that every batch should have been trained on.
        ranks: The ranks that took part, sorted.
        num_batches: Number of batches trained on at least once.
        num_records: Number of records trained on at least once; None if a pipeline yields the
            batches.
        findings: The batches that were not trained on exactly once, in the order of the epoch. If
            the epoch is unfinished, batches that may still follow are not included.
        silent_shards: Positions of the shards without a row in the log: either the pipeline yielded
            no batch for them, or they were skipped. Empty if the epoch is unfinished or no pipeline
            is used.
    """

    epoch: int
    finished: bool
    ranks: tuple[int, ...]
    num_batches: int
    num_records: int | None
    findings: list[AuditFinding]
    silent_shards: tuple[int, ...]
    _rows: Ints

    def rows_of(self, finding: AuditFinding) -> list[tuple[int, ...]]:
        """Return the log rows that contain the batches of a finding; none if they were skipped."""
        begin, end = np.searchsorted(self._rows[:, _SHARD], [finding.shard, finding.shard + 1])
        rows = self._rows[begin:end]
        over = (rows[:, _FIRST] <= finding.first) & (rows[:, _STOP] >= finding.stop)
        return [tuple(row) for row in rows[over].tolist()]


def audit(
    plan: ShardPlan, rows: Ints, finished: Collection[int], *, by_record: bool
) -> tuple[list[EpochAudit], Ints]:
    """Find the batches of every epoch that were not trained on exactly once.

    Args:
        plan: Division of the data into shards.
        rows: The logged rows, with the columns of `events.CommittedRow`, in any order.
        finished: Epochs in which every batch should have been trained on.
        by_record: Whether the plan divides shards into batches. Otherwise a user's pipeline does,
            and a shard is assumed to end with its last row.

    Returns:
        An entry for each epoch that is finished or has a row, in order, and the rows that do not
        fit the plan, which are not counted.

    Example:
        >>> from elasticdl.sharding.epoch_order import ShardPlan
        >>> plan = ShardPlan(num_records=8, minibatch_size=2, minibatches_per_shard=4)
        >>> logged = np.array([[0, 0, 0, 0, 2], [0, 1, 0, 1, 3]])
        >>> epochs, _ = audit(plan, logged, {0}, by_record=True)
        >>> [(found.first, found.times) for found in epochs[0].findings]
        [(1, 2), (3, 0)]
    """
    rows = np.asarray(rows, np.int64).reshape(-1, _NUM_COLUMNS)
    possible = (rows >= 0).all(axis=1) & (rows[:, _SHARD] < plan.num_shards)
    possible &= (rows[:, _FIRST] < rows[:, _STOP]) & (rows[:, _STOP] <= _MAX_BATCHES)
    impossible = [rows[~possible]]
    rows = rows[possible]
    rows = rows[np.lexsort((rows[:, _STOP], rows[:, _FIRST], rows[:, _SHARD], rows[:, _EPOCH]))]
    starts = np.arange(plan.num_shards, dtype=np.int64) * plan.shard_size
    num_records = np.minimum(plan.shard_size, plan.num_records - starts)
    audits = []
    for epoch in sorted({*finished, *np.unique(rows[:, _EPOCH]).tolist()}):
        begin, end = np.searchsorted(rows[:, _EPOCH], [epoch, epoch + 1])
        own = rows[begin:end]
        # Ends of the shards: as planned, or as far as any row reaches.
        num_batches = np.zeros(plan.num_shards, np.int64)
        if by_record:
            num_batches = -(-num_records // plan.minibatch_size)
            beyond = own[:, _STOP] > num_batches[own[:, _SHARD]]
            impossible.append(own[beyond])
            own = own[~beyond]
        else:
            np.maximum.at(num_batches, own[:, _SHARD], own[:, _STOP])
        done = epoch in finished
        parts = _sweep(own, num_batches)
        shard, first, stop, count = parts.T
        trained = count > 0
        records = np.minimum(parts[:, 1:3] * plan.minibatch_size, num_records[shard, None])
        # In an unfinished epoch, a gap between rows may be batches that a rank has not reached
        # yet. A pipeline's shard is not shared, so that a gap in it is final.
        wrong = parts[count != 1 if done or not by_record else count > 1]
        silent = np.flatnonzero(num_batches == 0) if done and not by_record else ()
        audits.append(
            EpochAudit(
                epoch=epoch,
                finished=done,
                ranks=tuple(np.unique(own[:, _RANK]).tolist()),
                num_batches=int((stop - first)[trained].sum()),
                num_records=int((records[:, 1] - records[:, 0])[trained].sum())
                if by_record
                else None,
                findings=[AuditFinding(*part) for part in wrong.tolist()],
                silent_shards=tuple(int(shard) for shard in silent),
                _rows=own,
            )
        )
    return audits, np.concatenate(impossible)


def unlogged_steps(steps: Ints, num_batches: Ints) -> Ints:
    """Return, for each event in the log, the minimum number of batches that it fails to list.

    Each step trains on at least one batch. So if an event lists fewer batches than there were steps
    since the previous event, the difference is missing. With several workers, a step has several
    batches, so a lost batch may remain undetected.

    Args:
        steps: int64 [events], number of steps (updates) made up to each event.
        num_batches: int64 [events], number of batches logged with each event.

    Returns:
        int64 [events]; 0 where no batch is known to be missing.
    """
    # Batches that were logged late also count.
    reached = np.maximum.accumulate(steps)
    return np.maximum(0, np.diff(reached, prepend=0) - num_batches)


def _sweep(rows: Ints, num_batches: Ints) -> Ints:
    """Split all shards into ranges of batches, and count the rows that cover each range.

    Args:
        rows: Rows of the log, with the columns of `events.CommittedRow`, sorted by shard and
            first batch.
        num_batches: Number of batches in each shard.

    Returns:
        int64 [ranges, 4]: shard, first batch, one past the last batch, and number of rows that
        cover the range. A new range begins wherever a row or a shard begins or ends.
    """
    base = np.concatenate([[0], np.cumsum(num_batches)])
    starts = base[rows[:, _SHARD]] + rows[:, _FIRST]
    stops = np.sort(base[rows[:, _SHARD]] + rows[:, _STOP])
    edges = np.unique(np.concatenate([base, starts, stops]))
    before = edges[:-1]
    count = np.searchsorted(starts, before, "right") - np.searchsorted(stops, before, "right")
    shard = np.searchsorted(base, before, "right") - 1
    return np.stack([shard, before - base[shard], edges[1:] - base[shard], count], axis=1)

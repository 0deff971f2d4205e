"""Whether every batch was trained on exactly once: what was told, held against the plan.

It knows the plan and the rows of the log, and not the ledger that dealt them: a mistake there
cannot hide here. Rows are laid side by side on one line, shard after shard; wherever a row begins
or ends, the number of rows that lie over each other may change:

    shard 0          shard 1
    |----------------|----------------|
     row row row  row row row row row
              row row
    1        2   1  0 1                     the batches of 2 and of 0 are wrong

So the cost is that of sorting the rows, however many batches each of them has.

Where a shard comes from a pipeline of the user's, nobody but the pipeline knows how many batches it
has. Then a shard is taken to end where the last row ends: a batch that came twice or was left out
is found, one that is missing at the end is found by `untold_steps` if it had a step of its own.

Callers: `engines/audit.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from elasticdl.sharding.shard import ShardPlan

Ints: TypeAlias = npt.NDArray[np.int64]

# The columns of `events.CommittedRow`.
_EPOCH, _SLOT, _SHARD, _FIRST, _STOP = range(5)
_NUM_COLUMNS = 5
# A pipeline yields fewer batches from one shard; more would not fit on the line.
_MOST_BATCHES = 2**31


class Finding(NamedTuple):
    """Batches of one shard that were trained on another number of times than once.

    Attributes:
        shard: Position in the epoch's order.
        first: The first of them.
        stop: The batch they end before.
        times: How often each of them was trained on; the same rows hold all of them.
    """

    shard: int
    first: int
    stop: int
    times: int


@dataclass(frozen=True, eq=False)
class EpochAudit:
    """What came of one epoch.

    Attributes:
        epoch: From 0.
        finished: Every batch should have been trained on; else more are to come.
        slots: Who took part, sorted.
        num_batches: Batches trained on at least once.
        num_records: Records trained on at least once; None if a pipeline makes the batches.
        findings: What is wrong, in the order of the epoch.
        silent_shards: Shards no row tells of, of a finished epoch that a pipeline made the batches
            for: it had nothing to yield, or they were left out.
    """

    epoch: int
    finished: bool
    slots: tuple[int, ...]
    num_batches: int
    num_records: int | None
    findings: list[Finding]
    silent_shards: tuple[int, ...]
    _rows: Ints

    def rows_of(self, finding: Finding) -> list[tuple[int, ...]]:
        """Return the rows that hold the batches of a finding; none if they were left out."""
        begin, end = np.searchsorted(self._rows[:, _SHARD], [finding.shard, finding.shard + 1])
        rows = self._rows[begin:end]
        over = (rows[:, _FIRST] <= finding.first) & (rows[:, _STOP] >= finding.stop)
        return [tuple(row) for row in rows[over].tolist()]


def audit(
    plan: ShardPlan, rows: Ints, finished: Collection[int], *, by_record: bool
) -> tuple[list[EpochAudit], Ints]:
    """Say for every epoch which batches were trained on another number of times than once.

    Args:
        plan: The cut of the data.
        rows: What was told, with the columns of `events.CommittedRow`, in any order.
        finished: Epochs in which every batch should have been trained on.
        by_record: Shards are cut into batches by the plan; else by a pipeline.

    Returns:
        An entry for each epoch that is finished or has a row, in order, and the rows that the plan
        has no place for, which are not counted.

    Example:
        >>> from elasticdl.sharding.shard import ShardPlan
        >>> plan = ShardPlan(num_records=8, minibatch_size=2, minibatches_per_shard=4)
        >>> told = np.array([[0, 0, 0, 0, 2], [0, 1, 0, 1, 3]])
        >>> epochs, _ = audit(plan, told, {0}, by_record=True)
        >>> epochs[0].findings
        [Finding(shard=0, first=1, stop=2, times=2), Finding(shard=0, first=3, stop=4, times=0)]
    """
    rows = np.asarray(rows, np.int64).reshape(-1, _NUM_COLUMNS)
    possible = (rows >= 0).all(axis=1) & (rows[:, _SHARD] < plan.num_shards)
    possible &= (rows[:, _FIRST] < rows[:, _STOP]) & (rows[:, _STOP] <= _MOST_BATCHES)
    impossible = [rows[~possible]]
    rows = rows[possible]
    rows = rows[np.lexsort((rows[:, _STOP], rows[:, _FIRST], rows[:, _SHARD], rows[:, _EPOCH]))]
    starts = np.arange(plan.num_shards, dtype=np.int64) * plan.shard_size
    num_records = np.minimum(plan.shard_size, plan.num_records - starts)
    audits = []
    for epoch in sorted({*finished, *np.unique(rows[:, _EPOCH]).tolist()}):
        begin, end = np.searchsorted(rows[:, _EPOCH], [epoch, epoch + 1])
        own = rows[begin:end]
        # Ends of the shards: as planned, or as far as anybody came.
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
        # In an epoch that goes on, what a slot has not come to yet is a gap between others. A
        # pipeline's shard is not shared, so that there a gap is one that will stay.
        wrong = parts[count != 1 if done or not by_record else count > 1]
        silent = np.flatnonzero(num_batches == 0) if done and not by_record else ()
        audits.append(
            EpochAudit(
                epoch=epoch,
                finished=done,
                slots=tuple(np.unique(own[:, _SLOT]).tolist()),
                num_batches=int((stop - first)[trained].sum()),
                num_records=int((records[:, 1] - records[:, 0])[trained].sum())
                if by_record
                else None,
                findings=[Finding(*part) for part in wrong.tolist()],
                silent_shards=tuple(int(shard) for shard in silent),
                _rows=own,
            )
        )
    return audits, np.concatenate(impossible)


def untold_steps(steps: Ints, num_batches: Ints) -> Ints:
    """Return how many steps before each event nobody told the batches of.

    Each step trains on one batch or more, so that fewer batches than steps are too few. (On many
    workers a lost row may hide behind the other rows of its step.)

    Args:
        steps: Updates made so far, at each event of the history.
        num_batches: Batches told with the event.
    """
    # What was told late is told all the same.
    reached = np.maximum.accumulate(steps)
    return np.maximum(0, np.diff(reached, prepend=0) - num_batches)


def _sweep(rows: Ints, num_batches: Ints) -> Ints:
    """Return the stretches of batches that the same rows hold: the columns of `Finding`."""
    base = np.concatenate([[0], np.cumsum(num_batches)])
    starts = base[rows[:, _SHARD]] + rows[:, _FIRST]
    stops = np.sort(base[rows[:, _SHARD]] + rows[:, _STOP])
    edges = np.unique(np.concatenate([base, starts, stops]))
    before = edges[:-1]
    count = np.searchsorted(starts, before, "right") - np.searchsorted(stops, before, "right")
    shard = np.searchsorted(base, before, "right") - 1
    return np.stack([shard, before - base[shard], edges[1:] - base[shard], count], axis=1)

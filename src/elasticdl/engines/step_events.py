"""Reports the steps of a job: to the user after each commit, and to the event log.

The log gets one `StepCommitted` for all steps within an interval of time, so that short steps do
not fill it.

Callers: `loop.py`; `elastic/event_writer.py` joins the events that it fetches from workers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from elasticdl.evaluation.metrics import add_states
from elasticdl.events import CommittedRow, StepCommitted

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.engines.interfaces import Commit, EventSink
    from elasticdl.engines.train_progress import TrainProgress
    from elasticdl.sharding.ledger import Ledger
    from elasticdl.training.trainer import MetricStates


class StepEvents:
    """Reporter of a job's steps: to the user and, several at a time, to the event log.

    Args:
        events: Event log, or another sink, that receives the events.
        reporter: Reports progress to the user.
        num_records: Records in an epoch.
        num_epochs: Number of epochs of the job.
        counts_steps: Whether the progress is counted in steps instead of records.
        interval_s: Steps within this interval are combined into one event, in seconds.
    """

    def __init__(
        self,
        events: EventSink,
        reporter: Reporter,
        *,
        num_records: int,
        num_epochs: int,
        counts_steps: bool,
        interval_s: float,
    ) -> None:
        self._events, self._reporter = events, reporter
        self._num_records, self._num_epochs = num_records, num_epochs
        self._counts_steps, self._interval_s = counts_steps, interval_s
        self.forget()

    def forget(self) -> None:
        """Drop the steps that are not written yet, because training resumes before them."""
        # Time before the next commit, such as for compiling a step, is not a pause in training.
        self._committed_s: float | None = None
        self._longest_s = 0.0
        self._rows: list[CommittedRow] = []
        self._states: list[MetricStates] = []
        self._num_examples, self._num_left_out = 0, 0
        self._last_s = time.monotonic()

    def add(self, commit: Commit, before: Ledger, after: TrainProgress, step: int) -> None:
        """Report a commit to the user, and add it to the next event.

        Args:
            commit: The commit.
            before: The ledger before the commit. The commit has only a number of batches per rank;
                the rank's lease in this ledger tells which batches they are.
            after: The training progress after the commit.
            step: Number of updates so far.
        """
        now = time.monotonic()
        if self._committed_s is not None:
            self._longest_s = max(self._longest_s, now - self._committed_s)
        self._committed_s = now
        self._num_left_out += commit.num_left_out
        for row in commit.rows:
            lease = before.lease_of(row.rank)
            if lease is not None and row.num_batches:
                stop = lease.next_batch + row.num_batches
                self._rows.append((before.epoch, row.rank, lease.shard, lease.next_batch, stop))
        if "loss" not in commit.metrics:
            return
        self._num_examples += commit.num_examples
        self._states.append({"loss": commit.metrics["loss"]})
        # The mean over the epoch so far, as in the bar of Keras: the end of the epoch repeats it.
        total, count = after.epoch_states["loss"]
        records = before.epoch * self._num_records + after.epoch_examples
        self._reporter.advanced(
            step if self._counts_steps else records,
            {
                "epoch": f"{before.epoch + 1}/{self._num_epochs}",
                "step": str(step),
                "loss": f"{float(total / count):.4g}",
            },
        )

    def write_if_due(self, step: int) -> None:
        """Write the pending steps as an event if `interval_s` has passed since the previous one."""
        if time.monotonic() - self._last_s >= self._interval_s:
            self.write(step)

    def write(self, step: int) -> None:
        """Write one event for all steps since the last event, if there are any.

        Args:
            step: The step of the event: the last update that contains any of the batches.
        """
        now = time.monotonic()
        if self._rows:
            # A batch whose records are all left out has no loss.
            total, count = add_states(self._states)["loss"] if self._states else (0.0, 0.0)
            self._events.write(
                StepCommitted(
                    step=step,
                    epoch=self._rows[-1][0],
                    num_records=self._num_examples,
                    loss=float(total / count) if self._states else math.nan,
                    records_per_s=self._num_examples / max(now - self._last_s, 1e-9),
                    rows=joined_rows(self._rows),
                    num_left_out=self._num_left_out,
                    longest_s=self._longest_s,
                )
            )
        self._rows, self._states, self._last_s = [], [], now
        self._num_examples, self._num_left_out, self._longest_s = 0, 0, 0.0


def joined_rows(rows: Sequence[CommittedRow]) -> list[CommittedRow]:
    """Merge successive rows of a rank whose batches are adjacent in the same shard.

    Args:
        rows: (epoch, rank, shard, first batch, one past the last batch), in the order of commits.
    """
    joined: list[CommittedRow] = []
    last_of: dict[int, int] = {}
    for row in rows:
        rank = row[1]
        at = last_of.get(rank)
        if at is not None and joined[at][:3] == row[:3] and joined[at][4] == row[3]:
            joined[at] = (*joined[at][:4], row[4])
        else:
            last_of[rank] = len(joined)
            joined.append(row)
    return joined

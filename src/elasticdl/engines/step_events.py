"""What is told of steps: progress after each commit, an event for those made within a second.

Callers: `loop.py`; `elastic/journal.py` joins the events that workers hand out.
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
    from elasticdl.engines.place import Place
    from elasticdl.engines.seams import Commit, EventSink
    from elasticdl.sharding.ledger import Ledger
    from elasticdl.training.trainer import MetricStates


class StepEvents:
    """Tells of the steps of one training.

    Args:
        events: Where events go.
        reporter: Who tells people.
        num_records: Records in an epoch.
        num_epochs: How many epochs there are to be.
        interval_s: Steps are told together that were made within it.
    """

    def __init__(
        self,
        events: EventSink,
        reporter: Reporter,
        *,
        num_records: int,
        num_epochs: int,
        interval_s: float,
    ) -> None:
        self._events, self._reporter = events, reporter
        self._num_records, self._num_epochs = num_records, num_epochs
        self._interval_s = interval_s
        self.forget()

    def forget(self) -> None:
        """Drop what was not told: those steps are made again."""
        # What comes before the next commit, such as to compile a step, is no pause of a training.
        self._committed_s: float | None = None
        self._longest_s = 0.0
        self._rows: list[CommittedRow] = []
        self._states: list[MetricStates] = []
        self._num_left_out = 0
        self._last_s = time.monotonic()

    def add(self, commit: Commit, before: Ledger, after: Place, step: int) -> None:
        """Tell people of a commit, and keep it for the next event.

        Args:
            commit: What was committed.
            before: The ledger without it.
            after: The place with it.
            step: Updates made so far.
        """
        now = time.monotonic()
        if self._committed_s is not None:
            self._longest_s = max(self._longest_s, now - self._committed_s)
        self._committed_s = now
        self._num_left_out += commit.num_left_out
        for row in commit.rows:
            piece = before.piece_of(row.slot)
            if piece is not None and row.num_batches:
                stop = piece.committed + row.num_batches
                self._rows.append((before.epoch, row.slot, piece.shard, piece.committed, stop))
        if "loss" not in commit.metrics:
            return
        self._states.append({"loss": commit.metrics["loss"]})
        total, count = commit.metrics["loss"]
        seen = after.epoch_states["loss"][1]
        self._reporter.advanced(
            before.epoch * self._num_records + int(seen),
            {
                "epoch": f"{before.epoch + 1}/{self._num_epochs}",
                "step": str(step),
                "loss": f"{float(total / count):.4g}",
            },
        )

    def write_if_due(self, step: int) -> None:
        """Write the event when the one before is old enough."""
        if time.monotonic() - self._last_s >= self._interval_s:
            self.write(step)

    def write(self, step: int) -> None:
        """Write the event of the steps since the last one, if there are any.

        Args:
            step: The update that all of them are part of, or were before.
        """
        now = time.monotonic()
        if self._rows:
            # Of a batch whose records are all left out there is no loss.
            total, count = add_states(self._states)["loss"] if self._states else (0.0, 0.0)
            self._events.write(
                StepCommitted(
                    step=step,
                    epoch=self._rows[-1][0],
                    num_records=int(count),
                    loss=float(total / count) if self._states else math.nan,
                    records_per_s=float(count / max(now - self._last_s, 1e-9)),
                    rows=joined_rows(self._rows),
                    num_left_out=self._num_left_out,
                    longest_s=self._longest_s,
                )
            )
        self._rows, self._states, self._num_left_out, self._last_s = [], [], 0, now
        self._longest_s = 0.0


def joined_rows(rows: Sequence[CommittedRow]) -> list[CommittedRow]:
    """Return rows with neighbours of one shard made one."""
    joined: list[CommittedRow] = []
    last_of: dict[int, int] = {}
    for row in rows:
        slot = row[1]
        at = last_of.get(slot)
        if at is not None and joined[at][:3] == row[:3] and joined[at][4] == row[3]:
            joined[at] = (*joined[at][:4], row[4])
        else:
            last_of[slot] = len(joined)
            joined.append(row)
    return joined

"""What the driver writes down of the history that its workers make: each event once.

Events of steps are gathered for a second and written as one; whatever else there is comes after
the steps before it. A checkpoint counts when it is saved, and is told then.

A job that goes on from a checkpoint takes back what was told past it, so no event may span one.
Where the copies are taken, only the worker knows that takes them; who hands out the events may be
another. So events end at each step that is a checkpoint's by number, and a checkpoint that was
asked for and lies within an event all the same is not kept: there will be another.

Callers: `controller.py`, which fetches the reports.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from elasticdl.engines.job_messages import aloud
from elasticdl.engines.progress import metrics_in_words
from elasticdl.engines.step_events import joined_rows
from elasticdl.events import (
    Checkpointed,
    CommittedRow,
    Evaluated,
    RecordsSkipped,
    StepCommitted,
)
from elasticdl.sharding.left_out import BatchId

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint
    from elasticdl.engines.elastic.reports import Point, Report, Snapshot
    from elasticdl.engines.run import Run
    from elasticdl.events import Event

_INTERVAL_S = 1.0


class Journal:
    """See the module.

    Args:
        run: Where it is written.

    Attributes:
        known: Up to where the history is written, None before the first report of a round.
        step: The last step that was told of.
        details: What the progress bar shows besides.
        left_out: Batches whose records all workers have agreed to leave out.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since_s = time.monotonic()
        self._blocked_s: dict[int, float] = {}
        self.details: dict[str, str] = {}
        self.left_out: set[BatchId] = set()
        self.restart(run.checkpoint)

    def restart(self, checkpoint: Checkpoint | None) -> None:
        """Forget what was not written yet: the history goes on from this checkpoint."""
        self.known: Point | None = None
        self.step = checkpoint.step if checkpoint is not None else 0
        self._steps: list[StepCommitted] = []
        # First and last step of each event written since the last checkpoint.
        self._written: list[tuple[int, int]] = []
        self._seen = self._run.records_done(checkpoint)

    def take(self, report: Report) -> None:
        """Write what is new in a report; two workers may have been asked for the same."""
        for point, event in report.events:
            if self.known is None or point > self.known:
                self._tell(event)
        if self.known is None or report.confirmed > self.known:
            # Never back: an answer that was long on its way would have all told once more.
            self.known = report.confirmed
        self.step = max(self.step, report.step)

    def write_steps(self, *, now: bool = False) -> None:
        """Write the steps of the last second if it is over (or `now`); show where the run is."""
        is_due = now or time.monotonic() - self._since_s >= _INTERVAL_S
        if not self._steps or not is_due:
            return
        steps, self._steps = self._steps, []
        self._write(steps)

    def _write(self, steps: list[StepCommitted]) -> None:
        time_s = time.monotonic()
        self._written.append((steps[0].step, steps[-1].step))
        rows: list[CommittedRow] = [row for event in steps for row in event.rows]
        count = sum(event.num_records for event in steps)
        losses = [event.loss * event.num_records for event in steps if event.num_records]
        loss = sum(losses) / count if count else math.nan
        self._run.events.write(
            StepCommitted(
                step=steps[-1].step,
                epoch=steps[-1].epoch,
                num_records=count,
                loss=loss,
                records_per_s=count / max(time_s - self._since_s, 1e-9),
                rows=joined_rows(rows),
                num_left_out=sum(event.num_left_out for event in steps),
                longest_s=max(event.longest_s for event in steps),
            )
        )
        self._since_s = time_s
        material = self._run.material
        options = material.job.training
        self._run.reporter.advanced(
            min(self._seen, material.num_records * options.num_epochs),
            {
                "epoch": f"{steps[-1].epoch + 1}/{options.num_epochs}",
                "step": str(steps[-1].step),
                "loss": f"{loss:.4g}",
                **self.details,
            },
        )

    def save(self, snapshot: Snapshot) -> bool:
        """Write a checkpoint, after what led to it; returns False if an event spans it."""
        step = snapshot.checkpoint.step
        if any(first <= step < last for first, last in self._written):
            return False
        led_to_it = [event for event in self._steps if event.step <= step]
        if led_to_it:
            self._steps = self._steps[len(led_to_it) :]
            self._write(led_to_it)
        self._written = [(first, last) for first, last in self._written if last > step]
        saved = self._run.store.save(snapshot.checkpoint, best=snapshot.best)
        self._run.events.write(
            Checkpointed(
                step=saved.step,
                blocked_s=self._blocked_s.pop(saved.step, 0.0),
                num_bytes=saved.num_bytes,
                best=snapshot.best,
            )
        )
        self._run.events.publish()
        return True

    def _tell(self, event: Event) -> None:
        if isinstance(event, StepCommitted):
            self._steps.append(event)
            self._seen += event.num_records + event.num_left_out
            interval = self._run.material.job.training.checkpoint_steps
            if interval and event.step % interval == 0:
                self.write_steps(now=True)
            return
        self.write_steps(now=True)
        if isinstance(event, Checkpointed):
            # A worker's copy was taken here: no event of ours may span it. It counts when saved.
            self._blocked_s[event.step] = event.blocked_s
            return
        if isinstance(event, RecordsSkipped):
            batch = BatchId(event.epoch, event.shard, event.batch)
            self.left_out.add(batch)
            event = self._run.records_skipped(event.step, batch)
        self._run.events.write(event)
        if isinstance(event, Evaluated):
            words = metrics_in_words(event.metrics, prefix="validation ")
            aloud(self._run.reporter).note(f"step {event.step}: {words}")

"""Event writer of the driver: writes each event of the workers' history to the log once.

Step events are collected for a second and written as one event. Any other event is written after
the steps that precede it. The event of a checkpoint is written after the checkpoint is saved.

A job that resumes from a checkpoint voids all events after it. So an event must not contain steps
from both before and after a checkpoint. The driver cannot always know at which step a worker saves
a checkpoint, because it may fetch the events from another worker. Therefore, if `checkpoint_steps`
is set, an event ends at each multiple of it. A checkpoint at a step in the middle of an event that
is already written is discarded; another one will follow.

Callers: `controller.py`, which fetches the reports.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from elasticdl.engines.job_messages import without_recording
from elasticdl.engines.progress_bar import epoch_in_words, metrics_in_words
from elasticdl.engines.step_events import joined_rows
from elasticdl.events import (
    Checkpointed,
    CommittedRow,
    EpochFinished,
    Evaluated,
    RecordsSkipped,
    StepCommitted,
)
from elasticdl.sharding.left_out import BatchId

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.engines.elastic.event_buffer import CommitId, StateSnapshot, WorkerReport
    from elasticdl.engines.run import Run
    from elasticdl.events import Event

_INTERVAL_S = 1.0


class EventWriter:
    """Writer of the events and checkpoints of a run; see the module docstring.

    Args:
        run: The run, with its log and its checkpoints.

    Attributes:
        known: The last commit whose events this object has received; None before the first report
            of a round.
        step: The highest step that a worker has reported.
        details: Values to show beside the progress bar in addition to epoch and loss, by name.
        left_out: Batches whose records all workers have agreed to skip.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since_s = time.monotonic()
        self._blocked_s: dict[int, float] = {}
        self.details: dict[str, str] = {}
        self.left_out: set[BatchId] = set()
        self.restart(run.checkpoint)

    def restart(self, checkpoint: Checkpoint | None) -> None:
        """Begin a new round of workers at a checkpoint; discard the steps not written yet."""
        self.known: CommitId | None = None
        self.step = checkpoint.step if checkpoint is not None else 0
        self._steps: list[StepCommitted] = []
        self._evaluated_step = -1
        # First and last step of each event written since the last checkpoint.
        self._written: list[tuple[int, int]] = []
        # Events that wait for the last checkpoint; None before it is requested.
        self._held: list[tuple[CommitId, Event]] | None = None
        self._seen = self._run.records_done(checkpoint)
        # Of the epoch that the progress bar shows: sum of the losses, and number of records.
        self._epoch, self._epoch_loss, self._epoch_records = -1, 0.0, 0

    def take(self, report: WorkerReport) -> None:
        """Write the events of a report, except those that an earlier report already contained."""
        for point, event in report.events:
            if self.known is None or point > self.known:
                if self._held is not None:
                    self._held.append((point, event))
                else:
                    self._collect(event)
        if self.known is None or report.confirmed > self.known:
            # Never go back: after a delayed report, events would be written twice.
            self.known = report.confirmed
        self.step = max(self.step, report.step)

    def hold(self) -> None:
        """Write further events only together with a checkpoint that contains their steps.

        Called when a run is interrupted and has requested a last checkpoint. The workers continue
        until it arrives. The next run repeats the steps after it, so they must not be in the log.
        """
        self._held = []

    def release(self, *, drop: bool) -> None:
        """End the effect of `hold`, and write or discard the events that were held back.

        Args:
            drop: Whether to discard them, because the last saved checkpoint does not contain their
                steps, instead of writing them.
        """
        held, self._held = self._held or [], None
        for _, event in [] if drop else held:
            self._collect(event)

    def write_steps(self, *, now: bool = False) -> None:
        """Show the progress and write the collected steps as one event.

        Args:
            now: Whether to do so even if the last event was written less than a second ago.
        """
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
        for event in steps:
            if event.epoch != self._epoch:
                self._epoch, self._epoch_loss, self._epoch_records = event.epoch, 0.0, 0
            if event.num_records:
                self._epoch_loss += event.loss * event.num_records
                self._epoch_records += event.num_records
        context = self._run.context
        options = context.job.training
        seen = min(self._seen, context.num_records * options.num_epochs)
        self._run.reporter.advanced(
            steps[-1].step if self._run.counts_steps else seen,
            {
                "epoch": f"{steps[-1].epoch + 1}/{options.num_epochs}",
                "step": str(steps[-1].step),
                "loss": f"{self._epoch_loss / max(1, self._epoch_records):.4g}",
                **self.details,
            },
        )

    def save(self, snapshot: StateSnapshot) -> bool:
        """Write the pending steps up to a checkpoint, and then the checkpoint.

        Returns:
            Whether it was written. Nothing is written if an event in the log reports steps from
            both before and after the checkpoint.
        """
        step = snapshot.checkpoint.step
        if any(first <= step < last for first, last in self._written):
            return False
        if self._held is not None:
            contained = [event for point, event in self._held if point <= snapshot.point]
            self._held = self._held[len(contained) :]
            for event in contained:
                self._collect(event)
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

    def _collect(self, event: Event) -> None:
        if isinstance(event, StepCommitted):
            self._steps.append(event)
            self._seen += event.num_records + event.num_left_out
            interval = self._run.context.job.training.checkpoint_steps
            if interval and event.step % interval == 0:
                self.write_steps(now=True)
            return
        self.write_steps(now=True)
        if isinstance(event, Checkpointed):
            # A worker copied its state here, so no event may span this step. The checkpoint counts
            # when it is saved.
            self._blocked_s[event.step] = event.blocked_s
            return
        if isinstance(event, RecordsSkipped):
            batch = BatchId(event.epoch, event.shard, event.batch)
            self.left_out.add(batch)
            event = self._run.records_skipped(event.step, batch)
        self._run.events.write(event)
        context, note = self._run.context, without_recording(self._run.reporter).note
        if isinstance(event, Evaluated):
            self._evaluated_step = event.step
            # At the end of an epoch, the line of the epoch contains the metrics.
            if self._seen < (event.epoch + 1) * context.num_records:
                note(f"step {event.step}: {metrics_in_words(event.metrics, prefix='val_')}")
        elif isinstance(event, EpochFinished):
            num_epochs = context.job.training.num_epochs
            is_evaluated = event.step == self._evaluated_step
            note(epoch_in_words(event.epoch, num_epochs, event.metrics, is_evaluated=is_evaluated))

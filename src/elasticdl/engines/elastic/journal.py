"""What the driver writes down of the history that its workers make: each event once.

Events of steps are gathered for a second and written as one; whatever else there is comes after
the steps before it. A checkpoint counts when it is saved, and is told then.

Callers: `controller.py`, which fetches the reports.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from elasticdl.engines.loop import in_words, joined_rows
from elasticdl.events import Checkpointed, CommittedRow, Evaluated, StepCommitted

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
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._since_s = time.monotonic()
        self._blocked_s: dict[int, float] = {}
        self.details: dict[str, str] = {}
        self.restart(run.checkpoint)

    def restart(self, checkpoint: Checkpoint | None) -> None:
        """Forget what was not written yet: the history goes on from this checkpoint."""
        self.known: Point | None = None
        self.step = checkpoint.step if checkpoint is not None else 0
        self._steps: list[StepCommitted] = []
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
        time_s = time.monotonic()
        if not self._steps or not (now or time_s - self._since_s >= _INTERVAL_S):
            return
        steps, self._steps = self._steps, []
        rows: list[CommittedRow] = [row for event in steps for row in event.rows]
        count = sum(event.num_records for event in steps)
        loss = sum(event.loss * event.num_records for event in steps) / max(1, count)
        self._run.events.write(
            StepCommitted(
                step=steps[-1].step,
                epoch=steps[-1].epoch,
                num_records=count,
                loss=loss,
                records_per_s=count / max(time_s - self._since_s, 1e-9),
                rows=joined_rows(rows),
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

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint; what led to it is told before."""
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

    def _tell(self, event: Event) -> None:
        if isinstance(event, StepCommitted):
            self._steps.append(event)
            self._seen += event.num_records
            return
        self.write_steps(now=True)
        if isinstance(event, Checkpointed):
            # A worker's copy was taken here: no event of ours may span it. It counts when saved.
            self._blocked_s[event.step] = event.blocked_s
            return
        self._run.events.write(event)
        if isinstance(event, Evaluated):
            words = in_words(event.metrics, prefix="validation ")
            self._run.reporter.note(f"step {event.step}: {words}")

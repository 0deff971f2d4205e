"""Training progress as annotations of the RayJob, for dashboards and queues.

    events --Progress.after--> Progress --annotations--> elasticdl.org/progress: epoch 3/10, 41 %

Pure: events in, strings out; the only clock is that of the events. The names and units of the
annotations are a contract (docs/guides/kubernetes.md). If a pod has no right to write annotations,
the same values are written as one line of its log (`line_of`), which `job show` and `job list` read
instead.

Callers: `annotate.py` writes; `follow.py` and `job show|list` read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from elasticdl.events import (
    EpochFinished,
    JobFinished,
    JobStarted,
    StepCommitted,
    WorkerJoined,
    WorkerLeft,
)

if TYPE_CHECKING:
    from elasticdl.events import Event

Annotations: TypeAlias = Mapping[str, str]

_PREFIX = "elasticdl.org/"
_NAMES = ("progress", "step", "loss", "workers", "eta_s")
_LINE = "elasticdl-progress "
# Time constant of the moving average of the speed, in seconds: the remaining time does not jump,
# and adapts within a minute.
_MEMORY_S = 30.0
_MAX_CHARACTERS = 60


@dataclass(frozen=True)
class JobProgress:
    """Progress of a training job.

    Attributes:
        num_workers: Requested workers, without spare ones; 0 if the job has none.
        max_steps: Steps after which training ends; 0 for no limit.
        num_epochs: Requested epochs; 0 if unknown, or if the job is not defined by epochs.
        num_records: Records in one epoch.
        epoch: The current epoch, from 0.
        num_seen: Records of that epoch that were trained on.
        num_with_loss: Records of that epoch whose loss is in `loss`.
        step: Completed steps.
        loss: Mean loss of the epoch so far; before its first step that of the previous epoch, or
            NaN.
        recent_s: Exponentially weighted sum of the seconds that steps took: the weight of a step
            falls with its age. The speed is `recent_records` or `recent_steps` per `recent_s`.
        recent_records: The records trained on in these steps, summed with the same weights.
        recent_steps: The number of these steps, summed with the same weights.
        ranks: Ranks of the current workers.
        is_finished: Whether everything that was requested is done.
    """

    num_workers: int = 0
    max_steps: int = 0
    num_epochs: int = 0
    num_records: int = 0
    epoch: int = 0
    num_seen: int = 0
    num_with_loss: int = 0
    step: int = 0
    loss: float = math.nan
    recent_s: float = 0.0
    recent_records: float = 0.0
    recent_steps: float = 0.0
    ranks: frozenset[int] = frozenset()
    is_finished: bool = False

    def after(self, event: Event) -> JobProgress:
        """Return the progress updated with an event.

        A `StepCommitted` event of steps already counted has no effect. A `JobStarted` event does
        not restore the progress of the job's earlier attempts; use `of_history` for that.
        """
        match event:
            case JobStarted():
                return replace(
                    self,
                    num_epochs=event.num_epochs,
                    num_records=event.num_records,
                    step=event.resumed_from_step,
                    # The workers of the previous start are gone.
                    ranks=frozenset(),
                    is_finished=False,
                )
            case StepCommitted() if event.step > self.step:
                return self._after_steps(event)
            case EpochFinished() if event.epoch >= self.epoch and not event.stopped:
                # With several workers, a `StepCommitted` may have steps of two epochs.
                loss = event.metrics.get("loss", self.loss)
                following = replace(self, epoch=event.epoch + 1, num_seen=0, num_with_loss=0)
                return replace(following, loss=loss) if isinstance(loss, float) else following
            case WorkerJoined():
                return replace(self, ranks=self.ranks | {event.rank})
            case WorkerLeft():
                return replace(self, ranks=self.ranks - {event.rank})
            case JobFinished():
                return replace(self, is_finished=True, step=event.step)
            case _:
                return self

    def of_history(self, history: Iterable[Event]) -> JobProgress:
        """Return the progress after all events of a history, for an attempt that resumes.

        It is computed from the events alone, except for `num_workers` and `max_steps`, which the
        events lack and which are taken from this object.

        Args:
            history: Events of the job from `event_file.read_events`, which leaves out rolled-back
                events.
        """
        progress = JobProgress(num_workers=self.num_workers, max_steps=self.max_steps)
        for event in history:
            progress = progress.after(event)
        return progress

    def annotations(self) -> dict[str, str | None]:
        """Return the progress as annotations of the RayJob. A value of None removes the annotation.

        Example:
            >>> shown = JobProgress(
            ...     num_epochs=2, num_records=200, num_seen=50, step=5
            ... ).annotations()
            >>> shown["elasticdl.org/progress"], shown["elasticdl.org/eta_s"]
            ('epoch 1/2, 25 %', None)
        """
        workers = f"{len(self.ranks)} of {self.num_workers}" if self.num_workers else None
        left_s = self._left_s()
        values = {
            "progress": self._in_words(),
            "step": str(self.step),
            "loss": f"{self.loss:.4g}" if math.isfinite(self.loss) else None,
            "workers": None if self.is_finished else workers,
            "eta_s": None if left_s is None else str(round(left_s)),
        }
        return {_PREFIX + name: value for name, value in values.items()}

    def _after_steps(self, event: StepCommitted) -> JobProgress:
        trained = event.num_records + event.num_left_out
        is_same = event.epoch == self.epoch
        seen, before = (self.num_seen, self.num_with_loss) if is_same else (0, 0)
        progress = replace(
            self,
            epoch=event.epoch,
            num_seen=seen + trained,
            num_with_loss=before + event.num_records,
            step=event.step,
        )
        if not event.num_records:
            return progress
        summed = before * self.loss if before else 0.0
        # Not a mean of speeds: a batch of events reported together would seem to take no time.
        seconds = event.num_records / event.records_per_s if event.records_per_s > 0 else 0.0
        kept = math.exp(-seconds / _MEMORY_S)
        return replace(
            progress,
            loss=(summed + event.num_records * event.loss) / progress.num_with_loss,
            recent_s=kept * self.recent_s + seconds,
            recent_records=kept * self.recent_records + event.num_records,
            recent_steps=kept * self.recent_steps + event.step - self.step,
        )

    def _in_words(self) -> str:
        if self.is_finished:
            return "finished"
        if not self.num_epochs:
            return f"step {self.step:,}"
        is_over = self.epoch >= self.num_epochs
        epoch = min(self.epoch + 1, self.num_epochs)
        share = 1.0 if is_over else self.num_seen / max(1, self.num_records)
        return f"epoch {epoch}/{self.num_epochs}, {math.floor(100 * min(share, 1.0))} %"

    def _left_s(self) -> float | None:
        """Estimate the seconds until the last step; None if the speed is unknown."""
        if self.is_finished:
            return 0.0
        if not self.recent_s or not self.recent_records:
            return None
        num_left = (self.num_epochs - self.epoch) * self.num_records - self.num_seen
        left_s = num_left * self.recent_s / self.recent_records
        if self.max_steps and self.recent_steps:
            by_steps_s = (self.max_steps - self.step) * self.recent_s / self.recent_steps
            left_s = min(left_s, by_steps_s)
        return max(0.0, left_s)


def annotations_of(rayjob: Mapping[str, object]) -> dict[str, str]:
    """Return the progress annotations of a RayJob; empty if it has none."""
    metadata = rayjob.get("metadata")
    found = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    return _ours(found)


def line_of(annotations: Mapping[str, str | None]) -> str:
    """Format annotations as one line for a log.

    Example:
        >>> line_of({"elasticdl.org/step": "7", "elasticdl.org/loss": None})
        'elasticdl-progress {"elasticdl.org/step": "7"}'
    """
    known = {name: value for name, value in annotations.items() if value is not None}
    return _LINE + json.dumps(known)


def is_line(line: str) -> bool:
    """Return whether a line of a log contains progress annotations, as `line_of` writes them."""
    return line.startswith(_LINE + "{")


def last_line(lines: Iterable[str]) -> dict[str, str]:
    """Return the latest annotations that `line_of` wrote to a log; empty if there are none.

    Args:
        lines: The lines of the log, oldest first.
    """
    found: dict[str, str] = {}
    for line in lines:
        if is_line(line):
            try:
                found = _ours(json.loads(line.removeprefix(_LINE)))
            except ValueError:
                # The user's own output may be mixed into the line.
                continue
    return found


def short(annotations: Annotations) -> str:
    """Return only the annotation `progress`, for the table of `job list`; empty if missing.

    Example:
        >>> short({"elasticdl.org/progress": "epoch 1/2, 25 %", "elasticdl.org/loss": "0.5"})
        'epoch 1/2, 25 %'
    """
    return annotations.get(f"{_PREFIX}progress", "")


def in_words(annotations: Annotations) -> str:
    """Return the progress as one sentence for the user; empty if it is unknown.

    Example:
        >>> in_words({"elasticdl.org/progress": "epoch 1/2, 25 %", "elasticdl.org/eta_s": "90"})
        'epoch 1/2, 25 %; 2 min left'
        >>> in_words({"elasticdl.org/progress": "step 0", "elasticdl.org/step": "0"})
        'step 0'
    """
    values = {name: annotations.get(_PREFIX + name, "") for name in _NAMES}
    parts = [
        values["progress"],
        f"step {values['step']}" if values["step"] else "",
        f"loss {values['loss']}" if values["loss"] else "",
        f"{values['workers']} workers" if values["workers"] else "",
        _left(values["eta_s"]),
    ]
    # Before the first event, the progress is the step.
    return "; ".join(dict.fromkeys(filter(None, parts)))


def _ours(found: object) -> dict[str, str]:
    """Return ElasticDL's annotations that have string values; drop those of other programs.

    Args:
        found: All annotations of an object, as received; treated as empty if it is not a mapping.
    """
    if not isinstance(found, Mapping):
        return {}
    values = {name: found.get(_PREFIX + name) for name in _NAMES}
    return {
        _PREFIX + name: value[:_MAX_CHARACTERS]
        for name, value in values.items()
        if isinstance(value, str)
    }


def _left(eta_s: str) -> str:
    if not eta_s.isdecimal() or not int(eta_s):
        return ""
    minutes = math.ceil(int(eta_s) / 60)
    if minutes <= 1:
        return f"{int(eta_s)} s left"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min left" if hours else f"{minutes} min left"

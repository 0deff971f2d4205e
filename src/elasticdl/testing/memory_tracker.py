"""In-memory tracker, for tests and as a minimal example of a tracker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus, TrackedAttempt


@dataclass
class MemoryRun:
    """Everything that a tracker has recorded for one job.

    Attributes:
        status: `RUNNING`, or the status with which the last attempt ended.
        error: The error message of that attempt; empty if it has none.
        points: (kind, number) -> recorded point; `number` is the epoch if the kind is `Kind.EPOCH`,
            otherwise the step.
        tags: Value of each tag, by tag name.
        files: For each artifact, its path and the folder of the run where it belongs.
    """

    status: str = "RUNNING"
    error: str = ""
    points: dict[tuple[Kind, int], MetricPoint] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    files: list[tuple[Path, str]] = field(default_factory=list)


class MemoryTracker:
    """Tracker that records everything in memory; see `tracking.tracker.Tracker`.

    Args:
        runs: Job id -> its run, filled by the tracker. Pass the same dict to the trackers of all
            attempts, so that they continue the same runs.

    Example:
        >>> tracker = MemoryTracker()
        >>> tracker.start(TrackedAttempt(number=1, job_id="train-1", run_name="first"))
        >>> tracker.end(RunStatus.FINISHED)
        >>> tracker.run.status
        'FINISHED'
    """

    where = "memory"

    def __init__(self, runs: dict[str, MemoryRun] | None = None) -> None:
        self.runs = {} if runs is None else runs
        self.run = MemoryRun()

    def start(self, attempt: TrackedAttempt) -> None:
        """Start or continue the run of a job; see `Tracker`."""
        self.run = self.runs.setdefault(attempt.job_id, self.run)
        self.run.status, self.run.error = "RUNNING", ""
        self.tags({"attempt": str(attempt.number), **attempt.tags})

    def point(self, point: MetricPoint) -> None:
        """Record a point; see `Tracker`."""
        at = point.epoch if point.kind is Kind.EPOCH else point.step
        self.run.points.setdefault((point.kind, at), point)

    def tags(self, values: Mapping[str, str]) -> None:
        """Record tags; see `Tracker`."""
        self.run.tags.update(values)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Record the path of a file; see `Tracker`."""
        self.run.files.append((path, folder))

    def end(self, status: RunStatus, error: str = "") -> None:
        """Record how the attempt ended; see `Tracker`."""
        self.run.status, self.run.error = status.value, error

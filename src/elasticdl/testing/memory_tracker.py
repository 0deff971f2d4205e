"""A tracker that keeps everything in memory: for tests, and to show how little one must do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl.tracking.tracker import Attempt, Kind, Point, Status


@dataclass
class MemoryRun:
    """What was told of one job.

    Attributes:
        status: `RUNNING`, or how the last attempt ended.
        error: What went wrong in it.
        points: What was measured, by what makes it one.
        said: The tags, by name.
        files: What was to be kept, and under which folder.
    """

    status: str = "RUNNING"
    error: str = ""
    points: dict[tuple[Kind, int], Point] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    files: list[tuple[Path, str]] = field(default_factory=list)


class MemoryTracker:
    """Keeps what it is told; see `tracking.tracker.Tracker`.

    Args:
        runs: Job -> its run: what lives on from attempt to attempt.

    Example:
        >>> tracker = MemoryTracker()
        >>> tracker.start(Attempt(number=1, job_id="train-1", run_name="first"))
        >>> tracker.end(Status.FINISHED)
        >>> tracker.run.status
        'FINISHED'
    """

    where = "memory"

    def __init__(self, runs: dict[str, MemoryRun] | None = None) -> None:
        self.runs = {} if runs is None else runs
        self.run = MemoryRun()

    def start(self, attempt: Attempt) -> None:
        """Begin or go on; see `Tracker`."""
        self.run = self.runs.setdefault(attempt.job_id, self.run)
        self.run.status, self.run.error = "RUNNING", ""
        self.tags({"attempt": str(attempt.number), **attempt.tags})

    def point(self, point: Point) -> None:
        """Keep a point; see `Tracker`."""
        at = point.epoch if point.kind is Kind.EPOCH else point.step
        self.run.points.setdefault((point.kind, at), point)

    def tags(self, values: Mapping[str, str]) -> None:
        """Keep tags; see `Tracker`."""
        self.run.said.update(values)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Keep where a file is; see `Tracker`."""
        self.run.files.append((path, folder))

    def end(self, status: Status, error: str = "") -> None:
        """Keep how it ended; see `Tracker`."""
        self.run.status, self.run.error = status.value, error

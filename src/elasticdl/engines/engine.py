"""What an engine is: a place where a job runs, and a face that says how it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from elasticdl.definition import Mode, ModelDefinition
    from elasticdl.job import Job


@dataclass(frozen=True)
class Outcome:
    """What a finished job came to.

    Attributes:
        output: Where the result lies.
        step: Updates made over all attempts.
        metrics: Final values by name; validation metrics as `val_...`.
        already_done: There was nothing left to do.
        stopped: It was told to stop before all of it was done; what was reached is kept.
    """

    output: str
    step: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    already_done: bool = False
    stopped: bool = False


class Reporter(Protocol):
    """Tells a person how a run goes; never decides anything."""

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Tell that a phase starts: `total` and `done` in `unit`, total 0 if unknown."""
        ...

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Tell how far it is, with a few facts (`epoch`, `loss`, ...)."""
        ...

    def note(self, message: str) -> None:
        """Tell one thing in a line of its own."""
        ...

    def ended(self) -> None:
        """Tell that the phase is over, for better or worse."""
        ...


class Engine(Protocol):
    """Runs jobs; each engine is a module or a class with these functions."""

    def train(self, job: Job, definition: ModelDefinition, reporter: Reporter) -> Outcome:
        """Train until the job is done; a job that was begun is gone on with."""
        ...


def context_of(job: Job, mode: Mode, *, worker_id: int = 0, world_size: int = 1) -> dict[str, Any]:
    """Return what a spec's constructor is told of where it runs."""
    context: dict[str, Any] = {"worker_id": worker_id, "world_size": world_size}
    context |= {"job_id": job.id, "mode": mode}
    if job.command == "train" and job.federation is None:
        # Parties train some epochs a round, and nobody knows in how many rounds.
        context["num_epochs"] = job.training.num_epochs
    return context

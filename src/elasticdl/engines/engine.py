"""Types shared by all engines: `Outcome` (result of a job) and `Reporter` (shows progress).

A plugin's engine is a function from a `run.Run` to a `TrainResult`; it needs neither type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from elasticdl.definition import Mode
    from elasticdl.job import Job


@dataclass(frozen=True)
class Outcome:
    """Result of a finished job.

    Attributes:
        output: Location of the result; empty if an evaluation could not be saved.
        step: Number of updates in the model, over all attempts at the job; in a federation, the
            number of rounds.
        metrics: Final values by name; validation metrics as `val_...`.
        already_done: Whether the job was already complete.
        stopped: Whether the job was stopped before it was complete; its progress is kept.
        restored: If the model has the weights of an earlier epoch: a sentence that names the epoch.
    """

    output: str
    step: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    already_done: bool = False
    stopped: bool = False
    restored: str = ""

    def __repr__(self) -> str:
        """Return the fields as text; omit flags that are False and an empty `restored`."""
        shown = [f"{name}={getattr(self, name)!r}" for name in ("output", "step", "metrics")]
        shown += [f"{name}=True" for name in ("already_done", "stopped") if getattr(self, name)]
        shown += [f"restored={self.restored!r}"] if self.restored else []
        return f"{type(self).__name__}({', '.join(shown)})"


@runtime_checkable
class Reporter(Protocol):
    """Interface that shows the progress of a run to the user, such as a progress bar."""

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Report the start of a phase, such as training or an evaluation.

        Args:
            title: Name of the phase, such as "Evaluating".
            total: Its size in `unit`; 0 if unknown.
            unit: The unit, in the plural, such as "records".
            done: The amount already done by earlier attempts at the job.
        """
        ...

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Report the progress: the amount done so far, and a few facts (`epoch`, `loss`, ...)."""
        ...

    def note(self, message: str) -> None:
        """Show a message to the user on a separate line."""
        ...

    def ended(self) -> None:
        """Report the end of the phase, successful or not."""
        ...


def context_of(job: Job, mode: Mode, *, worker_id: int = 0, world_size: int = 1) -> dict[str, Any]:
    """Return the context dict that is passed to the constructor of a user's `ElasticDLSpec`.

    Its keys are `worker_id`, `world_size`, `job_id`, `mode` and, when training without parties,
    `num_epochs`.

    Args:
        job: The job.
        mode: What the model is used for.
        worker_id: Number of the worker that creates the spec, from 0.
        world_size: Number of workers.
    """
    context: dict[str, Any] = {"worker_id": worker_id, "world_size": world_size}
    context |= {"job_id": job.id, "mode": mode}
    if job.command == "train" and job.federation is None:
        # Parties train some epochs per round, and the number of rounds is not known.
        context["num_epochs"] = job.training.num_epochs
    return context

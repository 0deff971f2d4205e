"""Status of a job: its state, its progress, its estimated end, and what it is waiting for.

Pure: the current time and whether the job's process is alive are passed in. Callers: `view.py`,
`elasticdl job list` and `show`.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.cluster.progress import JobProgress
from elasticdl.data.wording import counted
from elasticdl.events import JobFailed, JobFinished, StepCommitted
from elasticdl.page.words import duration_text

if TYPE_CHECKING:
    from elasticdl.job import Job
    from elasticdl.page.facts import Facts
    from elasticdl.page.history import JobHistory

# Number of recent log entries from which the speed is computed; `JobProgress` weights them by age.
_RECENT = 120
_RECENT_ROUNDS = 5
_QUIET_S = 5.0
# On an object store the log is uploaded only with checkpoints, which are infrequent.
_SILENT_S = 600.0
_TIMES_USUAL = 5.0


class JobState(StrEnum):
    """State of a job. `KILLED`: its process is gone, but the log contains no end of the job."""

    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class JobStatus:
    """Current status of a job.

    Attributes:
        state: State of the job.
        message: What the job is doing or waiting for, or how it ended, in words.
        progress: Progress in words.
        share: Progress as a fraction from 0 to 1; None if unknown.
        eta_s: Estimated seconds until its end; None if unknown.
        loss: Mean loss of the epoch so far, or of the latest round; None if there is none.
    """

    state: JobState
    message: str
    progress: str
    share: float | None
    eta_s: float | None
    loss: float | None

    def to_json(self) -> dict[str, Any]:
        """Convert the status to JSON values."""
        return {
            "state": self.state.value,
            "message": self.message,
            "progress": self.progress,
            "share": self.share,
            "eta_s": self.eta_s,
            "loss": self.loss,
        }


def status_of(history: JobHistory, facts: Facts, now: float) -> JobStatus:
    """Determine the current status of a job.

    Args:
        history: History from its log.
        facts: Other contents of its output.
        now: Current time in seconds since 1970-01-01 UTC.
    """
    job = facts.job
    state = _state(history, facts, now)
    if history.rounds or (job is not None and job.federation is not None):
        progress, share, eta_s, loss = _of_rounds(history)
    else:
        progress, share, eta_s, loss = _of_steps(history, job)
    if state is JobState.FINISHED:
        share, eta_s = 1.0, 0.0
    return JobStatus(
        state=state,
        message=_message(history, facts, state, now),
        progress=progress,
        share=share,
        eta_s=eta_s if state in {JobState.RUNNING, JobState.FINISHED} else None,
        loss=loss,
    )


def _state(history: JobHistory, facts: Facts, now: float) -> JobState:
    match history.end:
        case JobFinished():
            return JobState.FINISHED
        case JobFailed(kind="Interrupted"):
            return JobState.INTERRUPTED
        case JobFailed():
            return JobState.FAILED
    if not facts.is_held:
        return JobState.KILLED if history.starts else JobState.UNKNOWN
    if facts.is_elsewhere and history.starts and now - history.last_time > _SILENT_S:
        return JobState.UNKNOWN
    return JobState.RUNNING if history.starts else JobState.STARTING


def _of_rounds(history: JobHistory) -> tuple[str, float | None, float | None, float | None]:
    start, done = history.start, max(history.rounds, default=0)
    wanted = start.num_epochs if start is not None else 0
    recent = list(history.rounds.values())[-_RECENT_ROUNDS:]
    eta_s = None
    if wanted and len(recent) > 1:
        # Measured from end to end, so that the time between two rounds is included.
        each_s = (recent[-1].time - recent[0].time) / (len(recent) - 1)
        eta_s = max(0.0, (wanted - done) * each_s)
    loss = recent[-1].metrics.get("loss") if recent else None
    share = done / wanted if wanted else None
    text = f"round {done:,}/{wanted:,}" if wanted else f"round {done:,}"
    return text, share, eta_s, loss if isinstance(loss, float) else None


def _of_steps(
    history: JobHistory, job: Job | None
) -> tuple[str, float | None, float | None, float | None]:
    progress = progress_of(history, job)
    shown = progress.annotations()
    eta_s = shown["elasticdl.org/eta_s"]
    loss = shown["elasticdl.org/loss"]
    share = None
    total = progress.num_epochs * progress.num_records
    if total:
        share = min(1.0, (progress.epoch * progress.num_records + progress.num_seen) / total)
    if progress.max_steps:
        share = max(share or 0.0, min(1.0, progress.step / progress.max_steps))
    return (
        shown["elasticdl.org/progress"] or "",
        share,
        None if eta_s is None else float(eta_s),
        None if loss is None else float(loss),
    )


def progress_of(history: JobHistory, job: Job | None) -> JobProgress:
    """Return the progress of a job, with the same numbers as in its annotations on a cluster.

    Args:
        history: History of the job.
        job: Definition of the job; None if it is unknown.
    """
    start = history.start
    if start is None:
        return JobProgress()
    steps = history.steps
    counting = np.flatnonzero(steps["counts"])
    before, recent = counting[:-_RECENT], counting[-_RECENT:]
    epoch = int(steps["epoch"][before[-1]]) if len(before) else 0
    mine = before[steps["epoch"][before] == epoch]
    seen = int(steps["num_records"][mine].sum() + steps["num_left_out"][mine].sum())
    losses, counts = steps["loss"][mine], steps["num_records"][mine]
    losses, counts = losses[counts > 0], counts[counts > 0]
    progress = JobProgress(
        num_workers=job.workers.max if job is not None and job.workers is not None else 0,
        max_steps=job.training.max_steps if job is not None else 0,
        num_epochs=start.num_epochs,
        num_records=start.num_records,
        epoch=epoch,
        num_seen=seen,
        num_with_loss=int(counts.sum()),
        loss=float(np.average(losses, weights=counts)) if len(counts) else math.nan,
        step=int(steps["step"][before[-1]]) if len(before) else 0,
        ranks=frozenset(tenure.rank for tenure in history.present),
    )
    logged = steps["time"]
    for at in recent.tolist():
        # The speed does not include the pause between two attempts.
        same = at > 0 and steps["attempt"][at] == steps["attempt"][at - 1]
        count = int(steps["num_records"][at])
        seconds = float(logged[at] - logged[at - 1]) if same else 0.0
        progress = progress.after(
            StepCommitted(
                time=float(logged[at]),
                step=int(steps["step"][at]),
                epoch=int(steps["epoch"][at]),
                num_records=count,
                loss=float(steps["loss"][at]),
                records_per_s=count / seconds if seconds > 0 else 0.0,
                num_left_out=int(steps["num_left_out"][at]),
            )
        )
    for end in history.epochs.values():
        progress = progress.after(end)
    return progress.after(history.end) if isinstance(history.end, JobFinished) else progress


def _message(history: JobHistory, facts: Facts, state: JobState, now: float) -> str:
    match state:
        case JobState.FINISHED:
            return _finished(history)
        case JobState.FAILED if isinstance(history.end, JobFailed):
            return f"{history.end.kind}: {history.end.message}"
        case JobState.INTERRUPTED:
            step = (
                f"{history.unit} {history.end.step:,}"
                if history.end is not None
                else "the checkpoint"
            )
            return (
                "ended by Ctrl-C, `job stop` or SIGTERM; run the same command to resume from "
                f"{step}"
            )
        case JobState.KILLED:
            silent = duration_text(now - history.last_time)
            return (
                f"the process ended without reporting why; its last event was {silent} ago. Run "
                "the same command to resume"
            )
        case JobState.STARTING:
            return "the process has started; no event yet"
        case JobState.UNKNOWN if history.starts:
            return (
                f"no event for {duration_text(now - history.last_time)}; {facts.holder} is on "
                "another machine, so whether it is alive is unknown"
            )
        case JobState.UNKNOWN:
            return "no event yet, and no process is working on it"
    return _waiting(history, facts.job, now)


def _finished(history: JobHistory) -> str:
    run_s = history.run_time_s
    text = f"after {duration_text(run_s)}"
    if history.attempt > 1:
        paused_s = history.last_time - history.first_time - run_s
        text += f" in {counted(history.attempt, 'start')}"
        text += f", without {duration_text(paused_s)} between them"
    refusal = history.refusal
    if refusal is None:
        return text
    if refusal.kind == "Interrupted":
        return f"{text}. The last attempt to continue it was interrupted before it began"
    return f"{text}. The last attempt to continue it ended before training began: {refusal.message}"


def _waiting(history: JobHistory, job: Job | None, now: float) -> str:
    """Describe what a running job is doing or waiting for."""
    silent_s = max(0.0, now - history.last_time)
    if job is not None and job.federation is not None:
        return _waiting_for_parties(history, job, now)
    counting = np.flatnonzero(history.steps["counts"])
    logged = history.steps["time"]
    usual = statistics.median(np.diff(logged[-_RECENT:]).tolist()) if len(logged) > 1 else 1.0
    is_quiet = not len(logged) or now - float(logged[-1]) > max(_QUIET_S, _TIMES_USUAL * usual)
    if job is not None and job.workers is not None:
        present = history.present
        if len(present) < job.workers.min:
            return f"waiting for workers: {len(present)} of at least {job.workers.min} are ready"
        joining = [tenure for tenure in present if tenure.first_batch is None]
        if is_quiet and joining:
            names = ", ".join(str(tenure.rank) for tenure in joining[:5])
            since = duration_text(now - min(tenure.joined for tenure in joining))
            return f"waiting for {counted(len(joining), 'worker')} to join ({names}), for {since}"
    if not len(counting):
        return "building the model and compiling the first step"
    if not is_quiet:
        return "training" + _absent(history, now, max(_QUIET_S, _TIMES_USUAL * usual))
    start = history.start
    if start is not None and progress_of(history, job).num_seen >= start.num_records > 0:
        return f"evaluating, or finishing the epoch, for {duration_text(silent_s)}"
    quiet_s = now - float(logged[-1])
    return f"no step reported for {duration_text(quiet_s)}, usually every {duration_text(usual)}"


def _absent(history: JobHistory, now: float, least_s: float) -> str:
    """Return a phrase about workers without a recent batch, to append to the job's status.

    For example, "; 2 workers without a batch (3, 7), for up to 40 s" names the workers with ranks 3
    and 7. Empty if there are no such workers.

    Args:
        history: History of the job.
        now: Current time in seconds since 1970-01-01 UTC.
        least_s: Seconds without a batch after which a worker is named.
    """
    late = [
        (tenure.rank, now - last)
        for tenure in history.present
        if (last := history.last_batch(tenure.rank)) is not None and now - last > least_s
    ]
    if not late:
        return ""
    names = ", ".join(str(rank) for rank, _ in late[:5]) + (", ..." if len(late) > 5 else "")  # noqa: PLR2004 - as above
    since = duration_text(max(seconds for _, seconds in late))
    return f"; {counted(len(late), 'worker')} without a batch ({names}), for up to {since}"


def _waiting_for_parties(history: JobHistory, job: Job, now: float) -> str:
    assert job.federation is not None  # noqa: S101 - ensured by the caller
    wanted, done = job.federation.num_parties, max(history.rounds, default=0)
    if not history.rounds and len(history.parties) < wanted:
        return f"waiting for parties: {len(history.parties)} of {wanted} have joined"
    since = history.rounds[done].time if done else history.last_time
    return (
        f"waiting for the parties' answers to round {done + 1:,}, for {duration_text(now - since)}"
    )

"""Turns events into sentences, and times and sizes into text, for the job page and the log command.

Pure. Callers: `view.py`, `findings.py` and `elasticdl job logs`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from elasticdl.data.wording import counted
from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    Event,
    JobFailed,
    JobFinished,
    JobStarted,
    Noted,
    PartyJoined,
    RecordsSkipped,
    RoundFinished,
    StepCommitted,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
)

_MAX_METRICS = 6
_MAX_OF_A_REASON = 400


def in_words(event: Event, unit: str = "step") -> str:
    """Describe an event in one line.

    Args:
        event: The event.
        unit: Unit of its `step`: `step`, or `round` in a federation (`JobHistory.unit`).

    Example:
        >>> in_words(WorkerLeft(step=7, rank=2, incarnation=3, reason="died"))
        'Worker 2 left at step 7: died'
    """
    counting = _WORDS_OF_UNIT.get(type(event))
    return _WORDS[type(event)](event) if counting is None else counting(event, unit)


def _start(event: JobStarted, unit: str) -> str:
    step = event.resumed_from_step
    resumed = f", resumed from {unit} {step:,}" if step else ""
    where = f"on {event.host or 'an unknown host'} (process {event.pid})"
    return f"Attempt {event.attempt} started {where}{resumed}"


def _steps(event: StepCommitted) -> str:
    speed = f", {event.records_per_s:,.0f} examples/s" if event.records_per_s else ""
    return f"Step {event.step:,}, epoch {event.epoch + 1}: loss {event.loss:.4g}{speed}"


def _epoch(event: EpochFinished) -> str:
    stopped = " (stopped by a callback)" if event.stopped else ""
    values = metrics_text(event.metrics)
    return f"Epoch {event.epoch + 1} ended at step {event.step:,}{stopped}: {values}"


def _evaluation(event: Evaluated, unit: str) -> str:
    return f"Evaluated at {unit} {event.step:,}: {metrics_text(event.metrics)}"


def _checkpoint(event: Checkpointed, unit: str) -> str:
    best = ", the best so far" if event.best else ""
    return f"Checkpoint of {unit} {event.step:,} ({size_text(event.num_bytes)}{best})"


def _joining(event: WorkerJoined) -> str:
    replaces = f", replaces process number {event.replaces}" if event.replaces else ""
    where = f"process {event.pid} on {event.host}" if event.host else f"process {event.pid}"
    return f"Worker {event.rank} joined at step {event.step:,} ({where}{replaces})"


def _leaving(event: WorkerLeft) -> str:
    return f"Worker {event.rank} left at step {event.step:,}: {event.reason or 'unknown'}"


def _skipping(event: RecordsSkipped) -> str:
    return f"{counted(len(event.records), 'record')} left out from epoch {event.epoch + 1} on"


def _party(event: PartyJoined) -> str:
    return f"Party {event.party!r} joined, with {counted(event.num_examples, 'example')}"


def _round(event: RoundFinished) -> str:
    num_parties = len(event.parties)
    text = f"Round {event.step:,} of {'1 party' if num_parties == 1 else f'{num_parties} parties'}"
    if event.metrics:
        text += f": {metrics_text(event.metrics)}"
    if event.left_out:
        text += "; without " + ", ".join(f"{name} ({why})" for name, why in event.left_out.items())
    return text


def _end(event: JobFinished, unit: str) -> str:
    return f"Finished at {unit} {event.step:,}: {metrics_text(event.metrics)}"


def _failure(event: JobFailed, unit: str) -> str:
    if event.kind == "Interrupted":
        return f"Interrupted; {unit} {event.step:,} is saved"
    return f"Failed: {event.kind}: {event.message}"


def _note(event: Noted) -> str:
    message = " ".join(event.message.split())
    return message if event.level == "info" else f"{event.level.capitalize()}: {message}"


def _unknown(event: UnknownEvent) -> str:
    return f"{event.event}: an event that this version of elasticdl does not know"


_WORDS: Mapping[type[Event], Callable[[Any], str]] = {
    StepCommitted: _steps,
    EpochFinished: _epoch,
    WorkerJoined: _joining,
    WorkerLeft: _leaving,
    RecordsSkipped: _skipping,
    PartyJoined: _party,
    RoundFinished: _round,
    Noted: _note,
    UnknownEvent: _unknown,
}
# Engines and federations both write these, so their text depends on the unit.
_WORDS_OF_UNIT: Mapping[type[Event], Callable[[Any, str], str]] = {
    JobStarted: _start,
    Evaluated: _evaluation,
    Checkpointed: _checkpoint,
    JobFinished: _end,
    JobFailed: _failure,
}


def metrics_text(metrics: Mapping[str, Any]) -> str:
    """Format metrics as text, leaving out those that are not single numbers.

    Example:
        >>> metrics_text({"loss": 0.25, "confusion": [1, 2]})
        'loss 0.25'
    """
    numbers = [(k, v) for k, v in metrics.items() if isinstance(v, (int, float))]
    shown = ", ".join(f"{name} {value:.4g}" for name, value in numbers[:_MAX_METRICS])
    return shown or "no metric"


def brief(reason: str) -> str:
    """Shorten a reason for use in a sentence: drop the full stop, and the middle if it is long.

    The end is kept because the last line of a traceback contains the error.

    Example:
        >>> brief("The loss is nan.")
        'The loss is nan'
    """
    if len(reason) > _MAX_OF_A_REASON:
        half = _MAX_OF_A_REASON // 2
        reason = f"{reason[:half]} ... {reason[-half:]}"
    return reason.removesuffix(".")


def duration_text(seconds: float) -> str:
    """Format a duration as text.

    Example:
        >>> [duration_text(s) for s in (0.25, 9.46, 75, 7300, 200_000)]
        ['0.2 s', '9.5 s', '1 min 15 s', '2 h 1 min', '2 d 7 h']
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock_text(moment: float) -> str:
    """Format a time as date and time of day, in this machine's time zone."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def size_text(num_bytes: float) -> str:
    """Format a size in bytes as text.

    Example:
        >>> size_text(5361), size_text(3 * 10**9)
        ('5.4 kB', '3.0 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if abs(num_bytes) < 1000:  # noqa: PLR2004 - SI prefixes
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"

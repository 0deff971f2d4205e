"""Findings: sentences that summarize the charts (lost workers, stalls, overfitting, NaN losses).

A finding tells a user who was not watching what happened, when, and how much time it cost. Pure.
Callers: `view.py`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from elasticdl.data.wording import counted
from elasticdl.page.redaction import shown_name
from elasticdl.page.stalls import LOG_DELAY_S
from elasticdl.page.words import brief, clock_text, duration_text

if TYPE_CHECKING:
    from elasticdl.page.history import JobHistory
    from elasticdl.page.stalls import Stall
    from elasticdl.page.timelines import Activity, RankTenure

Level = Literal["good", "note", "warning", "bad"]

_MAX_LOSSES = 12
# A shorter wait is shown as 0.0 s.
_SHORTEST_WAIT_S = 0.05
_MAX_STALLS = 5
_MAX_REASONS = 3
_MAX_PARTIES = 8
# A rise of the validation loss counts as overfitting, not as noise, after at least this many
# evaluations and beyond these thresholds.
_EVALUATIONS_AFTER = 2
_WORSE_BY, _TIMES_NOISE = 0.05, 4.0
_ENOUGH_FOR_NOISE = 8
_MEAN_OF = 3
# Where the loss is noisy, this many evaluations at the end are compared with those before and after
# the minimum.
_RECENT, _AROUND, _TIMES_DEVIATION = 5, 2, 3.0
# Speeds before and after the loss of a worker cover at most 60 s, and at least 3 s.
_SPEED_S, _MIN_SPEED_S = 60.0, 3.0
# Lower speeds are shown with decimals.
_WHOLE_FROM = 100.0
# A worker without a batch for a shorter time is shown only in its lane.
_MIN_BEHIND_S = 10.0


@dataclass(frozen=True)
class PageFinding:
    """A noteworthy observation about a job.

    Attributes:
        level: Severity of the finding.
        text: The finding in one or two sentences.
        time: Time of the event, in seconds since 1970-01-01 UTC; None for the whole job.
    """

    level: Level
    text: str
    time: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Convert the finding to JSON values."""
        return {"level": self.level, "text": self.text, "time": self.time}


def find(history: JobHistory, stalls: Sequence[Stall], activity: Activity) -> list[PageFinding]:
    """Derive the findings about a job from its history, most severe first.

    Args:
        history: History of the job.
        stalls: Periods without progress, from `find_stalls`.
        activity: Periods in which the job trained, to distinguish idle workers from a paused job.
    """
    found = [
        *_overfitting(history),
        *_not_finite(history),
        *_losses(history),
        *_behind(history, activity),
        *_stalls(stalls),
        *_attempts(history),
        *_parties(history),
        *_left_out(history),
    ]
    order = {"bad": 0, "warning": 1, "note": 2, "good": 3}
    return sorted(found, key=lambda finding: order[finding.level])


def _overfitting(history: JobHistory) -> list[PageFinding]:
    """Find overfitting: the validation loss has risen above its minimum while training improved."""
    points = [
        (event.step, float(loss))
        for event in sorted(history.evaluations.values(), key=lambda event: event.step)
        if isinstance(loss := event.metrics.get("loss"), (int, float)) and math.isfinite(loss)
    ]
    if len(points) < _EVALUATIONS_AFTER + 1:
        return []
    values = np.array([loss for _, loss in points])
    best = int(values.argmin())
    (step, least), (last_step, last) = points[best], points[-1]
    recent = values[best + 1 :][-_MEAN_OF:]
    # Evaluations are noisy. Second differences estimate the noise independently of the trend.
    bends = np.abs(np.diff(values, 2)) if len(values) >= _ENOUGH_FOR_NOISE else np.zeros(1)
    noise = float(np.median(bends)) / 2
    worse = float(recent.mean() - least) if len(recent) >= _EVALUATIONS_AFTER else 0.0
    unit = history.unit
    numbers = f"{last:.4g} at {unit} {last_step:,}, minimum {least:.4g} at {unit} {step:,}"
    if worse <= _WORSE_BY * abs(least):
        if last - least > _WORSE_BY * abs(least):
            text = (
                f"The last validation loss is above the minimum: {numbers}. A single evaluation "
                "does not show whether the model is overfitting."
            )
            return [PageFinding("note", text)]
        so_far = " so far" if history.end is None else ""
        return [PageFinding("good", f"No overfitting{so_far}: validation loss {numbers}.")]
    if worse <= _TIMES_NOISE * noise and not _has_risen(values, best, noise):
        text = "The validation loss varies too much to tell whether the model is overfitting"
        return [PageFinding("note", f"{text}: {numbers}.")]
    before, after = _training_loss(history, step), _training_loss(history, last_step)
    if before is None or after is None or after >= before:
        text = f"The validation loss has not improved since {unit} {step:,}: {numbers}."
        return [PageFinding("note", text)]
    return [
        PageFinding(
            "warning",
            f"Overfitting since {unit} {step:,} ({clock_text(history.evaluations[step].time)}): "
            f"validation loss {numbers}, while the training loss fell from {before:.4g} to "
            f"{after:.4g}.",
        )
    ]


def _has_risen(values: np.ndarray[Any, Any], best: int, noise: float) -> bool:
    """Return whether the latest validation losses are clearly above those around the minimum.

    Means of several values are compared: single values are noisy, and the minimum is biased low.

    Args:
        values: The validation losses in order.
        best: Index of the minimum.
        noise: Estimated size of the noise in a single value.
    """
    around = values[max(0, best - _AROUND) : best + _AROUND + 1]
    recent = values[best + _AROUND + 1 :][-_RECENT:]
    if len(recent) < _RECENT:
        return False
    deviation = noise * math.sqrt(1 / len(around) + 1 / len(recent))
    rise = float(recent.mean() - around.mean())
    return rise > max(_TIMES_DEVIATION * deviation, _WORSE_BY * float(around.mean()))


def _training_loss(history: JobHistory, step: int) -> float | None:
    """Return the mean training loss over the last few steps up to `step`; None if unknown.

    In a federation, `step` is the number of a round, and the loss is that of this round.
    """
    if history.rounds:
        loss = history.rounds[step].metrics.get("loss") if step in history.rounds else None
        return loss if isinstance(loss, float) else None
    counts = history.steps["counts"]
    steps, losses = history.steps["step"][counts], history.steps["loss"][counts]
    at = int(np.searchsorted(steps, step, "right"))
    near = losses[max(0, at - 10) : at]
    near = near[np.isfinite(near)]
    return float(near.mean()) if len(near) else None


def _not_finite(history: JobHistory) -> list[PageFinding]:
    counts = history.steps["counts"] & (history.steps["num_records"] > 0)
    losses, steps = history.steps["loss"][counts], history.steps["step"][counts]
    bad = np.flatnonzero(~np.isfinite(losses))
    if not len(bad):
        return []
    first = int(steps[bad[0]])
    return [
        PageFinding(
            "bad",
            f"The loss was NaN or infinite in {counted(len(bad), 'logged interval')}, first at "
            f"step {first:,}.",
        )
    ]


def _losses(history: JobHistory) -> list[PageFinding]:
    lost = [tenure for tenure in history.tenures if tenure.is_lost and tenure.incarnation]
    lost.sort(key=lambda tenure: tenure.left or 0.0)
    found = [_loss(history, tenure) for tenure in lost[-_MAX_LOSSES:]]
    if len(lost) > _MAX_LOSSES:
        found.append(
            PageFinding(
                "warning",
                f"{len(lost):,} workers were lost in total. The last {_MAX_LOSSES} are listed "
                "here; the lanes show all of them.",
            )
        )
    return found


def _loss(history: JobHistory, tenure: RankTenure) -> PageFinding:
    left = tenure.left or 0.0
    text = f"Worker {tenure.rank} was lost at {clock_text(left)}, around step {tenure.step:,}: it "
    text += f"{brief(tenure.reason)}."
    waited = waited_s(history, left)
    if waited is not None and waited >= _SHORTEST_WAIT_S and _had_others(history, tenure):
        text += f" The others waited {duration_text(waited)}."
    following = [
        each
        for each in history.tenures
        if each.rank == tenure.rank and each.joined >= left and each is not tenure
    ]
    if not following:
        text += " It was not replaced."
    else:
        joined = following[0]
        text += f" It was replaced after {duration_text(joined.joined - left)}"
        if joined.first_batch is not None:
            text += (
                f", and its replacement trained after {duration_text(joined.first_batch - left)}"
            )
        text += "."
    text += " No record was lost: the batches that it had not committed were assigned again."
    back = following[0].first_batch if following else None
    return PageFinding("warning", text + _speeds(history, left, waited or 0.0, back), left)


def _had_others(history: JobHistory, lost: RankTenure) -> bool:
    """Return whether other workers remained: present ones that were not lost at the same time."""
    left = lost.left or 0.0
    return any(
        each.joined <= left
        and (each.left is None or each.left > left + (LOG_DELAY_S if each.is_lost else 0.0))
        for each in history.tenures
        if each.rank != lost.rank
    )


def _speeds(history: JobHistory, left: float, waited: float, back: float | None) -> str:
    """Describe the speed before, during and after the absence of a worker; empty if unknown.

    Args:
        history: History of the job.
        left: When the worker left, in seconds since 1970-01-01 UTC.
        waited: Seconds that the other workers paused because of the loss.
        back: When its replacement committed its first batch; None if it has not yet.
    """
    away = back if back is not None else left + _SPEED_S
    spans = {
        "before": (left - _SPEED_S, left),
        "without it": (left + waited, away),
        "with its replacement": None if back is None else (back, back + _SPEED_S),
    }
    known = [
        f"{_speed_text(speed)} {'' if number else 'examples/s '}{when}"
        for number, (when, span) in enumerate(spans.items())
        if span is not None and (speed := speed_between(history, *span)) is not None
    ]
    return f" Speed: {', '.join(known)}." if len(known) > 1 else ""


def _speed_text(speed: float) -> str:
    return f"{speed:,.0f}" if speed >= _WHOLE_FROM else f"{speed:.3g}"


def speed_between(history: JobHistory, start: float, stop: float) -> float | None:
    """Return the examples per second between two times; None if too few steps were logged then."""
    logged, attempts = history.steps["time"], history.steps["attempt"]
    first = int(np.searchsorted(logged, start, "right"))
    last = int(np.searchsorted(logged, stop)) - 1
    if last <= first or attempts[first] != attempts[last]:
        return None
    seconds = float(logged[last] - logged[first])
    if seconds < _MIN_SPEED_S:
        return None
    return float(history.steps["num_records"][first + 1 : last + 1].sum()) / seconds


def waited_s(history: JobHistory, left: float) -> float | None:
    """Return how many seconds the other workers paused when a worker was lost; None if unknown.

    Args:
        history: History of the job.
        left: When the loss of the worker was detected, in seconds since 1970-01-01 UTC.
    """
    logged, longest = history.steps["time"], history.steps["longest_s"]
    if len(logged) < 2 or left > logged[-1]:  # noqa: PLR2004 - a pause is between two
        return None
    gaps = np.diff(logged, prepend=logged[0])
    pauses = longest if (longest > 0).any() else np.maximum(0.0, gaps - np.median(gaps[1:]))
    # A pause ends when it is logged, or up to LOG_DELAY_S earlier.
    around = (logged >= left) & (logged - pauses - LOG_DELAY_S <= left)
    return float(pauses[around].max(initial=0.0))


def _stalls(stalls: Sequence[Stall]) -> list[PageFinding]:
    if not stalls:
        return []
    unplanned = [stall for stall in stalls if not stall.is_planned]
    total = sum(stall.seconds for stall in unplanned)
    longest = sorted(unplanned, key=lambda stall: -stall.seconds)[:_MAX_STALLS]
    found = [
        PageFinding(
            "warning",
            f"No step was committed for {duration_text(stall.seconds)} from "
            f"{clock_text(stall.start)}: {stall.cause}.",
            stall.start,
        )
        for stall in longest
    ]
    if len(unplanned) > 1:
        cause, times = Counter(stall.cause for stall in unplanned).most_common(1)[0]
        often = f" Most frequent cause ({times} times): {cause}." if times > 1 else ""
        found.append(
            PageFinding(
                "note",
                f"Training stalled {len(unplanned)} times, {duration_text(total)} in total.{often}",
            )
        )
    planned = [stall.seconds for stall in stalls if stall.is_planned]
    if planned:
        found.append(
            PageFinding(
                "note",
                f"Evaluations and checkpoints paused the training {counted(len(planned), 'time')} "
                f"for {duration_text(sum(planned))} in total, at most {duration_text(max(planned))}"
                " at once. Shorter pauses are not counted.",
            )
        )
    return found


def _behind(history: JobHistory, activity: Activity) -> list[PageFinding]:
    """Build findings about workers that committed no batch for long while others did."""
    late = [
        (last - first, first, tenure.rank)
        for tenure in history.tenures
        for first, last in activity.behind(tenure)
        if last - first > _MIN_BEHIND_S
    ]
    return [
        PageFinding(
            "warning",
            f"Worker {rank} committed no batch for {duration_text(seconds)} from "
            f"{clock_text(first)}, while the others continued. It was not replaced, and later "
            "resumed.",
            first,
        )
        for seconds, first, rank in sorted(late, reverse=True)[:_MAX_STALLS]
    ]


def _attempts(history: JobHistory) -> list[PageFinding]:
    found = []
    counts, attempts = history.steps["counts"], history.steps["attempt"]
    for before, start in zip(history.starts, history.starts[1:], strict=False):
        again = ~counts & (attempts == before.attempt)
        steps = history.steps["step"][again & (history.steps["step"] > start.resumed_from_step)]
        taken_back = f"; steps up to {int(steps.max()):,} were repeated" if len(steps) else ""
        if start.attempt == before.attempt:
            text = f"All workers restarted at {clock_text(start.time)}."
        else:
            last = history.last_times.get(before.attempt, before.time)
            down = duration_text(start.time - last)
            text = (
                f"The job was restarted at {clock_text(start.time)}, {down} after the last event "
                f"of attempt {before.attempt}."
            )
        text += f" It resumed from {history.unit} {start.resumed_from_step:,}{taken_back}."
        found.append(PageFinding("note", text, start.time))
    return found[-_MAX_LOSSES:]


def _parties(history: JobHistory) -> list[PageFinding]:
    by_party: dict[str, list[tuple[int, str]]] = {}
    for event in history.rounds.values():
        for party, why in event.left_out.items():
            by_party.setdefault(party, []).append((event.step, why))
    found = []
    for party, rounds in sorted(by_party.items(), key=lambda item: -len(item[1]))[:_MAX_PARTIES]:
        numbers = ", ".join(str(number) for number, _ in rounds[:5])
        more = ", ..." if len(rounds) > 5 else ""  # noqa: PLR2004 - as above
        common = Counter(why for _, why in rounds).most_common(_MAX_REASONS)
        why = "; ".join(each for each, _ in common)
        found.append(
            PageFinding(
                "warning",
                f"Party {shown_name(party)!r} was left out of {counted(len(rounds), 'round')} of "
                f"{len(history.rounds):,} ({numbers}{more}): {brief(why)}.",
            )
        )
    return found


def _left_out(history: JobHistory) -> list[PageFinding]:
    count = sum(len(event.records) for event in history.skipped)
    if not count:
        return []
    return [
        PageFinding(
            "warning",
            f"{counted(count, 'record')} left out because their batches repeatedly killed workers; "
            "`elasticdl job audit` lists their files.",
        )
    ]

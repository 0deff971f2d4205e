"""View of a job: builds the contents of its page as JSON, in independent sections.

    JobHistory + Facts + the time --view--> {"head": ..., "curves": ..., "shards": ..., ...}

A section is the data of one part of the page, such as its charts over time. The browser receives
a section whenever it has changed; `static/page.js` draws it, but what to show is decided here.

Pure. Callers: `outputs.py` and `elasticdl job show`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.events import Evaluated, JobFinished
from elasticdl.page import findings, shard_map, timelines
from elasticdl.page.curves import per_second, thinned
from elasticdl.page.redaction import redacted, shown_name, shown_text
from elasticdl.page.stalls import Stall, find_stalls
from elasticdl.page.status import JobState, JobStatus, status_of
from elasticdl.page.words import in_words
from elasticdl.tracking.points import flat

if TYPE_CHECKING:
    from elasticdl.job import Job
    from elasticdl.page.facts import Facts
    from elasticdl.page.history import JobHistory

Section: TypeAlias = Any

_VALIDATION = "val_"
_MAX_CHECKPOINTS = 100
_MAX_ROUNDS = 200
_MAX_PARTIES = 100
_MAX_METRICS = 12
_MAX_MARKS = 100
_MAX_STALLS = 200
_MAX_SHARDS = 50_000_000
_MARKS = {
    "attempt": "attempt {}",
    "checkpoint": "checkpoint of {unit} {:,}",
    "evaluation": "evaluated at {unit} {:,}",
}


def view(history: JobHistory, facts: Facts, now: float) -> dict[str, Section]:
    """Build the sections of a job's page.

    Args:
        history: History from its log.
        facts: Other contents of its output.
        now: Current time in seconds since 1970-01-01 UTC.

    Returns:
        Name of the section, such as `curves` -> its data as JSON values, or None to hide the
        section.
    """
    status = status_of(history, facts, now)
    is_live = status.state in {JobState.RUNNING, JobState.STARTING}
    end = now if is_live else history.last_time
    tenures, activity = history.tenures_so_far, timelines.Activity(history.steps["time"])
    stalls = _stalls_of(history, tenures, activity)
    sections = {
        "head": _head(history, facts, status, now),
        "findings": [finding.to_json() for finding in findings.find(history, stalls, activity)],
        "curves": _curves(history, facts.job),
        "clock": _clock(
            history, _longest(stalls), timelines.lanes(tenures, activity, end), end, is_live=is_live
        ),
        "shards": _shards(history),
        "checkpoints": _checkpoints(history, facts),
        "evaluations": _evaluations(history, facts),
        "rounds": _rounds(history),
        "events": _events(history),
        "about": _about(history, facts),
    }
    plain: dict[str, Section] = _for_json(sections)
    return plain


def summary(history: JobHistory, facts: Facts, now: float) -> dict[str, Any]:
    """Build a job's row for the list of jobs on the page: name -> value, as JSON."""
    status = status_of(history, facts, now)
    last = list(history.evaluations.values())[-1:]
    row = {
        "name": facts.name,
        **status.to_json(),
        "message": status.message,
        "step": history.step,
        "seconds": history.run_time_s,
        "started": history.first_time or None,
        "model": history.start.model_def if history.start is not None else "",
        "workers_lost": sum(
            bool(tenure.is_lost and tenure.incarnation) for tenure in history.tenures
        ),
        "examples_per_s": _mean_speed(history),
        "val_loss": last[0].metrics.get("loss") if last else None,
        "params": _compared(facts.definition),
    }
    plain: dict[str, Any] = _for_json(row)
    return plain


def loss_curve(history: JobHistory) -> dict[str, Any]:
    """Return the curve of the loss over steps, or over the rounds of a federation."""
    if history.rounds:
        return _points(
            (event.step, event.metrics["loss"])
            for event in sorted(history.rounds.values(), key=lambda event: event.step)
            if isinstance(event.metrics.get("loss"), (int, float))
        )
    counts = history.steps["counts"] & (history.steps["num_records"] > 0)
    return thinned(history.steps["step"][counts], history.steps["loss"][counts]).to_json()


# --- sections ---------------------------------------------------------------------------------


def _head(history: JobHistory, facts: Facts, status: JobStatus, now: float) -> Section:
    start, present = history.start, history.present
    workers = facts.job.workers if facts.job is not None else None
    eta_s = status.eta_s if status.state is JobState.RUNNING else None
    return {
        "name": facts.name,
        "output": facts.output,
        **status.to_json(),
        "message": status.message,
        "step": history.step,
        "is_federated": bool(history.rounds) or bool(facts.job and facts.job.federation),
        "started": history.first_time or None,
        "ended": history.end.time if history.end is not None else None,
        "ends_at": None if eta_s is None else now + eta_s,
        "attempt": history.attempt,
        "host": start.host if start is not None else "",
        "pid": start.pid if start is not None else 0,
        "workers": len([tenure for tenure in present if tenure.incarnation]),
        "workers_wanted": [workers.min, workers.max] if workers is not None else None,
        "workers_joining": sum(bool(s.incarnation and s.first_batch is None) for s in present),
        "workers_lost": sum(
            bool(tenure.is_lost and tenure.incarnation) for tenure in history.tenures
        ),
        "examples_per_s": _recent_speed(history)
        if status.state is JobState.RUNNING
        else _mean_speed(history),
        "last_time": history.last_time,
        "now": now,
        "damaged": [f"byte {damage.offset:,}: {damage.text}" for damage in history.damages],
        "num_damaged": history.num_damaged,
        "num_unknown": history.num_unknown,
        "notes": list(facts.notes),
    }


def _curves(history: JobHistory, job: Job | None) -> Section:
    curves: dict[str, dict[str, Any]] = {}
    for event in sorted(history.epochs.values(), key=lambda event: event.step):
        for name, value in flat(event.metrics).items():
            if not name.startswith(_VALIDATION):
                curves.setdefault(name, {}).setdefault("train", []).append((event.step, value))
    for round_ in sorted(history.rounds.values(), key=lambda event: event.step):
        for name, value in flat(round_.metrics).items():
            curves.setdefault(name, {}).setdefault("train", []).append((round_.step, value))
    for evaluated in sorted(history.evaluations.values(), key=lambda event: event.step):
        for name, value in flat(evaluated.metrics).items():
            points = curves.setdefault(name, {}).setdefault("validation", [])
            points.append((evaluated.step, value))
    shown = {
        name: {kind: _points(points) for kind, points in kinds.items()}
        for name, kinds in list(curves.items())[:_MAX_METRICS]
    }
    if not history.rounds and len(history.steps):
        shown.setdefault("loss", {})["steps"] = loss_curve(history)
    ordered = dict(sorted(shown.items(), key=lambda item: item[0] != "loss"))
    best = _best(history)
    return {
        "unit": history.unit,
        "metrics": ordered,
        "best_step": best,
        "best_metric": job.training.best_metric if job is not None else None,
        "starts": [start.resumed_from_step for start in history.starts[1:]][-_MAX_MARKS:],
    }


def _clock(
    history: JobHistory,
    stalls: Sequence[Stall],
    drawn: tuple[list[dict[str, Any]], int],
    end: float,
    *,
    is_live: bool,
) -> Section:
    """Build the section of charts over time: lanes, speed, step time, pauses and events.

    Args:
        history: History of the job.
        stalls: The stalls to mark.
        drawn: The lanes, and how many were left out, from `timelines.lanes`.
        end: End of the time axis, in seconds since 1970-01-01 UTC.
        is_live: Whether the job is running, so that the charts grow.
    """
    begin = history.first_time
    logged = history.steps["time"]
    # Up to the last log entry, because the last second of a running job would look like a stall.
    until = float(logged[-1]) if len(logged) else end
    records = history.steps["num_records"].astype(np.float64)
    idle_ends = [start.time for start in history.starts]
    speed = per_second(logged, records, begin, until, idle_ends=idle_ends)
    longest = thinned(logged, history.steps["longest_s"])
    marks = sorted(
        [
            *((event.time, "attempt", event.attempt) for event in history.starts),
            *((event.time, "checkpoint", event.step) for event in history.checkpoints.values()),
            *((event.time, "evaluation", event.step) for event in history.evaluations.values()),
        ]
    )[-_MAX_MARKS:]
    return {
        "begin": begin,
        "end": max(end, begin),
        "is_live": is_live,
        "lanes": drawn[0],
        "num_more_lanes": drawn[1],
        "speed": {"x": speed[0], "y": speed[1], "bad": []},
        "step_time": _step_times(history, begin, until),
        "longest_pause": longest.to_json() if (history.steps["longest_s"] > 0).any() else None,
        "stalls": [
            {"start": s.start, "stop": s.stop, "seconds": s.seconds, "cause": s.cause}
            for s in stalls
        ],
        "marks": [
            (time, kind, _MARKS[kind].format(number, unit=history.unit))
            for time, kind, number in marks
        ],
    }


def _step_times(history: JobHistory, begin: float, until: float) -> dict[str, Any]:
    """Return the curve of the mean seconds per step over time; empty if no step was logged.

    Args:
        history: History of the job.
        begin: Start of the time axis, in seconds since 1970-01-01 UTC.
        until: End of the curve, likewise.
    """
    logged, steps = history.steps["time"], history.steps["step"].astype(np.float64)
    if not len(logged):
        return {"x": [], "y": [], "bad": []}
    made = np.maximum(0.0, np.diff(steps, prepend=0.0))
    # Steps of a new attempt are counted from the step at which it resumed.
    for start in history.starts:
        at = int(np.searchsorted(logged, start.time))
        if at < len(made):
            made[at] = max(0.0, steps[at] - start.resumed_from_step)
    idle_ends = [start.time for start in history.starts]
    # The compilation time of the first step would dwarf all other values.
    begin = max(begin, float(logged[0]) - 1.0)
    x, per_s = per_second(logged, made, begin, until, idle_ends=idle_ends)
    pairs = [(at, 1.0 / rate) for at, rate in zip(x, per_s, strict=True) if rate > 0]
    return {"x": [at for at, _ in pairs], "y": [seconds for _, seconds in pairs], "bad": []}


def _shards(history: JobHistory) -> Section:
    start = history.start
    if start is None or not history.has_batches:
        return None
    epoch, committed = history.epoch, history.shard_batches
    begun = np.flatnonzero(committed)
    num_shards = start.num_shards or (int(begun[-1]) + 1 if len(begun) else 0)
    if not 0 < num_shards <= _MAX_SHARDS:
        return None
    last = start.batches_per_shard
    if start.batches_per_shard and start.minibatch_size:
        left = start.num_records - (num_shards - 1) * start.batches_per_shard * start.minibatch_size
        last = -(-left // start.minibatch_size)
    is_over = epoch in history.epochs
    # A worker's current shard is the shard of its latest committed batch.
    shard_of = {
        tenure.rank: history.shard_of[tenure.rank]
        for tenure in history.present
        if tenure.rank in history.shard_of and not is_over
    }
    states = shard_map.shard_states(
        committed,
        shard_of.values(),
        num_shards=num_shards,
        batches_per_shard=start.batches_per_shard,
        last_shard_batches=last,
    )
    if is_over and not history.epochs[epoch].stopped:
        # If a pipeline produces the batches, their number is not known in advance.
        states[:] = shard_map.DONE
    return {
        "epoch": epoch,
        "num_epochs": start.num_epochs,
        "num_shards": num_shards,
        "batches_per_shard": start.batches_per_shard,
        "is_known": start.num_shards > 0,
        "holders": {str(shard): rank for rank, shard in list(shard_of.items())[:_MAX_MARKS]},
        **shard_map.cells(states),
    }


def _checkpoints(history: JobHistory, facts: Facts) -> Section:
    best, kept = _best(history), set(facts.kept_steps)
    events = list(history.checkpoints.values())
    shown = [event for event in events[:-_MAX_CHECKPOINTS] if event.step == best]
    shown += events[-_MAX_CHECKPOINTS:]
    return {
        "summary": _of_best(history, facts) if events else "",
        "rows": [
            {
                "step": event.step,
                "time": event.time,
                "num_bytes": event.num_bytes,
                "blocked_s": event.blocked_s,
                "is_best": event.step == best,
                "is_kept": event.step in kept,
            }
            for event in shown
        ],
    }


def _of_best(history: JobHistory, facts: Facts) -> str:
    """Return a sentence about the best checkpoint: metric, step, and whether it is still stored."""
    best = _best(history)
    if best is None:
        return "No checkpoint is marked as the best one."
    metric = facts.job.training.best_metric if facts.job is not None else ""
    by = f" by {metric}" if metric else ""
    evaluated = history.evaluations.get(best)
    if evaluated is not None and metric.startswith(_VALIDATION):
        value = evaluated.metrics.get(metric.removeprefix(_VALIDATION))
        by += f" ({value:.4g})" if isinstance(value, float) else ""
    where = "still" if best in facts.kept_steps else "no longer"
    return f"The best checkpoint{by} is of {history.unit} {best:,}; it is {where} on disk."


def _best(history: JobHistory) -> int | None:
    marked = [event.step for event in history.checkpoints.values() if event.best]
    return marked[-1] if marked else None


def _evaluations(history: JobHistory, facts: Facts) -> Section:
    events: list[Evaluated] = sorted(history.evaluations.values(), key=lambda event: event.step)
    final = dict(flat(history.end.metrics)) if isinstance(history.end, JobFinished) else None
    return {
        "rows": [
            {"step": event.step, "time": event.time, "metrics": dict(flat(event.metrics))}
            for event in events[-_MAX_CHECKPOINTS:]
        ],
        "final": final,
        "reports": dict(facts.reports),
    }


def _rounds(history: JobHistory) -> Section:
    if not history.rounds and not history.parties:
        return None
    rounds = list(history.rounds.values())[-_MAX_ROUNDS:]
    names = sorted({*history.parties, *(n for r in rounds for n in (*r.parties, *r.left_out))})
    last = rounds[-1] if rounds else None
    measured = [
        event
        for event in sorted(history.evaluations.values(), key=lambda event: event.step)
        if event.party_metrics
    ]
    metric = _metric_by_party(measured)
    return {
        "parties": [
            {
                "name": shown_name(name),
                "num_examples": history.parties[name].num_examples
                if name in history.parties
                else None,
                "joined": history.parties[name].time if name in history.parties else None,
                "answered": sum(name in each.parties for each in rounds),
                "left_out": sum(name in each.left_out for each in rounds),
                "metrics": {
                    **(dict(flat(last.party_metrics.get(name, {}))) if last else {}),
                    **_of_validation(measured, name),
                },
                "curve": _points(
                    (each.step, value)
                    for each in measured[-_MAX_ROUNDS:]
                    if isinstance(
                        value := each.party_metrics.get(name, {}).get(metric), (int, float)
                    )
                ),
                "why": next((r.left_out[name] for r in reversed(rounds) if name in r.left_out), ""),
            }
            for name in names[:_MAX_PARTIES]
        ],
        "num_more_parties": max(0, len(names) - _MAX_PARTIES),
        "metric": metric,
        "rounds": [
            {
                "number": each.step,
                "time": each.time,
                "seconds": each.seconds,
                "num_examples": each.num_examples,
                "answers": [
                    1 if name in each.parties else 2 if name in each.left_out else 0
                    for name in names[:_MAX_PARTIES]
                ],
                "left_out": dict(each.left_out),
                "metrics": dict(flat(each.metrics)),
            }
            for each in rounds
        ],
    }


def _metric_by_party(measured: Sequence[Evaluated]) -> str:
    """Choose the metric that the page draws for each party of a federation; empty if none is known.

    A metric with "accuracy" in its name is preferred, then any other, and the loss comes last.

    Args:
        measured: Evaluations that have metrics for each party.
    """
    known = {name for event in measured for each in event.party_metrics.values() for name in each}
    return min(known, key=lambda name: (name == "loss", "accuracy" not in name, name), default="")


def _of_validation(measured: Sequence[Evaluated], party: str) -> dict[str, Any]:
    """Return the metrics of the global model on a party's data, from the latest evaluation."""
    latest = measured[-1].party_metrics.get(party, {}) if measured else {}
    return {f"{_VALIDATION}{name}": value for name, value in flat(latest).items()}


def _events(history: JobHistory) -> Section:
    return [
        [event.time, event.event, in_words(event, history.unit)] for event in history.recent_events
    ]


def _validation_of(job: Job) -> str:
    if job.validation_split is not None:
        return f"{job.validation_split:g} of the data (--validation_split)"
    return job.validation_data or ""


def _about(history: JobHistory, facts: Facts) -> Section:
    start, job = history.start, facts.job
    return {
        "definition": redacted(facts.definition),
        "data": job.data if job is not None else "",
        "validation_data": _validation_of(job) if job is not None else "",
        "model_zoo": (job.model.zoo if job is not None and job.model is not None else None) or "",
        "output": facts.output,
        "versions": dict(start.versions) if start is not None else {},
        "framework": start.framework if start is not None else "",
        "model_def": start.model_def if start is not None else "",
        "num_records": start.num_records if start is not None else 0,
        "minibatch_size": start.minibatch_size if start is not None else 0,
        "resume": start.resume if start is not None else "",
        "trust_used": list(start.trust_used) if start is not None else [],
        "job_id": start.job_id if start is not None else "",
        "holder": facts.holder,
    }


# --- pieces -----------------------------------------------------------------------------------


def _stalls_of(
    history: JobHistory, tenures: Sequence[timelines.RankTenure], activity: timelines.Activity
) -> list[Stall]:
    steps = history.steps
    return find_stalls(
        steps["time"],
        steps["longest_s"],
        steps["attempt"],
        tenures=tenures,
        checkpoints=list(history.checkpoints.values()),
        evaluations=list(history.evaluations.values()),
        behind=[(first, tenure.rank) for tenure in tenures for first, _ in activity.behind(tenure)],
    )


def _longest(stalls: Sequence[Stall]) -> list[Stall]:
    """Select the longest stalls, at most `_MAX_STALLS`, to be drawn; return them oldest first."""
    chosen = sorted(stalls, key=lambda stall: -stall.seconds)[:_MAX_STALLS]
    return sorted(chosen, key=lambda stall: stall.start)


def _points(points: Iterable[tuple[float, Any]]) -> dict[str, Any]:
    pairs = list(points)
    return thinned([float(x) for x, _ in pairs], [float(y) for _, y in pairs]).to_json()


def _recent_speed(history: JobHistory, window_s: float = 15.0) -> float | None:
    """Return the examples per second over the latest seconds in which steps were logged."""
    logged = history.steps["time"]
    if len(logged) < 2:  # noqa: PLR2004 - a speed is between two
        return None
    first = int(np.searchsorted(logged, logged[-1] - window_s))
    first = min(first, len(logged) - 2)
    if history.steps["attempt"][first] != history.steps["attempt"][-1]:
        return None
    seconds = float(logged[-1] - logged[first])
    records = int(history.steps["num_records"][first + 1 :].sum())
    return records / seconds if seconds > 0 else None


def _mean_speed(history: JobHistory) -> float | None:
    seconds = history.run_time_s
    records = int(history.steps["num_records"].sum())
    return records / seconds if records and seconds > 0 else None


def _compared(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten a job's settings (dotted name -> value), except its output, for comparing jobs."""
    leaves: dict[str, Any] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(item, f"{name}.{key}" if name else str(key))
        elif value is not None:
            leaves[name] = value

    walk(redacted({k: v for k, v in definition.items() if k != "output"}), "")
    return leaves


def _for_json(value: Any) -> Any:
    """Convert a value to one that JSON can represent and a screen can show.

    Non-finite numbers become None; strings are converted by `shown_text`.
    """
    if isinstance(value, Mapping):
        return {shown_name(str(key)): _for_json(item) for key, item in value.items()}
    if isinstance(value, str):
        return shown_text(value)
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value

"""Small logs written by hand, and outputs that hold them."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

import pytest

from elasticdl.artifacts.holder import this_process
from elasticdl.events import (
    Checkpointed,
    EpochFinished,
    Evaluated,
    JobFinished,
    JobStarted,
    StepCommitted,
    WorkerJoined,
    WorkerLeft,
    to_json,
)
from elasticdl.job import Job, ModelReference, TrainingOptions, Workers
from elasticdl.page.history import JobHistory
from elasticdl.page.parse import parse

T0 = 1_700_000_000.0


def as_log(events) -> bytes:
    return "".join(to_json(event) + "\n" for event in events).encode()


def history_of(events) -> JobHistory:
    history = JobHistory()
    history.add(parse(as_log(events)))
    return history


def started(at=0.0, **fields) -> JobStarted:
    values = {
        "job_id": "train-1",
        "num_records": 640,
        "num_epochs": 2,
        "minibatch_size": 16,
        "model_def": "small",
        "framework": "keras",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "num_shards": 5,
        "batches_per_shard": 8,
    }
    return JobStarted(time=T0 + at, **{**values, **fields})


def step(number, at=None, loss=1.0, epoch=0, rows=(), **fields) -> StepCommitted:
    values = {"num_records": 16, "records_per_s": 16.0, "rows": rows, **fields}
    return StepCommitted(
        time=T0 + (number if at is None else at), step=number, epoch=epoch, loss=loss, **values
    )


def joined(rank, incarnation, at, **fields) -> WorkerJoined:
    values = {"step": 0, "host": "h", "pid": 100 + incarnation, **fields}
    return WorkerJoined(time=T0 + at, rank=rank, incarnation=incarnation, **values)


def left(rank, incarnation, at, reason="died", number=0) -> WorkerLeft:
    return WorkerLeft(time=T0 + at, step=number, rank=rank, incarnation=incarnation, reason=reason)


def evaluated(number, loss, at=None) -> Evaluated:
    moment = T0 + (number if at is None else at)
    return Evaluated(time=moment, step=number, epoch=0, metrics={"loss": loss, "accuracy": 0.5})


def saved(number, at=None, *, best=False) -> Checkpointed:
    moment = T0 + (number if at is None else at)
    return Checkpointed(time=moment, step=number, blocked_s=0.1, num_bytes=5000, best=best)


def elastic_job(output, **fields) -> Job:
    values = {
        "command": "train",
        "data": "data/*.recordio",
        "output": str(output),
        "model": ModelReference(zoo=None, model_def="small"),
        "training": TrainingOptions(num_epochs=2, minibatch_size=16),
        "workers": Workers(2, 2),
    }
    return Job(**{**values, **fields})


def elastic_events() -> list:
    """Return a job of two workers: one dies after 10 s, nobody commits for 4 s, one replaces it."""
    events = [started(), joined(0, 1, 1.0, started=T0 + 0.2), joined(1, 2, 1.0, started=T0 + 0.3)]
    for number in range(1, 11):
        rows = [(0, 0, 0, number - 1, number), (0, 1, 1, number - 1, number)]
        if number > 8:
            rows = [(0, 0, 2, number - 9, number - 8), (0, 1, 3, number - 9, number - 8)]
        events.append(step(number, at=number + 1.0, loss=1 / number, rows=rows, longest_s=0.2))
    events += [evaluated(4, 0.5, at=5.1), saved(4, at=5.2, best=True)]
    events.append(left(1, 2, 11.4, number=10))
    for number in range(11, 16):
        rows = [(0, 0, 2, number - 9, number - 8)]
        if number > 12:
            rows.append((0, 1, 3, number - 11, number - 10))
        pause = 4.0 if number == 11 else 0.2
        events.append(step(number, at=number + 5.0, loss=1 / number, rows=rows, longest_s=pause))
        if number == 12:
            events.append(joined(1, 3, 17.0, replaces=2, step=12, started=T0 + 11.5))
    events += [evaluated(8, 0.4, at=18.1), evaluated(12, 0.6, at=19.1), evaluated(15, 0.7, at=20.1)]
    events.append(saved(15, at=20.2))
    return events


def finished_events() -> list:
    ends = [
        EpochFinished(time=T0 + 20.5, epoch=0, step=15, metrics={"loss": 0.2, "val_loss": 0.7}),
        JobFinished(time=T0 + 21, step=15, metrics={"loss": 0.2, "val_loss": 0.7}),
    ]
    return [*elastic_events(), *ends]


def write_output(folder: Path, events, job: Job | None = None, *, held: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "events.jsonl").write_bytes(as_log(events))
    (folder / "job.json").write_text((job or elastic_job(folder)).to_json())
    if held:
        (folder / ".lock").write_text(json.dumps(this_process()))
    return folder


def shifted_to_now(events) -> list:
    """Return the events as if the last one had happened just now."""
    from dataclasses import replace

    shift = time.time() - max(event.time for event in events)
    moved = []
    for event in events:
        changes = {"time": event.time + shift}
        if getattr(event, "started", 0.0):
            changes["started"] = event.started + shift
        moved.append(replace(event, **changes))
    return moved


@pytest.fixture
def output(tmp_path):
    """Return the output of a finished elastic job."""
    return write_output(tmp_path / "my_job", finished_events())

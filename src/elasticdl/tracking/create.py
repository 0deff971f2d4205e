"""Which trackers a job asks for, and what they are told of the job itself.

Callers: `engines/run.py`. Sessions and the federated engine have a `Job` of their own making.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.claim import LOGS_FOLDER
from elasticdl.errors import ElasticDLError
from elasticdl.events import JobStarted, parse_events
from elasticdl.job import Tracking, without_password
from elasticdl.tracking.address import tracking_uri
from elasticdl.tracking.kept import read_kept
from elasticdl.tracking.tracker import Attempt, Status, Tracker

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.definition import ModelDefinition
    from elasticdl.events import Event
    from elasticdl.job import Job
    from elasticdl.tracking.follow import FollowedLog

# How often the job looks and what it keeps say nothing of the model.
_LEFT_OUT = ("evaluation_steps", "checkpoint_steps", "keep_checkpoint_max")


def follow_job(
    events: FollowedLog, job: Job, folder: OutputFolder, about: Attempt, step: int
) -> None:
    """Start the trackers a job asks for, and tell them its history.

    Args:
        events: What they will follow.
        job: What begins.
        folder: Its output, held by a claim.
        about: What trackers are told of this start; see `attempt_of`.
        step: Where it goes on: what lies behind is told when it happens again.

    Raises:
        MissingExtraError: A package is not installed.
        TrackingError: A tracker cannot be reached, or refuses.
    """
    if job.tracking is not None:
        trackers = open_trackers(job.tracking, folder, events.note)
        events.track(trackers, about, _history(events.path, step))


def follow_finished_job(
    events: FollowedLog, job: Job, folder: OutputFolder, attempt: int, step: int
) -> None:
    """Tell trackers of a job that was finished before, if they do not know it yet.

    There is nothing left to do that could fail: who cannot be reached is noted.
    """
    if job.tracking is None or _is_told(job, job.tracking, folder):
        return
    try:
        follow_job(events, job, folder, attempt_of(job, attempt), step)
    except ElasticDLError as error:
        events.note(f"Not tracked: {error}")
    else:
        events.end(Status.FINISHED)


def open_trackers(
    tracking: Tracking, folder: OutputFolder, note: Callable[[str], None]
) -> list[Tracker]:
    """Return the trackers that are asked for, not started yet.

    Args:
        tracking: What is asked for.
        folder: The output of the job, held by a claim.
        note: Tells a person one thing.

    Raises:
        MissingExtraError: A package is not installed.
        TrackingError: There is no such kind of address.
    """
    trackers: list[Tracker] = []
    if tracking.uri is not None:
        from elasticdl.tracking.mlflow import MlflowTracker  # noqa: PLC0415 - takes seconds

        trackers.append(MlflowTracker(tracking, folder, note))
    if tracking.tensorboard:
        from elasticdl.tracking.tensorboard import TensorBoardTracker  # noqa: PLC0415 - an extra

        trackers.append(TensorBoardTracker(folder))
    return trackers


def attempt_of(
    job: Job,
    number: int,
    definition: ModelDefinition | None = None,
    versions: Mapping[str, str] | None = None,
) -> Attempt:
    """Return what trackers are told of a start of a job.

    Args:
        job: What starts.
        number: Which start it is, from 1.
        definition: What is trained; None if it was not looked at.
        versions: Package -> version.
    """
    tracking = job.tracking if job.tracking is not None else Tracking()
    output = job.output if job.output is not None else ""
    tags = {"job_id": job.id, "output": output}
    commit = ""
    if definition is not None:
        commit = definition.origin.zoo_commit or ""
        tags |= {"dialect": definition.origin.dialect, "framework": definition.framework}
        tags |= {"zoo_commit": commit} if commit else {}
    tags |= {f"version.{package}": version for package, version in (versions or {}).items()}
    return Attempt(
        number=number,
        job_id=job.id,
        run_name=PurePosixPath(output).name or job.id,
        params={**params_of(job), **tracking.params},
        tags={**tags, **tracking.tags},
        commit=commit,
    )


def params_of(job: Job) -> dict[str, str]:
    """Return what was asked for as names and texts, as people compare runs by.

    Example:
        >>> from elasticdl.job import Job, ModelReference
        >>> model = ModelReference(None, "classifier.DNN", params={"hidden_units": [10, 100]})
        >>> params = params_of(Job("train", "data/*.recordio", "out", model))
        >>> params["model_def"], params["params.hidden_units"], params["minibatch_size"]
        ('classifier.DNN', '[10, 100]', '64')
    """
    asked: dict[str, Any] = {"data": without_password(job.data)}
    if job.validation_data is not None:
        asked["validation_data"] = without_password(job.validation_data)
    if job.model is not None:
        asked["model_def"] = job.model.model_def
        if job.model.zoo is not None:
            asked["model_zoo"] = without_password(job.model.zoo)
        asked["params"] = dict(job.model.params)
        asked |= job.model.overrides
    options = dataclasses.asdict(job.training)
    asked |= {name: value for name, value in options.items() if name not in _LEFT_OUT}
    if job.workers is not None:
        least, most = job.workers.min, job.workers.max
        asked["num_workers"] = str(most) if least == 1 else f"{least}..{most}"
    return dict(_flat("", asked))


def _flat(prefix: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    flat: list[tuple[str, str]] = []
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat += _flat(f"{path}.", value)
        else:
            flat.append((path, value if isinstance(value, str) else json.dumps(value, default=str)))
    return flat


def _history(log: Path, step: int) -> list[Event]:
    """Return what happened up to a step; before the first one, nothing is this job's."""
    if step == 0:
        return []
    history = parse_events(log.read_bytes(), str(log))
    return [event for event in history if isinstance(event, JobStarted) or event.step <= step]


def _is_told(job: Job, tracking: Tracking, folder: OutputFolder) -> bool:
    if tracking.tensorboard and not folder.list(LOGS_FOLDER):
        return False
    if tracking.uri is None:
        return True
    kept = read_kept(folder)
    return (
        kept is not None
        and kept.status == Status.FINISHED.value
        and (kept.job_id, kept.experiment) == (job.id, tracking.experiment)
        and kept.uri == without_password(tracking_uri(tracking.uri))
    )

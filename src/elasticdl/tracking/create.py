"""Creates the trackers that a job requests, and describes the job to them.

Callers: `engines/run.py`, `engines/federated/training.py` and `sessions/tracking.py`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from elasticdl import plugins
from elasticdl.artifacts.claim import LOGS_FOLDER
from elasticdl.errors import ElasticDLError
from elasticdl.event_file import parse_events
from elasticdl.events import JobStarted
from elasticdl.job import Tracking, without_password
from elasticdl.tracking.address import tracking_uri
from elasticdl.tracking.stored_run import load_stored_run
from elasticdl.tracking.tracker import RunStatus, TrackedAttempt, Tracker

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.definition import ModelDefinition
    from elasticdl.events import Event
    from elasticdl.job import Job
    from elasticdl.tracking.follow import FollowedLog

# Options that do not describe the model: how often the job evaluates, and what it keeps.
_LEFT_OUT = ("evaluation_steps", "checkpoint_steps", "keep_checkpoint_max")


def follow_job(
    events: FollowedLog, job: Job, folder: OutputFolder, about: TrackedAttempt, step: int
) -> None:
    """Start the trackers that a job requests: they receive its earlier and its later events.

    Args:
        events: The log whose later events the trackers will receive.
        job: The job that starts.
        folder: The job's output, which this process has locked.
        about: Description of this attempt for the trackers; see `attempt_of`.
        step: The step that the job resumes from. Logged events of later steps are not sent, because
            the job repeats these steps.

    Raises:
        MissingExtraError: A package is not installed.
        TrackingError: A tracker cannot be reached, or rejects the run.
    """
    if job.tracking is not None:
        trackers = open_trackers(job.tracking, folder, events.note)
        events.track(trackers, about, _history(events.path, step))


def follow_finished_job(
    events: FollowedLog, job: Job, folder: OutputFolder, attempt: int, step: int
) -> None:
    """Send all events of a finished job to its trackers, if they do not have them yet.

    So a job can be tracked afterwards: its command is run again with the options of tracking. If a
    tracker is unreachable, only a note is shown.

    Args:
        events: The log whose events are sent.
        job: The finished job.
        folder: The job's output, which this process has locked.
        attempt: Number of the current attempt, from 1.
        step: The last step of the job.
    """
    if job.tracking is None or _is_tracked(job, job.tracking, folder):
        return
    try:
        follow_job(events, job, folder, attempt_of(job, attempt), step)
    except ElasticDLError as error:
        events.note(f"Not tracked: {error}")
    else:
        events.end(RunStatus.FINISHED)


def open_trackers(
    tracking: Tracking, folder: OutputFolder, note: Callable[[str], None]
) -> list[Tracker]:
    """Create the requested trackers, without starting them.

    Args:
        tracking: The requested tracking options.
        folder: The output of the job, which this process has locked.
        note: Function (message) that shows the message to the user.

    Raises:
        MissingExtraError: A package is not installed.
        TrackingError: The kind of address is not supported.
        UsageError: The plugin for the address cannot be imported.
    """
    trackers: list[Tracker] = []
    scheme = "" if tracking.uri is None else tracking.uri.partition("://")[0]
    if scheme in plugins.names("trackers"):
        trackers.append(plugins.load("trackers", scheme)(tracking, folder, note))
    elif tracking.uri is not None:
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
) -> TrackedAttempt:
    """Describe one attempt of a job for trackers.

    Args:
        job: The job that starts.
        number: Number of the attempt, from 1.
        definition: Definition of the job's model; None if it was not loaded.
        versions: Name of a package -> its version, for the tags. None: add no such tags.
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
    return TrackedAttempt(
        number=number,
        job_id=job.id,
        run_name=PurePosixPath(output).name or job.id,
        params={**params_of(job), **tracking.params},
        tags={**tags, **tracking.tags},
        commit=commit,
    )


def params_of(job: Job) -> dict[str, str]:
    """Return the options of a job, name -> value as a string, for comparing runs in a tracker.

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
    if job.validation_split is not None:
        asked["validation_split"] = job.validation_split
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
    """Return the logged events that are still valid when a job resumes from `step`.

    These are the events up to this step, and the starts of all attempts. Later steps are repeated.
    The result is empty for a new job (step 0).
    """
    if step == 0:
        return []
    history = parse_events(log.read_bytes(), str(log))
    return [event for event in history if isinstance(event, JobStarted) or event.step <= step]


def _is_tracked(job: Job, tracking: Tracking, folder: OutputFolder) -> bool:
    if tracking.tensorboard and not folder.list(LOGS_FOLDER):
        return False
    if tracking.uri is None:
        return True
    kept = load_stored_run(folder)
    return (
        kept is not None
        and kept.status == RunStatus.FINISHED.value
        and (kept.job_id, kept.experiment) == (job.id, tracking.experiment)
        and kept.uri == without_password(tracking_uri(tracking.uri))
    )

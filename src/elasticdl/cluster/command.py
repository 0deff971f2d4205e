"""Command line that runs a job inside a pod.

Options with default values are left out: `kubectl describe` displays the command line, and users
should recognize what they typed.

Callers: `rayjob.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from elasticdl.errors import UsageError
from elasticdl.job import ModelReference, Tracking, TrainingOptions, Workers
from elasticdl.zoo.specs import is_spec

if TYPE_CHECKING:
    from elasticdl.job import Job

# Path of the user's code in an image.
ZOO = "/model_zoo/custom"
# Connects to the Ray cluster that the pod belongs to.
_RAY = "auto"
# Field of `Workers` to pass on -> its flag.
_WORKER_FLAGS = {
    "spare": "num_spare_workers",
    "give_up_after_s": "give_up_after",
    "heartbeat_timeout_s": "heartbeat_timeout",
    "join_timeout_s": "join_timeout",
    "batch_timeout_s": "batch_timeout",
    "sum_timeout_s": "sum_timeout",
    "transfer_timeout_s": "transfer_timeout",
    "priority": "priority",
    "skip_bad_records": "skip_bad_records",
    "gpus": "gpus_per_worker",
}
_SHARING_FLAGS = {"give_up_after_s": "give_up_after"}


def command(job: Job) -> list[str]:
    """Return the command line that runs a job, starting with `elasticdl`.

    Args:
        job: The job. Its number of workers and their options are part of the command line.

    Raises:
        UsageError: The job is a federation, which does not run on one cluster.
    """
    if job.federation is not None:
        raise UsageError(
            "A federation does not run on one cluster: each party runs where its data is."
        )
    return ["elasticdl", job.command, *_options(job)]


def _options(job: Job) -> Iterator[str]:
    if job.model is not None:
        yield from _of_model(job.model)
    yield from _of_data(job)
    # Evaluation and prediction have their own default size.
    defaults = TrainingOptions(minibatch_size=0 if job.command != "train" else 64)
    yield from _changed(job.training, defaults, {})
    if job.workers is not None:
        least, most = job.workers.min, job.workers.max
        yield _option("num_workers", f"{least}..{most}" if job.command == "train" else most)
        yield _option("ray_address", _RAY)
        flags = _WORKER_FLAGS if job.command == "train" else _SHARING_FLAGS
        yield from _changed(job.workers, Workers(least, most), flags, only=set(flags))
    if job.tracking is not None:
        yield from _of_tracking(job.tracking)
    if job.engine is not None:
        yield _option("engine", job.engine)


def _of_data(job: Job) -> Iterator[str]:
    if job.trained_model is not None:
        yield _option("trained_model", job.trained_model)
    yield _option("data", job.data)
    if job.validation_data is not None:
        yield _option("validation_data", job.validation_data)
    if job.validation_split is not None:
        yield f"--validation_split={job.validation_split!r}"
    if job.output is not None:
        yield _option("output", job.output)
    if job.command == "predict":
        yield _option("format", job.prediction_format)
    if job.columns:
        yield _option("columns", ",".join(job.columns))


def _of_model(model: ModelReference) -> Iterator[str]:
    if model.zoo is not None:
        yield _option("model_zoo", ZOO)
    if is_spec(model.model_def):
        yield _option("spec", f"{ZOO}/{model.model_def}")
    else:
        yield _option("model_def", model.model_def)
    if model.params:
        yield _option(
            "params", ", ".join(f"{name}={value!r}" for name, value in model.params.items())
        )
    for name, value in model.overrides.items():
        yield _option(name, value)
    if model.dialect is not None:
        yield _option("dialect", model.dialect)


def _of_tracking(tracking: Tracking) -> Iterator[str]:
    if tracking.uri is not None:
        yield _option("tracking_uri", tracking.uri)
        yield _option("experiment", tracking.experiment)
        if tracking.run_name is not None:
            yield _option("run_name", tracking.run_name)
    if tracking.tensorboard:
        yield "--tensorboard"


def _changed(
    values: Any, defaults: Any, flags: dict[str, str], only: set[str] | None = None
) -> Iterator[str]:
    """Yield a command-line flag for each option that differs from its default.

    Args:
        values: The options, a dataclass.
        defaults: The same dataclass with the default values.
        flags: Field -> name of its flag, if that is not the field's name.
        only: Fields to consider. None: all.
    """
    for field in dataclasses.fields(values):
        value = getattr(values, field.name)
        if (only is not None and field.name not in only) or value == getattr(defaults, field.name):
            continue
        flag = flags.get(field.name, field.name)
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield _option(flag, value)


def _option(name: str, value: Any) -> str:
    # The shortest form of a float with the same value.
    return f"--{name}={value:g}" if isinstance(value, float) else f"--{name}={value}"

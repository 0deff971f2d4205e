"""Job options: create a `Job` from options typed in a shell, in Python or in SQL.

Every value may be a string, because command lines and SQL provide only strings. This module neither
reads nor imports the user's files.

Callers: `api.py`, `cli/`, `sql/`, `sessions/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import math
import os
from collections.abc import Hashable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, get_args

from elasticdl.data.stored_file import check_output
from elasticdl.engines.engine import Outcome
from elasticdl.errors import UsageError
from elasticdl.job import (
    BestMode,
    Job,
    ModelReference,
    PredictionFormat,
    Priority,
    Tracking,
    TrainingOptions,
    Workers,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Arguments = ParamSpec("_Arguments")


def _typed(job_function: Callable[_Arguments, Job]) -> Callable[_Arguments, Job]:
    """Decorator: treat None as "not given", and check the types of options by their annotations.

    NumPy numbers become Python numbers. Strings are parsed where they are used.
    """
    parameters = inspect.signature(job_function).parameters.values()
    # Without its default, an option is required.
    declared = {each.name: (str(each.annotation), each.default) for each in parameters}
    declared |= {
        each.name: (str(each.type), each.default) for each in dataclasses.fields(TrainingOptions)
    }

    @functools.wraps(job_function)
    def build(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> Job:
        for given, passed in list(kwargs.items()):
            kwargs[given] = value = _python_number(passed)
            types, default = declared.get(_ALIASES.get(given, given), ("Any", None))
            if value is None and default not in {None, inspect.Parameter.empty}:
                del kwargs[given]
            elif not (value is None and default is None) and given not in _CHECKED_ELSEWHERE:
                _check_type(given, value, types)
        return job_function(*args, **kwargs)

    return build


def _python_number(value: Any) -> Any:
    """Convert a NumPy scalar, or an array of no dimensions, to a Python value; return others as is.

    A float32 becomes the shortest decimal that rounds to it: 0.2, not 0.20000000298.
    """
    if getattr(value, "shape", None) != () or not hasattr(value, "item"):
        return value
    plain = value.item()
    if isinstance(plain, float):
        # A tensor of PyTorch is not shown as a number.
        with contextlib.suppress(ValueError):
            return float(str(value))
    return plain


def _check_type(name: str, value: object, types: str) -> None:
    """Check that the value of an option has one of the types that its annotation names.

    Raises:
        UsageError: It has another type.
    """
    number = "int" in types or "float" in types
    fits = (
        types == "Any"
        or isinstance(value, str)
        or ("Path" in types and isinstance(value, os.PathLike))
        or ("Mapping" in types and isinstance(value, Mapping))
        or (
            "Sequence" in types
            and isinstance(value, Iterable)
            and not isinstance(value, _UNORDERED)
        )
        or (number and isinstance(value, Number) and not isinstance(value, (bool, complex)))
        or ("bool" in types and isinstance(value, (bool, int)) and value in {0, 1})
        # Such as a tensor of TensorFlow.
        or (number and getattr(value, "shape", None) == ())
    )
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"{name} has the key {key!r}; expected names, which are strings.")
    if fits:
        return
    words = {
        "int": "a whole number",
        "float": "a number",
        "bool": "True or False",
        "Path": "a path",
        "Mapping": "a string or a dict",
        "Sequence": "a string or a list of strings",
    }
    expected = [text for each, text in words.items() if each in types] or ["a string"]
    shown = value is None or isinstance(value, Number)
    got = repr(value) if shown else f"an object of type {type(value).__name__}"
    raise UsageError(f"{name} is {got}; expected {', or '.join(expected)}.")


# Options whose errors have advice of their own.
_CHECKED_ELSEWHERE = ("model_def", "trained_model")
_ALIASES = {"batch_size": "minibatch_size"}
# Iterable types that are not lists of names.
_UNORDERED = (bytes, Mapping, AbstractSet)


@_typed
def training_job(
    *,
    data: str | Path,
    output: str | Path,
    model_def: str | None = None,
    spec: str | Path | None = None,
    model_zoo: str | Path | None = None,
    params: str | Mapping[str, Any] = "",
    dialect: str | None = None,
    input_fn: str | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    eval_metrics_fn: str | None = None,
    validation_data: str | Path | None = None,
    validation_split: float | str | None = None,
    num_workers: int | str | None = None,
    num_spare_workers: int | str = 0,
    ray_address: str | None = None,
    gpus_per_worker: int | str = Workers.gpus,
    give_up_after: float | str = Workers.give_up_after_s,
    heartbeat_timeout: float | str = Workers.heartbeat_timeout_s,
    join_timeout: float | str = Workers.join_timeout_s,
    batch_timeout: float | str = Workers.batch_timeout_s,
    sum_timeout: float | str = Workers.sum_timeout_s,
    transfer_timeout: float | str = Workers.transfer_timeout_s,
    priority: str = Workers.priority,
    skip_bad_records: bool | str = False,
    tracking_uri: str | Path | None = None,
    experiment: str | None = None,
    run_name: str | None = None,
    tensorboard: bool | str = False,
    engine: str | None = None,
    **options: Any,
) -> Job:
    """Build the `Job` for a call of `train` from its arguments.

    Args:
        data: URI or glob of the training records, or a list of them.
        output: Folder for the TrainedModel, its checkpoints and events.
        model_def: Dotted name of the model: file, then class or function.
        spec: YAML file of a saved model, instead of `model_def`. Code that it names is taken from
            `model_zoo`; without one, from the spec's folder, or from a folder above it within the
            working directory.
        model_zoo: Folder or git URL of the user's code; None means the prebuilt zoo.
        params: `"name=literal, ..."` or a mapping, for the model's constructor and the functions of
            its file.
        dialect: How to read the model file. None: decide by its content.
        input_fn: Dotted name of a function that replaces the model's own input function.
        loss: Dotted name of a function that replaces the model's own loss.
        optimizer: Dotted name of a function that replaces the model's own optimizer.
        eval_metrics_fn: Dotted name of a function that replaces the model's own evaluation metrics.
        validation_data: Records to evaluate on while training.
        validation_split: Share of the records of `data` to evaluate on instead, such as 0.2; the
            others are trained on. Whether a record is held out depends only on the name of its
            file and its position in the file.
        num_workers: Number of training processes: `3`, or `2..4` for at least 2 and at most 4.
            None: train in this process. docs/guides/elastic.md describes the
            options that follow.
        num_spare_workers: Additional processes in reserve.
        ray_address: Address of a Ray cluster. None: start Ray on this machine.
        gpus_per_worker: GPUs reserved for each worker. Needs `num_workers`.
        give_up_after: Seconds without any training after which the job fails.
        heartbeat_timeout: Seconds without a heartbeat after which the others no longer wait for a
            worker.
        join_timeout: Seconds the others wait for a living worker that is late.
        batch_timeout: Seconds on one batch after which a worker counts as hung, or ten times the
            slowest batch if that is longer.
        sum_timeout: Seconds after which a sum over the workers is retried, or ten times the slowest
            one if that is longer.
        transfer_timeout: Seconds without progress after which a transfer of state is abandoned.
        priority: `low` or `high`; while a job of higher priority on the cluster waits for workers,
            this one shrinks to its minimum.
        skip_bad_records: Whether to train on without the records of a batch that has killed five
            workers; otherwise the job fails and lists them. Needs `num_workers`.
        tracking_uri: An MLflow server, a database or a folder to track the job in. If only
            `experiment` is given, the default is `MLFLOW_TRACKING_URI` of the environment, or
            `mlflow.db` in the current folder. If `experiment` is not given either, the job is not
            tracked in MLflow, whatever the environment contains.
        experiment: Name of the MLflow experiment; the default is `MLFLOW_EXPERIMENT_NAME` of the
            environment, or `elasticdl`.
        run_name: Name of the MLflow run; the default is the name of the output.
        tensorboard: Whether to write curves for TensorBoard to `logs/` in the output.
        engine: Name of an engine that an installed plugin has; see docs/guides/plugins.md.
        **options: The fields of `TrainingOptions`, as values or as strings.

    Raises:
        UsageError: A name or a value is wrong.
    """
    from elasticdl.zoo.params import parse_params  # noqa: PLC0415 - not for `--help`

    # First, because a misspelt option may be the reason why another one is missing.
    known = {field.name for field in dataclasses.fields(TrainingOptions)} | _ALIASES.keys()
    for name in options:
        if name not in known:
            raise _no_option(name)
    replaced = {
        "input_fn": input_fn,
        "loss": loss,
        "optimizer": optimizer,
        "eval_metrics_fn": eval_metrics_fn,
    }
    skip = _as_bool("skip_bad_records", skip_bad_records)
    if skip and num_workers is None:
        raise UsageError(
            "--skip_bad_records requires workers: in a single process, a record that kills the "
            "process ends the command. Add --num_workers=1 or more."
        )
    gpus = _as_int("gpus_per_worker", gpus_per_worker)
    if gpus and num_workers is None:
        raise UsageError(
            f"--gpus_per_worker={gpus} requires workers. Add --num_workers; without it, training "
            "uses the GPU that it finds."
        )
    split = _as_split(validation_split)
    if split is not None and validation_data is not None:
        raise UsageError(
            f"--validation_split={split:g} and --validation_data both define the validation data. "
            "Use only one of them."
        )
    return Job(
        command="train",
        data=location(data),
        output=output_location(output),
        model=dataclasses.replace(
            _model(model_def, spec, model_zoo),
            dialect=dialect,
            params=parse_params(params) if isinstance(params, str) else _plain_params(params),
            overrides={name: value for name, value in replaced.items() if value},
        ),
        validation_data=None if validation_data is None else location(validation_data),
        validation_split=split,
        training=_training_options(options),
        workers=None
        if num_workers is None
        else _workers(
            num_workers,
            spare=_as_int("num_spare_workers", num_spare_workers),
            ray_address=ray_address,
            give_up_after_s=_as_seconds("give_up_after", give_up_after),
            heartbeat_timeout_s=_as_seconds("heartbeat_timeout", heartbeat_timeout),
            join_timeout_s=_as_seconds("join_timeout", join_timeout),
            batch_timeout_s=_as_seconds("batch_timeout", batch_timeout),
            sum_timeout_s=_as_seconds("sum_timeout", sum_timeout),
            transfer_timeout_s=_as_seconds("transfer_timeout", transfer_timeout),
            priority=_priority(priority),
            skip_bad_records=skip,
            gpus=gpus,
        ),
        tracking=tracking_of(
            tracking_uri, experiment, run_name, tensorboard=_as_bool("tensorboard", tensorboard)
        ),
        engine=engine,
    )


def _plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Convert NumPy scalars in params to Python numbers, so that they can be stored as JSON.

    Raises:
        UsageError: A value cannot be stored as JSON.
    """
    plain = {name: _plain_param(value) for name, value in params.items()}
    for name, value in plain.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise UsageError(
                f"params[{name!r}] is a {type(value).__module__}.{type(value).__name__}; expected "
                "numbers, strings, booleans, None, and lists and dicts of them, because the params "
                "are stored with the trained model. Create other objects in the model file."
            ) from None
    return plain


def _plain_param(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain_param(each) for key, each in value.items()}
    # Not of a subclass, such as a named tuple.
    if type(value) in {list, tuple}:
        return type(value)(_plain_param(each) for each in value)
    return _python_number(value)


def _model(
    model_def: str | None, spec: str | Path | None, model_zoo: str | Path | None
) -> ModelReference:
    if (model_def is None) == (spec is None):
        given = "both are given" if spec is not None else "neither is given"
        raise UsageError(
            "Expected one of --model_def=FILE.CLASS and --spec=FILE.yml (for a saved model); "
            f"{given}."
        )
    if model_def is not None and not isinstance(model_def, str):
        raise UsageError(
            f"model_def is a {type(model_def).__module__}.{type(model_def).__name__}; expected the "
            "name of a model in a file, because workers and a resumed training create the model "
            "again from its code. Write it to a file (in a notebook, begin a cell with %%writefile "
            'my_model.py), then pass model_zoo=".", model_def="my_model".'
        )
    if model_def is not None:
        return ModelReference(None if model_zoo is None else location(model_zoo), model_def)
    path = Path(location(str(spec)))
    from elasticdl.zoo.specs import folder_of, is_spec, refuse_special  # noqa: PLC0415 - not for `--help`

    refuse_special(path, str(spec))
    if not is_spec(path.name):
        raise UsageError(
            f"--spec={spec}: expected a YAML file, whose name ends in .yml or .yaml. For a Python "
            "model file, use --model_def."
        )
    if model_zoo is None:
        folder = folder_of(path)
        # Only a folder above the spec's own is resolved, so this also holds if links are in
        # between.
        own = path.parent if folder == path.parent else path.parent.resolve()
        return ModelReference(str(folder), (own / path.name).relative_to(folder).as_posix())
    zoo = location(model_zoo)
    within = path.relative_to(zoo) if path.is_relative_to(zoo) else Path(str(spec))
    return ModelReference(zoo, within.as_posix())


@_typed
def evaluation_job(
    *,
    trained_model: str | Path,
    data: str | Path,
    output: str | Path | None = None,
    validation_split: float | str | None = None,
    report: str | Path | bool | None = None,
    minibatch_size: int | str = 256,
    num_workers: int | str | None = None,
    ray_address: str | None = None,
    give_up_after: float | str = Workers.give_up_after_s,
) -> Job:
    """Build the `Job` for a call of `evaluate` from its arguments.

    Args:
        trained_model: Folder that `train` wrote.
        data: URI or glob of the records, or a list of them.
        output: JSON file for the metrics; None means `evaluation.json` in the trained model.
        validation_split: Evaluate only the records that training on `data` with this
            `validation_split` holds out.
        report: Folder for a report on each record; True or an empty string means `report` in the
            trained model. None: write no report.
        minibatch_size: Number of examples per call of the model; `batch_size` is another name.
        num_workers: Number of processes that share the records. None: evaluate in this process.
        ray_address: Address of a Ray cluster. None: start Ray on this machine.
        give_up_after: Seconds without progress of any worker after which the job fails.

    Raises:
        UsageError: A value is wrong, or a report is requested on workers.
    """
    if (report or report == "") and num_workers is not None:
        raise UsageError(
            "--report runs in one process, but --num_workers divides the records among several. "
            "Leave one of them out."
        )
    folder = f"{trained_location(trained_model)}/report" if report in {True, ""} else report
    return Job(
        command="evaluate",
        data=location(data),
        output=None if output is None else output_location(output),
        trained_model=trained_location(trained_model),
        validation_split=_as_split(validation_split),
        report=output_location(str(folder), "--report") if folder else None,
        training=_training_options({"minibatch_size": minibatch_size}),
        workers=_sharing_workers(num_workers, ray_address, give_up_after),
    )


@_typed
def prediction_job(
    *,
    trained_model: str | Path,
    data: str | Path,
    output: str | Path,
    minibatch_size: int | str = 256,
    format: str | None = None,  # noqa: A002 - the name users type
    columns: str | Sequence[str] = (),
    num_workers: int | str | None = None,
    ray_address: str | None = None,
    give_up_after: float | str = Workers.give_up_after_s,
) -> Job:
    """Build the `Job` for a call of `predict` from its arguments.

    Args:
        trained_model: Folder that `train` wrote.
        data: URI or glob of the records, or a list of them.
        output: A file if it ends in `.recordio`, `.parquet` or `.csv`, else a folder of part files.
        minibatch_size: Number of examples per call of the model; `batch_size` is another name.
        format: File format of the part files: `recordio`, `parquet` or `csv`; None means RecordIO,
            or the format of the one file that `output` names.
        columns: Columns of the input to copy into the predictions: a list, or their names separated
            by commas.
        num_workers: Number of processes that share the records. None: predict in this process.
        ray_address: Address of a Ray cluster. None: start Ray on this machine.
        give_up_after: Seconds without progress of any worker after which the job fails.

    Raises:
        UsageError: A value is wrong.
    """
    formats: dict[str, PredictionFormat] = {name: name for name in get_args(PredictionFormat)}
    file_name = str(output).lower()
    of_file = next((name for name in formats if file_name.endswith(f".{name}")), None)
    if format is not None and format not in formats:
        raise UsageError(
            f"There is no prediction format {format!r}; expected one of: {', '.join(formats)}."
        )
    if of_file is None and (found := next(filter(file_name.endswith, _OTHER_FORMATS), None)):
        raise UsageError(
            f"--output={output}: predictions are not written as {found}. Choose a .csv, .parquet "
            "or .recordio file, or a folder."
        )
    if of_file is None and format is None and (meant := _meant_format(file_name, formats)):
        raise UsageError(
            f"--output={output}: predictions are one file only if its name ends in .csv, .parquet "
            f"or .recordio; did you mean .{meant}? For a folder of this name, add a slash: "
            f"--output={output}/"
        )
    return Job(
        command="predict",
        data=location(data),
        output=output_location(output),
        trained_model=trained_location(trained_model),
        training=_training_options({"minibatch_size": minibatch_size}),
        prediction_format=formats[format or of_file or "recordio"],
        columns=_columns(columns),
        workers=_sharing_workers(num_workers, ray_address, give_up_after),
    )


def _columns(columns: str | Sequence[str]) -> tuple[str, ...]:
    parts: list[Any] = columns.split(",") if isinstance(columns, str) else list(columns)
    for name in parts:
        # Other names than strings, such as those of a MultiIndex, are stored as strings.
        if name is None or not isinstance(name, Hashable):
            raise UsageError(f"columns has {name!r}; expected names, which are strings.")
    names = [str(name).strip() for name in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"--columns={','.join(names)}: {twice!r} is named twice.")
    return tuple(name for name in names if name)


def tracking_of(
    uri: str | Path | None, experiment: str | None, run_name: str | None, *, tensorboard: bool
) -> Tracking | None:
    """Build the tracking options of a training job; None if it is not tracked.

    Args:
        uri: Value of the option `tracking_uri`; `training_job` describes the options.
        experiment: Value of the option `experiment`.
        run_name: Value of the option `run_name`.
        tensorboard: Value of the option `tensorboard`.

    Raises:
        UsageError: A run is named without an experiment.
    """
    from elasticdl.tracking.address import DATABASE_FILE, tracking_uri  # noqa: PLC0415

    # The environment sets where to track, not whether: variables set for other programs must not
    # switch tracking on.
    if uri is None and experiment is None:
        if run_name is not None:
            raise UsageError(
                f"--run_name={run_name} needs an experiment. Add --experiment, or --tracking_uri."
            )
        return Tracking(tensorboard=True) if tensorboard else None
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or DATABASE_FILE
    experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or Tracking.experiment
    return Tracking(tracking_uri(str(uri)), experiment, run_name, tensorboard=tensorboard)


def _meant_format(file_name: str, formats: Iterable[str]) -> str | None:
    """Return the format that the unknown ending of a file's name probably means, else None.

    Example:
        >>> _meant_format("p.parq", ["csv", "parquet"]), _meant_format("p.v2", ["csv", "parquet"])
        ('parquet', None)
    """
    from elasticdl.did_you_mean import nearest  # noqa: PLC0415 - rarely needed

    # Of "folder/", which asks for a folder, it is empty.
    ending = os.path.splitext(file_name)[1][1:]  # noqa: PTH122 - a URI may be no path
    return "parquet" if ending == "pq" else nearest(ending, formats) if ending else None


# Files that people might expect to be written; other names are folders.
_OTHER_FORMATS = (".xlsx", ".xls", ".json", ".jsonl", ".tsv", ".txt", ".gz", ".zip", ".feather")
# Options of `train` that are not in `TrainOptions`.
_NAMED = (
    "data",
    "model_def",
    "model_zoo",
    "output",
    "params",
    "quiet",
    "reporter",
    "validation_data",
)
_LEAST = {"num_epochs": 1, "minibatch_size": 1, "keep_checkpoint_max": 2}


def _no_option(name: str) -> UsageError:
    """Build the error for an option that `train` does not have, with a hint at the right one."""
    # Only for an error.
    from elasticdl.option_hints import hint  # noqa: PLC0415
    from elasticdl.option_types import TrainOptions  # noqa: PLC0415

    known = {*TrainOptions.__annotations__, *_NAMED}
    if (found := hint(name)) is not None:
        if name == "verbose":
            found = "Use quiet=True, or reporter= to show the progress in your own way."
        return UsageError(f"There is no option {name!r}. {found.replace('--', '')}")
    return _unknown_option(name, known)


def _unknown_option(name: str, known: Iterable[str]) -> UsageError:
    # Only for an error.
    import textwrap  # noqa: PLC0415

    from elasticdl.did_you_mean import did_you_mean  # noqa: PLC0415

    meant = did_you_mean(name, known)
    if meant != ".":
        return UsageError(f"There is no option {name!r}{meant}")
    listed = textwrap.indent(textwrap.fill(f"{', '.join(sorted(known))}.", width=90), "  ")
    return UsageError(f"There is no option {name!r}. There are:\n{listed}")


def checked_options(options: Mapping[str, Any], job_function: Callable[..., Job]) -> dict[str, Any]:
    """Check the names of options, and return the options under the keywords of a function.

    An option may have two names: `batch_size` is returned as `minibatch_size`.

    Args:
        options: Option -> value, as the user passed them; the values are not checked.
        job_function: `evaluation_job` or `prediction_job`.

    Raises:
        UsageError: There is no such option, or one is passed under two names.
    """
    known = inspect.signature(job_function).parameters
    named = {}
    for given, value in options.items():
        name = _option_name(given, options)
        if name not in known:
            raise _unknown_option(name, known)
        named[name] = value
    return named


def _option_name(given: str, options: Mapping[str, Any]) -> str:
    """Return the main name of an option: `minibatch_size` if `batch_size` was given.

    Raises:
        UsageError: It is passed under both names.
    """
    name = _ALIASES.get(given, given)
    if name != given and name in options:
        raise UsageError(f"{given} and {name} are the same option. Use only one of them.")
    return name


def _training_options(options: Mapping[str, Any]) -> TrainingOptions:
    fields = {f.name: f for f in dataclasses.fields(TrainingOptions)}
    values: dict[str, Any] = {}
    for given, value in options.items():
        name = _option_name(given, options)
        default = fields[name].default
        if name == "best_mode":
            values[name] = _best_mode(value)
        elif isinstance(default, str):
            values[name] = str(value)
        else:
            as_type = _as_bool if isinstance(default, bool) else _as_int
            values[name] = as_type(name, value)
    return TrainingOptions(**values)


def _best_mode(text: str) -> BestMode:
    known: dict[str, BestMode] = {name: name for name in get_args(BestMode)}
    if text not in known:
        raise UsageError(f"--best_mode={text}: expected one of {', '.join(known)}.")
    return known[text]


def _as_int(name: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        such = ""
        with contextlib.suppress(ValueError, OverflowError):
            such = f", such as {int(float(value))}" if float(value).is_integer() else ""
        raise UsageError(f"--{name}={value!r}: expected a whole number{such}.") from None
    if number < _LEAST.get(name, 0):
        raise UsageError(f"--{name}={number}: expected at least {_LEAST.get(name, 0)}.")
    return number


def _as_split(value: float | str | None) -> float | None:
    if value is None:
        return None
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise UsageError(
            f"--validation_split={value}: expected a share of the records, more than 0 and less "
            "than 1, such as 0.2."
        )
    return share


def _workers(text: int | str, **options: Any) -> Workers:
    least, dots, most = str(text).partition("..")
    try:
        numbers = (int(least), int(most)) if dots else (1, int(least))
    except ValueError:
        numbers = (0, 0)
    if least.strip() == "0" and not dots:
        raise UsageError(
            "--num_workers=0: expected at least 1. Leave it out to train in this process."
        )
    if 1 <= numbers[1] < numbers[0]:
        raise UsageError(f"--num_workers={text}: the minimum is larger than the maximum.")
    if not 1 <= numbers[0] <= numbers[1]:
        raise UsageError(
            f"--num_workers={text}: expected the number of training processes, such as 3, or the "
            "minimum and the maximum, such as 2..4."
        )
    return Workers(*numbers, **options)


def workers(
    num_workers: int | str | None, num_spare_workers: int | str = 0, ray_address: str | None = None
) -> Workers | None:
    """Parse the options of a training job's workers; return None to train in this process.

    Args:
        num_workers: Number of training processes: `3`, or `2..4` for at least 2 and at most 4.
            None: train in this process.
        num_spare_workers: Additional processes in reserve.
        ray_address: Address of a Ray cluster. None: start Ray on this machine.

    Raises:
        UsageError: A value is wrong.
    """
    if num_workers is None:
        return None
    spare = _as_int("num_spare_workers", num_spare_workers)
    return _workers(num_workers, spare=spare, ray_address=ray_address)


def _sharing_workers(
    num_workers: int | str | None, ray_address: str | None, give_up_after: float | str
) -> Workers | None:
    """Parse the worker options of an evaluation or prediction.

    Returns None if `num_workers` is None: the job then runs in this process. The number of workers
    is a maximum: ranges such as `2..4` are rejected.
    """
    if num_workers is None:
        return None
    if str(num_workers) == "0":
        raise UsageError(
            "--num_workers=0: expected at least 1. Leave it out to do all of it in this process."
        )
    if not str(num_workers).isdecimal():
        raise UsageError(
            f"--num_workers={num_workers}: expected the number of processes, such as 3. It is a "
            "maximum: the work is done with those that are available."
        )
    return _workers(
        num_workers,
        ray_address=ray_address,
        give_up_after_s=_as_seconds("give_up_after", give_up_after),
    )


def _priority(text: str) -> Priority:
    known: dict[str, Priority] = {name: name for name in get_args(Priority)}
    if text not in known:
        raise UsageError(f"--priority={text}: expected one of {', '.join(known)}.")
    return known[text]


def _as_seconds(name: str, value: float | str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise UsageError(f"--{name}={value}: expected a number of seconds, more than 0.")
    return number


def _as_bool(name: str, value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if str(value).lower() not in words:
        raise UsageError(f"--{name}={value!r}: expected true or false.")
    return words[str(value).lower()]


def output_location(text: str | Path, option: str = "--output") -> str:
    """Make an output location absolute, after checking that it outlives this process.

    Args:
        text: Path or URI as the user gave it.
        option: The command-line option that it was given with, for the error.

    Raises:
        UsageError: The location is empty, or in the memory of this process.
    """
    return check_output(location(text), option)


def trained_location(trained_model: object) -> str:
    """Make the location of a trained model absolute.

    Args:
        trained_model: What the user gave: a folder or a URI, or by mistake an object.

    Raises:
        UsageError: It is an object, such as the model itself.
    """
    if isinstance(trained_model, (str, os.PathLike)):
        return location(str(trained_model))
    hint = ": pass its attribute output" if isinstance(trained_model, Outcome) else ""
    got = "None" if trained_model is None else f"an object of type {type(trained_model).__name__}"
    raise UsageError(
        f"trained_model is {got}; expected the folder that a training wrote, its output{hint}."
    )


def location(text: str | Path) -> str:
    """Make paths absolute, and leave URIs unchanged.

    Args:
        text: One path or URI, or several separated by commas. `~` and environment variables are
            expanded.
    """
    parts = [os.path.expandvars(part.strip()) for part in str(text).split(",")]
    return ",".join(
        part
        if "://" in part or part.startswith("git@")
        # Not Path.absolute(): it keeps `..`, and equal locations must be equal strings.
        else os.path.abspath(Path(part).expanduser())  # noqa: PTH100
        for part in parts
        if part
    )

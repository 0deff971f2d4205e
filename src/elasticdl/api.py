"""The whole story on one page: `train`, `evaluate` and `predict`.

The command line and Python come through here with the same strings and so build the same
`Job`; a job is then given to an engine. Values may be strings everywhere, because command
lines and SQL have nothing else.

    import elasticdl

    elasticdl.train(
        model_zoo="~/work",
        model_def="fintech.MyKerasModel",
        params="hidden_units=[10, 100], learning_rate=0.01",
        data="data/train/*.recordio",
        output="my_model",
    )
    elasticdl.predict(trained_model="my_model", data="data/test/*.recordio", output="predicted/")
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from elasticdl.data.stored_file import check_output
from elasticdl.errors import MissingExtraError, UnavailableError, UsageError
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
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from elasticdl.cluster.check import Report
    from elasticdl.cluster.images.build import ImageOptions
    from elasticdl.cluster.kubernetes import Kubernetes
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.cluster.states import JobState
    from elasticdl.engines.audit import AuditReport
    from elasticdl.engines.engine import Outcome, Reporter

_OVERRIDES = ("input_fn", "loss", "optimizer", "eval_metrics_fn")


def train(
    *,
    data: str,
    output: str,
    model_def: str | None = None,
    model_zoo: str | None = None,
    params: str | Mapping[str, Any] = "",
    reporter: Reporter | None = None,
    **options: Any,
) -> Outcome:
    """Train a model and leave a TrainedModel in a folder.

    The same call with the same output goes on where an earlier one ended, and does nothing if
    that one was finished.

    Args:
        data: URI or glob of the training records.
        output: Folder for the TrainedModel, its checkpoints and events.
        model_def: Dotted name of the model: file, then class or function. A saved model has a
            `spec` instead.
        model_zoo: Folder or git URL of the user's code; None is the prebuilt zoo.
        params: `"name=literal, ..."` or a mapping, for the model's constructor and the
            functions of its file.
        reporter: Who tells people; None decides by the terminal.
        **options: `training_job` has them all.

    Raises:
        ElasticDLError: Anything that keeps the job from being done; see `elasticdl.errors`.
    """
    job = training_job(
        model_def=model_def, data=data, output=output, model_zoo=model_zoo, params=params, **options
    )
    return run(job, reporter)


def evaluate(
    *,
    trained_model: str,
    data: str,
    output: str | None = None,
    reporter: Reporter | None = None,
    **options: Any,
) -> Outcome:
    """Measure a trained model on records; the metrics are in the outcome and in a file.

    Args:
        trained_model: Folder that `train` wrote.
        data: URI or glob of the records.
        output: JSON file for the metrics; None is `evaluation.json` in the trained model.
        reporter: Who tells people; None decides by the terminal.
        **options: See `evaluation_job`.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    job = evaluation_job(trained_model=trained_model, data=data, output=output, **options)
    return run(job, reporter)


def predict(
    *,
    trained_model: str,
    data: str,
    output: str,
    reporter: Reporter | None = None,
    **options: Any,
) -> Outcome:
    """Write what a trained model says of records, in their order and with their keys.

    Args:
        trained_model: Folder that `train` wrote; nothing else is needed.
        data: URI or glob of the records.
        output: A file if it ends in `.recordio`, else a folder of part files.
        reporter: Who tells people; None decides by the terminal.
        **options: See `prediction_job`.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    job = prediction_job(trained_model=trained_model, data=data, output=output, **options)
    return run(job, reporter)


def audit(output: str) -> AuditReport:
    """Say of each epoch of a training whether every record was trained on exactly once.

    Args:
        output: Folder that `train` writes into, or has written.

    Raises:
        ElasticDLError: There is no log or no checkpoint, or the log is damaged.
    """
    from elasticdl.engines.audit import audit as audit_output  # noqa: PLC0415

    return audit_output(_location(output))


def run(job: Job, reporter: Reporter | None = None) -> Outcome:
    """Give a job to the engine it asks for.

    Args:
        job: What to do.
        reporter: Who tells people; None decides by the terminal.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    # Only now are they needed; what is imported here takes its time.
    from elasticdl.engines import in_process, progress, trained  # noqa: PLC0415

    reporter = progress.for_stream() if reporter is None else reporter
    engine = {
        "train": in_process.train,
        "evaluate": trained.evaluate,
        "predict": trained.predict,
    }[job.command]
    return engine(job, reporter) if job.workers is None else _run_on_workers(job, reporter)


def run_on_cluster(
    job: Job,
    options: ClusterOptions,
    *,
    context: str | None = None,
    patch: Mapping[str, Any] | None = None,
    detach: bool = False,
    build: ImageOptions | None = None,
    tell: Callable[[str], None] = print,
    with_page: bool = False,
) -> JobState | None:
    """Submit a job to a Kubernetes cluster and follow it to its end.

    Args:
        job: What to do, on how many workers.
        options: With which image and machines.
        context: Of the kubeconfig; None is the current one.
        patch: What is merged into the RayJob (RFC 7396).
        detach: Return when it is submitted.
        build: The image that is built and pushed first, if the job is not there already.
        tell: Is given lines for people.
        with_page: Serve the page of a training on this machine while it is followed, and tell
            its URL.

    Returns:
        How it ended; None if it was detached from.

    Raises:
        ElasticDLError: It cannot be submitted, or has failed; see `elasticdl.errors`.
    """
    from elasticdl.cluster.launch import launch  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.rayjob import manifest  # noqa: PLC0415 - as well
    from elasticdl.cluster.submit import is_kept  # noqa: PLC0415 - as well

    cluster = connect_cluster(context, options.namespace)
    if build is not None and not is_kept(job, cluster):
        # What is wrong with the job is said before minutes are spent on its image.
        manifest(job, options, patch)
        zoo = job.model.zoo if job.model is not None else None
        options = dataclasses.replace(options, image=build_image(zoo, build, tell))

    def beside(name: str) -> AbstractContextManager[object]:
        if not with_page or job.command != "train":
            return contextlib.nullcontext()
        from elasticdl.page.forwarded import ForwardedPage  # noqa: PLC0415 - not for `--help`

        return ForwardedPage(cluster, name, tell)

    return launch(job, options, cluster, patch=patch, detach=detach, tell=tell, beside=beside)


def connect_cluster(context: str | None = None, namespace: str | None = None) -> Kubernetes:
    """Return a Kubernetes cluster, as the user's kubeconfig knows it.

    Raises:
        UsageError: There is no kubeconfig, or no such context in it.
    """
    with _kubernetes_client():
        from elasticdl.cluster.kubernetes import Kubernetes  # noqa: PLC0415 - imports the client
    return Kubernetes(context, namespace)


def check_cluster(
    job: Job, options: ClusterOptions, *, context: str | None = None, has_image: bool = True
) -> Report:
    """Find out whether a job could be submitted to a Kubernetes cluster; nothing is created.

    Args:
        job: What would be submitted.
        options: With which image and machines.
        context: Of the kubeconfig; None is the current one.
        has_image: Whether the image is to be looked for in its registry.

    Raises:
        MissingExtraError: The client of Kubernetes is not installed.
    """
    with _kubernetes_client():
        from elasticdl.cluster.check import check  # noqa: PLC0415 - imports the client
    return check(job, options, context, has_image=has_image)


@contextlib.contextmanager
def _kubernetes_client() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name == "kubernetes":
            raise MissingExtraError("kubernetes", "kubernetes", "--cluster=kubernetes") from error
        raise


def image_options(repository: str, **options: Any) -> ImageOptions:
    """Return how an image is built.

    Args:
        repository: Where it is pushed to.
        **options: See `ImageOptions`.

    Raises:
        UsageError: A value cannot be.
        MissingExtraError: A package that building needs is not installed.
    """
    with _image_builder():
        from elasticdl.cluster.images.build import (  # noqa: PLC0415 - imports an extra
            ImageOptions,
            check,
        )
    made = ImageOptions(repository, **options)
    check(made)
    return made


def build_image(
    model_zoo: str | None, options: ImageOptions, tell: Callable[[str], None] = print
) -> str:
    """Build the image of a model zoo and push it; returns its name with its digest.

    Args:
        model_zoo: Folder or git URL of the user's code; None for the prebuilt models only.
        options: How, and where to.
        tell: Is given lines for people.

    Raises:
        UsageError: Something of it is not there, does not fit, or may not enter an image.
        UnavailableError: The container engine, a registry or the index cannot be reached.
        MissingExtraError: A package that building needs is not installed.
    """
    with _image_builder():
        from elasticdl.cluster.images import build  # noqa: PLC0415 - imports an extra
        from elasticdl.cluster.images.docker import Engine  # noqa: PLC0415 - as well
    with contextlib.closing(Engine()) as engine:
        return build.build_image(model_zoo, options, engine, tell)


def check_image(name: str) -> None:
    """Raise if an image that is named by its digest is no longer in its registry.

    A container engine has the user's credentials; where none is at hand, the registry is asked
    without. What is not sure is left to the cluster.

    Raises:
        UsageError: It is gone.
    """
    from elasticdl.cluster import registry  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.images.names import is_pinned  # noqa: PLC0415 - as well

    if not is_pinned(name):
        return
    try:
        from elasticdl.cluster.images.docker import Engine  # noqa: PLC0415 - imports an extra

        engine = Engine()
    except (ModuleNotFoundError, UnavailableError, UsageError):
        registry.check_is_there(name)
        return
    with contextlib.closing(engine):
        engine.check_is_there(name)


def recorded_image(trained_model: str) -> str:
    """Return the image that a trained model was trained in, by its digest where it had one.

    Args:
        trained_model: Its folder, on this machine or as an address.

    Raises:
        UsageError: It was trained without one.
        OutputError: There is no trained model.
    """
    from elasticdl.artifacts.trained_model import load_trained_model  # noqa: PLC0415
    from elasticdl.cluster.images.names import recorded  # noqa: PLC0415 - not for `--help`

    model = load_trained_model(_location(trained_model))
    return recorded(model.description.docker_commit_id, trained_model)


@contextlib.contextmanager
def _image_builder() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in {"docker", "packaging", "pathspec"}:
            raise MissingExtraError(error.name, "kubernetes", "Building an image") from error
        raise


def _run_on_workers(job: Job, reporter: Reporter) -> Outcome:
    try:
        from elasticdl.engines.elastic import controller, tasks  # noqa: PLC0415 - imports Ray
    except ModuleNotFoundError as error:
        if error.name in {"ray", "torch", "torchft"}:
            raise MissingExtraError(error.name, "elastic", "Using --num_workers") from error
        raise
    engine = {"train": controller.train, "evaluate": tasks.evaluate, "predict": tasks.predict}
    return engine[job.command](job, reporter)


def training_job(
    *,
    data: str,
    output: str,
    model_def: str | None = None,
    spec: str | None = None,
    model_zoo: str | None = None,
    params: str | Mapping[str, Any] = "",
    dialect: str | None = None,
    input_fn: str | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    eval_metrics_fn: str | None = None,
    validation_data: str | None = None,
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
    tracking_uri: str | None = None,
    experiment: str | None = None,
    run_name: str | None = None,
    tensorboard: bool | str = False,
    **options: Any,
) -> Job:
    """Return the job of a `train` call.

    Args:
        data: See `train`, as `output`, `model_def`, `model_zoo` and `params`.
        output: See `train`.
        model_def: See `train`.
        spec: YAML file of a saved model; instead of `model_def`. Code that it names is taken from
            `model_zoo`, or from the file's own folder, or from beside it within the working
            directory.
        model_zoo: See `train`.
        params: See `train`.
        dialect: How the model file is to be read; None lets the file decide.
        input_fn: Dotted name of what replaces the model's own; also `loss`, `optimizer` and
            `eval_metrics_fn`.
        loss: See `input_fn`.
        optimizer: See `input_fn`.
        eval_metrics_fn: See `input_fn`.
        validation_data: Records to evaluate on while training.
        num_workers: How many processes train: `3`, or `2..4` for at least 2 and at most 4;
            None trains in this process. See `job.Workers` for what follows.
        num_spare_workers: Processes that stand ready beside them.
        ray_address: A Ray cluster; None starts Ray here.
        gpus_per_worker: GPUs that each worker gets to itself. Needs `num_workers`.
        give_up_after: Seconds without anybody training after which the job fails.
        heartbeat_timeout: Seconds of silence after which a worker is not waited for.
        join_timeout: Seconds the others wait for a living worker that is late.
        batch_timeout: Seconds on one batch after which a worker is taken for hung, or ten times
            the slowest batch if that is longer.
        sum_timeout: Seconds after which a sum over the workers is tried again, or ten times the
            slowest one if that is longer.
        transfer_timeout: Seconds without progress after which a transfer of state is given up.
        priority: `low` or `high`, among the jobs of a cluster.
        skip_bad_records: Whether the records of a batch that kills five workers are left out from
            then on; else the job ends with their names. Needs `num_workers`.
        tracking_uri: An MLflow server, a database or a folder to track the training in. If
            only `experiment` is given, it is `MLFLOW_TRACKING_URI` of the environment, or
            `mlflow.db` in the current folder; if neither is, the environment is not asked.
        experiment: Name of the MLflow experiment; without it `MLFLOW_EXPERIMENT_NAME` of the
            environment, or `elasticdl`.
        run_name: What the MLflow run is called; without it as the output.
        tensorboard: Whether curves for TensorBoard are written to `logs/` in the output.
        **options: The fields of `TrainingOptions`, as values or as strings.

    Raises:
        UsageError: A name or a value is wrong.
    """
    from elasticdl.zoo.params import parse_params  # noqa: PLC0415 - not for `--help`

    replaced = {
        "input_fn": input_fn,
        "loss": loss,
        "optimizer": optimizer,
        "eval_metrics_fn": eval_metrics_fn,
    }
    skip = _as_bool("skip_bad_records", skip_bad_records)
    if skip and num_workers is None:
        raise UsageError(
            "--skip_bad_records is for training on workers: a record that kills the one process "
            "kills the command. Add --num_workers=1 or more."
        )
    gpus = _as_int("gpus_per_worker", gpus_per_worker)
    if gpus and num_workers is None:
        raise UsageError(
            f"--gpus_per_worker={gpus} is for training on workers. Add --num_workers; one process "
            "uses the GPU that it finds."
        )
    return Job(
        command="train",
        data=_location(data),
        output=_output(output),
        model=dataclasses.replace(
            _model(model_def, spec, model_zoo),
            dialect=dialect,
            params=parse_params(params) if isinstance(params, str) else dict(params),
            overrides={name: value for name, value in replaced.items() if value},
        ),
        validation_data=None if validation_data is None else _location(validation_data),
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
    )


def _model(model_def: str | None, spec: str | None, model_zoo: str | None) -> ModelReference:
    if (model_def is None) == (spec is None):
        given = "both are given" if spec is not None else "neither is given"
        raise UsageError(
            "Which model? Name --model_def=FILE.CLASS, or --spec=FILE.yml for a saved model; "
            f"{given}."
        )
    if model_def is not None:
        return ModelReference(None if model_zoo is None else _location(model_zoo), model_def)
    path = Path(_location(str(spec)))
    from elasticdl.zoo.specs import folder_of, is_spec, refuse_special  # noqa: PLC0415 - not for `--help`

    refuse_special(path, str(spec))
    if not is_spec(path.name):
        raise UsageError(
            f"--spec={spec}: expected a YAML file, whose name ends in .yml or .yaml. A model file "
            "of Python is named by --model_def."
        )
    if model_zoo is None:
        folder = folder_of(path)
        # Only a folder above the spec's own is resolved, so this holds with links on the way too.
        own = path.parent if folder == path.parent else path.parent.resolve()
        return ModelReference(str(folder), (own / path.name).relative_to(folder).as_posix())
    zoo = _location(model_zoo)
    within = path.relative_to(zoo) if path.is_relative_to(zoo) else Path(str(spec))
    return ModelReference(zoo, within.as_posix())


def evaluation_job(
    *,
    trained_model: str,
    data: str,
    output: str | None = None,
    report: str | bool | None = None,
    minibatch_size: int | str = 256,
    num_workers: int | str | None = None,
    ray_address: str | None = None,
    give_up_after: float | str = Workers.give_up_after_s,
) -> Job:
    """Return the job of an `evaluate` call.

    Args:
        trained_model: See `evaluate`, as `data` and `output`.
        data: See `evaluate`.
        output: See `evaluate`.
        report: Folder for a report on each record; True or an empty text is `report` in the
            trained model, None makes no report.
        minibatch_size: Examples in one call of the model.
        num_workers: How many processes share the records; None goes through them in this one.
        ray_address: A Ray cluster; None starts Ray here.
        give_up_after: Seconds without any worker getting further after which the job fails.

    Raises:
        UsageError: A value is wrong, or a report is asked for on workers.
    """
    if report is not None and report is not False and num_workers is not None:
        raise UsageError(
            "--report is made in one process, and --num_workers shares the records among several. "
            "Leave one of them out."
        )
    folder = f"{trained_model.rstrip('/')}/report" if report in {True, ""} else report
    return Job(
        command="evaluate",
        data=_location(data),
        output=None if output is None else _output(output),
        trained_model=_location(trained_model),
        report=_output(str(folder), "--report") if folder else None,
        training=_training_options({"minibatch_size": minibatch_size}),
        workers=_sharing_workers(num_workers, ray_address, give_up_after),
    )


def prediction_job(
    *,
    trained_model: str,
    data: str,
    output: str,
    minibatch_size: int | str = 256,
    format: str = "recordio",  # noqa: A002 - the name users type
    num_workers: int | str | None = None,
    ray_address: str | None = None,
    give_up_after: float | str = Workers.give_up_after_s,
) -> Job:
    """Return the job of a `predict` call.

    Args:
        trained_model: See `predict`, as `data` and `output`.
        data: See `predict`.
        output: See `predict`.
        minibatch_size: Examples in one call of the model.
        format: What part files are.
        num_workers: See `evaluation_job`, as `ray_address` and `give_up_after`.
        ray_address: See `evaluation_job`.
        give_up_after: See `evaluation_job`.

    Raises:
        UsageError: A value is wrong.
    """
    formats: dict[str, PredictionFormat] = {name: name for name in get_args(PredictionFormat)}
    if format not in formats:
        raise UsageError(f"There is no prediction format {format!r}; have: {', '.join(formats)}.")
    return Job(
        command="predict",
        data=_location(data),
        output=_output(output),
        trained_model=_location(trained_model),
        training=_training_options({"minibatch_size": minibatch_size}),
        prediction_format=formats[format],
        workers=_sharing_workers(num_workers, ray_address, give_up_after),
    )


def tracking_of(
    uri: str | None, experiment: str | None, run_name: str | None, *, tensorboard: bool
) -> Tracking | None:
    """Return where a training is to be followed; None for nowhere.

    Args:
        uri: See `training_job`, as the others.
        experiment: See `training_job`.
        run_name: See `training_job`.
        tensorboard: See `training_job`.

    Raises:
        UsageError: A run is named, and no experiment.
    """
    from elasticdl.tracking.address import DATABASE_FILE, tracking_uri  # noqa: PLC0415

    # The environment says where, not whether: who sets it for other programs is not surprised.
    if uri is None and experiment is None:
        if run_name is not None:
            raise UsageError(
                f"--run_name={run_name}: a run of which experiment? Name --experiment, or "
                "--tracking_uri."
            )
        return Tracking(tensorboard=True) if tensorboard else None
    uri = uri or os.environ.get("MLFLOW_TRACKING_URI") or DATABASE_FILE
    experiment = experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or Tracking.experiment
    return Tracking(tracking_uri(uri), experiment, run_name, tensorboard=tensorboard)


_LEAST = {"num_epochs": 1, "minibatch_size": 1, "keep_checkpoint_max": 2}


def _training_options(options: Mapping[str, Any]) -> TrainingOptions:
    fields = {f.name: f for f in dataclasses.fields(TrainingOptions)}
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name not in fields:
            from elasticdl.data.wording import did_you_mean  # noqa: PLC0415 - only for an error

            raise UsageError(
                f"There is no option {name!r}{did_you_mean(name, fields)} "
                f"Have: {', '.join(fields)}."
            )
        default = fields[name].default
        if name == "best_mode":
            values[name] = _best_mode(value)
        elif isinstance(default, str):
            values[name] = str(value)
        else:
            as_type = _as_bool if isinstance(default, bool) else _as_int
            values[name] = as_type(name, value)
    training = TrainingOptions(**values)
    if training.global_batch_size % training.minibatch_size:
        raise UsageError(
            f"--global_batch_size={training.global_batch_size} is no multiple of "
            f"--minibatch_size={training.minibatch_size}, of which it is summed up. The nearest "
            f"one is {_nearest(training.global_batch_size, training.minibatch_size)}."
        )
    return training


def _best_mode(text: str) -> BestMode:
    known: dict[str, BestMode] = {name: name for name in get_args(BestMode)}
    if text not in known:
        raise UsageError(f"--best_mode={text}: expected one of {', '.join(known)}.")
    return known[text]


def _nearest(number: int, unit: int) -> int:
    return max(1, round(number / unit)) * unit


def _as_int(name: str, value: Any) -> int:
    try:
        number = int(str(value))
    except ValueError:
        raise UsageError(f"--{name}={value!r}: expected a whole number.") from None
    if number < _LEAST.get(name, 0):
        raise UsageError(f"--{name}={number}: expected at least {_LEAST.get(name, 0)}.")
    return number


def _workers(text: int | str, **options: Any) -> Workers:
    least, dots, most = str(text).partition("..")
    try:
        numbers = (int(least), int(most)) if dots else (1, int(least))
    except ValueError:
        numbers = (0, 0)
    if not 1 <= numbers[0] <= numbers[1]:
        raise UsageError(
            f"--num_workers={text}: expected how many processes train, such as 3, or the least "
            "and the most of them, such as 2..4."
        )
    return Workers(*numbers, **options)


def workers(
    num_workers: int | str | None, num_spare_workers: int | str = 0, ray_address: str | None = None
) -> Workers | None:
    """Return the workers that are asked for; None for training in this process.

    Args:
        num_workers: See `training_job`, as the others.
        num_spare_workers: Processes that stand ready beside them.
        ray_address: A Ray cluster; None starts Ray here.

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
    """Return the workers that share records among them: there is no least number of those."""
    if num_workers is None:
        return None
    if not str(num_workers).isdecimal():
        raise UsageError(
            f"--num_workers={num_workers}: expected how many processes share the records, such as "
            "3. They need not all be there, so there is no least number."
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


def _output(text: str, option: str = "--output") -> str:
    return check_output(_location(text), option)


def _location(text: str) -> str:
    """Return a URI as it is and a path made absolute, so that a job means the same anywhere."""
    parts = [os.path.expandvars(part.strip()) for part in str(text).split(",")]
    return ",".join(
        part
        if "://" in part or part.startswith("git@")
        # Not Path.absolute(): `..` has to go, for equal places to be equal texts.
        else os.path.abspath(Path(part).expanduser())  # noqa: PTH100
        for part in parts
        if part
    )

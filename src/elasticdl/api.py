"""Python interface of ElasticDL: `train`, `evaluate`, `predict` and `load`.

The command line and Python both call these functions with the same strings and therefore build the
same `Job`, which is then passed to an engine. Every value may be a string, because command lines
and SQL provide only strings.

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
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from elasticdl import plugins
from elasticdl.engines.engine import Reporter
from elasticdl.errors import (
    MissingExtraError,
    UnavailableError,
    UsageError,
    for_scripts,
)
from elasticdl.job_options import (
    checked_options,
    evaluation_job,
    location,
    prediction_job,
    trained_location,
    training_job,
)
from elasticdl.option_types import shows_options_of
from elasticdl.termination import ExitOnSigterm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from elasticdl.cluster.check import ClusterReport
    from elasticdl.cluster.images.build import ImageOptions
    from elasticdl.cluster.kubernetes_client import Kubernetes
    from elasticdl.cluster.options import ClusterOptions
    from elasticdl.cluster.states import RayJobState
    from elasticdl.engines.audit import AuditReport
    from elasticdl.engines.engine import Outcome
    from elasticdl.job import Job
    from elasticdl.option_types import EvaluateOptions, PredictOptions, TrainOptions


@shows_options_of(training_job)
@for_scripts
def train(
    *,
    data: Any,
    output: str | Path,
    model_def: str | None = None,
    model_zoo: str | Path | None = None,
    params: str | Mapping[str, Any] = "",
    validation_data: Any = None,
    reporter: Reporter | None = None,
    quiet: bool = False,
    **options: Unpack[TrainOptions],
) -> Outcome:
    """Train a model and write a TrainedModel into a folder.

    The same call with the same output resumes an interrupted run, and does nothing if the run was
    finished. Ctrl-C and SIGTERM end a run after a last checkpoint; after SIGTERM, the exit code is
    143. A SIGTERM handler that the script has installed takes precedence.

    Args:
        data: URI or glob of the training records, or a list of them. Or data in memory: a DataFrame
            of pandas or polars, an Arrow table, a Dataset of Hugging Face, a dict of arrays, arrays
            `(x, y)`, a `tf.data.Dataset`, or a PyTorch `Dataset` or `DataLoader`; see
            "Data in memory" in docs/guides/data.md.
        output: Folder for the TrainedModel, its checkpoints and events.
        model_def: Dotted name of the model: file, then class or function. For a saved model, give
            `spec` instead.
        model_zoo: Folder or git URL of the user's code; None means the prebuilt zoo.
        params: `"name=literal, ..."` or a mapping, for the model's constructor and the functions of
            its file.
        validation_data: Records to evaluate on while training, in the same forms as `data`.
        reporter: Reports progress to the user. None: one that suits the terminal.
        quiet: Print no progress and no notes.
        **options: Options of the job, by name; see `job_options.training_job`.

    Raises:
        ElasticDLError: The job cannot be completed; see `elasticdl.errors`.
    """

    def job_of(data: str, validation_data: str | None = None) -> Job:
        return training_job(
            data=data,
            validation_data=validation_data,
            output=output,
            model_def=model_def,
            model_zoo=model_zoo,
            params=params,
            **options,
        )

    return _run_on_data(
        job_of,
        {"data": data, "validation_data": validation_data},
        reporter,
        quiet=quiet,
        called=train,
    )


@shows_options_of(evaluation_job)
@for_scripts
def evaluate(
    *,
    trained_model: str | Path,
    data: Any,
    output: str | Path | None = None,
    reporter: Reporter | None = None,
    quiet: bool = False,
    **options: Unpack[EvaluateOptions],
) -> Outcome:
    """Evaluate a trained model on records; return the metrics and write them to a file.

    Args:
        trained_model: Folder that `train` wrote.
        data: URI or glob of the records, a list of them, or data in memory, as for `train`.
        output: JSON file for the metrics; None means `evaluation.json` in the trained model.
        reporter: Reports progress to the user. None: one that suits the terminal.
        quiet: Print no progress and no notes.
        **options: Options of the job, by name; see `job_options.evaluation_job`.

    Raises:
        ElasticDLError: The job cannot be completed; see `elasticdl.errors`.
    """
    named = checked_options(options, evaluation_job)

    def job_of(data: str) -> Job:
        return evaluation_job(trained_model=trained_model, data=data, output=output, **named)

    return _run_on_data(job_of, {"data": data}, reporter, quiet=quiet, called=evaluate)


@shows_options_of(prediction_job)
@for_scripts
def predict(
    *,
    trained_model: str | Path,
    data: Any,
    output: str | Path,
    reporter: Reporter | None = None,
    quiet: bool = False,
    **options: Unpack[PredictOptions],
) -> Outcome:
    """Write a trained model's predictions for records into files, one row per record.

    The rows have the order of the records. The key of each row names the file of its record and the
    number of the record in that file.

    Args:
        trained_model: Folder that `train` wrote; nothing else is needed.
        data: URI or glob of the records, a list of them, or data in memory, as for `train`.
        output: A file if it ends in `.recordio`, `.parquet` or `.csv`, else a folder of part files.
        reporter: Reports progress to the user. None: one that suits the terminal.
        quiet: Print no progress and no notes.
        **options: Options of the job, by name; see `job_options.prediction_job`.

    Raises:
        ElasticDLError: The job cannot be completed; see `elasticdl.errors`.
    """
    named = checked_options(options, prediction_job)

    def job_of(data: str) -> Job:
        return prediction_job(trained_model=trained_model, data=data, output=output, **named)

    return _run_on_data(job_of, {"data": data}, reporter, quiet=quiet, called=predict)


@for_scripts
def load(trained_model: str | Path, data: Any = None) -> Any:
    """Load a trained model as a Keras or PyTorch model with its weights, ready to be called.

    This runs the user's code that is stored in the trained model. A PyTorch model is returned in
    evaluation mode. The model's `predict` takes a DataFrame with the columns of the training data.
    The model's attribute `classes` has the names of the classes, or None if they are unknown; see
    "From Python" in docs/guides/predicting.md. The layers of a Keras model are trainable as in the
    model file, even if a callback froze some in training.

    Args:
        trained_model: Folder that `train` wrote.
        data: Records like those that the model was trained on, in any form that `train` accepts.
            Needed only if the shapes of the model's inputs do not follow from `data_schema()` or
            the training data, for example if they come from a `tf.data` pipeline.

    Raises:
        ElasticDLError: The model cannot be loaded; see `elasticdl.errors`.
    """
    from elasticdl.engines.load import load as load_model  # noqa: PLC0415 - imports take time
    from elasticdl.training import framework_settings  # noqa: PLC0415 - as above

    is_name = isinstance(data, (str, Path))
    with framework_settings.restored():
        return load_model(trained_location(trained_model), location(data) if is_name else data)


@for_scripts
def audit(output: str | Path) -> AuditReport:
    """Check for each epoch of a training run whether every record was trained on exactly once.

    Problems are returned in the report, not raised.

    Args:
        output: Folder that `train` writes to or has written.

    Raises:
        ElasticDLError: There is no log or no checkpoint, or the log is damaged.
    """
    from elasticdl.engines.audit import audit as audit_output  # noqa: PLC0415

    return audit_output(location(output))


def run(job: Job, reporter: Reporter | None = None) -> Outcome:
    """Run a job in this process, on workers, or on a plugin's engine, as the job specifies.

    Args:
        job: The job to run.
        reporter: Reports progress to the user. None: one that suits the terminal.

    Raises:
        ElasticDLError: The job cannot be completed; see `elasticdl.errors`.
    """
    # Imported only when needed, because these imports take time.
    from elasticdl.engines import in_process, inference, progress_bar  # noqa: PLC0415
    from elasticdl.training import framework_settings  # noqa: PLC0415

    reporter = progress_bar.for_stream() if reporter is None else reporter
    if job.engine is not None:
        return _run_on_plugin(job, reporter)
    engine = {
        "train": in_process.train,
        "evaluate": inference.evaluate,
        "predict": inference.predict,
    }[job.command]
    with framework_settings.restored():
        return engine(job, reporter) if job.workers is None else _run_on_workers(job, reporter)


def _run_on_data(
    job_of: Callable[..., Job],
    data: Mapping[str, Any],
    reporter: Reporter | None,
    *,
    quiet: bool,
    called: Callable[..., Outcome],
) -> Outcome:
    """Run a job on files, or on data in memory, which is stored in temporary files first.

    Args:
        job_of: Function that builds the job. It is called with the keywords in `data`, each with
            the names of files as its value.
        data: Keyword, such as `validation_data` -> what the user passed for it: names of files,
            data in memory, or None.
        reporter: Reports progress to the user. None: one that suits the terminal.
        quiet: Print no progress and no notes.
        called: The function that the user called. Notes to the user name its keywords instead of
            the command line's options.
    """
    from elasticdl.engines import progress_bar, stored_data  # noqa: PLC0415 - imports take time
    from elasticdl.training import framework_settings  # noqa: PLC0415 - as above

    if reporter is not None and not isinstance(reporter, Reporter):
        raise UsageError(
            f"reporter is an object of type {type(reporter).__name__}; expected an object with the "
            "methods started, advanced, note and ended, or None. quiet=True prints nothing."
        )
    if not isinstance(quiet, (bool, type(None))):
        raise UsageError(f"quiet is {quiet!r}; expected True or False.")
    if data["data"] is None:
        raise UsageError("data is None; expected the name of files, or data in memory.")
    given = {name: value for name, value in data.items() if value is not None}
    names = {name: stored_data.file_names(value) for name, value in given.items()}
    in_memory = {name: value for name, value in given.items() if names[name] is None}
    # Mistakes in other options are reported before data is stored.
    job = job_of(**{name: uri or "memory://" for name, uri in names.items()})
    if reporter is None:
        reporter = progress_bar.Silent() if quiet else progress_bar.for_stream()
    reporter = progress_bar.NamingKeywords(reporter, inspect.signature(called).parameters)
    # Data in memory may draw when it is stored.
    with (
        ExitOnSigterm(),
        framework_settings.restored(),
        stored_data.stored(job, in_memory, reporter) as complete,
    ):
        return run(complete, reporter)


def run_on_cluster(
    job: Job,
    options: ClusterOptions,
    *,
    context: str | None = None,
    patch: Mapping[str, Any] | None = None,
    detach: bool = False,
    build: ImageOptions | None = None,
    print_fn: Callable[[str], None] = print,
    with_page: bool = False,
) -> RayJobState | None:
    """Submit a job to a Kubernetes cluster and follow it to its end.

    Args:
        job: The job, with its number of workers.
        options: Image and machines to use.
        context: Context of the kubeconfig; None means the current one.
        patch: JSON merge patch for the RayJob (RFC 7396).
        detach: Return as soon as the job is submitted.
        build: Options of an image to build and push first, unless the job was already submitted.
            None: build no image.
        print_fn: Called with messages for the user.
        with_page: Serve the page of a training job on this machine while following it, and print
            its URL.

    Returns:
        The job's final state; None with `detach`.

    Raises:
        ElasticDLError: The job cannot be submitted or has failed; see `elasticdl.errors`.
    """
    from elasticdl.cluster.launch import launch  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.rayjob import manifest  # noqa: PLC0415 - as well
    from elasticdl.cluster.submit import is_kept  # noqa: PLC0415 - as well

    cluster = connect_cluster(context, options.namespace)
    if build is not None and not is_kept(job, cluster):
        # Errors in the job are reported before minutes are spent on its image.
        manifest(job, options, patch)
        _check_storage_packages(job)
        zoo = job.model.zoo if job.model is not None else None
        options = dataclasses.replace(options, image=build_image(zoo, build, print_fn))

    def beside(name: str) -> AbstractContextManager[object]:
        if not with_page or job.command != "train":
            return contextlib.nullcontext()
        from elasticdl.page.forwarded import ForwardedPage  # noqa: PLC0415 - not for `--help`

        return ForwardedPage(cluster, name, print_fn)

    return launch(
        job, options, cluster, patch=patch, detach=detach, print_fn=print_fn, beside=beside
    )


def _check_storage_packages(job: Job) -> None:
    """Check that the storage packages a job needs are installed here, so that its image has them.

    Raises:
        MissingExtraError: A package for the data or the output is not installed.
    """
    from elasticdl.data.stored_file import filesystem  # noqa: PLC0415 - imports take time

    names = (job.data, job.validation_data, job.output, job.trained_model)
    for uri in ",".join(name for name in names if name).split(","):
        if "://" in uri:
            filesystem(uri)


def connect_cluster(context: str | None = None, namespace: str | None = None) -> Kubernetes:
    """Connect to a Kubernetes cluster that the user's kubeconfig lists.

    Args:
        context: Context of the kubeconfig; None means the current one.
        namespace: Namespace to use; None means that of the context.

    Raises:
        UsageError: There is no kubeconfig, or it has no such context.
        MissingExtraError: The Kubernetes client is not installed.
    """
    with _kubernetes_client():
        from elasticdl.cluster.kubernetes_client import Kubernetes  # noqa: PLC0415 - imports the client
    return Kubernetes(context, namespace)


def check_cluster(
    job: Job, options: ClusterOptions, *, context: str | None = None, has_image: bool = True
) -> ClusterReport:
    """Check whether a job could be submitted to a Kubernetes cluster, without creating anything.

    Problems are returned in the report, not raised.

    Args:
        job: The job that would be submitted.
        options: Image and machines to use.
        context: Context of the kubeconfig; None means the current one.
        has_image: Whether `options` names a real image, which is then looked for in its registry.
            False if the user has not chosen one yet; then all but the image is checked.

    Raises:
        MissingExtraError: The Kubernetes client is not installed.
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
    """Create the options of an image that `build_image` or `run_on_cluster` is to build.

    Args:
        repository: Repository to push the image to.
        **options: Attributes of the `ImageOptions`, by name.

    Raises:
        UsageError: A value is invalid.
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
    model_zoo: str | None, options: ImageOptions, print_fn: Callable[[str], None] = print
) -> str:
    """Build and push the image of a model zoo; return its name with its digest.

    Args:
        model_zoo: Folder or git URL of the user's code; None means the prebuilt models only.
        options: How to build it, and where to push it.
        print_fn: Called with messages for the user.

    Raises:
        UsageError: Something to put into the image is missing, invalid, or not allowed in an image.
        UnavailableError: The container engine, an image registry or the package index cannot be
            reached.
        MissingExtraError: A package that building needs is not installed.
    """
    with _image_builder():
        from elasticdl.cluster.images import build  # noqa: PLC0415 - imports an extra
        from elasticdl.cluster.images.docker import DockerEngine  # noqa: PLC0415 - as well
    with contextlib.closing(DockerEngine()) as engine:
        return build.build_image(model_zoo, options, engine, print_fn)


def check_image(name: str) -> None:
    """Raise `UsageError` if an image named by its digest is no longer in its registry.

    The container engine is queried, because it has the user's credentials; without an engine, the
    registry is queried anonymously. If the answer is not definite, no error is raised: the cluster
    then finds out when it pulls the image.

    Raises:
        UsageError: The image no longer exists.
    """
    from elasticdl.cluster import registry  # noqa: PLC0415 - not for `--help`
    from elasticdl.cluster.images.names import is_pinned  # noqa: PLC0415 - as well

    if not is_pinned(name):
        return
    try:
        from elasticdl.cluster.images.docker import DockerEngine  # noqa: PLC0415 - imports an extra

        engine = DockerEngine()
    except (ModuleNotFoundError, UnavailableError, UsageError):
        registry.check_is_there(name)
        return
    with contextlib.closing(engine):
        engine.check_is_there(name)


def recorded_image(trained_model: str) -> str:
    """Return the name of the image in which a model was trained, with its digest if known.

    Evaluation and prediction on a cluster use the same image.

    Args:
        trained_model: The model's folder, as a local path or a URI.

    Raises:
        UsageError: The model was trained without an image.
        OutputError: There is no trained model.
    """
    from elasticdl.artifacts.trained_model import load_trained_model  # noqa: PLC0415
    from elasticdl.cluster.images.names import recorded  # noqa: PLC0415 - not for `--help`

    model = load_trained_model(location(trained_model))
    return recorded(model.description.docker_commit_id, trained_model)


@contextlib.contextmanager
def _image_builder() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in {"docker", "packaging", "pathspec"}:
            raise MissingExtraError(error.name, "kubernetes", "Building an image") from error
        raise


def _run_on_plugin(job: Job, reporter: Reporter) -> Outcome:
    from elasticdl.engines import run as training_run  # noqa: PLC0415 - imports take time

    known = plugins.names("engines")
    if job.engine is None or job.engine not in known:
        raise UsageError(
            f"--engine={job.engine}: no installed package has an engine of this name. "
            + (
                f"Installed engines: {', '.join(known)}."
                if known
                else "No engine is installed as a plugin."
            )
            + " Without --engine, a job trains in this process, or on workers with --num_workers."
        )
    return training_run.train(job, reporter, plugins.load("engines", job.engine))


def _run_on_workers(job: Job, reporter: Reporter) -> Outcome:
    try:
        from elasticdl.engines.elastic import controller, inference  # noqa: PLC0415 - imports Ray
    except ModuleNotFoundError as error:
        if error.name in {"ray", "torch", "torchft"}:
            raise MissingExtraError(error.name, "elastic", "Using --num_workers") from error
        raise
    engine = {
        "train": controller.train,
        "evaluate": inference.evaluate,
        "predict": inference.predict,
    }
    return engine[job.command](job, reporter)

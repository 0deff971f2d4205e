"""Tracks a job as one MLflow run, on any MLflow server or database.

The run's id is stored in the job's output (`tracking.json`), so the next attempt continues the same
run. Every call passes the run's id. MLflow's active run is never set: it belongs to the
user's code and its autologging. MLflow parameters are immutable: the first value stays, and a
different value in a later attempt becomes a tag, such as `attempt.2.num_epochs`.

Metrics are logged by step. The metric `epoch` counts the finished epochs and is logged together
with their metrics; it shows which epochs have been logged already.

Callers: `create.py`. This is the only file that imports mlflow, which takes seconds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import scratch
from elasticdl.errors import MissingExtraError, OutputError, TrackingError
from elasticdl.job import without_password
from elasticdl.tracking.address import database_path, tracking_uri
from elasticdl.tracking.names import MetricNames, allowed
from elasticdl.tracking.stored_run import StoredRun, load_stored_run
from elasticdl.tracking.tracker import Kind, MetricPoint, RunStatus

if TYPE_CHECKING:
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.job import Tracking
    from elasticdl.tracking.tracker import TrackedAttempt

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    # Otherwise MLflow prints the address, including the password.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # `follow.py` has its own retries. At the start, a wrong address must not take minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    # The jitter uses Python's global random generator, which belongs to the user's code.
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
}
_EPOCH = "epoch"
_STEP_LOSS = "step_loss"
_RECORDS_PER_S = "records_per_s"
_RENAMED_TAG = "elasticdl.metric."
_ERROR_TAG = "error"
# MLflow's limits for the size of a batch and the length of a value.
_METRICS_AT_ONCE = 1000
_PARAMS_AT_ONCE = 100
_LONGEST_PARAM = 6000
_LONGEST_TAG = 5000
_MARK_TAG = "elasticdl.mark"
# Without this tag, MLflow's pages display an experiment as one of language models.
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
_LONG_PARAMS_FILE = "long_params.json"
# Permanent errors: MLflow would reject a retry as well.
_REFUSALS = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST"}


class MlflowTracker:
    """Tracker for MLflow; see `tracker.Tracker`.

    Args:
        tracking: The address, and the names of the experiment and the run.
        folder: The job's output, which this process has locked.
        note: Function (message) that shows it to the user.

    Raises:
        MissingExtraError: MLflow, or a package that it needs for a database, is not installed.
        TrackingError: The address is not supported, or the database cannot be opened.
    """

    def __init__(
        self, tracking: Tracking, folder: OutputFolder, note: Callable[[str], None]
    ) -> None:
        assert tracking.uri is not None  # noqa: S101 - set if MLflow is requested
        self._uri = tracking_uri(tracking.uri)
        self._tracking, self._folder, self._note = tracking, folder, note
        self.where = f"MLflow at {without_password(self._uri)}"
        self._client = self._connect()
        self._kept: StoredRun | None = None
        self._run_id = self._experiment_id = ""
        self._sent: dict[str, set[int]] = {}
        self._sent_epochs: set[int] = set()
        self._names = MetricNames()
        self._tags_logged: set[str] = set()

    def start(self, attempt: TrackedAttempt) -> None:
        """Start the run of a job, or continue its existing one.

        Raises:
            TrackingError: The service cannot be reached, or rejects the run.
        """
        with self._reaching(at_start=True):
            self._experiment_id = self._find_experiment()
            run = self._find_run(attempt.job_id)
            if run is None:
                run = self._begin_run(attempt)
            else:
                self._client.update_run(run.info.run_id, "RUNNING", self._tracking.run_name)
                if _ERROR_TAG in run.data.tags:
                    self._client.delete_tag(run.info.run_id, _ERROR_TAG)
            self._run_id = run.info.run_id
            mark = run.data.tags.get(_MARK_TAG, "")
            self._kept = self._keep(attempt, run_id=self._run_id, mark=mark)
            self._read_logged(run)
            tags = {"attempt": str(attempt.number), **attempt.tags}
            tags |= self._log_params(run, attempt)
            self._log_tags(tags)
        self._note(
            f"Tracked in {self.where}: experiment {self._tracking.experiment!r}, run "
            f"{self._tracking.run_name or attempt.run_name!r} ({self._run_id})."
        )

    def point(self, point: MetricPoint) -> None:
        """Log the metrics of a point; see `tracker.Tracker`.

        Raises:
            TrackingError: The server does not answer.
            ValueError: The server rejects it permanently.
        """
        with self._reaching():
            match point.kind:
                case Kind.EPOCH:
                    # After workers died, an epoch may be repeated with other steps.
                    known = self._sent_epochs
                    if point.epoch not in known:
                        self._log_metrics(point, self._named(point.training), _EPOCH)
                        known.add(point.epoch)
                case Kind.EVALUATION:
                    validation = {f"val_{name}": v for name, v in point.validation.items()}
                    self._log_metrics(point, self._named(validation))
                case Kind.REPORT:
                    self._log_metrics(point, self._named(point.validation))
                case Kind.STEPS:
                    # An attempt reports at other steps than the previous one. Only later steps are
                    # logged; otherwise two curves would be mixed.
                    if point.step > max(self._sent.get(_STEP_LOSS, ()), default=-1):
                        values = {_STEP_LOSS: point.training["loss"]}
                        if _RECORDS_PER_S in point.training:
                            values[_RECORDS_PER_S] = point.training[_RECORDS_PER_S]
                        self._log_metrics(point, values)

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run; see `tracker.Tracker`.

        Raises:
            TrackingError: The server does not answer.
            ValueError: The server rejects them permanently.
        """
        with self._reaching():
            self._log_tags(values)

    def artifact(self, path: Path, folder: str = "") -> None:
        """Upload a file, or the contents of a folder; see `tracker.Tracker`.

        Raises:
            TrackingError: The server does not answer.
            ValueError: The server rejects it permanently, or there is no such file.
        """
        with self._reaching():
            if path.is_dir():
                self._client.log_artifacts(self._run_id, str(path), folder or None)
            elif path.exists():
                self._client.log_artifact(self._run_id, str(path), folder or None)
            else:
                raise ValueError(f"{path}: there is no such file to keep.")

    def end(self, status: RunStatus, error: str = "") -> None:
        """Set the run's status; see `tracker.Tracker`.

        Raises:
            TrackingError: The server does not answer.
        """
        with self._reaching():
            if error:
                self._log_tags({_ERROR_TAG: error})
            self._client.set_terminated(self._run_id, status.value)
        if self._kept is not None:
            self._kept = dataclasses.replace(self._kept, status=status.value)
            self._kept.write(self._folder)

    # --- the run --------------------------------------------------------------------------

    def _connect(self) -> Any:
        try:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            import mlflow.tracking  # noqa: PLC0415 - takes seconds

            database = database_path(self._uri)
            with self._reaching(at_start=True):
                if database is not None and not database.exists():
                    _make_database(database)
                return mlflow.tracking.MlflowClient(self._uri)
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), "tracking", "--tracking_uri") from error
        except OSError as error:
            raise self._unreachable(error) from error

    def _find_experiment(self) -> str:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

        name = self._tracking.experiment
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            database = database_path(self._uri)
            # Otherwise MLflow would store files below the current working directory.
            location = None if database is None else (database.parent / "mlruns").as_uri()
            try:
                return str(self._client.create_experiment(name, location, _EXPERIMENT_TAGS))
            except MlflowException:
                # Another process may have created it first.
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        if experiment.lifecycle_stage != "active":
            raise TrackingError(
                f"{self.where}: the experiment {name!r} was deleted. Restore it there, or name "
                "another one with --experiment."
            )
        return str(experiment.experiment_id)

    def _find_run(self, job_id: str) -> Any:
        """Find the MLflow run of the job's earlier attempts; None if there is none to continue."""
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - as above

        kept = load_stored_run(self._folder)
        if kept is None or kept.job_id != job_id:
            return None
        uri, experiment = without_password(self._uri), self._tracking.experiment
        if (kept.uri, kept.experiment) != (uri, experiment):
            self._note(
                f"This job was tracked as run {kept.run_id} in experiment {kept.experiment!r} of "
                f"{kept.uri}; here it has a new run, with its history so far."
            )
            return None
        if not kept.run_id:
            # The process that created the run may have died before it stored the id.
            mark = f"tags.`{_MARK_TAG}` = '{kept.mark}'"
            return next(iter(self._client.search_runs([self._experiment_id], mark)), None)
        try:
            run = self._client.get_run(kept.run_id)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            run = None
        if run is None or run.info.lifecycle_stage != "active":
            self._note(
                f"Run {kept.run_id} was deleted in {self.where}; the job has a new one, with its "
                "history so far."
            )
            return None
        return run

    def _keep(self, attempt: TrackedAttempt, *, run_id: str, mark: str) -> StoredRun:
        """Record the job's MLflow run in its output, so that later attempts continue this run.

        Args:
            attempt: Description of this attempt at the job.
            run_id: MLflow's id of the run; empty before MLflow has created it.
            mark: A unique tag of the run, by which it is found if this process dies before it has
                stored the id.
        """
        kept = StoredRun(
            job_id=attempt.job_id,
            uri=without_password(self._uri),
            experiment=self._tracking.experiment,
            run_id=run_id,
            mark=mark,
        )
        kept.write(self._folder)
        return kept

    def _begin_run(self, attempt: TrackedAttempt) -> Any:
        mark = uuid.uuid4().hex
        self._keep(attempt, run_id="", mark=mark)
        tags = {"mlflow.source.name": "elasticdl train", "mlflow.source.type": "LOCAL"}
        tags[_MARK_TAG] = mark
        with contextlib.suppress(OSError, KeyError):  # the account may have no name
            tags["mlflow.user"] = getpass.getuser()
        if attempt.commit:
            tags["mlflow.source.git.commit"] = attempt.commit
        return self._client.create_run(
            self._experiment_id,
            tags=tags,
            run_name=self._tracking.run_name or attempt.run_name,
        )

    def _read_logged(self, run: Any) -> None:
        self._sent = {
            key: {metric.step for metric in self._client.get_metric_history(self._run_id, key)}
            for key in run.data.metrics
        }
        self._sent_epochs = set()
        if _EPOCH in run.data.metrics:
            history = self._client.get_metric_history(self._run_id, _EPOCH)
            self._sent_epochs = {int(metric.value) - 1 for metric in history}
        known = {
            key.removeprefix(_RENAMED_TAG): original
            for key, original in run.data.tags.items()
            if key.startswith(_RENAMED_TAG)
        }
        self._names = MetricNames(known, kept=(_EPOCH, _STEP_LOSS, _RECORDS_PER_S))
        self._tags_logged = {_RENAMED_TAG + name for name in known}

    # --- what is logged -------------------------------------------------------------------

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        names = self._names.of(values)
        new = {_RENAMED_TAG + name: was for name, was in self._names.renamed.items()}
        new_tags = {tag: was for tag, was in new.items() if tag not in self._tags_logged}
        if new_tags:
            # Before the metric: if the attempt dies in between, no metric lacks its original name.
            self._log_tags(new_tags)
            self._tags_logged |= new_tags.keys()
        return {names[original]: value for original, value in values.items()}

    def _log_metrics(self, point: MetricPoint, values: Mapping[str, float], *epoch: str) -> None:
        from mlflow.entities import Metric  # noqa: PLC0415 - as above

        new = {
            key: value for key, value in values.items() if point.step not in self._sent.get(key, ())
        }
        if epoch:
            # Last, so that a logged epoch is complete.
            new[_EPOCH] = point.epoch + 1
        metrics = [Metric(k, v, int(point.time * 1000), point.step) for k, v in new.items()]
        for some in _cut(metrics, _METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=some)
            for metric in some:
                self._sent.setdefault(metric.key, set()).add(point.step)

    def _log_tags(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag  # noqa: PLC0415 - as above

        tags = [RunTag(allowed(k), _shortened(str(v), _LONGEST_TAG)) for k, v in values.items()]
        for some in _cut(tags, _PARAMS_AT_ONCE):
            self._client.log_batch(self._run_id, tags=some)

    def _log_params(self, run: Any, attempt: TrackedAttempt) -> dict[str, str]:
        """Log the attempt's parameters that the run does not have yet.

        Parameters too long for MLflow are shortened, and also uploaded in full as a file.

        Returns:
            Tags for the parameters that the run has with another value: `attempt.N.NAME` -> the
            attempt's value.
        """
        from mlflow.entities import Param  # noqa: PLC0415 - as above

        names = MetricNames().of(attempt.params)
        asked = {names[name]: str(value) for name, value in attempt.params.items()}
        short = {name: _shortened(value, _LONGEST_PARAM) for name, value in asked.items()}
        there = run.data.params
        new = [Param(name, value) for name, value in short.items() if name not in there]
        for some in _cut(new, _PARAMS_AT_ONCE):
            self._client.log_batch(self._run_id, params=some)
        long = {name: value for name, value in asked.items() if short[name] != value}
        if long:
            self._log_text(_LONG_PARAMS_FILE, json.dumps(long, indent=2))
        return {
            f"attempt.{attempt.number}.{name}": value
            for name, value in short.items()
            if there.get(name, value) != value
        }

    def _log_text(self, name: str, text: str) -> None:
        with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
            path = Path(folder, name)
            path.write_text(text, encoding="utf-8")
            self._client.log_artifact(self._run_id, str(path))

    # --- errors ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def _reaching(self, *, at_start: bool = False) -> Iterator[None]:
        """Context manager that converts MLflow's errors to `TrackingError` or `ValueError`.

        A `ValueError` means that MLflow rejected the data, so that a retry is useless. With
        `at_start`, while a run is being started, every error becomes a `TrackingError`.
        """
        try:
            yield
        except (OutputError, ModuleNotFoundError):
            raise
        except Exception as error:
            # Any type, because database drivers raise their own.
            is_refusal = isinstance(error, ValueError) or (
                getattr(error, "error_code", None) in _REFUSALS
            )
            if is_refusal and not at_start:
                raise ValueError(
                    f"{self.where} rejected the data: {_first_line(error)}."
                ) from error
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> TrackingError:
        return TrackingError(
            f"{self.where} cannot be used: {_first_line(error)}. Check --tracking_uri, that the "
            "server is running, and that you have write access."
        )


def _make_database(database: Path) -> None:
    """Create an empty MLflow database, which appears at its path only when it is complete.

    MLflow creates its tables one by one, and cannot use a file in which some are missing. A process
    killed in between would leave a file that no later attempt can use.
    """
    import mlflow.tracking  # noqa: PLC0415 - as above

    database.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=database.parent) as folder:
        new = Path(folder, database.name)
        mlflow.tracking.MlflowClient(f"sqlite:///{new}").search_experiments(max_results=1)
        try:
            os.link(new, database)
        except FileExistsError:
            # Another process created it first.
            return
        except OSError:
            # The file system does not support links.
            new.rename(database)


def _cut(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _first_line(error: Exception) -> str:
    # Libraries quote the address, which may contain a password.
    text = without_password(str(error)).strip()
    # For a failed request, the actual cause is nested deep in the message.
    cause = re.search(r'Caused by \w+\("(?:[^"]*?\): )?([^"]*)"\)', text)
    lines = [cause[1]] if cause else text.splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__

"""Job: one request to train, evaluate or predict, as plain data.

The command line, Python and SQL all build the same `Job`; an engine is a function of a `Job`
and a `ModelDefinition`. A `Job` is plain data: it can be printed (`--dry_run`), stored in the
output folder (so that a second run can decide whether it may resume) and sent to a worker.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Command = Literal["train", "evaluate", "predict"]
PredictionFormat = Literal["recordio", "parquet", "csv"]
BestMode = Literal["auto", "min", "max"]
# In ascending order.
Priority = Literal["low", "high"]
# Environment variables of the pods of a job on a cluster: the name of its RayJob, and its image.
RAYJOB_VARIABLE, IMAGE_VARIABLE = "ELASTICDL_JOB", "ELASTICDL_IMAGE"
# Environment variables of the head's pod: the port of the job page in it, and the page's token.
PAGE_PORT_VARIABLE, PAGE_TOKEN_VARIABLE = "ELASTICDL_PAGE_PORT", "ELASTICDL_PAGE_TOKEN"


@dataclass(frozen=True)
class ModelReference:
    """Reference to a model, in the user's words.

    Attributes:
        zoo: A folder, or the URL of a git repository (`URL@commit`, `URL#subfolder`); None is
            the prebuilt zoo.
        model_def: Dotted name: file, then class or function.
        dialect: Name of the dialect. None: infer it from the file.
        params: Values by name, as given with `--params`.
        overrides: Name of a function of the model file (`input_fn`, `loss`, `optimizer`,
            `eval_metrics_fn`) -> dotted name of its replacement; for a session, key of the config
            -> dotted name of a component.
        config_file: The config file that `params` and `overrides` were read from, named in errors;
            None if they were given on the command line or in a call.
    """

    zoo: str | None
    model_def: str
    dialect: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    config_file: str | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """Options that determine how a job trains, evaluates and saves checkpoints.

    Attributes:
        num_epochs: Number of passes over the training data.
        minibatch_size: Examples in one step; `batch_size` is another name of the option.
        seed: Determines initial weights, order of records and dropout. None is the default, 0: no
            value gives a random seed.
        shuffle: Whether the order of records changes each epoch.
        max_steps: Stop after N steps; 0 means no limit.
        evaluation_steps: Evaluate every N steps; 0 means once per epoch.
        checkpoint_steps: Checkpoint every N steps; 0 means automatic, taking at most 1 % of the
            training time.
        keep_checkpoint_max: Number of checkpoints to keep, at least 2; the best one is kept in
            addition.
        deterministic: Whether the same job gives the same bits on the same machine.
        global_batch_size: Examples in one update, summed over steps and workers; a multiple of
            `minibatch_size`. 0: each step is an update, with any number of workers.
        best_metric: The metric that decides the best checkpoint: a validation metric (`val_loss`),
            or a training metric at an epoch's end (`loss`).
        best_mode: Whether the lowest (`min`) or the highest (`max`) value is the best. `auto` uses
            the direction that the metric itself defines; if it defines none, its name decides.
        restore_best_weights: Whether the trained model has the weights of the best checkpoint, not
            of the last one.
    """

    num_epochs: int = 1
    minibatch_size: int = 64
    seed: int = 0
    shuffle: bool = True
    max_steps: int = 0
    evaluation_steps: int = 0
    checkpoint_steps: int = 0
    keep_checkpoint_max: int = 3
    deterministic: bool = True
    global_batch_size: int = 0
    best_metric: str = "val_loss"
    best_mode: BestMode = "auto"
    restore_best_weights: bool = False


@dataclass(frozen=True)
class Workers:
    """How many worker processes train, and how failures are handled.

    Attributes:
        min: Training needs at least this many workers.
        max: Number of workers to keep running; one that dies is replaced.
        spare: Additional workers kept ready, so that a replacement is available at once.
        ray_address: A Ray cluster. None: start Ray on this machine.
        give_up_after_s: The job fails if it has not trained for this long.
        heartbeat_timeout_s: The other workers stop waiting for a worker that has sent no heartbeat
            for this long.
        join_timeout_s: How long the other workers wait for one that is alive but late, counted from
            when the first of them begins to wait. It should exceed the duration of a step. If it is
            shorter, workers that are still computing are left out of steps, a different one each
            time.
        batch_timeout_s: A worker that computes on one batch for this long is considered hung and
            replaced. This timeout and the next one are minimums: a batch, or a sum over the
            workers, may take ten times the slowest one seen so far.
        sum_timeout_s: A sum over the workers (all-reduce) that takes this long is retried.
        transfer_timeout_s: The transfer of the state to a joining worker is abandoned if nothing
            has arrived for this long.
        priority: While a job of higher priority on the same cluster waits for workers, this one
            shrinks to its minimum.
        skip_bad_records: Whether training continues without the records of a batch that has
            killed several workers. Otherwise the job fails and lists them.
        gpus: GPUs reserved for each worker.
    """

    min: int
    max: int
    spare: int = 0
    ray_address: str | None = None
    give_up_after_s: float = 600.0
    heartbeat_timeout_s: float = 1.0
    join_timeout_s: float = 10.0
    batch_timeout_s: float = 120.0
    sum_timeout_s: float = 60.0
    transfer_timeout_s: float = 60.0
    priority: Priority = "low"
    skip_bad_records: bool = False
    gpus: int = 0


@dataclass(frozen=True)
class Tracking:
    """How a training job is tracked, in addition to its own event log.

    Attributes:
        uri: An MLflow store: a server, a database, or a folder, which gets a SQLite database;
            None for no MLflow.
        experiment: Name of the MLflow experiment; it is created if it does not exist.
        run_name: Name of the run; None is the name of the output.
        tensorboard: Whether curves for TensorBoard are written to `logs/` in the output.
        tags: Tags of the run, in addition to those every run has.
        params: Parameters of the run by name, in addition to those of the job.
    """

    uri: str | None = None
    experiment: str = "elasticdl"
    run_name: str | None = None
    tensorboard: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CentralPrivacy:
    """Central differential privacy: a bound on each party's influence, and noise to hide it.

    Attributes:
        clipping_norm: Largest norm of a party's update, more than 0. A larger update is scaled down
            to it.
        noise_multiplier: Standard deviation of the noise on the sum of the updates, as a multiple
            of the clipping norm.
    """

    clipping_norm: float
    noise_multiplier: float


@dataclass(frozen=True)
class Federation:
    """How parties train one model without sharing their data.

    Attributes:
        num_rounds: Number of rounds.
        fusion: Name of the strategy, from `engines/federated/strategies/fusions.py`.
        fusion_params: Settings of the strategy, by name.
        num_parties: Number of parties.
        quorum: A round needs valid answers from this share of the parties: more than 0, at most 1.
        max_timeout_s: How long a round waits for answers. None: wait for all.
        join_timeout_s: How long the job waits until `num_parties` parties have joined.
        num_local_epochs: Number of local epochs of each party in a round.
        termination_accuracy: Training ends when the global model reaches this accuracy.
        central_privacy: Differential privacy that hides each party's influence on the model; None
            for none.
    """

    num_rounds: int
    fusion: str = "fedavg"
    fusion_params: Mapping[str, Any] = field(default_factory=dict)
    num_parties: int = 1
    quorum: float = 1.0
    max_timeout_s: float | None = None
    join_timeout_s: float = 600.0
    num_local_epochs: int = 1
    termination_accuracy: float | None = None
    central_privacy: CentralPrivacy | None = None


@dataclass(frozen=True)
class Job:
    """One request to train, evaluate or predict.

    Attributes:
        command: `train`, `evaluate` or `predict`.
        data: URI or glob of the records.
        output: Folder or file for the result.
        model: Reference to the model; None if the job uses `trained_model` instead.
        trained_model: Folder of a TrainedModel, for evaluate and predict.
        validation_data: Records to evaluate on while training.
        validation_split: Share of the records of `data` that is held out for validation, more than
            0 and less than 1. None: hold out no records. The command evaluate evaluates only the
            records that are held out.
        training: How to train, evaluate and save checkpoints.
        prediction_format: File format of the predictions.
        workers: Worker processes that run the job. None: run it in this process.
        tracking: Tracking options; None for no tracking.
        report: Folder for a report on each evaluated record; None for no report.
        federation: How parties train together without sharing their data; None if all data has
            one owner.
        engine: Name of an engine from a plugin (docs/guides/plugins.md). None: a built-in one.
        columns: Columns of the input that are copied into its predictions.
    """

    command: Command
    data: str
    output: str | None
    model: ModelReference | None = None
    trained_model: str | None = None
    validation_data: str | None = None
    validation_split: float | None = None
    training: TrainingOptions = TrainingOptions()
    prediction_format: PredictionFormat = "recordio"
    workers: Workers | None = None
    tracking: Tracking | None = None
    report: str | None = None
    federation: Federation | None = None
    engine: str | None = None
    columns: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """Short name of the job, equal for all runs of the same job into the same output."""
        text = json.dumps([self.identity(), self.output], sort_keys=True)
        return f"{self.command}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_json(self) -> str:
        """Convert the job to JSON with sorted keys, so that equal jobs yield equal strings.

        The result is printed, and stored in outputs that may be shared, so a password in the
        address of a tracking server is masked.
        """
        values = dataclasses.asdict(self)
        if self.tracking is not None and self.tracking.uri is not None:
            values["tracking"]["uri"] = without_password(self.tracking.uri)
        return json.dumps(values, sort_keys=True, indent=2)

    @staticmethod
    def from_json(text: str) -> Job:
        """Parse a job from the JSON that `to_json` wrote."""
        values = json.loads(text)
        if values["model"] is not None:
            values["model"] = ModelReference(**values["model"])
        values["training"] = TrainingOptions(**values["training"])
        if values["workers"] is not None:
            values["workers"] = Workers(**values["workers"])
        if values["tracking"] is not None:
            values["tracking"] = Tracking(**values["tracking"])
        if values["federation"] is not None:
            privacy = values["federation"]["central_privacy"]
            if privacy is not None:
                values["federation"]["central_privacy"] = CentralPrivacy(**privacy)
            values["federation"] = Federation(**values["federation"])
        values["columns"] = tuple(values.get("columns", ()))
        return Job(**values)

    def identity(self) -> dict[str, Any]:
        """Return the values that two runs must share to count as runs of the same job.

        Duration, intervals, number of workers, engine and tracking may differ between them: a job
        can be resumed with more epochs, and on more machines.
        """
        values = dataclasses.asdict(self)
        del values["output"], values["workers"], values["tracking"], values["engine"]
        for free in (
            "num_epochs",
            "max_steps",
            "evaluation_steps",
            "checkpoint_steps",
            "keep_checkpoint_max",
        ):
            del values["training"][free]
        if values["federation"] is not None:
            for free in ("num_rounds", "max_timeout_s", "join_timeout_s"):
                del values["federation"][free]
        return values


def without_password(uri: str) -> str:
    """Mask the secrets in a URI, or in all URIs within a string, so that it may be shown.

    Example:
        >>> without_password("postgresql://me:secret@host/runs")
        'postgresql://me:***@host/runs'
        >>> without_password("https://token@host/path?sslpassword=secret&mode=x")
        'https://***@host/path?sslpassword=***&mode=x'
        >>> without_password("sqlite:////home/me/mlflow.db")
        'sqlite:////home/me/mlflow.db'
        >>> without_password("No answer from http://me:secret@host:5000/api: refused")
        'No answer from http://***@host:5000/api: refused'
    """
    # In a web address the user name may be the secret: a token has no password.
    shown = re.sub(r"(https?://)[^/?#\s]*@", r"\1***@", uri)
    shown = re.sub(r"(\b[\w+.-]+://[^/?#:@\s]*:)[^/?#\s]*@", r"\1***@", shown)
    return re.sub(r"(?i)([?&][^=&\s]*(?:password|token|secret)[^=&\s]*=)[^&\s]*", r"\1***", shown)

"""One request to train, evaluate or predict, as a value.

The command line, Python and SQL all build the same `Job`; an engine is a function of a `Job`
and a `ModelDefinition`. A `Job` is plain data: it can be printed (`--dry_run`), written into
the output folder (that is how a second run knows that it may resume) and sent to a worker.
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
# Lowest first.
Priority = Literal["low", "high"]
# Environment variables of the pods of a job on a cluster: the name of its RayJob, and its image.
RAYJOB_VARIABLE, IMAGE_VARIABLE = "ELASTICDL_JOB", "ELASTICDL_IMAGE"
# Environment variables of the head's pod: where in it the job page listens, and for which token.
PAGE_PORT_VARIABLE, PAGE_TOKEN_VARIABLE = "ELASTICDL_PAGE_PORT", "ELASTICDL_PAGE_TOKEN"


@dataclass(frozen=True)
class ModelReference:
    """Which model, in the user's words.

    Attributes:
        zoo: A folder, or the URL of a git repository (`URL@commit`, `URL#subfolder`); None is
            the prebuilt zoo.
        model_def: Dotted name: file, then class or function.
        dialect: Name of the dialect; None lets the file decide.
        params: Values by name, as given with `--params`.
        overrides: Contract function -> dotted name of what replaces it
            (`input_fn`, `loss`, `optimizer`, `eval_metrics_fn`); of a session, key of the config
            -> dotted name of a component.
        config_file: Where params and overrides stand, for errors; None is the command line.
    """

    zoo: str | None
    model_def: str
    dialect: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    config_file: str | None = None


@dataclass(frozen=True)
class TrainingOptions:
    """How to train.

    Attributes:
        num_epochs: How often each record is used.
        minibatch_size: Examples in one step.
        seed: Decides initial weights, order of records and dropout.
        shuffle: Whether the order of records changes each epoch.
        max_steps: Stop after so many steps; 0 for no limit.
        evaluation_steps: Evaluate each so many steps; 0 is once an epoch.
        checkpoint_steps: Checkpoint each so many steps; 0 is by time, at most 1 % of it.
        keep_checkpoint_max: How many checkpoints stay (2 at least), beside the best one.
        deterministic: Whether the same job gives the same bits on the same machine.
        global_batch_size: Examples in one update, summed up over steps and workers; a multiple
            of `minibatch_size`. 0 makes an update of each step, whoever takes part in it.
        best_metric: Which checkpoint is the best: by a metric of the validation (`val_loss`), or
            of the training at an epoch's end (`loss`).
        best_mode: Whether the lowest (`min`) or the highest (`max`) value is the best; `auto` asks
            the metric, then its name.
        restore_best_weights: The trained model is that of the best checkpoint, not the last.
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
    """How many processes train, and how they are kept.

    Attributes:
        min: Fewer than these do not train.
        max: So many are kept up; one that dies is replaced.
        spare: Further ones that stand ready, so that a replacement is there at once.
        ray_address: A Ray cluster; None starts Ray on this machine.
        give_up_after_s: The job fails when nobody has trained for so long.
        heartbeat_timeout_s: A worker silent for so long is not waited for.
        join_timeout_s: How long the others wait for a living worker that is late. If a step takes
            longer, somebody is left out of each, by turns: the time counts from the first who
            waits, and who was left out has waited a whole step.
        batch_timeout_s: A worker that computes on one batch for so long is taken for hung and
            replaced. This and the next are the least: a batch, or a sum over the workers, may take
            ten times the slowest one seen so far.
        sum_timeout_s: A sum over the workers that takes so long is tried again.
        transfer_timeout_s: A state that is on its way to a worker that joins is given up when
            nothing of it has arrived for so long.
        priority: While a job of higher priority on the same cluster waits for workers, this one
            makes do with its least.
        skip_bad_records: The records of a batch that kills one worker after the other are left
            out from then on; else the job ends with their names.
        gpus: GPUs that each worker gets to itself.
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
    """Where people follow a training, beside its own log of events.

    Attributes:
        uri: An MLflow store: a server, a database, or a folder, which gets a SQLite database;
            None for no MLflow.
        experiment: Name of the MLflow experiment; it is made if it is not there.
        run_name: What the run is called; None is the name of the output.
        tensorboard: Whether curves for TensorBoard are written to `logs/` in the output.
        tags: Tags of the run, besides those every run has.
        params: Parameters of the run, besides those of the job, by name.
    """

    uri: str | None = None
    experiment: str = "elasticdl"
    run_name: str | None = None
    tensorboard: bool = False
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CentralPrivacy:
    """How far one party can move a global model, and how much noise hides it.

    Attributes:
        clipping_norm: The longest change of a party that counts in full; more than 0.
        noise_multiplier: Standard deviation of the noise, in parts of a party's longest one.
    """

    clipping_norm: float
    noise_multiplier: float


@dataclass(frozen=True)
class Federation:
    """How parties that keep their data train one model.

    Attributes:
        num_rounds: How often the parties' models become one.
        fusion: How they do: a name of `engines/federated/aggregation.py`.
        fusion_params: Its settings by name.
        num_parties: How many there are.
        quorum: Share of them whose valid answers a round needs, more than 0 and at most 1.
        max_timeout_s: How long a round waits for answers; None waits for all.
        join_timeout_s: How long a training waits for so many parties to be there.
        num_local_epochs: How often a party uses each of its records in a round.
        termination_accuracy: The training ends when the global model is as accurate as this.
        central_privacy: What keeps a party's update from showing in the model; None for nothing.
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
    """One request.

    Attributes:
        command: What is asked for.
        data: URI or glob of the records.
        output: Where the result goes.
        model: Which model; None where `trained_model` says it.
        trained_model: A TrainedModel's folder, for evaluate and predict.
        validation_data: Records to evaluate on while training.
        training: How to train.
        prediction_format: What part files of predictions are.
        workers: How many processes train; None trains in this one.
        tracking: Where people follow it; None for nowhere.
        report: Folder for a report on each record that is evaluated; None makes none.
        federation: Who trains together without showing each other data; None is one owner.
    """

    command: Command
    data: str
    output: str | None
    model: ModelReference | None = None
    trained_model: str | None = None
    validation_data: str | None = None
    training: TrainingOptions = TrainingOptions()
    prediction_format: PredictionFormat = "recordio"
    workers: Workers | None = None
    tracking: Tracking | None = None
    report: str | None = None
    federation: Federation | None = None

    @property
    def id(self) -> str:
        """A short name: equal for runs of one job into one output, and for nothing else."""
        text = json.dumps([self.identity(), self.output], sort_keys=True)
        return f"{self.command}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def to_json(self) -> str:
        """Return the job as JSON with sorted keys, so that equal jobs are equal texts.

        It is printed, and lies in outputs that people share: a password in the address of a
        tracking server is not in it.
        """
        values = dataclasses.asdict(self)
        if self.tracking is not None and self.tracking.uri is not None:
            values["tracking"]["uri"] = without_password(self.tracking.uri)
        return json.dumps(values, sort_keys=True, indent=2)

    @staticmethod
    def from_json(text: str) -> Job:
        """Return the job `to_json` wrote."""
        values = json.loads(text)
        if values["model"] is not None:
            values["model"] = ModelReference(**values["model"])
        values["training"] = TrainingOptions(**values["training"])
        if values["workers"] is not None:
            values["workers"] = Workers(**values["workers"])
        # Jobs of the time before it have none.
        if values.get("tracking") is not None:
            values["tracking"] = Tracking(**values["tracking"])
        if values.get("federation") is not None:
            privacy = values["federation"].get("central_privacy")
            if privacy is not None:
                values["federation"]["central_privacy"] = CentralPrivacy(**privacy)
            values["federation"] = Federation(**values["federation"])
        return Job(**values)

    def identity(self) -> dict[str, Any]:
        """Return what two runs must share to be runs of one job.

        How long to train, how often to look, on how many workers and who is told may change
        between them: a job can be resumed with more epochs, and on more machines.
        """
        values = dataclasses.asdict(self)
        del values["output"], values["workers"], values["tracking"]
        for free in (
            "num_epochs",
            "max_steps",
            "evaluation_steps",
            "checkpoint_steps",
            "keep_checkpoint_max",
        ):
            del values["training"][free]
        if values["federation"] is None:
            # Jobs of the time before it have none, and are the same jobs.
            del values["federation"]
        else:
            for free in ("num_rounds", "max_timeout_s", "join_timeout_s"):
                del values["federation"][free]
            if values["federation"]["central_privacy"] is None:
                # As above.
                del values["federation"]["central_privacy"]
        return values


def without_password(uri: str) -> str:
    """Return an address, or a text with addresses in it, as it may be shown.

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
    # Of a web address the name may be the secret: a token has no password.
    shown = re.sub(r"(https?://)[^/?#\s]*@", r"\1***@", uri)
    shown = re.sub(r"(\b[\w+.-]+://[^/?#:@\s]*:)[^/?#\s]*@", r"\1***@", shown)
    return re.sub(r"(?i)([?&][^=&\s]*(?:password|token|secret)[^=&\s]*=)[^&\s]*", r"\1***", shown)

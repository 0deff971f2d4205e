"""Training context: the model, the data and the shard plan that a training process needs.

Callers: `run.py` for the process that starts a training run, `elastic/worker.py` for each worker.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.data.field import STRING
from elasticdl.data.record_source import HasClassNames
from elasticdl.data.schema import MissingFieldError, Schema
from elasticdl.data.split_source import split_records, whole
from elasticdl.data.wording import counted, listed, near_classes
from elasticdl.definition import BatchesInput, Mode, ModelDefinition, RecordInput
from elasticdl.dialects.model_code import LOADER
from elasticdl.did_you_mean import did_you_mean
from elasticdl.engines import class_numbers
from elasticdl.engines.best_metric import best_mode_of
from elasticdl.engines.data_changes import (
    check_unchanged,
    check_validation_unchanged,
    data_metadata,
)
from elasticdl.engines.engine import context_of
from elasticdl.engines.file_variables import FileVariables
from elasticdl.engines.gradient_accumulation import Accumulator
from elasticdl.engines.iterable_data import IterableData
from elasticdl.engines.record_data import RecordData, indexes_of, open_records
from elasticdl.engines.table_params import completed, metadata_of, misnamed
from elasticdl.engines.train_progress import TrainProgress
from elasticdl.engines.validation_errors import evaluate_first
from elasticdl.errors import DefinitionError, ElasticDLError, NoDataError, UsageError
from elasticdl.job import TrainingOptions
from elasticdl.prediction.phase import class_reading
from elasticdl.prediction.rows import named_outputs
from elasticdl.sharding.epoch_order import ShardPlan
from elasticdl.sharding.ledger import Ledger, ShardLease
from elasticdl.training.create import create_trainer
from elasticdl.training.import_seed import seeded_import
from elasticdl.training.monitors import Monitor, needed_by
from elasticdl.training.trainer import (
    EvaluationProbe,
    ExportProbe,
    LossProbe,
    ScheduleProbe,
    checking,
)
from elasticdl.zoo.catalogue import entries

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.data.batch import Batch
    from elasticdl.data.data_index import DataIndex
    from elasticdl.data.record_source import RecordSource
    from elasticdl.engines.feed import TrainingBatch, TrainingData, Validation
    from elasticdl.job import Job
    from elasticdl.sharding.left_out import BatchId
    from elasticdl.training.trainer import Trainer

# In a note.
_MAX_CLASSES_NAMED = 20


@dataclass(frozen=True, eq=False)
class TrainingContext:
    """Everything a process needs to take part in a training run; each worker creates its own.

    Attributes:
        job: The job.
        definition: The model definition.
        data: The training data.
        plan: The division of the data into shards.
        validation: Data to evaluate on; None if there is none.
        file_variables: Detects changes of top-level variables in the user's files, which are not
            part of a checkpoint.
        complete_job: The job including the params that are derived from its data; workers and
            predictions need these.
    """

    job: Job
    definition: ModelDefinition
    data: TrainingData
    plan: ShardPlan
    validation: Validation | None
    file_variables: FileVariables
    complete_job: Job

    @property
    def num_records(self) -> int:
        """Number of examples in an epoch."""
        return self.data.num_records

    @property
    def minibatch_size(self) -> int:
        """Number of examples in a full batch."""
        return self.data.minibatch_size(self.plan)

    @property
    def num_steps(self) -> int | None:
        """Number of minibatches in an epoch; None if a pipeline may filter or repeat records."""
        if not self.data.batches_per_shard(self.plan):
            return None
        return -(-self.plan.num_records // self.plan.minibatch_size)

    def check_epoch(self, epoch: int) -> None:
        """Check, when an epoch begins, that callbacks have not changed the user's pipeline.

        Raises:
            DefinitionError: A callback has changed it, which would have no effect on the batches.
        """
        if isinstance(self.data, IterableData):
            self.data.check(epoch)

    def notes(self) -> list[str]:
        """Return messages for the user about the data, such as the classes that were found."""
        if isinstance(self.definition.input, BatchesInput):
            return [*self._validated_on(), *self._without_effect()]
        return [*self._split_note(), *(self._class_notes() if self._has_class_folders else [])]

    def _class_notes(self) -> list[str]:
        names = self.classes
        more = ", ..." if len(names) > _MAX_CLASSES_NAMED else ""
        classes = "class" if len(names) == 1 else "classes"
        found = f"{len(names):,} {classes}: {', '.join(names[:_MAX_CLASSES_NAMED])}{more}"
        return [found, *filter(None, [near_classes(names)])]

    @property
    def _has_class_folders(self) -> bool:
        data = self.data
        return isinstance(data, RecordData) and isinstance(
            whole(data.source), class_numbers.ClassFolders
        )

    def _split_note(self) -> list[str]:
        share = self.job.validation_split
        if share is None or self.validation is None or self.validation.source is None:
            return []
        num_training = counted(self.num_records, "record")
        num_validation = f"{self.validation.source.num_records:,}"
        return [
            f"--validation_split={share:g}: {num_training} to train on, {num_validation} held out."
        ]

    def _validated_on(self) -> list[str]:
        """Return a message if `val_dataloader()` receives the location of the training data.

        The model would be validated on training examples if it reads these there. The result is an
        empty list if the function receives the location of separate validation data, or a word that
        names no file, such as "built-in".
        """
        job, definition = self.job, self.definition
        is_plain = "://" not in job.data and not set(job.data) & set("*?[,")
        if is_plain and not Path(job.data).exists():
            return []
        if self.validation is None or job.validation_data or "validation" not in definition.places:
            return []
        note = (
            f"{definition.where('validation')}: val_dataloader() receives --data={job.data}, "
            "because there is no --validation_data. If it reads the training examples there, name "
            "separate validation data with --validation_data."
        )
        return [note]

    def _without_effect(self) -> list[str]:
        """Return a message on options that are ignored because the user's own code makes batches.

        The result is empty if no such option was given.
        """
        origin, options = self.definition.origin, self.job.training
        # The config of a session has a batch size, which its components receive.
        if origin.dialect == "abstractions":
            return []
        given = []
        if options.minibatch_size != TrainingOptions().minibatch_size:
            given.append(f"--minibatch_size={options.minibatch_size}")
        if not options.shuffle:
            given.append("--no-shuffle")
        if not given:
            return []
        verb = "has" if len(given) == 1 else "have"
        where = self.definition.where("input")
        return [f"{' and '.join(given)} {verb} no effect: {where} makes the batches."]

    @property
    def classes(self) -> Sequence[str]:
        """Names of the classes, from the model or else from the data; empty if unknown."""
        if self.definition.classes:
            return self.definition.classes
        # The two sides of a split do not know the class names; their common source does.
        source: object = whole(self.data.source) if isinstance(self.data, RecordData) else None
        return source.classes if isinstance(source, HasClassNames) else ()

    def record_fields(self) -> Schema | None:
        """Return the fields of the first record, for the description of the trained model.

        Returns:
            None if the model has a `data_schema()`, which describes them already, if a pipeline
            makes the batches, or if no schema can describe the fields.
        """
        data, how = self.data, self.definition.input
        if not isinstance(data, RecordData) or not isinstance(how, RecordInput) or how.schema:
            return None
        # Data that can be trained on may have fields that no schema can describe.
        with contextlib.suppress(ElasticDLError):
            (record,) = data.source.read_records(0, 1, None)
            fields = [
                {
                    "name": name,
                    "shape": list(array.shape),
                    "dtype": "string" if array.dtype == STRING else array.dtype.name,
                }
                for name, array in record.items()
            ]
            return Schema.from_user(fields, "the first record")
        return None

    def class_columns(self) -> dict[str, tuple[str, ...]]:
        """Return column -> its class names, in the order of their numbers, of the training data.

        Empty if the data do not name classes. The description of the trained model has these names.
        """
        data = self.data
        return class_numbers.class_columns(data.source) if isinstance(data, RecordData) else {}

    def indexes(self) -> dict[str, DataIndex]:
        """Return the indexes (record counts and positions) that were made when opening the data.

        Other processes pass them to `open_context`, which then need not index the data again.

        Returns:
            Location of the data, as in `job.data` and `job.validation_data` -> its index. Data
            that a user's own reader or pipeline reads has none.
        """
        sources: dict[str, RecordSource | None] = {}
        if isinstance(self.data, RecordData):
            # The index covers all records: each worker splits them itself.
            sources[self.job.data] = whole(self.data.source)
        if self.validation is not None and self.job.validation_data is not None:
            sources[self.job.validation_data] = self.validation.source
        return indexes_of(self.definition, sources)

    def shard_batches(
        self,
        epoch: int,
        lease: ShardLease,
        left_out: Sequence[BatchId] = (),
        *,
        one_by_one: Callable[[], bool] = lambda: False,
    ) -> Iterator[TrainingBatch]:
        """Yield the batches of a lease that are not committed yet; see `feed.TrainingData`."""
        return self.data.shard_batches(self.plan, epoch, lease, left_out, one_by_one=one_by_one)

    def example(self) -> Batch:
        """Return an example batch with the shapes of the data; it may be smaller than a full batch.

        Raises:
            DataError: The data has no batch.
        """
        try:
            return self.data.example(self.plan)
        except MissingFieldError as error:
            model, how = self.job.model, self.definition.input
            is_prebuilt = isinstance(how, RecordInput) and not (
                how.schema is None or any(field.is_declared for field in how.schema.fields)
            )
            if (
                model is not None
                and is_prebuilt
                and (other := misnamed(model.params, error.present))
            ):
                raise other from error
            raise

    def validation_example(self) -> Batch | None:
        """Return the first batch of the validation data; None if there is none."""
        if self.validation is None:
            return None
        shards = map(self.validation.batches, range(self.validation.num_shards))
        return next(itertools.chain.from_iterable(shards), None)

    def check_validation(self, trainer: Trainer) -> None:
        """Evaluate the first validation batch now, so that errors show before hours of training.

        On workers this is not needed: each evaluates an example batch when it prepares.

        Raises:
            ElasticDLError: What the validation would raise after the first epoch.
        """
        batch = self.validation_example()
        if batch is not None:
            with checking(trainer):
                evaluate_first(trainer, batch, self.example)

    def create_trainer(self, rank: int = 0) -> Trainer:
        """Create the model and its trainer, in the state before the first step.

        Raises:
            ElasticDLError: The model cannot be created, or the data has no example.
        """
        trainer = create_trainer(
            self.definition,
            self.example(),
            minibatch_size=self.minibatch_size,
            seed=self.job.training.seed,
            rank=rank,
            deterministic=self.job.training.deterministic,
        )
        if self.validation is not None and isinstance(trainer, EvaluationProbe):
            trainer.check_evaluation(self.example())
        if self.job.training.best_metric != TrainingOptions.best_metric:
            self._check_best_metric(trainer)
        self._check_monitored(trainer)
        return trainer

    def _check_monitored(self, trainer: Trainer) -> None:
        """Check before training that all metrics that schedules or callbacks monitor are measured.

        Without this check, an error or a warning would come only after the first epoch. A training
        metric that is not measured is an error only if validation measures a metric of that name:
        then the user has forgotten the prefix `val_`.

        Raises:
            DefinitionError: A monitored metric will not be measured.
        """
        monitored = trainer.hooks.monitored
        if self.validation is None:
            for name, monitor in monitored.items():
                if name.startswith("val_"):
                    raise DefinitionError(self._without_validation(name, monitor))
            return
        names = [each for each in monitored if each.startswith("val_") and each != "val_loss"]
        of_training = [
            each
            for each in monitored
            if not each.startswith("val_") and not self._may_train_with(each)
        ]
        if not names and not of_training:
            return
        metrics = trainer.evaluation_metrics.results(trainer.evaluate(self.example()))
        measured = [f"val_{name}" for name, value in metrics.items() if isinstance(value, float)]
        for name in names:
            if name not in measured:
                raise DefinitionError(
                    f"{monitored[name].needs(name)}, which is not measured"
                    f"{did_you_mean(name, measured)} A validation measures {listed(measured)}."
                )
        for name in of_training:
            if f"val_{name}" in measured:
                raise DefinitionError(
                    f"{monitored[name].needs(name)}, which is measured in validation, not in "
                    f"training; did you mean 'val_{name}'?"
                )

    def _monitor_notes(self, trainer: Trainer) -> list[str]:
        """Return notes on a user's callbacks that monitor validation without validation data.

        It is not an error, as in `_check_monitored`: a callback may do without the metric, or
        another callback may add it.
        """
        if self.validation is not None:
            return []
        where = self.definition.where("callbacks")
        needed = [(each, needed_by(each)) for each in trainer.hooks.callbacks]
        notes = [
            self._without_validation(
                name,
                Monitor(f"{where}: the callback {type(each).__name__}"),
                ": its logs have no such entry, unless a callback adds it",
            )
            for each, name in needed
            if name is not None and name.startswith("val_")
        ]
        # Callbacks of one class may monitor the same metric.
        return [*dict.fromkeys(notes)]

    def _without_validation(self, metric: str, monitor: Monitor, effect: str = "") -> str:
        return (
            f"{monitor.needs(metric)}, and there is no validation data to measure it on{effect}. "
            "Add --validation_data or --validation_split, or "
            f"{monitor.other(self._plain(metric))}."
        )

    def _best_note(self) -> str:
        """Return a note if there will be no best weights to restore; else an empty string."""
        training = self.job.training
        # Another metric of a validation is refused; see `_check_best_metric`.
        is_measured = self.validation is not None or training.best_metric != "val_loss"
        if is_measured or not training.restore_best_weights:
            return ""
        return (
            "--restore_best_weights: there is no validation data, so no val_loss to find the best "
            "weights by; the last ones are published. Add --validation_data or --validation_split, "
            "or choose a training metric: --best_metric=loss."
        )

    def _plain(self, monitored: str) -> str:
        """Return the training metric to monitor if there is no validation data."""
        plain = monitored.removeprefix("val_")
        return plain if self._trains_with(plain) else "loss"

    def _may_train_with(self, metric: str) -> bool:
        """Return whether a metric may be measured in training; a `training_step` can log any.

        Args:
            metric: Name of the metric, without the prefix `val_`.
        """
        return self.definition.loss_within == "training_step" or self._trains_with(metric)

    def _check_best_metric(self, trainer: Trainer) -> None:
        """Check, before training, that the metric of `--best_metric` will be measured.

        Raises:
            UsageError: The metric is not measured, is not a single number, or neither it nor its
                name defines which of its values are better.
        """
        wanted = self.job.training.best_metric
        if wanted.startswith("val_") and self.validation is None:
            raise UsageError(
                f"--best_metric={wanted}: there is no validation data to compute it on. Add "
                "--validation_data or --validation_split, or choose a training metric."
            )
        metrics = trainer.evaluation_metrics.results(trainer.evaluate(self.example()))
        values = {name: value for name, value in metrics.items() if self._trains_with(name)}
        if self.validation is not None:
            values |= {f"val_{name}": value for name, value in metrics.items()}
        if not isinstance(values.get(wanted), float):
            measured = ", ".join(name for name, value in values.items() if isinstance(value, float))
            raise UsageError(
                f"--best_metric={wanted}: "
                f"{'not a single number' if wanted in values else 'no such metric'}"
                f"{'.' if wanted in values else did_you_mean(wanted, values)} "
                f"The metrics are {measured}."
            )
        if self.job.training.best_mode == "auto" and best_mode_of(wanted, trainer) is None:
            raise UsageError(
                f"--best_metric={wanted}: neither the metric nor its name determines whether its "
                "lowest or its highest value is the best. Add --best_mode=min or --best_mode=max."
            )

    def _trains_with(self, metric: str) -> bool:
        """Return whether a metric that validation measures is also measured in training.

        Returns True if that is not known before the first step.

        Args:
            metric: Name of the metric, without the prefix `val_`.
        """
        if self.definition.compiled or metric == "loss":
            return True
        functions = self.definition.create_metrics(Mode.TRAINING)
        # The metrics of a function that returns several are not known before it is called.
        return functions.scalars is not None or metric in {each.name for each in functions.named}

    def why_not_exported(self, trainer: Trainer) -> list[str]:
        """Predict which exports the trained model will lack, before the first step.

        Returns:
            One message for each missing export; empty if the model can be exported, or if the
            trainer cannot check it.

        Raises:
            DefinitionError: The definition requires an export that is not possible.
        """
        reasons = trainer.why_not_exported() if isinstance(trainer, ExportProbe) else {}
        required = [name for name in self.definition.required_exports if name in reasons]
        if required:
            raise DefinitionError(
                f"{self.definition.origin}: the model cannot be exported as {required[0]}: "
                f"{reasons[required[0]]}\n  Use TensorFlow or Keras operations in its layers, and "
                "draw random numbers in layers only in training."
            )
        return [
            f"The trained model will have no {name}: {reason}" for name, reason in reasons.items()
        ]

    def model_notes(self, trainer: Trainer) -> list[str]:
        """Return notes on what training may find wrong only later.

        These are outputs that fit neither the names of the classes nor the loss, and callbacks or
        options that may lack their metric.

        Args:
            trainer: The trainer, whose model predicts an example.
        """
        notes = [self._class_note(trainer), *self._monitor_notes(trainer), self._best_note()]
        # Only for a note: a user's loss may refuse made-up outputs.
        with contextlib.suppress(Exception):
            notes += [trainer.repeated_activation()] if isinstance(trainer, LossProbe) else []
        return [note for note in notes if note]

    def _class_note(self, trainer: Trainer) -> str:
        """Return a note if the model has more or fewer outputs than names of classes; else "".

        If the model file has no names, the note is on names that the data have (`ClassLabel`).

        Args:
            trainer: The trainer, whose model predicts an example.
        """
        model = self.job.model
        # A prebuilt model is no file of the user's, and `default_predictions` may write names.
        is_file = model is not None and model.zoo is not None
        has_numbers = is_file and not self.classes and self.definition.predictions is None
        named = self.class_columns() if has_numbers else {}
        if not self.classes and not named:
            return ""
        # Only for a note: the training itself reports what is wrong with the model or the data.
        with contextlib.suppress(Exception), checking(trainer):
            example = self.example()
            outputs = named_outputs(trainer.predict(example.features), example.num_examples)
            reading = class_reading(trainer, outputs, self.classes)
            if reading is not None and reading.mismatch:
                if not is_file:
                    return f"The model has {reading.mismatch}{self._num_classes_advice()}"
                return f"{self.definition.where('classes')}: the model has {reading.mismatch}"
            if reading is not None and not self.classes:
                where = self.definition.where("model")
                return class_numbers.names_note(named, reading.num_classes, where)
        return ""

    def _num_classes_advice(self) -> str:
        """Return advice to set `num_classes` of a prebuilt model; empty if it has no such param."""
        name = None if self.job.model is None else self.job.model.model_def
        params = [param.name for each in entries() if each.name == name for param in each.params]
        return f" Set --params='num_classes={len(self.classes)}'." * ("num_classes" in params)

    def create_accumulator(self, trainer: Trainer) -> Accumulator | None:
        """Return the accumulator for `--global_batch_size`; None if that option is not set."""
        whole = self.job.training.global_batch_size
        return Accumulator(trainer, whole // self._summed_size) if whole else None

    def schedule_note(self, trainer: Trainer, num_workers: int) -> str:
        """Return a warning that a learning rate schedule will not reach its end on many workers.

        A schedule counts updates, and N workers make about 1/N as many updates as one process. The
        result is empty if there is no such schedule, or if `--global_batch_size` is set.

        Args:
            trainer: The trainer, which has the schedule.
            num_workers: Number of workers.
        """
        schedule = trainer.schedule_of_updates() if isinstance(trainer, ScheduleProbe) else ""
        if not schedule or num_workers < 2 or self.job.training.global_batch_size:  # noqa: PLR2004
            return ""
        size = self._summed_size
        is_divisible = not isinstance(self.data, IterableData) and not size % num_workers
        smaller = f" --minibatch_size={size // num_workers}" if is_divisible else ""
        return (
            f"{schedule} counts updates. An update uses one minibatch of each worker, so with "
            f"{num_workers} workers there are about 1/{num_workers} as many updates as in one "
            "process, and more after a worker was lost: a schedule made for one process does not "
            "reach its end. For as many updates as in one process, add "
            f"--global_batch_size={size}{smaller}."
        )

    def check_global_batch_size(self) -> None:
        """Check that `--global_batch_size` is a whole number of batches.

        Raises:
            UsageError: The option is not a multiple of the batch size.
        """
        whole = self.job.training.global_batch_size
        if not whole or not whole % (size := self._summed_size):
            return
        of = f"--minibatch_size={size}"
        if isinstance(self.data, IterableData):
            of = f"{size}, the number of examples in a batch of {self.data.epochs.name}"
        raise UsageError(
            f"--global_batch_size={whole} is not a multiple of {of}. The gradients of whole "
            f"batches are summed; the nearest multiple is {max(1, round(whole / size)) * size}."
        )

    @property
    def _summed_size(self) -> int:
        # A pipeline that yields batches determines their size.
        own = isinstance(self.data, IterableData)
        return self.minibatch_size if own else self.job.training.minibatch_size

    def initial_progress(self) -> TrainProgress:
        """Return the training progress at the start of a new job, with an empty ledger."""
        return TrainProgress(Ledger(self.plan.num_shards, self.data.batches_per_shard(self.plan)))


def open_context(
    job: Job,
    checkpoint: Checkpoint | None = None,
    *,
    code: Path | None = None,
    plan: ShardPlan | None = None,
    worker_id: int = 0,
    world_size: int = 1,
    definition: ModelDefinition | None = None,
    indexes: Mapping[str, DataIndex] | None = None,
) -> tuple[TrainingContext, dict[str, Any]]:
    """Define the model, open its data and return the training context.

    Args:
        job: The job.
        checkpoint: The checkpoint to resume from.
        code: A copy of the zoo to read the model from. None: read the zoo itself.
        plan: The shard plan, if another process has made it. None: make one, or take that of the
            checkpoint.
        worker_id: Number of this worker, from 0; the user's `ElasticDLSpec` receives it.
        world_size: Number of workers; the user's `ElasticDLSpec` receives it.
        definition: The model definition if there already is one. None: read it from the job's model
            reference.
        indexes: Indexes of the data that another process has made; see
            `TrainingContext.indexes`.

    Returns:
        The context, and the metadata of every checkpoint: the shard plan, and descriptions of the
        data and the validation data. The metadata is empty if `plan` was passed.

    Raises:
        ElasticDLError: The model or the data cannot be used, or the data is not what the
            checkpoint was trained on.
    """
    assert job.model is not None  # noqa: S101 - a training job
    folder, opened, passed = code, None, {}
    if definition is None:
        opened = zoo.open_zoo(job.model.zoo if code is None else str(code))
        passed = context_of(job, Mode.TRAINING, worker_id=worker_id, world_size=world_size)
        with seeded_import(job.training.seed):
            definition = zoo.define(job.model, passed, opened)
        folder = None if opened.is_prebuilt else Path(opened.folder)
    try:
        data = _open_data(job, definition, {} if indexes is None else indexes)
    except NoDataError as error:
        # A misspelt function that loads the data may be the cause.
        loaders = [note for note in definition.notes() if LOADER in note]
        if not loaders:
            raise
        raise NoDataError("\n  ".join([str(error), *loaders])) from error
    complete = job
    if isinstance(data, RecordData):
        definition = data.definition
        if opened is not None and plan is None:
            table = whole(data.source)
            complete, definition = completed(job, definition, table, checkpoint, (passed, opened))
            data = replace(data, definition=definition)
    metadata: dict[str, Any] = {}
    if plan is None:
        metadata = _metadata(job, data, checkpoint)
        metadata |= metadata_of(job, complete)
        plan = ShardPlan(**metadata["plan"])
    own = isinstance(definition.input, BatchesInput) and definition.input.validates
    uri = job.validation_data
    if job.validation_split is not None or (own and not uri):
        uri = job.data
    validation = data.validation(uri, plan) if uri else None
    if metadata:
        _check_class_numbers(definition, data, validation)
        metadata["validation"] = _validation_metadata(job, validation, checkpoint)
    file_variables = FileVariables(folder)
    context = TrainingContext(job, definition, data, plan, validation, file_variables, complete)
    context.check_global_batch_size()
    return context, metadata


def _open_data(
    job: Job, definition: ModelDefinition, indexes: Mapping[str, DataIndex]
) -> TrainingData:
    if isinstance(definition.input, BatchesInput):
        if job.validation_split is not None:
            raise UsageError(
                f"--validation_split={job.validation_split:g} divides records, but the model makes "
                f"its own batches ({definition.where('input')}). Leave it out, and give the model "
                "validation data of its own: a val_dataloader() in the file, or --validation_data."
            )
        return IterableData(definition, job)
    source = open_records(definition, job.data, indexes)
    # Validation data may lack some of the classes.
    definition = class_numbers.of_data(definition, source)
    if job.validation_split is None:
        return RecordData(definition, source, indexes)
    split = split_records(source, job.validation_split)
    return RecordData(definition, split.training, indexes, held_out=split.validation)


def _check_class_numbers(
    definition: ModelDefinition, data: TrainingData, validation: Validation | None
) -> None:
    """Check that the model file and all data give the classes the same numbers.

    Raises:
        DataError: A class has two numbers.
    """
    if not isinstance(data, RecordData):
        return
    columns = class_numbers.class_columns(data.source)
    class_numbers.check_numbers(definition, columns, "the data")
    if validation is not None and validation.source is not None:
        others = class_numbers.class_columns(validation.source)
        class_numbers.check_numbers(definition, others, "the validation data")
        class_numbers.check_same_numbers(columns, others, "the validation data")


def _metadata(job: Job, data: TrainingData, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Return metadata for new checkpoints: the shard plan and a description of the data.

    The data is first compared with that of `checkpoint`, from which training resumes.

    Raises:
        DataError: The data is not what the checkpoint was trained on.
    """
    of_data = {
        **data_metadata(data.files, data.source if isinstance(data, RecordData) else None),
        # What the plan and the files count.
        "counted": "batches" if isinstance(data, IterableData) else "records",
        "validation_split": job.validation_split,
    }
    if checkpoint is None:
        return {"plan": asdict(data.plan_shards(job)), **of_data}
    check_unchanged(of_data, checkpoint)
    return {"plan": checkpoint.metadata["plan"], **of_data}


def _validation_metadata(
    job: Job, validation: Validation | None, checkpoint: Checkpoint | None
) -> dict[str, Any] | None:
    """Return a description of the validation data, for the metadata of new checkpoints.

    The data is first compared with that of `checkpoint`, from which training resumes.

    Returns:
        The description. None if there is no validation data, if it is held out from the training
        data, which is compared anyway, or if the model's own code reads it.

    Raises:
        DataError: The validation data is not that of the checkpoint.
    """
    if validation is None or validation.source is None or job.validation_data is None:
        return None
    files = [(file.uri, file.num_records) for file in validation.source.files]
    described = data_metadata(files, validation.source)
    if checkpoint is not None:
        check_validation_unchanged(described, checkpoint)
    return described

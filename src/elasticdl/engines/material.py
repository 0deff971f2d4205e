"""What a process needs to take part in a training: the model, the data, and how they are cut.

Callers: `run.py` for who leads a training, `elastic/worker.py` for each worker.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.definition import BatchesInput, Mode, ModelDefinition
from elasticdl.engines.accumulator import Accumulator
from elasticdl.engines.best import best_mode_of
from elasticdl.engines.engine import context_of
from elasticdl.engines.file_variables import FileVariables
from elasticdl.engines.own_batches import OwnBatches
from elasticdl.engines.place import Place
from elasticdl.engines.record_data import RecordData, indexes_of, open_records
from elasticdl.errors import DataError, DefinitionError, UsageError
from elasticdl.job import TrainingOptions
from elasticdl.sharding.ledger import Ledger, Piece
from elasticdl.sharding.shard import ShardPlan, plan_from
from elasticdl.training.create import create_trainer
from elasticdl.training.trainer import EvaluationProbe, ExportProbe

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint
    from elasticdl.data.batch import Batch
    from elasticdl.data.data_index import DataIndex
    from elasticdl.data.record_source import RecordSource
    from elasticdl.engines.feed import FedBatch, TrainingData
    from elasticdl.engines.seams import Validation
    from elasticdl.job import Job
    from elasticdl.sharding.left_out import BatchId
    from elasticdl.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Material:
    """What a process needs to take part in a training; every worker makes its own.

    Attributes:
        job: What was asked for.
        definition: What to train.
        data: On what.
        plan: Its cut into shards.
        validation: What to evaluate on; None if nothing.
        file_variables: Those at the top level of the user's files, which should not change.
    """

    job: Job
    definition: ModelDefinition
    data: TrainingData
    plan: ShardPlan
    validation: Validation | None
    file_variables: FileVariables

    @property
    def num_records(self) -> int:
        """Examples in an epoch."""
        return self.data.num_records

    @property
    def minibatch_size(self) -> int:
        """Examples in a full batch."""
        return self.data.minibatch_size(self.plan)

    @property
    def num_steps(self) -> int | None:
        """Minibatches in an epoch; None where a pipeline may filter and repeat."""
        if not self.data.batches_per_shard(self.plan):
            return None
        return -(-self.plan.num_records // self.plan.minibatch_size)

    def indexes(self) -> dict[str, DataIndex]:
        """Return what was found when the data were opened, by the names they were opened by.

        Readers of the user's and pipelines have nothing to tell.
        """
        sources: dict[str, RecordSource | None] = {}
        if isinstance(self.data, RecordData):
            sources[self.job.data] = self.data.source
        if self.validation is not None and self.job.validation_data is not None:
            sources[self.job.validation_data] = self.validation.source
        return indexes_of(self.definition, sources)

    def shard_batches(
        self,
        epoch: int,
        piece: Piece,
        left_out: Sequence[BatchId] = (),
        *,
        singly: Callable[[], bool] = lambda: False,
    ) -> Iterator[FedBatch]:
        """Yield the batches of a piece that are not committed yet; see `feed.TrainingData`."""
        return self.data.shard_batches(self.plan, epoch, piece, left_out, singly=singly)

    def example(self) -> Batch:
        """Return a batch like those to come, for its shapes; it may be smaller.

        Raises:
            DataError: There is none.
        """
        return self.data.example(self.plan)

    def create_trainer(self, slot: int = 0) -> Trainer:
        """Make the model, as it is before the first step.

        Raises:
            ElasticDLError: It cannot be made, or the data has no example.
        """
        trainer = create_trainer(
            self.definition,
            self.example(),
            minibatch_size=self.minibatch_size,
            seed=self.job.training.seed,
            slot=slot,
            deterministic=self.job.training.deterministic,
        )
        if self.validation is not None and isinstance(trainer, EvaluationProbe):
            trainer.check_evaluation(self.example())
        if self.job.training.best_metric != TrainingOptions.best_metric:
            self._check_best_metric(trainer)
        return trainer

    def _check_best_metric(self, trainer: Trainer) -> None:
        """Find out before the first epoch that a metric will not be there after it.

        Raises:
            UsageError: It is not measured, is no single number, or does not say which values of it
                are better.
        """
        wanted = self.job.training.best_metric
        if wanted.startswith("val_") and self.validation is None:
            raise UsageError(
                f"The best checkpoint is to be found by {wanted}, but there is no validation data."
            )
        metrics = trainer.evaluation_metrics.results(trainer.evaluate(self.example()))
        values = {name: value for name, value in metrics.items() if self._trains_with(name)}
        if self.validation is not None:
            values |= {f"val_{name}": value for name, value in metrics.items()}
        if not isinstance(values.get(wanted), float):
            near = difflib.get_close_matches(wanted, values, n=1)
            measured = ", ".join(name for name, value in values.items() if isinstance(value, float))
            raise UsageError(
                f"The best checkpoint is to be found by {wanted!r}, which "
                f"{'is no single number' if wanted in values else 'is not measured'}"
                f"{f'; did you mean {near[0]!r}?' if near and wanted not in values else '.'} "
                f"There is {measured}."
            )
        if self.job.training.best_mode == "auto" and best_mode_of(wanted, trainer) is None:
            raise UsageError(
                f"The best checkpoint is to be found by {wanted}, and neither the metric nor its "
                "name says whether its lowest or highest value is the best. Add --best_mode=min or "
                "--best_mode=max."
            )

    def _trains_with(self, metric: str) -> bool:
        """Whether a metric of the evaluation is measured in training as well."""
        if self.definition.compiled or metric == "loss":
            return True
        functions = self.definition.create_metrics(Mode.TRAINING)
        # What a function returns is known when it is called.
        return functions.scalars is not None or metric in {each.name for each in functions.named}

    def why_not_exported(self, trainer: Trainer) -> list[str]:
        """Find out before the first step what will be missing of the trained model.

        Returns:
            Lines for people; empty if the model can be exported, or the trainer cannot tell.

        Raises:
            DefinitionError: The definition requires what cannot be exported.
        """
        reasons = trainer.why_not_exported() if isinstance(trainer, ExportProbe) else {}
        required = [name for name in self.definition.required_exports if name in reasons]
        if required:
            raise DefinitionError(
                f"{self.definition.origin}: the model cannot be exported as {required[0]}: "
                f"{reasons[required[0]]}\n  Use TensorFlow's or Keras' operations in its layers, "
                "and let layers that draw random numbers do so in training only."
            )
        return [
            f"The trained model will have no {name}: {reason}"
            for name, reason in reasons.items()
            # Most models with a class of their own: what serves does not need it.
            if name != "model.keras"
        ]

    def create_accumulator(self, trainer: Trainer) -> Accumulator | None:
        """Return what sums up to `--global_batch_size`; None if that was not given.

        Raises:
            UsageError: Batches that the user's own pipeline makes do not add up to it.
        """
        options = self.job.training
        if not options.global_batch_size:
            return None
        size = options.minibatch_size
        if isinstance(self.data, OwnBatches):
            # Whoever makes batches decides how large they are.
            size = self.minibatch_size
            if options.global_batch_size % size:
                raise UsageError(
                    f"--global_batch_size={options.global_batch_size}: expected a multiple of "
                    f"{size}, the examples in a batch of {self.data.epochs.name}."
                )
        return Accumulator(trainer, options.global_batch_size // size)

    def first_place(self) -> Place:
        """Return where a job starts."""
        return Place(Ledger(self.plan.num_shards, self.data.batches_per_shard(self.plan)))


def open_material(
    job: Job,
    checkpoint: Checkpoint | None = None,
    *,
    code: Path | None = None,
    plan: ShardPlan | None = None,
    worker_id: int = 0,
    world_size: int = 1,
    definition: ModelDefinition | None = None,
    indexes: Mapping[str, DataIndex] | None = None,
) -> tuple[Material, dict[str, Any]]:
    """Define the model and open its data.

    Args:
        job: What is asked for.
        checkpoint: What will be gone on from.
        code: A copy of the zoo to take the model from; None takes the zoo itself.
        plan: The cut of the data, where it was decided elsewhere.
        worker_id: What a spec is told as its worker's number.
        world_size: ... and as the number of workers.
        definition: What to train, if it is at hand; None makes it from the job's words.
        indexes: What is known of data, by their names: nothing is listed or looked into there.

    Returns:
        The material, and what every checkpoint says of plan and data.

    Raises:
        ElasticDLError: The model or the data cannot be used, or the data is not what the
            checkpoint was trained on.
    """
    assert job.model is not None  # noqa: S101 - a training job
    folder = code
    if definition is None:
        context = context_of(job, Mode.TRAINING, worker_id=worker_id, world_size=world_size)
        opened = zoo.open_zoo(job.model.zoo if code is None else str(code))
        definition = zoo.define(job.model, context, opened)
        folder = None if opened.is_prebuilt else Path(opened.folder)
    data: TrainingData
    if isinstance(definition.input, BatchesInput):
        data = OwnBatches(definition, job)
    else:
        known = {} if indexes is None else indexes
        data = RecordData(definition, open_records(definition, job.data, known), known)
    metadata: dict[str, Any] = {}
    if plan is None:
        metadata = _metadata(job, data, checkpoint)
        plan = plan_from(metadata["plan"], f"The checkpoint of {job.output}")
    validation = data.validation(job.validation_data, plan) if job.validation_data else None
    file_variables = FileVariables(folder)
    return Material(job, definition, data, plan, validation, file_variables), metadata


def _metadata(job: Job, data: TrainingData, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Return what every checkpoint says of plan and data.

    Raises:
        DataError: The data is not what the checkpoint was trained on.
    """
    files: list[list[Any]] = [list(file) for file in data.files]
    if checkpoint is None:
        return {"plan": asdict(data.cut(job)), "files": files}
    before = checkpoint.metadata["files"]
    if before != files:
        changed = changed_files(files, before)
        raise DataError(
            f"The data is not what the first {checkpoint.step:,} steps were trained on: "
            f"{len(changed)} file(s) were added, removed or hold another number of records "
            f"({', '.join(changed[:3])}). Train on them with another --output."
        )
    return {"plan": checkpoint.metadata["plan"], "files": files}


def changed_files(now: Sequence[Sequence[Any]], before: Sequence[Sequence[Any]]) -> list[str]:
    """Return the files that were added or changed, in the order of now, then those removed.

    Args:
        now: URI and number of records of each file.
        before: The same, as a checkpoint says.
    """
    known, there = {(uri, n) for uri, n in before}, {uri for uri, _ in now}
    return [uri for uri, n in now if (uri, n) not in known] + [
        uri for uri, _ in before if uri not in there
    ]

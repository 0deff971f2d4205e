"""A training run, from the claim on its output to its TrainedModel; how it trains is an engine's.

    claim the output -> copy the code -> define the model -> open the records -> ENGINE -> publish

Each engine is a function from a `Run` to a `Trained`; whatever else a run needs is here once.

Callers: `in_process.py` and `elastic/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.artifacts.checkpoint import Checkpoint, CheckpointStore
from elasticdl.artifacts.event_log import open_event_log
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import (
    Description,
    load_trained_model,
    save_trained_model,
)
from elasticdl.definition import Mode, ModelDefinition, RecordInput
from elasticdl.engines.accumulator import Accumulator
from elasticdl.engines.engine import Outcome, Reporter, context_of
from elasticdl.engines.feed import batches_in_order, open_records, shard_batches
from elasticdl.engines.place import Place
from elasticdl.engines.seams import Validation
from elasticdl.errors import DataError, OutputError
from elasticdl.events import EventLog, JobFailed, JobFinished, JobStarted
from elasticdl.sharding.ledger import Ledger, Piece
from elasticdl.sharding.shard import DEFAULT_MINIBATCHES_PER_SHARD, ShardPlan
from elasticdl.training.create import create_trainer, quiet_frameworks
from elasticdl.training.trainer import Exporter, Trainer

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.data.record_source import RecordSource
    from elasticdl.job import Job

_MAX_SHARD_BYTES = 256 * 2**20
# A shard of validation data is evaluated between two looks at what else there is to do.
_MINIBATCHES_PER_VALIDATION_SHARD = 8
_VERSIONS_OF = ("elasticdl", "keras", "tensorflow", "tensorflow-cpu", "torch", "numpy")


@dataclass(frozen=True, eq=False)
class Material:
    """What a process needs to take part in a training; every worker makes its own.

    Attributes:
        job: What was asked for.
        definition: What to train.
        source: The training records.
        plan: Their cut into shards.
        validation: What to evaluate on; None if nothing.
    """

    job: Job
    definition: ModelDefinition
    source: RecordSource
    plan: ShardPlan
    validation: Validation | None

    def create_trainer(self, slot: int = 0) -> Trainer:
        """Make the model, as it is before the first step.

        Raises:
            ElasticDLError: It cannot be made, or the data has no example.
        """
        return create_trainer(
            self.definition,
            self.example(),
            minibatch_size=self.plan.minibatch_size,
            seed=self.job.training.seed,
            slot=slot,
            deterministic=self.job.training.deterministic,
        )

    def create_accumulator(self, trainer: Trainer) -> Accumulator | None:
        """Return what sums up to `--global_batch_size`; None if that was not given."""
        options = self.job.training
        if not options.global_batch_size:
            return None
        return Accumulator(trainer, options.global_batch_size // options.minibatch_size)

    def first_place(self) -> Place:
        """Return where a job starts."""
        by_record = isinstance(self.definition.input, RecordInput)
        batches_per_shard = self.plan.minibatches_per_shard if by_record else 0
        return Place(Ledger(self.plan.num_shards, batches_per_shard))

    def example(self) -> Batch:
        """Return the first batch of the first shard that has one, for its shapes.

        Raises:
            DataError: No shard has a batch.
        """
        for shard in range(self.plan.num_shards):
            if isinstance(self.definition.input, RecordInput):
                # Two records are enough to know the shapes, and quicker than a whole shard; of
                # one alone some layers can take no statistics.
                few = min(2, self.source.num_records)
                in_order = batches_in_order(
                    self.definition, self.source, few, Mode.TRAINING, stop=few
                )
                return next(in_order)[1]
            shards = shard_batches(self.definition, self.source, self.plan, 0, Piece(shard))
            for fed in shards:
                if fed.batch is not None:
                    return fed.batch
        raise DataError(
            f"{self.definition.origin}: the data pipeline yields no example from "
            f"{self.source.num_records} records."
        )


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is about to train.

    Attributes:
        material: What to train, and on what.
        folder: The output.
        generation: How often the job was started there.
        store: Its checkpoints.
        events: Its log.
        reporter: Who tells people.
        code: A copy of the user's code, which may be edited meanwhile.
        checkpoint: What to go on from; None at the start.
        metadata: What every checkpoint says of plan and data.
    """

    material: Material
    folder: OutputFolder
    generation: int
    store: CheckpointStore
    events: EventLog
    reporter: Reporter
    code: Path
    checkpoint: Checkpoint | None
    metadata: Mapping[str, Any]

    def started(self, resumed_from_step: int) -> None:
        """Tell everybody that the training begins."""
        self.tell_start(resumed_from_step)
        if self.checkpoint is not None:
            self.reporter.note(f"Going on from step {resumed_from_step:,} in {self.folder.uri}.")
        total = self.material.source.num_records * self.material.job.training.num_epochs
        done = self.records_done(self.checkpoint)
        self.reporter.started("Training", total, "records", done=done)

    def records_done(self, checkpoint: Checkpoint | None) -> int:
        """Return how many records were trained on up to a checkpoint, over all epochs."""
        if checkpoint is None:
            return 0
        place = Place.from_json(checkpoint.metadata["place"])
        seen = place.epoch_states["loss"][1] if "loss" in place.epoch_states else 0
        return place.ledger.epoch * self.material.source.num_records + int(seen)

    def tell_start(self, resumed_from_step: int) -> None:
        """Write that what was told beyond a step never happened, and that it goes on there."""
        job, material = self.material.job, self.material
        assert job.model is not None  # noqa: S101 - a training job
        num_records = material.source.num_records
        self.events.write(
            JobStarted(
                job_id=job.id,
                attempt=self.generation,
                resumed_from_step=resumed_from_step,
                num_records=num_records,
                num_epochs=job.training.num_epochs,
                minibatch_size=material.plan.minibatch_size,
                model_def=job.model.model_def,
                framework=material.definition.framework,
                host=socket.gethostname(),
                pid=os.getpid(),
            )
        )


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training came to.

    Attributes:
        trainer: The model after the last step.
        metrics: The last ones known.
    """

    trainer: Trainer
    metrics: dict[str, Any]


def train(job: Job, reporter: Reporter, engine: Callable[[Run], Trained]) -> Outcome:
    """Train a model with an engine, going on where an earlier run of the job ended.

    Raises:
        ElasticDLError: See `elasticdl.errors`; the reason is in the events as well.
    """
    if job.model is None or job.output is None:
        raise ValueError(f"Not a training job: {job}")
    folder = OutputFolder(job.output)
    with folder.claim(job) as claim:
        store = CheckpointStore(folder, job.training.keep_checkpoint_max)
        with store, open_event_log(folder) as events, folder.scratch() as code:
            try:
                restored = store.latest()
                for damaged in restored.damaged if restored else ():
                    reporter.note(f"Passed over: {damaged}")
                checkpoint = restored.checkpoint if restored else None
                if checkpoint is not None and _is_finished(job, checkpoint) and _has_model(folder):
                    reporter.note(f"{folder.uri} is trained already: {checkpoint.step:,} steps.")
                    return Outcome(
                        folder.uri,
                        checkpoint.step,
                        checkpoint.metadata["metrics"],
                        already_done=True,
                    )
                code_sha256 = _copy_code(job, code, checkpoint, reporter)
                quiet_frameworks()
                material, metadata = open_material(job, checkpoint)
                run = Run(
                    material=material,
                    folder=folder,
                    generation=claim.generation,
                    store=store,
                    events=events,
                    reporter=reporter,
                    code=code,
                    checkpoint=checkpoint,
                    metadata={**metadata, "code_sha256": code_sha256},
                )
                trained = engine(run)
                reporter.ended()
                _save_model(run, trained)
                events.write(JobFinished(step=trained.trainer.step, metrics=trained.metrics))
                return Outcome(folder.uri, trained.trainer.step, trained.metrics)
            except BaseException as error:
                interrupted = not isinstance(error, Exception)
                events.write(
                    JobFailed(
                        kind="Interrupted" if interrupted else type(error).__name__,
                        message=str(error),
                        step=max(store.steps(), default=0),
                    )
                )
                if not store.steps():
                    claim.abandon()
                raise
            finally:
                reporter.ended()


def open_material(
    job: Job,
    checkpoint: Checkpoint | None = None,
    *,
    code: Path | None = None,
    plan: ShardPlan | None = None,
    worker_id: int = 0,
    world_size: int = 1,
) -> tuple[Material, dict[str, Any]]:
    """Define the model and open its records.

    Args:
        job: What is asked for.
        checkpoint: What will be gone on from.
        code: A copy of the zoo to take the model from; None takes the zoo itself.
        plan: The cut of the data, where it was decided elsewhere.
        worker_id: What a spec is told as its worker's number.
        world_size: ... and as the number of workers.

    Returns:
        The material, and what every checkpoint says of plan and data.

    Raises:
        ElasticDLError: The model or the data cannot be used, or the data is not what the
            checkpoint was trained on.
    """
    assert job.model is not None  # noqa: S101 - a training job
    context = context_of(job, Mode.TRAINING, worker_id=worker_id, world_size=world_size)
    opened = zoo.open_zoo(job.model.zoo if code is None else str(code))
    definition = zoo.define(job.model, context, opened)
    source = open_records(definition, job.data)
    metadata: dict[str, Any] = {}
    if plan is None:
        metadata = _metadata(job, source, checkpoint)
        plan = ShardPlan(**metadata["plan"])
    validation = _validation(definition, job, plan) if job.validation_data else None
    return Material(job, definition, source, plan, validation), metadata


def _validation(definition: ModelDefinition, job: Job, plan: ShardPlan) -> Validation:
    assert job.validation_data is not None  # noqa: S101 - asked before
    source = open_records(definition, job.validation_data)
    length = DEFAULT_MINIBATCHES_PER_SHARD
    if isinstance(definition.input, RecordInput):
        length = _MINIBATCHES_PER_VALIDATION_SHARD
    cut = ShardPlan(source.num_records, plan.minibatch_size, length, shuffle=False)

    def batches(shard: int) -> Iterator[Batch]:
        start, stop = cut.record_range(0, shard)
        in_order = batches_in_order(
            definition, source, cut.minibatch_size, Mode.EVALUATION, start=start, stop=stop
        )
        return (batch for _, batch in in_order)

    return Validation(cut.num_shards, batches)


def _metadata(job: Job, source: RecordSource, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Return what every checkpoint says of plan and data.

    Raises:
        DataError: The data is not what the checkpoint was trained on.
    """
    files: list[list[Any]] = [[file.uri, file.num_records] for file in source.files]
    if checkpoint is not None:
        before = checkpoint.metadata["files"]
        if before != files:
            changed = [uri for uri, n in files if [uri, n] not in before]
            changed += [uri for uri, _ in before if uri not in {u for u, _ in files}]
            raise DataError(
                f"The data is not what the first {checkpoint.step:,} steps were trained on: "
                f"{len(changed)} file(s) were added, removed or hold another number of records "
                f"({', '.join(changed[:3])}). Train on them with another --output."
            )
        return {"plan": checkpoint.metadata["plan"], "files": files}
    record_bytes = max(1, len(source.read_bytes(0, 1)[0]))
    size = job.training.minibatch_size
    plan = ShardPlan(
        num_records=source.num_records,
        minibatch_size=size,
        # A shard is held in memory; large records make shorter ones.
        minibatches_per_shard=max(
            1,
            min(
                DEFAULT_MINIBATCHES_PER_SHARD,
                _MAX_SHARD_BYTES // (size * record_bytes),
                -(-source.num_records // size),
            ),
        ),
        seed=job.training.seed,
        shuffle=job.training.shuffle,
    )
    return {"plan": asdict(plan), "files": files}


def _is_finished(job: Job, checkpoint: Checkpoint) -> bool:
    place = Place.from_json(checkpoint.metadata["place"])
    limit = job.training.max_steps
    return (
        place.stopped
        or place.ledger.epoch >= job.training.num_epochs
        or bool(limit and checkpoint.step >= limit)
    )


def _has_model(folder: OutputFolder) -> bool:
    try:
        load_trained_model(folder.uri)
    except OutputError:
        return False
    return True


def _save_model(run: Run, trained: Trained) -> None:
    job, definition = run.material.job, run.material.definition
    trainer, metrics = trained.trainer, trained.metrics
    assert job.model is not None  # noqa: S101 - a training job
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    description = Description(
        model_def=job.model.model_def,
        model_def_params=json.dumps(dict(job.model.params)),
        input_function=job.model.overrides.get("input_fn", ""),
        loss=job.model.overrides.get("loss", ""),
        optimizer=job.model.overrides.get("optimizer", ""),
        dialect=definition.origin.dialect,
        model_zoo=job.model.zoo or "",
        zoo_commit=definition.origin.zoo_commit or "",
        framework=definition.framework,
        versions=_versions(),
        data_schema_json=schema.to_json() if schema is not None else "",
        job_id=job.id,
        job_json=job.to_json(),
        created_unix_s=time.time(),
        overrides=job.model.overrides,
        metrics=metrics,
        step=trainer.step,
    )

    def copy_zoo(destination: Path) -> None:
        shutil.copytree(run.code, destination, dirs_exist_ok=True)

    def export(destination: Path) -> None:
        if isinstance(trainer, Exporter):
            trainer.export(destination)

    save_trained_model(
        run.folder,
        description,
        {
            path.removeprefix("model/"): array
            for path, array in trainer.state().items()
            if path.startswith("model/")
        },
        copy_zoo=copy_zoo,
        export=export,
    )


def _copy_code(
    job: Job, destination: Path, checkpoint: Checkpoint | None, reporter: Reporter
) -> str:
    """Copy the user's code, which may be edited while the training runs; return its SHA-256."""
    assert job.model is not None  # noqa: S101 - a training job
    opened = zoo.open_zoo(job.model.zoo)
    left_out = zoo.copy_zoo(opened.folder, destination)
    if left_out:
        reporter.note(
            f"Too large for the trained model's copy of the code: {', '.join(left_out[:5])}"
            + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")  # noqa: PLR2004
            + ". A model that reads these files cannot predict without them."
        )
    digest = hashlib.sha256()
    for path in sorted(destination.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(destination)}\0".encode() + path.read_bytes())
    if checkpoint is not None and checkpoint.metadata["code_sha256"] != digest.hexdigest():
        reporter.note(
            f"The code in {opened.name} was changed since step {checkpoint.step:,}: from here on "
            "the new code trains. Take another --output to start over with it."
        )
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions

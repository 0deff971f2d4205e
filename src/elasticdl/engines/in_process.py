"""Everything in this process: the reference that the other engines must agree with.

A job is: open the records, find the place it has reached, make the trainer, run the loop,
leave a TrainedModel. Each step is one function here.
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
from elasticdl.data.batch import arrays_bytes
from elasticdl.definition import Mode, ModelDefinition, RecordInput
from elasticdl.engines.engine import Outcome, Reporter, context_of
from elasticdl.engines.feed import (
    FedBatch,
    batches_in_order,
    open_records,
    shard_batches,
    training_batches,
)
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.loop import Loop
from elasticdl.engines.place import Place
from elasticdl.engines.prefetch import Prefetch
from elasticdl.errors import DataError, OutputError
from elasticdl.evaluation.phase import evaluate as evaluate_batches
from elasticdl.events import EventLog, JobFailed, JobFinished, JobStarted
from elasticdl.sharding.ledger import Ledger, Piece, Row
from elasticdl.sharding.shard import DEFAULT_MINIBATCHES_PER_SHARD, ShardPlan
from elasticdl.training.create import create_trainer, import_framework
from elasticdl.training.trainer import Exporter, StepResult, Trainer

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.data.record_source import RecordSource
    from elasticdl.job import Job

_SLOT = 0
_MAX_SHARD_BYTES = 256 * 2**20
_VERSIONS_OF = ("elasticdl", "keras", "tensorflow", "tensorflow-cpu", "torch", "numpy")


@dataclass
class _Committer:
    """Commits batches by training on them: nobody else has to agree."""

    trainer: Trainer

    def commit(self, batches: list[FedBatch]) -> tuple[StepResult, list[Row]]:
        """See `loop.Committer`."""
        result = self.trainer.train_steps([fed.batch for fed in batches if fed.batch is not None])
        last = batches[-1]
        return result, [Row(_SLOT, len(batches), last.finished, last.digest)]


def train(job: Job, reporter: Reporter) -> Outcome:
    """Train a model, going on where an earlier run of the job ended.

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
                return _train(
                    job,
                    folder=folder,
                    generation=claim.generation,
                    store=store,
                    events=events,
                    reporter=reporter,
                    code=code,
                )
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


def _train(
    job: Job,
    *,
    folder: OutputFolder,
    generation: int,
    store: CheckpointStore,
    events: EventLog,
    reporter: Reporter,
    code: Path,
) -> Outcome:
    assert job.model is not None  # noqa: S101 - `train` has looked
    restored = store.latest()
    for damaged in restored.damaged if restored else ():
        reporter.note(f"Passed over: {damaged}")
    checkpoint = restored.checkpoint if restored else None
    if checkpoint is not None and _is_finished(job, checkpoint) and _has_model(folder):
        reporter.note(f"{folder.uri} is trained already: {checkpoint.step:,} steps.")
        return Outcome(
            folder.uri, checkpoint.step, checkpoint.metadata["metrics"], already_done=True
        )
    opened = zoo.open_zoo(job.model.zoo)
    code_sha256 = _copy_code(opened, code, reporter)
    if checkpoint is not None and checkpoint.metadata["code_sha256"] != code_sha256:
        reporter.note(
            f"The code in {opened.name} was changed since step {checkpoint.step:,}: from here on "
            "the new code trains. Take another --output to start over with it."
        )
    import_framework()
    definition = zoo.define(job.model, context_of(job, Mode.TRAINING), opened)
    source = open_records(definition, job.data)
    validation = open_records(definition, job.validation_data) if job.validation_data else None
    metadata = {**_metadata(job, source, checkpoint), "code_sha256": code_sha256}
    plan = ShardPlan(**metadata["plan"])
    place = Place(Ledger(plan.num_shards))
    if checkpoint is not None:
        place = Place.from_json(checkpoint.metadata["place"])
    trainer = create_trainer(
        definition,
        _example(definition, source, plan),
        minibatch_size=plan.minibatch_size,
        seed=job.training.seed,
        deterministic=job.training.deterministic,
    )
    if checkpoint is not None:
        trainer.load_state(checkpoint.state)
        reporter.note(f"Going on from step {checkpoint.step:,} in {folder.uri}.")
    events.write(
        JobStarted(
            job_id=job.id,
            attempt=generation,
            resumed_from_step=trainer.step,
            num_records=source.num_records,
            num_epochs=job.training.num_epochs,
            minibatch_size=plan.minibatch_size,
            model_def=job.model.model_def,
            framework=definition.framework,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
    )
    total = source.num_records * job.training.num_epochs
    reporter.started("Training", total, "records", done=_records_done(place, source.num_records))

    def evaluate_validation() -> dict[str, Any]:
        assert validation is not None  # noqa: S101
        batches = batches_in_order(definition, validation, plan.minibatch_size, Mode.EVALUATION)
        return evaluate_batches(
            trainer, (batch for _, batch in batches), lambda _: interrupts.check()
        )

    with (
        Interrupts() as interrupts,
        Prefetch(
            training_batches(
                definition,
                source,
                plan,
                place.ledger,
                slot=_SLOT,
                num_epochs=job.training.num_epochs,
            ),
            _size_of,
        ) as feed,
    ):
        loop = Loop(
            options=job.training,
            trainer=trainer,
            committer=_Committer(trainer),
            feed=feed,
            slot=_SLOT,
            num_records=source.num_records,
            events=events,
            checkpoints=store,
            checkpoint_metadata=metadata,
            reporter=reporter,
            evaluate=evaluate_validation if validation is not None else None,
            place=place,
            safe_point=interrupts.check,
        )
        if checkpoint is not None:
            loop.hooks_state = checkpoint.metadata["hooks"]
            loop.metrics = dict(checkpoint.metadata["metrics"])
        try:
            metrics = loop.run()
        except BaseException:
            if interrupts.answered_safely:
                loop.interrupt()
            raise
    reporter.ended()
    _save_model(
        job, folder=folder, definition=definition, trainer=trainer, metrics=metrics, code=code
    )
    events.write(JobFinished(step=trainer.step, metrics=metrics))
    return Outcome(folder.uri, trainer.step, metrics)


# --- the steps of a job -------------------------------------------------------------------


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
            1, min(DEFAULT_MINIBATCHES_PER_SHARD, _MAX_SHARD_BYTES // (size * record_bytes))
        ),
        seed=job.training.seed,
        shuffle=job.training.shuffle,
    )
    return {"plan": asdict(plan), "files": files}


def _example(definition: ModelDefinition, source: RecordSource, plan: ShardPlan) -> Batch:
    """Return the first batch of the first shard that has one, for its shapes.

    Raises:
        DataError: No shard has a batch.
    """
    for shard in range(plan.num_shards):
        if isinstance(definition.input, RecordInput):
            # One record is enough to know the shapes, and quicker than a whole shard.
            in_order = batches_in_order(definition, source, 1, Mode.TRAINING, stop=1)
            return next(in_order)[1]
        for fed in shard_batches(definition, source, plan, 0, Piece(shard)):
            if fed.batch is not None:
                return fed.batch
    raise DataError(
        f"{definition.origin}: the data pipeline yields no example from "
        f"{source.num_records} records."
    )


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


def _records_done(place: Place, num_records: int) -> int:
    seen = place.epoch_states["loss"][1] if "loss" in place.epoch_states else 0
    return place.ledger.epoch * num_records + int(seen)


def _save_model(
    job: Job,
    *,
    folder: OutputFolder,
    definition: ModelDefinition,
    trainer: Trainer,
    metrics: dict[str, Any],
    code: Path,
) -> None:
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
        shutil.copytree(code, destination, dirs_exist_ok=True)

    def export(destination: Path) -> None:
        if isinstance(trainer, Exporter):
            trainer.export(destination)

    save_trained_model(
        folder,
        description,
        {
            path.removeprefix("model/"): array
            for path, array in trainer.state().items()
            if path.startswith("model/")
        },
        copy_zoo=copy_zoo,
        export=export,
    )


def _copy_code(opened: zoo.Zoo, destination: Path, reporter: Reporter) -> str:
    """Copy the user's code, which may be edited while the training runs; return its SHA-256."""
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
    return digest.hexdigest()


def _size_of(fed: FedBatch) -> int:
    return 0 if fed.batch is None else arrays_bytes((fed.batch.features, fed.batch.labels))


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions

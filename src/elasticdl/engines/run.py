"""A training run, from the claim on its output to its TrainedModel; how it trains is an engine's.

    claim the output -> copy the code -> define the model -> open the records -> ENGINE -> publish

Each engine is a function from a `Run` to a `Trained`; whatever else a run needs is here once.

Callers: `in_process.py` and `elastic/`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.attempt import attempt
from elasticdl.engines.engine import Outcome, Reporter
from elasticdl.engines.job_messages import aloud
from elasticdl.engines.material import Material, open_material
from elasticdl.engines.place import Place
from elasticdl.engines.publish import copy_code, publish, versions
from elasticdl.errors import CorruptCheckpointError, OutputError
from elasticdl.events import JobFinished, JobStarted, RecordsSkipped
from elasticdl.sharding.left_out import BatchId, records_of
from elasticdl.tracking.create import attempt_of, follow_finished_job, follow_job
from elasticdl.training.create import quiet_frameworks

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint, CheckpointStore
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.seams import EventSink
    from elasticdl.job import Job
    from elasticdl.training.trainer import Trainer


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
    events: EventSink
    reporter: Reporter
    code: Path
    checkpoint: Checkpoint | None
    metadata: Mapping[str, Any]

    def started(self, resumed_from_step: int) -> None:
        """Tell everybody that the training begins."""
        left_out: Sequence[BatchId] = ()
        if self.checkpoint is not None:
            left_out = Place.from_json(self.checkpoint.metadata["place"]).ledger.left_out
        self.tell_start(resumed_from_step, left_out)
        if self.checkpoint is not None:
            aloud(self.reporter).note(
                f"Going on from step {resumed_from_step:,} in {self.folder.uri}."
            )
        total = self.material.num_records * self.material.job.training.num_epochs
        done = self.records_done(self.checkpoint)
        self.reporter.started("Training", total, "records", done=done)

    def records_done(self, checkpoint: Checkpoint | None) -> int:
        """Return how many records were trained on up to a checkpoint, over all epochs."""
        if checkpoint is None:
            return 0
        place = Place.from_json(checkpoint.metadata["place"])
        seen = place.epoch_states["loss"][1] if "loss" in place.epoch_states else 0
        return place.ledger.epoch * self.material.num_records + int(seen)

    def tell_start(self, resumed_from_step: int, left_out: Sequence[BatchId] = ()) -> None:
        """Write that what was told beyond a step never happened, and that it goes on there.

        Args:
            resumed_from_step: The step.
            left_out: Batches whose records are left out there: that was taken back as well.
        """
        job, material = self.material.job, self.material
        assert job.model is not None  # noqa: S101 - a training job
        num_records = material.num_records
        self.events.write(
            JobStarted(
                job_id=job.id,
                attempt=self.generation,
                resumed_from_step=resumed_from_step,
                num_records=num_records,
                num_epochs=job.training.num_epochs,
                minibatch_size=material.minibatch_size,
                model_def=job.model.model_def,
                framework=material.definition.framework,
                host=socket.gethostname(),
                pid=os.getpid(),
                resume=material.data.resume,
                trust_used=material.definition.trust_used,
                versions=versions(),
                num_shards=material.plan.num_shards,
                batches_per_shard=material.data.batches_per_shard(material.plan),
            )
        )
        for batch in left_out:
            self.events.write(self.records_skipped(resumed_from_step, batch))

    def records_skipped(self, step: int, batch: BatchId) -> RecordsSkipped:
        """Return the event that the records of a batch are left out, with their numbers."""
        records = records_of(self.material.plan, batch).tolist()
        return RecordsSkipped(step=step, **batch._asdict(), records=tuple(records))


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training came to.

    Attributes:
        trainer: The model after the last step.
        metrics: The last ones known.
    """

    trainer: Trainer
    metrics: dict[str, Any]


def train(
    job: Job,
    reporter: Reporter,
    engine: Callable[[Run], Trained],
    definition: ModelDefinition | None = None,
) -> Outcome:
    """Train a model with an engine, going on where an earlier run of the job ended.

    Args:
        job: What is asked for.
        reporter: Who tells people.
        engine: Trains.
        definition: What to train, if it is at hand; None makes it from the job's words.

    Raises:
        ElasticDLError: See `elasticdl.errors`; the reason is in the events as well.
    """
    if job.model is None:
        raise ValueError(f"Not a training job: {job}")
    with attempt(job, reporter) as begun:
        folder, checkpoint, generation = begun.folder, begun.checkpoint, begun.generation
        reporter = begun.reporter
        if checkpoint is not None and _is_done(job, checkpoint, begun.store, folder):
            reporter.note(f"{folder.uri} is trained already: {checkpoint.step:,} steps.")
            follow_finished_job(begun.events, job, folder, generation, checkpoint.step)
            return Outcome(
                folder.uri, checkpoint.step, checkpoint.metadata["metrics"], already_done=True
            )
        code_sha256 = copy_code(job, begun.scratch, checkpoint, reporter)
        quiet_frameworks()
        material, metadata = open_material(job, checkpoint, definition=definition)
        for note in material.definition.notes():
            reporter.note(note)
        step = checkpoint.step if checkpoint is not None else 0
        about = attempt_of(job, generation, material.definition, versions())
        about = replace(about, tags={**about.tags, "resume": material.data.resume})
        follow_job(begun.events, job, folder, about, step)
        run = Run(
            material=material,
            folder=folder,
            generation=generation,
            store=begun.store,
            events=begun.events,
            reporter=reporter,
            code=begun.scratch,
            checkpoint=checkpoint,
            metadata={**metadata, "code_sha256": code_sha256},
        )
        trained = engine(run)
        reporter.ended()
        step = trained.trainer.step
        if job.training.restore_best_weights:
            trained = _best_of(run, trained)
        publish(
            job,
            material.definition,
            trained.trainer,
            trained.metrics,
            folder=folder,
            code=begun.scratch,
        )
        begun.events.write(JobFinished(step=step, metrics=trained.metrics))
        return Outcome(folder.uri, step, trained.metrics)


def _best_of(run: Run, trained: Trained) -> Trained:
    """Return the model as it was at its best checkpoint."""
    try:
        best = run.store.best()
    except CorruptCheckpointError as error:
        # It may be all that is left of a month; the last model is as whole as without the option.
        run.reporter.note(
            f"WARNING: the best checkpoint by {run.material.job.training.best_metric} is damaged: "
            f"{error} The model of the last step, {trained.trainer.step:,}, is published instead."
        )
        run.store.unmark_best()
        return trained
    if best is None:
        run.reporter.note(
            f"No checkpoint is the best by {run.material.job.training.best_metric}: it was never a "
            "number. The last one is taken."
        )
        return trained
    # A checkpoint may hold the state of an accumulator as well.
    own = trained.trainer.state().keys()
    trained.trainer.load_state({path: best.state[path] for path in own})
    if trained.trainer.hooks.measures_averages(best.metadata["hooks"]):
        trained.trainer.finish()
    return Trained(trained.trainer, dict(best.metadata["metrics"]))


def _is_done(
    job: Job, checkpoint: Checkpoint, store: CheckpointStore, folder: OutputFolder
) -> bool:
    """Whether the training is at its end, and its model is there."""
    place = Place.from_json(checkpoint.metadata["place"])
    limit = job.training.max_steps
    finished = (
        place.stopped
        or place.ledger.epoch >= job.training.num_epochs
        or bool(limit and checkpoint.step >= limit)
    )
    if not finished:
        return False
    # A job that is trained further has a model before, of an earlier end.
    best = store.best_step() if job.training.restore_best_weights else None
    try:
        step = load_trained_model(folder.uri).description.step
    except OutputError:
        return False
    return step == (checkpoint.step if best is None else best)

"""Training run, from claiming the output folder to publishing the trained model.

    claim the output -> copy the code -> define the model -> open the records -> ENGINE -> publish

An engine is a function from a `Run` to a `TrainResult` that runs the training loop. The engines
share all other stages, which are in this module.

Callers: `in_process.py` and `elastic/`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.event_log import EVENTS_FILE
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.attempt import attempt
from elasticdl.engines.data_changes import fingerprint, note_changed_data
from elasticdl.engines.engine import Outcome, Reporter
from elasticdl.engines.job_messages import without_recording
from elasticdl.engines.loop import measured_state
from elasticdl.engines.publish import (
    copy_code,
    note_changed_code,
    note_new_code,
    publish,
    versions,
)
from elasticdl.engines.train_progress import TrainProgress
from elasticdl.engines.training_context import TrainingContext, open_context
from elasticdl.errors import CorruptCheckpointError, ElasticDLError, OutputError
from elasticdl.event_file import parse_all_events
from elasticdl.events import Event, JobFailed, JobFinished, JobStarted, RecordsSkipped
from elasticdl.sharding.left_out import BatchId, records_of
from elasticdl.tracking.create import attempt_of, follow_finished_job, follow_job
from elasticdl.training.create import quiet_frameworks

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore
    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.interfaces import EventSink
    from elasticdl.job import Job
    from elasticdl.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class Run:
    """A training run that is ready to start: the input of an engine.

    Attributes:
        context: The model and its data.
        folder: The output folder.
        generation: Number of times the job has been started in this folder.
        store: The checkpoints in the folder.
        events: The event log in the folder.
        reporter: Reports progress to the user.
        code: A copy of the user's code, because the original may be edited during the run.
        checkpoint: The checkpoint to resume from; None for a new job.
        metadata: Values that are stored in every checkpoint of the run, as JSON: the shard plan, a
            description of the data, the hashes of the code, and derived params.
    """

    context: TrainingContext
    folder: OutputFolder
    generation: int
    store: CheckpointStore
    events: EventSink
    reporter: Reporter
    code: Path
    checkpoint: Checkpoint | None
    metadata: Mapping[str, Any]

    def started(self, resumed_from_step: int, *, is_resumed: bool = True) -> None:
        """Report the start of training to the event log and the user.

        Args:
            resumed_from_step: The step that training resumes from; 0 for a new job.
            is_resumed: Whether the model has loaded the checkpoint, if there is one. False: the
                caller calls `resumed` once it has, because it may not match the new code.
        """
        left_out: Sequence[BatchId] = ()
        if self.checkpoint is not None:
            left_out = TrainProgress.from_json(self.checkpoint.metadata["progress"]).ledger.left_out
        was_killed = self.checkpoint is None and self.generation > 1 and self._was_killed()
        self.write_start(resumed_from_step, left_out)
        if was_killed:
            steps = self.context.job.training.checkpoint_steps
            how = f"Lower --checkpoint_steps ({steps:,})" if steps else "Set --checkpoint_steps"
            without_recording(self.reporter).note(
                f"Starting from the beginning: the run before, in {self.folder.uri}, was killed "
                f"before its first checkpoint. {how} to have one earlier."
            )
        if is_resumed:
            self.resumed(resumed_from_step)
        options = self.context.job.training
        if self.counts_steps:
            self.reporter.started("Training", options.max_steps, "steps", done=resumed_from_step)
        else:
            total = self.context.num_records * options.num_epochs
            done = self.records_done(self.checkpoint)
            self.reporter.started("Training", total, "records", done=done)

    def resumed(self, step: int) -> None:
        """Tell the user that training resumes from a checkpoint; do nothing in a new job."""
        if self.checkpoint is None:
            return
        options = self.context.job.training
        note_new_code(
            self.context.definition.origin.zoo,
            self.checkpoint,
            self.metadata["code_files"],
            self.reporter,
            best_metric=options.best_metric if options.restore_best_weights else None,
        )
        without_recording(self.reporter).note(f"Resuming from step {step:,} in {self.folder.uri}.")
        planned = options.num_epochs
        if _epochs(TrainProgress.from_json(self.checkpoint.metadata["progress"])) > planned:
            self.reporter.note(
                f"The job has already trained for more epochs than --num_epochs={planned}, so "
                f"nothing more is trained: the model is that of step {step:,}."
            )

    def _was_killed(self) -> bool:
        """Return whether the log's last run was killed: it started to train and logged no end."""
        runs = False
        for event in _logged(self.folder):
            runs = isinstance(event, JobStarted) or (
                runs and not isinstance(event, (JobFailed, JobFinished))
            )
        return runs

    @property
    def counts_steps(self) -> bool:
        """Whether progress is counted in steps, because `max_steps` ends training early."""
        context, options = self.context, self.context.job.training
        if not options.max_steps:
            return False
        per_step = options.global_batch_size or context.minibatch_size
        return options.max_steps * per_step < context.num_records * options.num_epochs

    def records_done(self, checkpoint: Checkpoint | None) -> int:
        """Return the number of records trained on up to a checkpoint, over all epochs."""
        if checkpoint is None:
            return 0
        progress = TrainProgress.from_json(checkpoint.metadata["progress"])
        return progress.ledger.epoch * self.context.num_records + progress.epoch_examples

    def write_start(self, resumed_from_step: int, left_out: Sequence[BatchId] = ()) -> None:
        """Write the start event; it makes earlier events of steps after `resumed_from_step` void.

        Args:
            resumed_from_step: The step that training resumes from.
            left_out: Batches whose records are skipped from that step on. Their events are
                written again, because the start event voids them as well.
        """
        job, context = self.context.job, self.context
        assert job.model is not None  # noqa: S101 - a training job
        num_records = context.num_records
        self.events.write(
            JobStarted(
                job_id=job.id,
                attempt=self.generation,
                resumed_from_step=resumed_from_step,
                num_records=num_records,
                num_epochs=job.training.num_epochs,
                minibatch_size=context.minibatch_size,
                model_def=job.model.model_def,
                framework=context.definition.framework,
                host=socket.gethostname(),
                pid=os.getpid(),
                resume=context.data.resume,
                trust_used=context.definition.trust_used,
                versions=versions(),
                num_shards=context.plan.num_shards,
                batches_per_shard=context.data.batches_per_shard(context.plan),
            )
        )
        for batch in left_out:
            self.events.write(self.records_skipped(resumed_from_step, batch))

    def records_skipped(self, step: int, batch: BatchId) -> RecordsSkipped:
        """Return the event for a batch whose records are skipped, with the record numbers."""
        records = records_of(self.context.plan, batch).tolist()
        return RecordsSkipped(step=step, **batch._asdict(), records=tuple(records))


@dataclass(frozen=True, eq=False)
class TrainResult:
    """Result of a training run: the output of an engine.

    Attributes:
        trainer: The model after the last step.
        metrics: Name -> latest value; those of the validation data as `val_...`.
        restored: If the model has the weights of an earlier epoch: a sentence that names the epoch.
    """

    trainer: Trainer
    metrics: dict[str, Any]
    restored: str = ""


def train(
    job: Job,
    reporter: Reporter,
    engine: Callable[[Run], TrainResult],
    definition: ModelDefinition | None = None,
) -> Outcome:
    """Train a model with an engine, resuming where an earlier run of the job ended.

    Args:
        job: The job to run.
        reporter: Reports progress to the user.
        engine: Function (run) -> result of training; it runs the training loop.
        definition: The model definition if there already is one. None: read it from the job's model
            reference.

    Raises:
        ElasticDLError: The job failed; the reason is in the event log as well. See
            `elasticdl.errors`.
    """
    if job.model is None:
        raise ValueError(f"Not a training job: {job}")
    with attempt(job, reporter) as begun:
        folder, checkpoint, generation = begun.folder, begun.checkpoint, begun.generation
        reporter = begun.reporter
        if checkpoint is not None and _is_done(job, checkpoint, begun.store, folder):
            progress = TrainProgress.from_json(checkpoint.metadata["progress"])
            stopped, planned = progress.stopped, job.training.num_epochs
            why = " A callback ended it, so a larger --num_epochs changes nothing." * stopped
            if not stopped and _epochs(progress) > planned:
                why = f" It has trained for more epochs than --num_epochs={planned}."
            restored = _restored(folder)
            why += f" {restored}" if restored else ""
            reporter.note(
                f"The training in {folder.uri} is already complete: {checkpoint.step:,} steps.{why}"
            )
            limit = job.training.max_steps
            ended_by = "--max_steps" if limit and checkpoint.step >= limit else "--num_epochs"
            note_changed_code(
                job,
                begun.scratch,
                checkpoint,
                reporter,
                continue_option="" if stopped else ended_by,
            )
            note_changed_data(checkpoint, reporter)
            follow_finished_job(begun.events, job, folder, generation, checkpoint.step)
            published = _published(job, checkpoint, begun.store)
            return Outcome(
                folder.uri,
                checkpoint.step,
                published.metadata["metrics"],
                already_done=True,
                restored=restored,
            )
        code_files = copy_code(job, begun.scratch, reporter)
        quiet_frameworks()
        context, metadata = open_context(job, checkpoint, definition=definition)
        for note in (*context.definition.notes(), *context.notes()):
            reporter.note(note)
        step = checkpoint.step if checkpoint is not None else 0
        about = attempt_of(job, generation, context.definition, versions())
        about = replace(about, tags={**about.tags, "resume": context.data.resume})
        follow_job(begun.events, job, folder, about, step)
        run = Run(
            context=context,
            folder=folder,
            generation=generation,
            store=begun.store,
            events=begun.events,
            reporter=reporter,
            code=begun.scratch,
            checkpoint=checkpoint,
            metadata={**metadata, "code_files": code_files},
        )
        trained = engine(run)
        reporter.ended()
        step = trained.trainer.step
        if job.training.restore_best_weights:
            trained = _best_of(run, trained)
        publish(
            context.complete_job,
            context.definition,
            trained.trainer,
            trained.metrics,
            classes=context.classes,
            record_fields=context.record_fields(),
            class_columns=context.class_columns(),
            data_fingerprint=fingerprint(metadata["files"], metadata["content_marks"]),
            folder=folder,
            code=begun.scratch,
            job_id=job.id,
        )
        begun.events.write(
            JobFinished(step=step, metrics=trained.metrics, restored=trained.restored)
        )
        return Outcome(folder.uri, step, trained.metrics, restored=trained.restored)


def _best_of(run: Run, trained: TrainResult) -> TrainResult:
    """Load the best checkpoint into the trainer, to publish it; return a result with its metrics.

    A note shows the user its epoch and step. If there is no best checkpoint, or it is damaged, the
    user is notified and `trained` is returned unchanged. A damaged checkpoint is no longer marked
    as the best.
    """
    try:
        best = run.store.best()
    except CorruptCheckpointError as error:
        # The run may have taken a month, so publish the last model, as without the option.
        run.reporter.note(
            f"WARNING: the best checkpoint by {run.context.job.training.best_metric} is damaged: "
            f"{error} The model of the last step, {trained.trainer.step:,}, is published instead."
        )
        run.store.unmark_best()
        return trained
    if best is None:
        run.reporter.note(
            f"There is no best checkpoint by {run.context.job.training.best_metric}: it was not "
            "measured, or its value was never a number. The last model is published."
        )
        return trained
    # A checkpoint may contain the state of an accumulator as well.
    own = trained.trainer.state().keys()
    trained.trainer.load_state(measured_state(best.state, own))
    if trained.trainer.measures_averages:
        trained.trainer.finish()
    progress = TrainProgress.from_json(best.metadata["progress"])
    # At the end of an epoch, the ledger is already that of the next one.
    epoch = progress.ledger.epoch + (best.step > progress.first_step)
    value = "" if progress.best is None else f", {progress.best:.4g}"
    restored = (
        f"The trained model has the weights of epoch {epoch} (step {best.step:,}), with the best "
        f"{run.context.job.training.best_metric}{value}."
    )
    run.reporter.note(restored)
    return TrainResult(trained.trainer, dict(best.metadata["metrics"]), restored)


def _published(job: Job, last: Checkpoint, store: CheckpointStore) -> Checkpoint:
    """Return the checkpoint whose weights are published: the best one, or else `last`.

    The best is used if the job has `restore_best_weights` and the file is not damaged.
    """
    if not job.training.restore_best_weights:
        return last
    with contextlib.suppress(CorruptCheckpointError):
        return store.best() or last
    return last


def _logged(folder: OutputFolder) -> Iterator[Event]:
    """Yield the events in a folder's log up to the first damaged one, if there is one."""
    # A damaged log is not a reason to fail.
    with contextlib.suppress(ElasticDLError):
        yield from parse_all_events(folder.read_bytes(EVENTS_FILE))


def _restored(folder: OutputFolder) -> str:
    """Return `JobFinished.restored` of the last training that ended; empty if there is none."""
    ends = [event.restored for event in _logged(folder) if isinstance(event, JobFinished)]
    return ends[-1] if ends else ""


def _epochs(progress: TrainProgress) -> float:
    """Return the number of trained epochs, to see whether a job has trained more than `num_epochs`.

    An unfinished epoch counts as half, whatever was trained of it.
    """
    return progress.ledger.epoch + 0.5 * bool(progress.epoch_examples)


def _is_done(
    job: Job, checkpoint: Checkpoint, store: CheckpointStore, folder: OutputFolder
) -> bool:
    """Return whether the job is complete at a checkpoint, and its trained model is published.

    Args:
        job: The job.
        checkpoint: The newest checkpoint.
        store: The checkpoints in the folder.
        folder: The output folder.
    """
    progress = TrainProgress.from_json(checkpoint.metadata["progress"])
    limit = job.training.max_steps
    finished = (
        progress.stopped
        or progress.ledger.epoch >= job.training.num_epochs
        or bool(limit and checkpoint.step >= limit)
    )
    if not finished:
        return False
    # A job continued with more epochs already has a model, published at its earlier end.
    best = store.best_step() if job.training.restore_best_weights else None
    try:
        step = load_trained_model(folder.uri).description.step
    except OutputError:
        return False
    return step == (checkpoint.step if best is None else best)

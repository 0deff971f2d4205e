"""In-process engine: trains in this process. Other engines must give the same results."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.engines import run as training_run
from elasticdl.engines.feed import TrainingBatch, training_batches
from elasticdl.engines.interfaces import Commit
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.loop import Loop
from elasticdl.engines.run import Run, TrainResult
from elasticdl.sharding.ledger import LeaseUpdate, Ledger

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.gradient_accumulation import Accumulator
    from elasticdl.engines.train_progress import TrainProgress
    from elasticdl.job import Job
    from elasticdl.training.trainer import MetricStates, Trainer

_RANK = 0


def train(job: Job, reporter: Reporter, definition: ModelDefinition | None = None) -> Outcome:
    """Train a model in this process, resuming where an earlier run of the job ended.

    Args:
        job: The job to run.
        reporter: Reports progress to the user.
        definition: The model definition if there already is one. None: read it from the job's model
            reference.

    Raises:
        ElasticDLError: The job failed; the reason is in the event log as well. See
            `elasticdl.errors`.
    """
    return training_run.train(job, reporter, train_run, definition)


@dataclass
class InProcessCommitter:
    """Committer for a single process, which needs no agreement; see `interfaces.Committer`.

    Attributes:
        trainer: The model and its optimizer.
        accumulator: Sums commits into one update; None if each batch is an update.
        rank: The rank that holds the leases of the batches.
        max_group_steps: Maximum number of batches in one commit.
        patience_steps: Number of commits that the rank may miss before its lease is released.
    """

    trainer: Trainer
    accumulator: Accumulator | None = None
    rank: int = _RANK
    max_group_steps: int = 2**31
    patience_steps: int = 2**31

    def begin(self, *, ahead: bool) -> None:
        """Do nothing, because there are no other workers to agree with."""

    def commit(
        self, batches: Sequence[TrainingBatch], progress: TrainProgress, *, stop: bool
    ) -> Commit | None:
        """Apply one update per batch; see `interfaces.Committer.commit`.

        With an `accumulator`, the batch's gradients are added to it instead. It applies an update
        when it has enough batches, or at the end of the epoch.
        """
        if stop:
            return Commit([], (self.rank,), stop=True)
        last = batches[-1]
        if last.batch is None and not last.is_empty:
            return Commit([LeaseUpdate(self.rank, 0, finished=True)], (self.rank,))
        row = LeaseUpdate(self.rank, len(batches), last.finished, last.digest)
        num_left_out = sum(fed.num_left_out for fed in batches)
        if last.batch is None:
            if self.accumulator is not None:
                self.accumulator.add(None, 1, last=progress.ledger.advance([row]).epoch_done)
            return Commit([row], (self.rank,), num_left_out=num_left_out)
        some = [fed.batch for fed in batches if fed.batch is not None]
        if self.accumulator is None:
            result = self.trainer.train_steps(some, progress.epoch_states)
        else:
            # Each batch of an update draws its own random numbers.
            self.trainer.rank = self.rank + self.accumulator.num_batches
            contribution, result = self.trainer.gradients(last.batch, progress.epoch_states)
            is_last = progress.ledger.advance([row]).epoch_done
            self.accumulator.add(contribution, 1, last=is_last)
        return Commit(
            [row],
            (self.rank,),
            result.metrics,
            result.losses,
            num_left_out=num_left_out,
            num_examples=sum(batch.num_examples for batch in some),
        )

    def commit_evaluation(
        self,
        states: MetricStates,
        row: LeaseUpdate | None,
        *,
        begins: bool,  # noqa: ARG002 - of the interface
    ) -> Commit | None:
        """Return the metric states unchanged, because there are no other workers."""
        return Commit([row] if row is not None else [], (self.rank,), states)

    def leads(self) -> bool:
        """Return True: the only process is the leader."""
        return True


def train_run(run: Run) -> TrainResult:
    """Train in this process. This is the in-process engine; a plugin's engine may call it."""
    context, options = run.context, run.context.job.training

    def open_feed(ledger: Ledger, ranks: Collection[int]) -> Iterator[TrainingBatch]:
        return training_batches(
            # A run on workers, resumed here, may have left records out.
            functools.partial(context.shard_batches, left_out=ledger.left_out),
            ledger,
            rank=_RANK,
            ranks=ranks,
            num_epochs=options.num_epochs,
        )

    trainer = context.create_trainer()
    if run.checkpoint is None:
        for note in (*context.why_not_exported(trainer), *context.model_notes(trainer)):
            run.reporter.note(note)
    context.check_validation(trainer)
    accumulator = context.create_accumulator(trainer)
    with Interrupts() as interrupts:
        loop = Loop(
            options=options,
            trainer=trainer,
            committer=InProcessCommitter(
                trainer, accumulator, max_group_steps=1 if accumulator else 2**31
            ),
            open_feed=open_feed,
            rank=_RANK,
            num_records=context.num_records,
            events=run.events,
            checkpoints=run.store,
            checkpoint_metadata=run.metadata,
            reporter=run.reporter,
            validation=context.validation,
            progress=context.initial_progress(),
            safe_point=interrupts.check,
            ranks=(_RANK,),
            accumulator=accumulator,
            num_steps=context.num_steps,
            file_variables=context.file_variables,
            check_epoch=context.check_epoch,
            counts_steps=run.counts_steps,
        )
        if run.checkpoint is not None:
            loop.resume(run.checkpoint)
            # Before `started`, which tells the user that the training is resumed.
            loop.begin()
        run.started(trainer.step)
        try:
            metrics = loop.run()
        except BaseException:
            if interrupts.handled_at_safe_point:
                loop.interrupt()
            raise
        restored = loop.finish()
    return TrainResult(trainer, metrics, restored)

"""Everything in this process: the reference that the other engines must agree with."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.engines import run as training_run
from elasticdl.engines.feed import FedBatch, training_batches
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.loop import Loop
from elasticdl.engines.run import Run, Trained
from elasticdl.engines.seams import Commit
from elasticdl.sharding.ledger import Ledger, Row

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.accumulator import Accumulator
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.place import Place
    from elasticdl.job import Job
    from elasticdl.training.trainer import MetricStates, Trainer

_SLOT = 0


def train(job: Job, reporter: Reporter, definition: ModelDefinition | None = None) -> Outcome:
    """Train a model here, going on where an earlier run of the job ended.

    Args:
        job: What is asked for.
        reporter: Who tells people.
        definition: What to train, if it is at hand; None makes it from the job's words.

    Raises:
        ElasticDLError: See `elasticdl.errors`; the reason is in the events as well.
    """
    return training_run.train(job, reporter, _train, definition)


@dataclass
class InProcessCommitter:
    """Commits batches by training on them: nobody else has to agree; see `seams.Committer`.

    Attributes:
        trainer: The model.
        accumulator: Sums up what makes an update; None if each batch makes its own.
        slot: Whose pieces of the ledger these batches are.
        max_group_steps: See `seams.Committer`.
        patience_steps: See `seams.Committer`.
    """

    trainer: Trainer
    accumulator: Accumulator | None = None
    slot: int = _SLOT
    max_group_steps: int = 2**31
    patience_steps: int = 2**31

    def begin(self, *, ahead: bool) -> None:
        """Nobody to agree with."""

    def commit(self, batches: Sequence[FedBatch], place: Place, *, stop: bool) -> Commit | None:
        """See `seams.Committer`."""
        if stop:
            return Commit([], (self.slot,), stop=True)
        last = batches[-1]
        if last.batch is None and not last.is_empty:
            return Commit([Row(self.slot, 0, finished=True)], (self.slot,))
        row = Row(self.slot, len(batches), last.finished, last.digest)
        num_left_out = sum(fed.num_left_out for fed in batches)
        if last.batch is None:
            if self.accumulator is not None:
                self.accumulator.add(None, 1, last=place.ledger.advance([row]).epoch_done)
            return Commit([row], (self.slot,), num_left_out=num_left_out)
        if self.accumulator is None:
            some = [fed.batch for fed in batches if fed.batch is not None]
            result = self.trainer.train_steps(some, place.epoch_states)
        else:
            # Each batch of an update draws its own random numbers.
            self.trainer.slot = self.slot + self.accumulator.num_batches
            contribution, result = self.trainer.gradients(last.batch, place.epoch_states)
            is_last = place.ledger.advance([row]).epoch_done
            self.accumulator.add(contribution, 1, last=is_last)
        return Commit([row], (self.slot,), result.metrics, result.losses, num_left_out=num_left_out)

    def commit_evaluation(self, states: MetricStates, row: Row | None) -> Commit | None:
        """See `seams.Committer`."""
        return Commit([row] if row is not None else [], (self.slot,), states)

    def leads(self) -> bool:
        """Nobody else could."""
        return True


def _train(run: Run) -> Trained:
    material, options = run.material, run.material.job.training

    def open_feed(ledger: Ledger, slots: Collection[int]) -> Iterator[FedBatch]:
        return training_batches(
            # A training on workers may have left something out.
            functools.partial(material.shard_batches, left_out=ledger.left_out),
            ledger,
            slot=_SLOT,
            slots=slots,
            num_epochs=options.num_epochs,
        )

    trainer = material.create_trainer()
    if run.checkpoint is None:
        for note in material.why_not_exported(trainer):
            run.reporter.note(note)
    accumulator = material.create_accumulator(trainer)
    with Interrupts() as interrupts:
        loop = Loop(
            options=options,
            trainer=trainer,
            committer=InProcessCommitter(
                trainer, accumulator, max_group_steps=1 if accumulator else 2**31
            ),
            open_feed=open_feed,
            slot=_SLOT,
            num_records=material.num_records,
            events=run.events,
            checkpoints=run.store,
            checkpoint_metadata=run.metadata,
            reporter=run.reporter,
            validation=material.validation,
            place=material.first_place(),
            safe_point=interrupts.check,
            slots=(_SLOT,),
            accumulator=accumulator,
            num_steps=material.num_steps,
            file_variables=material.file_variables,
        )
        if run.checkpoint is not None:
            loop.resume(run.checkpoint)
        run.started(trainer.step)
        try:
            metrics = loop.run()
        except BaseException:
            if interrupts.answered_safely:
                loop.interrupt()
            raise
        loop.finish()
    return Trained(trainer, metrics)

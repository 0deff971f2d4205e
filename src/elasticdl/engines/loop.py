"""The training loop: all that the engines share of what happens between two steps.

    until the job is over:
        prepare      the epoch's data is done: tell the callbacks, next epoch;
                     an evaluation is due: begin it
        begin        who takes part (on many workers: who joins takes over a peer's state)
        commit       batches: they are in the model now, and in the ledger, exactly once;
                     or one more shard of the validation data: what was measured is added up
        look         checkpoint and report if it is time

Each turn makes one commit, and all that is remembered between two turns is in the `Place` and
in the model's state: together they are a checkpoint, and what a worker that joins takes over.
What is looked at is decided by absolute step numbers, so a run that was killed and resumed
looks at the same steps as one that was not, and so do all workers of a run.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.artifacts.checkpoint import Checkpoint
from elasticdl.data.batch import Batch, arrays_bytes, batch_bytes, leaves
from elasticdl.engines.best import best_mode_of
from elasticdl.engines.file_variables import FileVariables
from elasticdl.engines.finite import StateCheck, check_losses
from elasticdl.engines.job_messages import aloud
from elasticdl.engines.place import Evaluation, Place
from elasticdl.engines.prefetch import INTERRUPTED_S, Prefetch
from elasticdl.engines.progress import metrics_in_words
from elasticdl.engines.step_events import StepEvents
from elasticdl.errors import TrainingError, UserCodeError
from elasticdl.evaluation.metrics import add_states
from elasticdl.events import Checkpointed, EpochFinished, Evaluated, RecordsSkipped
from elasticdl.sharding.ledger import Ledger, Piece, Row
from elasticdl.training.trainer import CALLBACKS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from elasticdl.engines.accumulator import Accumulator
    from elasticdl.engines.engine import Reporter
    from elasticdl.engines.feed import FedBatch
    from elasticdl.engines.seams import CheckpointSink, Commit, Committer, EventSink, Validation
    from elasticdl.job import TrainingOptions
    from elasticdl.sharding.left_out import BatchId
    from elasticdl.training.trainer import MetricStates, State, Trainer

# A group of steps is one call: long enough to cost nothing, short enough to see the loss move.
_MAX_GROUP_STEPS = 32
_MAX_GROUP_S = 0.25
_MAX_GROUP_BYTES = 64 * 2**20
# Checkpoints by time: not oftener than this, and so seldom that training stands still for half a
# percent of it. (One percent is promised; one checkpoint may take longer than the one before.)
_CHECKPOINT_INTERVAL_S = 30.0
_CHECKPOINT_BLOCKED_SHARE = 0.005


@dataclass
class Loop:
    """A training in progress.

    Attributes:
        options: How to train.
        trainer: The model.
        committer: How batches get into it.
        open_feed: (Ledger, slots) -> the batches of this slot from there on.
        slot: Which one it is.
        num_records: Records in an epoch, for people.
        events: What happened.
        checkpoints: Where states are kept.
        checkpoint_metadata: What else a checkpoint says (the plan, the data).
        reporter: Who tells people.
        validation: What to evaluate on; None if there is nothing.
        place: Where the job stands.
        safe_point: Called where weights and ledger agree, so that a run may be ended there.
        checkpoint_is_due: Says when to checkpoint; None decides by steps or by time.
        event_interval_s: Steps are told together that were made within it.
        metrics: The last ones known.
        slots: Who trains: those of the last commit.
        accumulator: Sums up what makes an update; None if each commit makes its own.
        num_steps: Steps in an epoch, for callbacks; None where that is not known before.
        file_variables: Those at the top level of the user's files, which should not change.
    """

    options: TrainingOptions
    trainer: Trainer
    committer: Committer
    open_feed: Callable[[Ledger, Collection[int]], Iterator[FedBatch]]
    slot: int
    num_records: int
    events: EventSink
    checkpoints: CheckpointSink
    checkpoint_metadata: Mapping[str, Any]
    reporter: Reporter
    validation: Validation | None
    place: Place
    safe_point: Callable[[], None]
    checkpoint_is_due: Callable[[], bool] | None = None
    event_interval_s: float = 1.0
    metrics: dict[str, Any] = field(default_factory=dict)
    slots: Collection[int] = ()
    accumulator: Accumulator | None = None
    num_steps: int | None = None
    file_variables: FileVariables = field(default_factory=FileVariables)

    def __post_init__(self) -> None:
        self._begun = self._joins = False
        self._asked = self._awaits_end = False
        self._hooks_state: tuple[Mapping[str, Any], State] | None = None
        # The callbacks have been called for the step that is being made; batches evaluated.
        self._batch_begun, self._test_begun, self._num_tested = False, False, 0
        self._tested: MetricStates = {}
        self._feed: Prefetch[FedBatch] | None = None
        self._group: list[FedBatch] = []
        self._told = StepEvents(
            self.events,
            self.reporter,
            num_records=self.num_records,
            num_epochs=self.options.num_epochs,
            interval_s=self.event_interval_s,
        )
        self._forget_the_past()

    def _forget_the_past(self) -> None:
        now = time.monotonic()
        self._last_checkpoint_s = now
        self._last_checkpoint_step = self.trainer.step
        # What has happened since the last checkpoint would be lost.
        self._unsaved = False
        self._blocked_s = 0.0
        self._copied_s: dict[int, float] = {}
        # The first call compiles; until the second one a step is taken to be slow.
        self._step_s = _MAX_GROUP_S
        self._num_calls = 0
        self._told.forget()

    # --- taking over a state --------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return all that is needed to go on from here, elsewhere or later."""
        return Checkpoint(
            step=self.trainer.step,
            state={
                **self.trainer.state(),
                **(self.accumulator.state() if self.accumulator else {}),
                **self.trainer.hooks.arrays(),
            },
            metadata={
                **self.checkpoint_metadata,
                "place": self.place.to_json(),
                "slots": sorted(self.slots),
                "hooks": self.trainer.hooks.state(),
                # A copy: on a worker the checkpoint is encoded only when it is fetched.
                "metrics": dict(self.metrics),
            },
        )

    @property
    def is_best(self) -> bool:
        """The model is the best so far, as it is now."""
        return self.place.best_step == self.trainer.step

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of an earlier attempt, whose workers are gone.

        Raises:
            CorruptCheckpointError: It is not of this model.
        """
        slots = self.slots
        self.join(checkpoint)
        self.slots, self._joins = slots, False
        self.place = self.place.without_slots()

    def join(self, checkpoint: Checkpoint) -> None:
        """Take over the state of a peer, and train beside it.

        Raises:
            CorruptCheckpointError: It is not of this model.
        """
        arrays, state = split_arrays(checkpoint.state)
        if self.accumulator is not None:
            state = self.accumulator.load_state(state)
        self.trainer.load_state(state)
        self.place = Place.from_json(checkpoint.metadata["place"])
        self.metrics = dict(checkpoint.metadata["metrics"])
        self.slots = checkpoint.metadata["slots"]
        self._hooks_state = checkpoint.metadata["hooks"], arrays
        if self._begun:
            self._match_evaluation()
            self._load_hooks(*self._hooks_state)
        self._batch_begun = False
        self._forget_the_past()
        self._group, self._joins = [], True
        self.close_feed()

    def _load_hooks(self, state: Mapping[str, Any], arrays: State) -> None:
        self.trainer.hooks.load_state(state, arrays)
        place = self.place
        has_looked = place.ledger.epoch > 0
        if place.epoch_begun:
            has_looked = self.trainer.step > place.first_step
        if has_looked:
            self._look_for_the_end(within_epoch=place.epoch_begun)

    # --- the loop -------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """Train to the end; returns the last metrics. `finish` follows.

        Raises:
            NonFiniteLossError: The loss became NaN or infinite.
        """
        hooks = self.trainer.hooks
        if self.options.best_mode == "auto" and self.options.best_metric != "val_loss":
            which = "highest" if self._best_mode() == "max" else "lowest"
            self.reporter.note(
                f"The best checkpoint is that of the {which} {self.options.best_metric}; "
                "--best_mode says otherwise."
            )
        resumed = None if self._hooks_state is None else self.trainer.state()
        hooks.committed(leads=self.committer.leads())
        hooks.train_begin(
            num_epochs=self.options.num_epochs,
            num_steps=self._steps_in_an_epoch(),
            resumes=resumed is not None,
        )
        if resumed is not None:
            # A callback may set weights or the learning rate as for a new training.
            self.trainer.load_state(resumed)
        self._state_check = StateCheck(self.trainer.state())
        self._begun = True
        self._match_evaluation()
        if self._hooks_state is not None:
            # After train_begin: there callbacks forget what they remember.
            self._load_hooks(*self._hooks_state)
            self._hooks_state = None
        self.file_variables.check()
        try:
            self._deal(self.slots)
            while self._turn():
                self.file_variables.check()
                if not self._within_an_update():
                    self.safe_point()
        except BaseException as error:
            self.close_feed(None if isinstance(error, Exception) else INTERRUPTED_S)
            raise
        self.close_feed()
        self._told.write(self._step_to_tell)
        if self._unsaved:
            self._checkpoint()
        self._wait_for_checkpoints()
        return self.metrics

    def finish(self) -> None:
        """Turn the trained model into the one to publish; the last checkpoint is of before.

        Averages of the weights take their place, and then callbacks end the training: some put the
        best weights back. So a job that is given more epochs trains as one longer run does.
        """
        self.trainer.finish()
        self.trainer.hooks.train_end(self.metrics)

    def _steps_in_an_epoch(self) -> int | None:
        if self.num_steps is None:
            return None
        per_step = 1 if self.accumulator is None else self.accumulator.batches_per_update
        return -(-self.num_steps // per_step)

    def interrupt(self) -> None:
        """Keep what was reached: the run is being ended from outside."""
        self._told.write(self._step_to_tell)
        if self._unsaved:
            self._checkpoint()
        self._wait_for_checkpoints()

    def close_feed(self, timeout_s: float | None = None) -> None:
        """End the thread that makes batches; see `Prefetch.close`."""
        if self._feed is not None:
            self._feed.close(timeout_s)
        self._feed = None

    def _turn(self) -> bool:
        """Do the one next thing; return whether there was any."""
        if not self._prepare_commit():
            return False
        # From here to the commit nothing may be begun anew: the others wait for this process.
        # Who observes batches must not be told of one that counts for nothing.
        observed = self.trainer.hooks.observes_batches
        self.committer.begin(ahead=self.place.evaluation is None and not observed)
        if self.place.evaluation is not None:
            self._evaluate_a_shard(self.place.evaluation)
        else:
            self._advance()
        return True

    def _prepare_commit(self) -> bool:
        """Do what concerns nobody else; return False if there is nothing left to commit."""
        hooks = self.trainer.hooks
        while True:
            if self._evaluation_is_due():
                if self.place.evaluation is None and self.validation is not None:
                    self._begin_test()
                    ledger = Ledger(self.validation.num_shards).deal(self.slots)
                    self.place = replace(self.place, evaluation=Evaluation(ledger))
                return True
            if self.place.ledger.epoch_done:
                self._end_epoch()
                continue
            if self._is_over():
                if self._is_cut_short():
                    self._end_epoch()
                return False
            if not self.place.epoch_begun and not self._awaits_end:
                hooks.epoch_begin(self.place.ledger.epoch)
                self.place = replace(self.place, epoch_begun=True)
            return True

    def _is_over(self) -> bool:
        return (
            self.place.stopped
            or self.place.ledger.epoch >= self.options.num_epochs
            or bool(self.options.max_steps and self.trainer.step >= self.options.max_steps)
        )

    def _ends(self) -> bool:
        """Whether a callback ends the training here.

        Those of one worker decide for all: callbacks may look at a clock.
        """
        return self._asked and self.committer.leads()

    def _look_for_the_end(self, *, within_epoch: bool) -> None:
        """Note whether a callback asks for the end: `fit` looks after a batch and an epoch."""
        self._asked = self.trainer.hooks.stop_requested
        # An epoch that will not be trained on does not begin.
        self._awaits_end = self._asked and not within_epoch

    def _is_cut_short(self) -> bool:
        """Whether a callback has ended the training within an epoch, which has not ended yet."""
        return (
            self.place.stopped
            and self.place.epoch_begun
            and (self.trainer.step > self.place.first_step)
        )

    def _deal(self, slots: Collection[int]) -> None:
        self.place = replace(self.place, ledger=self.place.ledger.deal(slots))

    # --- one group of steps -----------------------------------------------------------

    def _advance(self) -> None:
        hooks, stop = self.trainer.hooks, self._ends()
        if self._joins:
            # The others have computed theirs, and would wait for the first of this process.
            self._joins = False
            self._open_feed()
        elif not self._group and not stop:
            self._group = self._next_group()
        if hooks.observes_batches and not stop and any(fed.batch for fed in self._group):
            self._begin_batch()
        group, before, started = self._group, self.place.ledger, time.monotonic()
        step = self.trainer.step
        try:
            # Not `stop`: if the one that led has gone or another has joined in a lower slot, this
            # worker may lead only from this commit on.
            commit = self.committer.commit(group, self.place, stop=self._asked)
        except (TrainingError, UserCodeError) as error:
            raise type(error)(f"{error}\n  {_where(group)}") from error
        if commit is None:
            return
        if commit.stop:
            group = []
        check_losses(
            commit.losses,
            group,
            self.trainer,
            step=self.trainer.step,
            last_good=self._last_checkpoint_step,
        )
        self._group = []
        self._enter(commit)
        # A batch without an example may complete an update.
        if self.trainer.step > step:
            if hooks.observes_batches:
                self._end_batch()
            self._look_for_the_end(within_epoch=True)
        self._num_calls += 1
        if self._num_calls > 1:
            self._step_s = (time.monotonic() - started) / max(1, len(group))
        self._told.add(commit, before, self.place, self.trainer.step)
        self._look()

    def _begin_batch(self) -> None:
        """Call the callbacks before a step, once, however often it is tried."""
        if not self._batch_begun:
            self._batch_begun = True
            self.trainer.hooks.batch_begin(self.trainer.step - self.place.first_step)

    def _end_batch(self) -> None:
        """Call the callbacks after a step, in which others may have made all there was."""
        if self._within_an_update():
            return
        number = self.trainer.step - 1 - self.place.first_step
        if not self._batch_begun:
            self.trainer.hooks.batch_begin(number)
        self._batch_begun = False
        # As `fit` does: not of this batch, but of the epoch so far.
        logs = self.trainer.training_metrics.results(self.place.epoch_states)
        self.trainer.hooks.batch_end(number, logs)

    def _enter(self, commit: Commit) -> None:
        """Write into the ledger what is in the model."""
        ledger = self.place.ledger.advance(commit.rows)
        if commit.lost:
            ledger = ledger.lost(commit.lost)
        self.slots = commit.slots
        ledger = ledger.missed(np.fromiter(self.slots, np.int64), self.committer.patience_steps)
        self.place = replace(
            self.place,
            ledger=ledger.deal(self.slots),
            epoch_states=add_states(
                [self.place.epoch_states, commit.metrics], self.trainer.training_metrics.ordered
            ),
            stopped=self.place.stopped or commit.stop,
        )
        self._leave_out(commit.left_out)
        self._unsaved, self._awaits_end = True, False
        self.trainer.hooks.committed(leads=self.committer.leads())

    def _leave_out(self, batches: Sequence[BatchId]) -> None:
        """Leave out the records of some batches from here on, as all workers do."""
        before = self.place.ledger
        ledger = before.leave_out(batches)
        if ledger is before:
            return
        self.place = replace(self.place, ledger=ledger)
        # It has made batches ahead that may hold them.
        self.close_feed()
        for batch in sorted({*ledger.left_out} - {*before.left_out}):
            self.events.write(RecordsSkipped(step=self.trainer.step, **batch._asdict()))

    def _next_group(self) -> list[FedBatch]:
        """Take the batches up to the next step that somebody looks at."""
        piece = self.place.ledger.piece_of(self.slot)
        if piece is None:
            return []
        feed = self._feed_at(piece)
        first = feed.take()
        group = [first]
        limit = 1 if first.batch is None else self._group_limit(first.batch)
        while len(group) < limit and not group[-1].finished:
            following = feed.peek()
            if following is None or not _follows(group[-1], following):
                break
            group.append(feed.take())
        return group

    def _feed_at(self, piece: Piece) -> Prefetch[FedBatch]:
        """Return a feed whose next batch is that of the ledger."""
        for feed in (self._feed, None):
            if feed is None:
                feed = self._open_feed()  # noqa: PLW2901
            following = feed.peek()
            if following is not None and (following.epoch, following.shard, following.number) == (
                self.place.ledger.epoch,
                piece.shard,
                piece.committed,
            ):
                return feed
        raise RuntimeError(f"The feed and the ledger disagree: {following}, {piece}")

    def _open_feed(self) -> Prefetch[FedBatch]:
        self.close_feed()
        # Who has just joined is not yet among those of the last commit.
        batches = self.open_feed(self.place.ledger, {*self.slots, self.slot})
        self._feed = Prefetch(batches, _size_of)
        return self._feed

    def _group_limit(self, batch: Batch) -> int:
        hooks = self.trainer.hooks
        if hooks.observes_batches or hooks.stop_requested:
            # `fit` makes one more batch where a callback has asked for the end before it.
            return 1
        limits = [
            _MAX_GROUP_STEPS,
            self.committer.max_group_steps,
            int(_MAX_GROUP_S / max(self._step_s, 1e-9)) or 1,
            max(1, _MAX_GROUP_BYTES // max(1, arrays_bytes((batch.features,)))),
        ]
        step = self.trainer.step
        observed = (self.options.evaluation_steps, self.options.checkpoint_steps)
        limits.extend(interval - step % interval for interval in observed if interval)
        if self.options.max_steps:
            limits.append(self.options.max_steps - step)
        return min(limits)

    # --- evaluation -------------------------------------------------------------------

    def _evaluation_is_due(self) -> bool:
        if self.validation is None or self.place.evaluated_step == self.trainer.step:
            return False
        interval, step = self.options.evaluation_steps, self.trainer.step
        if self._is_over() or (not interval and self.place.ledger.epoch_done):
            return True
        return bool(interval and step and step % interval == 0)

    def _begin_test(self) -> None:
        self._test_begun, self._num_tested, self._tested = True, 0, {}
        self.trainer.hooks.test_begin()

    def _end_test(self, metrics: Mapping[str, Any]) -> None:
        self._test_begun = False
        self.trainer.hooks.test_end(metrics)

    def _match_evaluation(self) -> None:
        """Let the callbacks begin or end an evaluation as the state that was taken over does.

        Called before they take over what they remember: beginning and ending may change it.
        """
        is_evaluating = self.place.evaluation is not None
        if is_evaluating and not self._test_begun:
            self._begin_test()
        elif self._test_begun and not is_evaluating:
            prefix = "val_"
            known = {n.removeprefix(prefix): v for n, v in self.metrics.items() if prefix in n}
            self._end_test(known)

    def _evaluate_a_shard(self, now: Evaluation) -> None:
        assert self.validation is not None  # noqa: S101 - it is due
        piece = now.ledger.piece_of(self.slot)
        ordered = self.trainer.evaluation_metrics.ordered
        states: MetricStates = {}
        row = None
        if piece is not None:
            for batch in self.validation.batches(piece.shard):
                found = self._evaluate(batch, {**now.states, **states})
                states = add_states([states, found], ordered)
            row = Row(self.slot, 0, finished=True)
        commit = self.committer.commit_evaluation(states, row)
        if commit is None:
            return
        self.slots = commit.slots
        self.trainer.hooks.committed(leads=self.committer.leads())
        ledger = now.ledger.advance(commit.rows).lost(commit.lost)
        ledger = ledger.missed(np.fromiter(self.slots, np.int64), self.committer.patience_steps)
        total = add_states([now.states, commit.metrics], ordered)
        now = Evaluation(ledger.deal(self.slots), total)
        self.place = replace(
            self.place,
            evaluation=now,
            # A slot that died meanwhile has lost what it was to train on as well.
            ledger=self.place.ledger.lost(commit.lost),
        )
        self._leave_out(commit.left_out)
        if now.ledger.epoch_done:
            self._end_evaluation(now.states)

    def _evaluate(self, batch: Batch, so_far: MetricStates) -> MetricStates:
        hooks = self.trainer.hooks
        if not hooks.observes_test_batches:
            return self.trainer.evaluate(batch, so_far)
        number, self._num_tested = self._num_tested, self._num_tested + 1
        hooks.test_batch_begin(number)
        states = self.trainer.evaluate(batch, so_far)
        ordered = self.trainer.evaluation_metrics.ordered
        self._tested = add_states([self._tested, states], ordered)
        hooks.test_batch_end(number, self.trainer.evaluation_metrics.results(self._tested))
        return states

    def _end_evaluation(self, states: MetricStates) -> None:
        metrics = self.trainer.evaluation_metrics.results(states)
        self.place = replace(self.place, evaluation=None, evaluated_step=self.trainer.step)
        self._end_test(metrics)
        self.metrics.update({f"val_{name}": value for name, value in metrics.items()})
        self._told.write(self._step_to_tell)
        self.events.write(
            Evaluated(step=self.trainer.step, epoch=self.place.ledger.epoch, metrics=metrics)
        )
        words = metrics_in_words(metrics, prefix="validation ")
        aloud(self.reporter).note(f"step {self.trainer.step}: {words}")
        ends = self.place.ledger.epoch_done or self._is_cut_short()
        if not ends or self.options.evaluation_steps:
            # At an epoch's end it is decided when the training's metrics are known as well.
            self._checkpoint_if_best()

    def _checkpoint_if_best(self) -> None:
        value, best = self.metrics.get(self.options.best_metric), self.place.best
        # What is no number (NaN among them) is never the best.
        if not isinstance(value, float) or not math.isfinite(value):
            return
        sign = 1 if self._best_mode() == "max" else -1
        if best is None or sign * value > sign * best:
            self.place = replace(self.place, best=value, best_step=self.trainer.step)
            self._checkpoint(best=True)

    def _best_mode(self) -> str:
        options = self.options
        if options.best_mode != "auto":
            return options.best_mode
        # One that is not known is refused before the first step.
        return best_mode_of(options.best_metric, self.trainer) or "min"

    def _end_epoch(self) -> None:
        epoch, is_whole = self.place.ledger.epoch, self.place.ledger.epoch_done
        # The training's own come first, as people read them.
        self.metrics = {
            **self.trainer.training_metrics.results(self.place.epoch_states),
            **{name: value for name, value in self.metrics.items() if name.startswith("val_")},
        }
        self._told.write(self._step_to_tell)
        self.events.write(
            EpochFinished(
                epoch=epoch,
                step=self.trainer.step,
                metrics=dict(self.metrics),
                stopped=not is_whole,
            )
        )
        self.trainer.hooks.epoch_end(epoch, self.metrics)
        self._look_for_the_end(within_epoch=False)
        self._unsaved = True
        if is_whole:
            self.place = Place(
                ledger=self.place.ledger.next_epoch(),
                best=self.place.best,
                best_step=self.place.best_step,
                stopped=self.place.stopped,
                evaluated_step=self.place.evaluated_step,
                first_step=self.trainer.step,
            )
            self._deal(self.slots)
        else:
            # The ledger stays: it says which records the model was trained on.
            self.place = replace(self.place, epoch_begun=False)
        self._checkpoint_if_best()

    # --- checkpoints ------------------------------------------------------------------

    def _within_an_update(self) -> bool:
        """Some of the batches of the next update are summed up, but not all."""
        return self.accumulator is not None and self.accumulator.num_batches > 0

    @property
    def _step_to_tell(self) -> int:
        # What is summed up belongs to the update it will be part of.
        return self.trainer.step + self._within_an_update()

    def _look(self) -> None:
        if not self._within_an_update() and self._checkpoint_is_due() and self._unsaved:
            self._checkpoint()
        self._told.write_if_due(self._step_to_tell)

    def _checkpoint_is_due(self) -> bool:
        if self.options.checkpoint_steps:
            return (
                self.trainer.step % self.options.checkpoint_steps == 0
                # A commit need not be a step.
                and self.trainer.step > self._last_checkpoint_step
            )
        if self.checkpoint_is_due is not None:
            return self.checkpoint_is_due()
        interval_s = max(_CHECKPOINT_INTERVAL_S, self._blocked_s / _CHECKPOINT_BLOCKED_SHARE)
        return time.monotonic() - self._last_checkpoint_s > interval_s

    def _checkpoint(self, *, best: bool = False) -> None:
        if not self.committer.leads():
            return
        started = time.monotonic()
        checkpoint = self.checkpoint()
        self._state_check.check(
            checkpoint.state, step=self.trainer.step, last_good=self._last_checkpoint_step
        )
        self._told.write(self._step_to_tell)
        # The store knows how long it kept us; the copy before that counts as well.
        self._copied_s[self.trainer.step] = time.monotonic() - started
        self.checkpoints.save_in_background(checkpoint, best=best)
        self._last_checkpoint_s = time.monotonic()
        self._blocked_s = self._last_checkpoint_s - started
        self._last_checkpoint_step = self.trainer.step
        self._unsaved = False
        self._tell_saved()

    def _wait_for_checkpoints(self) -> None:
        self.checkpoints.wait()
        self._tell_saved()

    def _tell_saved(self) -> None:
        saved_ones = self.checkpoints.take_saved()
        for saved in saved_ones:
            self.events.write(
                Checkpointed(
                    step=saved.step,
                    blocked_s=saved.blocked_s + self._copied_s.pop(saved.step, 0.0),
                    num_bytes=saved.num_bytes,
                    best=saved.step == self.place.best_step,
                )
            )
        if saved_ones:
            self.events.publish()


def split_arrays(state: State) -> tuple[State, State]:
    """Return what callbacks remember of a checkpoint's tensors, and the others."""
    arrays = {path: array for path, array in state.items() if path.startswith(CALLBACKS)}
    return arrays, {path: array for path, array in state.items() if path not in arrays}


def _size_of(fed: FedBatch) -> int:
    return 0 if fed.batch is None else batch_bytes(fed.batch)


def _where(group: Sequence[FedBatch]) -> str:
    if not group:
        return "It happened on another worker's batch."
    first, last = group[0], group[-1]
    place = f"It happened in epoch {first.epoch + 1}, shard {first.shard}, "
    if first is not last:
        return f"{place}batches {first.number} to {last.number}."
    records = "" if first.batch is None or first.batch.where is None else first.batch.where()
    return f"{place}batch {first.number}{f': {records}' if records else ''}."


def _follows(before: FedBatch, after: FedBatch) -> bool:
    """Whether two batches stand beside each other and can be steps of one group."""
    if (after.epoch, after.shard, after.number) != (before.epoch, before.shard, before.number + 1):
        return False
    one, other = before.batch, after.batch
    if one is None or other is None or one.num_examples != other.num_examples:
        return False
    mine, theirs = (leaves((b.features, b.labels, b.weights)) for b in (one, other))
    return len(mine) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(mine, theirs, strict=True)
    )

"""Training loop, shared by all engines.

    until the job is over:
        prepare      at the end of an epoch: call the callbacks, start the next epoch;
                     if an evaluation is due: start it
        begin        agree on the participants (a joining worker takes over a peer's state)
        commit       batches: train on them, and record them in the ledger, exactly once;
                     or one shard of the validation data: sum its metric states
        save         write a checkpoint and report progress if either is due

The ledger (`sharding/ledger.py`) records which batches the model was trained on, and which rank
trains on which shard. Each iteration makes one commit. All state that survives an iteration is in
`TrainProgress`, which contains the ledger, and in the model's state. Together they form a
checkpoint; a joining worker takes over the same state.
Evaluations and checkpoints by steps are scheduled by absolute step numbers. A run that was killed
and resumed therefore evaluates at the same steps as an uninterrupted one, and so do all workers of
a run.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.artifacts.checkpoint_store import Checkpoint
from elasticdl.data.batch import Batch, arrays_bytes, batch_bytes, leaves
from elasticdl.engines.best_metric import best_mode_of
from elasticdl.engines.feed import place_of
from elasticdl.engines.file_variables import FileVariables
from elasticdl.engines.finite import StateCheck, check_losses
from elasticdl.engines.job_messages import without_recording
from elasticdl.engines.prefetch import INTERRUPTED_S, Prefetch
from elasticdl.engines.progress_bar import epoch_in_words, metrics_in_words
from elasticdl.engines.step_events import StepEvents
from elasticdl.engines.train_progress import EvaluationProgress, TrainProgress
from elasticdl.engines.validation_errors import in_validation
from elasticdl.errors import TrainingError, UserCodeError
from elasticdl.evaluation.metrics import add_states
from elasticdl.events import Checkpointed, EpochFinished, Evaluated, RecordsSkipped
from elasticdl.sharding.ledger import LeaseUpdate, Ledger, ShardLease
from elasticdl.training.trainer import CALLBACKS, MEASURED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from elasticdl.engines.engine import Reporter
    from elasticdl.engines.feed import TrainingBatch, Validation
    from elasticdl.engines.gradient_accumulation import Accumulator
    from elasticdl.engines.interfaces import CheckpointSink, Commit, Committer, EventSink
    from elasticdl.job import TrainingOptions
    from elasticdl.sharding.left_out import BatchId
    from elasticdl.training.trainer import MetricStates, State, Trainer

# A group of steps is one call: large enough to hide its overhead, small enough to show how the
# loss changes.
_MAX_GROUP_STEPS = 32
_MAX_GROUP_S = 0.25
_MAX_GROUP_BYTES = 64 * 2**20
# Checkpoints by time: at most one per interval, and so rarely that they block training for only
# half a percent of the time. (The documented limit is one percent, but a checkpoint may take
# longer than the previous one.)
_CHECKPOINT_INTERVAL_S = 30.0
_CHECKPOINT_BLOCKED_SHARE = 0.005
_MODEL = "model/"


@dataclass
class Loop:
    """The training loop of one process; see the module docstring.

    Attributes:
        options: Training options.
        trainer: The model and its optimizer.
        committer: Applies batches to the model, together with the other workers.
        open_feed: Function (ledger, ranks that train) -> this rank's next batches, in order: those
            that the ledger does not contain yet. They are prepared in a thread.
        rank: This process's rank.
        num_records: Records in an epoch, for progress reports.
        events: Event log of the job.
        checkpoints: Receives checkpoints.
        checkpoint_metadata: Further metadata of every checkpoint, such as the shard plan and a
            description of the data.
        reporter: Reports progress to the user.
        validation: Data to evaluate on; None if there is none.
        progress: Training progress.
        safe_point: Called after each iteration that leaves no update incomplete. Weights and
            ledger then contain the same batches, so it may raise an exception to end the run.
        checkpoint_is_due: Function () -> whether to write a checkpoint now; not used if
            `checkpoint_steps` is set. None: write checkpoints at intervals of time.
        event_interval_s: Steps within this interval are combined into one event, in seconds.
        metrics: The latest metrics by name; validation metrics as `val_...`.
        ranks: The ranks that took part in the last commit.
        accumulator: Sums commits into one update; None if each commit is an update.
        num_steps: Minibatches in an epoch, for callbacks; None if not known in advance.
        file_variables: Detects changes of top-level variables in the user's files.
        counts_steps: Whether progress is reported in steps instead of records.
        check_epoch: Called at the beginning of each epoch with its number, after the callbacks'
            `on_epoch_begin`; raises an error if they have changed the data.
    """

    options: TrainingOptions
    trainer: Trainer
    committer: Committer
    open_feed: Callable[[Ledger, Collection[int]], Iterator[TrainingBatch]]
    rank: int
    num_records: int
    events: EventSink
    checkpoints: CheckpointSink
    checkpoint_metadata: Mapping[str, Any]
    reporter: Reporter
    validation: Validation | None
    progress: TrainProgress
    safe_point: Callable[[], None]
    checkpoint_is_due: Callable[[], bool] | None = None
    event_interval_s: float = 1.0
    metrics: dict[str, Any] = field(default_factory=dict)
    ranks: Collection[int] = ()
    accumulator: Accumulator | None = None
    num_steps: int | None = None
    file_variables: FileVariables = field(default_factory=FileVariables)
    counts_steps: bool = False
    check_epoch: Callable[[int], None] = lambda epoch: None  # noqa: ARG005 - nothing to check

    def __post_init__(self) -> None:
        self._begun = self._joins = False
        self._stop_requested = self._awaits_end = False
        self._hooks_state: tuple[Mapping[str, Any], State] | None = None
        # Whether the callbacks were called for the current step, and for the current evaluation;
        # number of batches evaluated.
        self._batch_begun, self._test_begun, self._num_tested = False, False, 0
        self._test_continues = True
        self._tested: MetricStates = {}
        # The weights of the last evaluation, from its beginning until the next step. Only callbacks
        # can change weights in between.
        self._measured: State = {}
        self._feed: Prefetch[TrainingBatch] | None = None
        self._group: list[TrainingBatch] = []
        self._step_events = StepEvents(
            self.events,
            self.reporter,
            num_records=self.num_records,
            num_epochs=self.options.num_epochs,
            counts_steps=self.counts_steps,
            interval_s=self.event_interval_s,
        )
        self._forget_the_past()

    def _forget_the_past(self) -> None:
        now = time.monotonic()
        self._last_checkpoint_s = now
        self._last_checkpoint_step = self.trainer.step
        # Whether there is progress that the last checkpoint does not contain.
        self._unsaved = False
        self._blocked_s = 0.0
        self._copied_s: dict[int, float] = {}
        # The first call compiles, so a step is assumed to be slow until the second call.
        self._step_s = _MAX_GROUP_S
        self._num_calls = 0
        self._step_events.forget()

    # --- taking over a state --------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """Return a checkpoint of the current state: everything needed to resume from here."""
        state = self.trainer.state()
        measured = {
            f"{MEASURED}{path}": array
            for path, array in self._measured.items()
            if array.tobytes() != state[path].tobytes()
        }
        return Checkpoint(
            step=self.trainer.step,
            state={
                **state,
                **measured,
                **(self.accumulator.state() if self.accumulator else {}),
                **self.trainer.hooks.arrays(),
            },
            metadata={
                **self.checkpoint_metadata,
                "progress": self.progress.to_json(),
                "ranks": sorted(self.ranks),
                "hooks": self.trainer.hooks.state(),
                # A copy: on a worker the checkpoint is encoded only when it is fetched.
                "metrics": dict(self.metrics),
            },
        )

    @property
    def is_best(self) -> bool:
        """Whether the current model is the best one so far, by the job's `best_metric`."""
        return self.progress.best_step == self.trainer.step

    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint of an earlier attempt.

        The shards that were assigned to earlier workers are released, for the ranks of this run.

        Raises:
            CheckpointMismatchError: The checkpoint is not of this model.
        """
        ranks = self.ranks
        self.join(checkpoint)
        self.ranks, self._joins = ranks, False
        self.progress = self.progress.without_ranks()

    def join(self, checkpoint: Checkpoint) -> None:
        """Replace this process's state by a peer's checkpoint, to train with the other workers.

        Raises:
            CheckpointMismatchError: The checkpoint is not of this model.
        """
        arrays, state = split_arrays(checkpoint.state)
        measured = _weights_of(measured_state(checkpoint.state, state))
        if self.accumulator is not None:
            state = self.accumulator.load_state(state)
        self.trainer.load_state(state)
        self.progress = TrainProgress.from_json(checkpoint.metadata["progress"])
        # Between two epochs, callbacks and models see the one that has ended.
        between = not self.progress.epoch_begun
        self.trainer.hooks.epoch = max(0, self.progress.ledger.epoch - between)
        self.trainer.hooks.first_step = self.progress.first_step
        self.metrics = dict(checkpoint.metadata["metrics"])
        self.ranks = checkpoint.metadata["ranks"]
        self._hooks_state = checkpoint.metadata["hooks"], arrays
        is_measured = self.progress.evaluation is not None or self._is_evaluated
        self._measured = measured if is_measured and self.trainer.hooks.callbacks else {}
        if self._begun:
            self._match_evaluation()
            self._load_hooks(*self._hooks_state)
        self._batch_begun = False
        self._forget_the_past()
        self._group, self._joins = [], True
        self.close_feed()

    def _load_hooks(self, state: Mapping[str, Any], arrays: State) -> None:
        self.trainer.hooks.load_state(state, arrays)
        progress = self.progress
        has_looked = progress.ledger.epoch > 0
        if progress.epoch_begun:
            has_looked = self.trainer.step > progress.first_step
        if has_looked:
            self._check_stop_requested(within_epoch=progress.epoch_begun)

    # --- the loop -------------------------------------------------------------------------

    def begin(self) -> None:
        """Call the callbacks' `on_train_begin`, and load their state from a checkpoint, if any.

        `run` does so if it has not been done.

        Raises:
            DefinitionError: The training cannot be resumed with these options or callbacks.
            UserCodeError: A callback raised.
        """
        hooks = self.trainer.hooks
        which = "highest" if self._best_mode() == "max" else "lowest"
        is_usual = self.options.best_metric == "val_loss" and which == "lowest"
        if self.options.best_mode == "auto" and not is_usual:
            self.reporter.note(
                f"The best checkpoint is the one with the {which} {self.options.best_metric}; to "
                "change that, set --best_mode."
            )
        resumed = self._hooks_state
        state = {} if resumed is None else self.trainer.state()
        hooks.committed(leads=self.committer.leads())
        hooks.train_begin(
            num_epochs=self.options.num_epochs,
            num_steps=self._steps_in_an_epoch(),
            resumes=resumed is not None,
            num_updates=self._num_updates(),
            num_full_epochs=self._num_full_epochs(),
        )
        if resumed is not None and hooks.callbacks:
            # train_begin may have set weights or the learning rate as for a new run.
            self.trainer.load_state(state)
        self._state_check = StateCheck(state or self.trainer.state())
        self._begun = True
        self._match_evaluation()
        if resumed is not None:
            # After train_begin, because callbacks reset their state there.
            self._load_hooks(*resumed)
            self._hooks_state = None

    def run(self) -> dict[str, Any]:
        """Train to the end and return the last metrics; the caller must call `finish` next.

        Raises:
            DefinitionError: The training cannot be resumed with these options or callbacks.
            NonFiniteLossError: The loss became NaN or infinite.
            UserCodeError: A callback raised.
        """
        if not self._begun:
            self.begin()
        hooks = self.trainer.hooks
        self.file_variables.kept, self.file_variables.stored = hooks.callbacks, hooks.stored
        self.file_variables.check()
        try:
            self._assign(self.ranks)
            while self._turn():
                self.file_variables.check()
                if not self._within_an_update():
                    self.safe_point()
        except BaseException as error:
            self.close_feed(None if isinstance(error, Exception) else INTERRUPTED_S)
            raise
        self.close_feed()
        self._step_events.write(self._step_to_report)
        if stopped := self.stopped_early():
            self.reporter.note(stopped)
        if self._is_within_an_epoch():
            self._update_training_metrics()
        if self._unsaved:
            self._checkpoint()
        self._wait_for_checkpoints()
        return self.metrics

    def stopped_early(self) -> str:
        """Return a sentence for the user if a callback ended training before its end; else ""."""
        ledger, planned = self.progress.ledger, self.options.num_epochs
        # At the end of a complete epoch, the ledger has already moved on to the next one.
        num_ended = ledger.epoch if self.progress.first_step == self.trainer.step else None
        if not self.progress.stopped or (num_ended is not None and num_ended >= planned):
            return ""
        when = f"in epoch {ledger.epoch + 1}" if num_ended is None else f"after epoch {num_ended}"
        return f"A callback ended the training {when} of {planned}, at step {self.trainer.step:,}."

    def finish(self) -> str:
        """Change the trained model into the one to publish, after the last checkpoint.

        If averages of the weights are kept, they replace the weights. Then the callbacks'
        `on_train_end` is called, in which some callbacks restore the best weights. The last
        checkpoint does not contain these changes, so that a job continued with more epochs trains
        exactly as one longer run.

        Returns:
            What a callback has restored, as a sentence for the user; empty if nothing.
        """
        self.trainer.finish()
        restored = self.trainer.hooks.train_end(self.metrics)
        if restored:
            end = f"at the end, step {self.trainer.step:,}"
            when = end if self._is_within_an_epoch() else "of the last epoch"
            restored = f"{restored}; the metrics are those {when}."
            self.reporter.note(restored)
        return restored

    def _is_within_an_epoch(self) -> bool:
        """Return whether training ended within an epoch, by `max_steps` or a callback."""
        return bool(self.progress.epoch_examples) and not self.progress.ledger.epoch_done

    def _steps_in_an_epoch(self) -> int | None:
        if self.num_steps is None:
            return None
        per_step = 1 if self.accumulator is None else self.accumulator.batches_per_update
        return -(-self.num_steps // per_step)

    def _num_updates(self) -> int | None:
        in_an_epoch = self._steps_in_an_epoch()
        if in_an_epoch is None:
            return None
        planned = in_an_epoch * self.options.num_epochs
        return min(planned, self.options.max_steps) if self.options.max_steps else planned

    def _num_full_epochs(self) -> int | None:
        if not self.options.max_steps:
            return self.options.num_epochs
        in_an_epoch = self._steps_in_an_epoch()
        if not in_an_epoch:
            return None
        return min(self.options.num_epochs, self.options.max_steps // in_an_epoch)

    def interrupt(self) -> None:
        """Write pending events and a last checkpoint, because the run is ended from outside."""
        self._step_events.write(self._step_to_report)
        if self._unsaved:
            self._checkpoint()
        self._wait_for_checkpoints()

    def close_feed(self, timeout_s: float | None = None) -> None:
        """Stop the thread that prepares batches.

        Args:
            timeout_s: Seconds to wait for the thread; None: wait without limit.
        """
        if self._feed is not None:
            self._feed.close(timeout_s)
        self._feed = None

    def _turn(self) -> bool:
        """Run one iteration: compute and commit; return False if training is over."""
        if not self._prepare_commit():
            return False
        # Start no other work between here and the commit: the other workers wait for this process.
        # Callbacks that observe batches must not see one that is discarded, so with them no batch
        # is computed ahead.
        observed = self.trainer.hooks.observes_batches
        self.committer.begin(ahead=self.progress.evaluation is None and not observed)
        if self.progress.evaluation is not None:
            self._evaluate_a_shard(self.progress.evaluation)
        else:
            self._advance()
        return True

    def _prepare_commit(self) -> bool:
        """End and begin epochs, and start an evaluation that is due, before a commit.

        Does not communicate with other workers.

        Returns:
            Whether there is something to commit; False if training is over.
        """
        hooks = self.trainer.hooks
        while True:
            if self._evaluation_is_due():
                if self.progress.evaluation is None and self.validation is not None:
                    self._begin_test()
                    if hooks.callbacks:
                        self._measured = _weights_of(self.trainer.state())
                    ledger = Ledger(self.validation.num_shards).assign(self.ranks)
                    self.progress = replace(self.progress, evaluation=EvaluationProgress(ledger))
                return True
            if self.progress.ledger.epoch_done:
                self._end_epoch()
                continue
            if self._is_over():
                if self._is_cut_short():
                    self._end_epoch()
                return False
            if not self.progress.epoch_begun and not self._awaits_end:
                hooks.first_step = self.progress.first_step
                hooks.epoch_begin(self.progress.ledger.epoch)
                self.check_epoch(self.progress.ledger.epoch)
                self.progress = replace(self.progress, epoch_begun=True)
            return True

    def _is_over(self) -> bool:
        return (
            self.progress.stopped
            or self.progress.ledger.epoch >= self.options.num_epochs
            or bool(self.options.max_steps and self.trainer.step >= self.options.max_steps)
        )

    def _ends(self) -> bool:
        """Return whether this process is the leader and its callbacks request the end of training.

        The leader's callbacks decide for all workers, because callbacks may depend on a clock, so
        those of different workers could disagree.
        """
        return self._stop_requested and self.committer.leads()

    def _check_stop_requested(self, *, within_epoch: bool) -> None:
        """Record whether a callback requests the end of training.

        Called after a batch and after an epoch, where Keras' `fit` checks for it.

        Args:
            within_epoch: False between two epochs. A request then also prevents the call of
                `on_epoch_begin` for the next epoch, because that will not be trained.
        """
        self._stop_requested = self.trainer.hooks.stop_requested
        # epoch_begin is not called for an epoch that will not be trained.
        self._awaits_end = self._stop_requested and not within_epoch

    def _is_cut_short(self) -> bool:
        """Return whether a callback ended training within an epoch, after one or more of its steps.

        Such an epoch ends as a complete one does: with its callbacks and its metrics.
        """
        return (
            self.progress.stopped
            and self.progress.epoch_begun
            and (self.trainer.step > self.progress.first_step)
        )

    def _assign(self, ranks: Collection[int]) -> None:
        self.progress = replace(self.progress, ledger=self.progress.ledger.assign(ranks))

    # --- one group of steps -----------------------------------------------------------

    def _advance(self) -> None:
        hooks, stop = self.trainer.hooks, self._ends()
        if self._joins:
            # The other workers have already computed their batches and would wait for the first
            # batch of this worker.
            self._joins = False
            self._open_feed()
        elif not self._group and not stop:
            self._group = self._next_group()
        if hooks.observes_batches and not stop and any(fed.batch for fed in self._group):
            self._begin_batch()
        group, before, started = self._group, self.progress.ledger, time.monotonic()
        step = self.trainer.step
        try:
            # Not `stop`: if the leader is gone, or a worker has joined with a lower rank, the new
            # leader leads only from this commit on.
            commit = self.committer.commit(group, self.progress, stop=self._stop_requested)
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
            self._measured = {}
            if hooks.observes_batches:
                self._end_batch()
            self._check_stop_requested(within_epoch=True)
        self._num_calls += 1
        if self._num_calls > 1:
            self._step_s = (time.monotonic() - started) / max(1, len(group))
        self._step_events.add(commit, before, self.progress, self.trainer.step)
        self._save_if_due()

    def _begin_batch(self) -> None:
        """Call the callbacks before a step, once per step even if the step is retried."""
        if not self._batch_begun:
            self._batch_begun = True
            self.trainer.hooks.batch_begin(self.trainer.step - self.progress.first_step)

    def _end_batch(self) -> None:
        """Call the callbacks after a step, even if this worker contributed no batch to it."""
        if self._within_an_update():
            return
        number = self.trainer.step - 1 - self.progress.first_step
        if not self._batch_begun:
            self.trainer.hooks.batch_begin(number)
        self._batch_begun = False
        # As in Keras' `fit`, the logs cover the epoch so far, not only this batch.
        logs = self.trainer.training_metrics.results(self.progress.epoch_states)
        self.trainer.hooks.batch_end(number, logs)

    def _enter(self, commit: Commit) -> None:
        """Add a commit to the progress: its batches to the ledger, its metrics to the epoch."""
        ledger = self.progress.ledger.advance(commit.rows)
        if commit.lost:
            ledger = ledger.release(commit.lost)
        self.ranks = commit.ranks
        ledger = ledger.release_missing(
            np.fromiter(self.ranks, np.int64), self.committer.patience_steps
        )
        self.progress = replace(
            self.progress,
            ledger=ledger.assign(self.ranks),
            epoch_states=add_states(
                [self.progress.epoch_states, commit.metrics], self.trainer.training_metrics.ordered
            ),
            epoch_examples=self.progress.epoch_examples + commit.num_examples,
            stopped=self.progress.stopped or commit.stop,
        )
        self._leave_out(commit.left_out)
        self._unsaved, self._awaits_end = True, False
        self.trainer.hooks.committed(leads=self.committer.leads())

    def _leave_out(self, batches: Sequence[BatchId]) -> None:
        """Skip the records of bad batches from now on, and write an event for each new one.

        All workers do so at the same step.
        """
        before = self.progress.ledger
        ledger = before.leave_out(batches)
        if ledger is before:
            return
        self.progress = replace(self.progress, ledger=ledger)
        # Prefetched batches may contain these records.
        self.close_feed()
        for batch in sorted({*ledger.left_out} - {*before.left_out}):
            self.events.write(RecordsSkipped(step=self.trainer.step, **batch._asdict()))

    def _next_group(self) -> list[TrainingBatch]:
        """Return the batches of the next commit; empty if this rank has no shard.

        The batches do not extend beyond the next step at which an evaluation or a checkpoint is
        due.
        """
        lease = self.progress.ledger.lease_of(self.rank)
        if lease is None:
            return []
        feed = self._feed_at(lease)
        first = feed.take()
        group = [first]
        limit = 1 if first.batch is None else self._group_limit(first.batch)
        while len(group) < limit and not group[-1].finished:
            following = feed.peek()
            if following is None or not _follows(group[-1], following):
                break
            group.append(feed.take())
        return group

    def _feed_at(self, lease: ShardLease) -> Prefetch[TrainingBatch]:
        """Return a feed whose next batch is the first uncommitted one of a lease.

        Reopens the feed if it is at another batch.

        Raises:
            RuntimeError: A newly opened feed does not begin with that batch either.
        """
        for feed in (self._feed, None):
            if feed is None:
                feed = self._open_feed()  # noqa: PLW2901
            following = feed.peek()
            if following is not None and (following.epoch, following.shard, following.number) == (
                self.progress.ledger.epoch,
                lease.shard,
                lease.next_batch,
            ):
                return feed
        raise RuntimeError(f"The feed and the ledger disagree: {following}, {lease}")

    def _open_feed(self) -> Prefetch[TrainingBatch]:
        self.close_feed()
        # A worker that has just joined is not yet among the ranks of the last commit.
        batches = self.open_feed(self.progress.ledger, {*self.ranks, self.rank})
        self._feed = Prefetch(batches, _size_of)
        return self._feed

    def _group_limit(self, batch: Batch) -> int:
        hooks = self.trainer.hooks
        if hooks.observes_batches or hooks.stop_requested:
            # Keras' `fit` trains one more batch if a callback requested the end before it.
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

    @property
    def _is_evaluated(self) -> bool:
        return self.progress.evaluated_step == self.trainer.step

    def _evaluation_is_due(self) -> bool:
        if self.validation is None or self._is_evaluated:
            return False
        interval, step = self.options.evaluation_steps, self.trainer.step
        if self._is_over() or (not interval and self.progress.ledger.epoch_done):
            return True
        return bool(interval and step and step % interval == 0)

    def _begin_test(self) -> None:
        self._test_begun, self._num_tested, self._tested = True, 0, {}
        self._test_continues = True
        self.trainer.hooks.test_begin()

    def _end_test(self, metrics: Mapping[str, Any]) -> None:
        self._test_begun = False
        self.trainer.hooks.test_end(metrics)

    def _match_evaluation(self) -> None:
        """Call the callbacks' `on_test_begin` or `on_test_end` after taking over a peer's state.

        The callbacks then know whether an evaluation is running: it may be in the peer's state, but
        not in the one that this process had, or the reverse.

        The call comes before the callbacks' own state is loaded, because it may change that state.
        If the callbacks swap weights in the call, this is undone here, because the trainer's state
        already contains the right weights.
        """
        is_evaluating = self.progress.evaluation is not None
        if is_evaluating == self._test_begun:
            return
        state = self.trainer.state()
        if is_evaluating:
            self._begin_test()
        else:
            prefix = "val_"
            measured = [n for n in self.metrics if n.startswith(prefix)]
            self._end_test({n.removeprefix(prefix): self.metrics[n] for n in measured})
        self.trainer.load_state(state)

    def _evaluate_a_shard(self, now: EvaluationProgress) -> None:
        assert self.validation is not None  # noqa: S101 - it is due
        lease = now.ledger.lease_of(self.rank)
        metrics = self.trainer.evaluation_metrics
        states: MetricStates = {}
        row = None
        if lease is not None:
            for batch in self.validation.batches(lease.shard):
                if not self._test_continues:
                    break
                found = self._evaluate(batch, {**now.states, **states})
                states = add_states([states, found], metrics.ordered)
            row = LeaseUpdate(self.rank, 0, finished=True)
        commit = self.committer.commit_evaluation(states, row, begins=not now.states)
        if commit is None:
            return
        self.ranks = commit.ranks
        self.trainer.hooks.committed(leads=self.committer.leads())
        ledger = now.ledger.advance(commit.rows).release(commit.lost)
        ledger = ledger.release_missing(
            np.fromiter(self.ranks, np.int64), self.committer.patience_steps
        )
        total = add_states([now.states, commit.metrics], metrics.ordered)
        now = EvaluationProgress(ledger.assign(self.ranks), total)
        self.progress = replace(
            self.progress,
            evaluation=now,
            # A rank that died meanwhile loses its training lease as well.
            ledger=self.progress.ledger.release(commit.lost),
        )
        self._leave_out(commit.left_out)
        if now.ledger.epoch_done:
            self._end_evaluation(now.states)

    def _evaluate(self, batch: Batch, so_far: MetricStates) -> MetricStates:
        hooks = self.trainer.hooks
        if not hooks.observes_test_batches:
            with in_validation(batch):
                return self.trainer.evaluate(batch, so_far)
        number, self._num_tested = self._num_tested, self._num_tested + 1
        hooks.test_batch_begin(number)
        with in_validation(batch):
            states = self.trainer.evaluate(batch, so_far)
        ordered = self.trainer.evaluation_metrics.ordered
        self._tested = add_states([self._tested, states], ordered)
        results = self.trainer.evaluation_metrics.results(self._tested)
        self._test_continues = hooks.test_batch_end(number, results)
        return states

    def _end_evaluation(self, states: MetricStates) -> None:
        metrics = self.trainer.evaluation_metrics.results(states)
        self.progress = replace(self.progress, evaluation=None, evaluated_step=self.trainer.step)
        self._end_test(metrics)
        self.metrics.update({f"val_{name}": value for name, value in metrics.items()})
        self._step_events.write(self._step_to_report)
        self.events.write(
            Evaluated(step=self.trainer.step, epoch=self.progress.ledger.epoch, metrics=metrics)
        )
        ends = self.progress.ledger.epoch_done or self._is_cut_short()
        if not ends:
            words = metrics_in_words(metrics, prefix="val_")
            without_recording(self.reporter).note(f"step {self.trainer.step}: {words}")
        if not ends or self.options.evaluation_steps:
            if ends:
                self._update_training_metrics()
            self._checkpoint_if_best()

    def _checkpoint_if_best(self) -> None:
        value, best = self.metrics.get(self.options.best_metric), self.progress.best
        # A value that is not a finite number is never the best.
        if not isinstance(value, float) or not math.isfinite(value):
            return
        sign = 1 if self._best_mode() == "max" else -1
        if best is None or sign * value > sign * best:
            self.progress = replace(self.progress, best=value, best_step=self.trainer.step)
            self._checkpoint(best=True)

    def _best_mode(self) -> str:
        options = self.options
        if options.best_mode != "auto":
            return options.best_mode
        # A metric without a known mode is rejected before the first step.
        return best_mode_of(options.best_metric, self.trainer) or "min"

    def _update_training_metrics(self) -> None:
        """Update the training metrics to those of the epoch so far; keep the validation metrics."""
        # Training metrics first, in the order in which users read them.
        self.metrics = {
            **self.trainer.training_metrics.results(self.progress.epoch_states),
            **{name: value for name, value in self.metrics.items() if name.startswith("val_")},
        }

    def _end_epoch(self) -> None:
        epoch, is_whole = self.progress.ledger.epoch, self.progress.ledger.epoch_done
        self._update_training_metrics()
        self._step_events.write(self._step_to_report)
        self.events.write(
            EpochFinished(
                epoch=epoch,
                step=self.trainer.step,
                metrics=dict(self.metrics),
                stopped=not is_whole,
            )
        )
        words = epoch_in_words(
            epoch,
            self.options.num_epochs,
            self.metrics,
            is_evaluated=self._is_evaluated,
        )
        without_recording(self.reporter).note(words)
        self.trainer.hooks.epoch_end(epoch, self.metrics)
        self._check_stop_requested(within_epoch=False)
        self._unsaved = True
        if is_whole:
            self.progress = TrainProgress(
                ledger=self.progress.ledger.next_epoch(),
                best=self.progress.best,
                best_step=self.progress.best_step,
                stopped=self.progress.stopped,
                evaluated_step=self.progress.evaluated_step,
                first_step=self.trainer.step,
            )
            self._assign(self.ranks)
        else:
            # The ledger is kept: it records which records the model was trained on.
            self.progress = replace(self.progress, epoch_begun=False)
        self._checkpoint_if_best()

    # --- checkpoints ------------------------------------------------------------------

    def _within_an_update(self) -> bool:
        """Return whether an update is incomplete: it has some, but not all of its minibatches."""
        return self.accumulator is not None and self.accumulator.num_batches > 0

    @property
    def _step_to_report(self) -> int:
        # Accumulated batches count towards the update that they will be part of.
        return self.trainer.step + self._within_an_update()

    def _save_if_due(self) -> None:
        if not self._within_an_update() and self._checkpoint_is_due() and self._unsaved:
            self._checkpoint()
        self._step_events.write_if_due(self._step_to_report)

    def _checkpoint_is_due(self) -> bool:
        if self.options.checkpoint_steps:
            return (
                self.trainer.step % self.options.checkpoint_steps == 0
                # Not every commit is a step.
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
        self._step_events.write(self._step_to_report)
        # The store measures how long it blocked training; the copy before that counts as well.
        self._copied_s[self.trainer.step] = time.monotonic() - started
        self.checkpoints.save_in_background(checkpoint, best=best)
        self._last_checkpoint_s = time.monotonic()
        self._blocked_s = self._last_checkpoint_s - started
        self._last_checkpoint_step = self.trainer.step
        self._unsaved = False
        self._write_saved()

    def _wait_for_checkpoints(self) -> None:
        self.checkpoints.wait()
        self._write_saved()

    def _write_saved(self) -> None:
        saved_ones = self.checkpoints.take_saved()
        for saved in saved_ones:
            self.events.write(
                Checkpointed(
                    step=saved.step,
                    blocked_s=saved.blocked_s + self._copied_s.pop(saved.step, 0.0),
                    num_bytes=saved.num_bytes,
                    best=saved.step == self.progress.best_step,
                )
            )
        if saved_ones:
            self.events.publish()


def split_arrays(state: State) -> tuple[State, State]:
    """Return a checkpoint's tensors as two dicts: those of the callbacks, and those of the trainer.

    The latter may include those of an `Accumulator`. Left out are the values of weights at the last
    validation, which `measured_state` returns.
    """
    arrays = {path: array for path, array in state.items() if path.startswith(CALLBACKS)}
    return arrays, {
        path: array for path, array in state.items() if not path.startswith((CALLBACKS, MEASURED))
    }


def measured_state(state: State, paths: Collection[str]) -> State:
    """Return tensors of a checkpoint with the values that the last validation measured.

    These are the weights to publish if that validation was the best. Callbacks may have changed the
    weights since then; the checkpoint contains both values of each changed weight.

    Args:
        state: The checkpoint's tensors.
        paths: Paths of the tensors to return.
    """
    return {path: state.get(f"{MEASURED}{path}", state[path]) for path in paths}


def _weights_of(state: State) -> State:
    return {path: array for path, array in state.items() if path.startswith(_MODEL)}


def _size_of(fed: TrainingBatch) -> int:
    return 0 if fed.batch is None else batch_bytes(fed.batch)


def _where(group: Sequence[TrainingBatch]) -> str:
    if not group:
        return "The batch belongs to another worker."
    if len(group) == 1:
        return f"This happened in {place_of(group[0])}."
    return (
        f"This happened in one of {len(group)} batches. First: {place_of(group[0])}. Last: "
        f"{place_of(group[-1])}."
    )


def _follows(before: TrainingBatch, after: TrainingBatch) -> bool:
    """Return whether `after` directly follows `before` in its shard, with equal shapes and dtypes.

    Only such batches can be computed together, in one commit.
    """
    if (after.epoch, after.shard, after.number) != (before.epoch, before.shard, before.number + 1):
        return False
    one, other = before.batch, after.batch
    if one is None or other is None or one.num_examples != other.num_examples:
        return False
    mine, theirs = (leaves((b.features, b.labels, b.weights)) for b in (one, other))
    return len(mine) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(mine, theirs, strict=True)
    )

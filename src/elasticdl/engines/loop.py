"""The training loop: all that the engines share of what happens between two steps.

    while epochs are left:
        while the epoch has batches:
            take the batches up to the next step somebody looks at
            commit them                      (the engine's part: here, or on many workers)
            ledger.advance                   (now they are in the model, exactly once)
            evaluate, checkpoint, report     (if it is time)
        evaluate, tell the callbacks, next epoch

What is looked at is decided by absolute step numbers, so a run that was killed and resumed
looks at the same steps as one that was not. The place in the job (`Place`) and the model's
state together are a checkpoint; everything else can be made again from the job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from elasticdl.artifacts.checkpoint import Checkpoint, CheckpointStore
from elasticdl.data.batch import Batch, arrays_bytes, leaves
from elasticdl.engines.place import Place
from elasticdl.errors import NonFiniteLossError, TrainingError
from elasticdl.evaluation.metrics import add_states
from elasticdl.events import Checkpointed, EpochFinished, Evaluated, EventLog, StepCommitted
from elasticdl.sharding.ledger import Row

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.engines.feed import FedBatch
    from elasticdl.engines.prefetch import Prefetch
    from elasticdl.job import TrainingOptions
    from elasticdl.training.trainer import MetricStates, StepResult, Trainer

# A group of steps is one call: long enough to cost nothing, short enough to see the loss move.
_MAX_GROUP_STEPS = 32
_MAX_GROUP_S = 0.25
_MAX_GROUP_BYTES = 64 * 2**20
_EVENT_INTERVAL_S = 1.0
# Checkpoints by time: not oftener than this, and so seldom that training stands still for half a
# percent of it. (One percent is promised; one checkpoint may take longer than the one before.)
_CHECKPOINT_INTERVAL_S = 30.0
_CHECKPOINT_BLOCKED_SHARE = 0.005


class Committer(Protocol):
    """Brings batches into the model: the one thing engines do differently."""

    def commit(self, batches: list[FedBatch]) -> tuple[StepResult, list[Row]]:
        """Make one update for each batch; return what it came to and what was committed."""
        ...


@dataclass
class Loop:
    """A training in progress.

    Attributes:
        options: How to train.
        trainer: The model.
        committer: How batches get into it.
        feed: The batches of this slot.
        slot: Which one it is.
        num_records: Records in an epoch, for people.
        events: What happened.
        checkpoints: Where states are kept.
        checkpoint_metadata: What else a checkpoint says (the plan, the data).
        reporter: Who tells people.
        evaluate: Runs the validation data through the model; None if there is none.
        place: Where the job stands.
        safe_point: Called where weights and ledger agree, so that a run may be ended there.
        hooks_state: What the callbacks remembered at the checkpoint that is gone on from.
        metrics: The last ones known.
    """

    options: TrainingOptions
    trainer: Trainer
    committer: Committer
    feed: Prefetch[FedBatch]
    slot: int
    num_records: int
    events: EventLog
    checkpoints: CheckpointStore
    checkpoint_metadata: Mapping[str, Any]
    reporter: Reporter
    evaluate: Callable[[], dict[str, Any]] | None
    place: Place
    safe_point: Callable[[], None]
    hooks_state: Mapping[str, Any] | None = None
    metrics: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        now = time.monotonic()
        self._last_event_s = now
        self._last_checkpoint_s = now
        self._last_checkpoint_step = self.trainer.step
        self._last_evaluated_step = -1
        self._best_step = -1
        # What has happened since the last checkpoint would be lost.
        self._unsaved = False
        self._blocked_s = 0.0
        self._copied_s: dict[int, float] = {}
        # The first call compiles; until the second one a step is taken to be slow.
        self._step_s = _MAX_GROUP_S
        self._num_calls = 0
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._since_event: list[MetricStates] = []

    def run(self) -> dict[str, Any]:
        """Train to the end; returns the last metrics.

        Raises:
            NonFiniteLossError: The loss became NaN or infinite.
        """
        hooks = self.trainer.hooks
        hooks.train_begin()
        if self.hooks_state is not None:
            # After train_begin: there callbacks forget what they remember.
            hooks.load_state(self.hooks_state)
        self._deal()
        while not self._is_over():
            if not self.place.epoch_begun:
                hooks.epoch_begin(self.place.ledger.epoch)
                self.place = replace(self.place, epoch_begun=True)
            while not self.place.ledger.epoch_done and not self._is_over():
                self._advance()
                self.safe_point()
            if self.place.ledger.epoch_done:
                self._end_epoch()
        if self._last_evaluated_step != self.trainer.step:
            self._evaluate()
        hooks.train_end(self.metrics)
        self._write_step_event()
        if self._unsaved:
            self._checkpoint()
        self._wait_for_checkpoints()
        return self.metrics

    def interrupt(self) -> None:
        """Keep what was reached: the run is being ended from outside."""
        self._write_step_event()
        if self._unsaved:
            self._checkpoint()
        self._wait_for_checkpoints()

    # --- one group of steps -----------------------------------------------------------

    def _advance(self) -> None:
        group = self._next_group()
        if not group:
            return
        started = time.monotonic()
        if self.trainer.hooks.observes_batches:
            self.trainer.hooks.batch_begin(group[0].number)
        try:
            result, rows = self.committer.commit(group)
        except TrainingError as error:
            raise type(error)(
                f"{error}\n  It happened in epoch {group[0].epoch + 1}, shard {group[0].shard}, "
                f"batches {group[0].number} to {group[-1].number}."
            ) from error
        self._check_finite(result, group)
        self.place = replace(
            self.place,
            ledger=self.place.ledger.advance(rows),
            epoch_states=add_states([self.place.epoch_states, result.metrics]),
        )
        self._unsaved = True
        self._deal()
        self._num_calls += 1
        if self._num_calls > 1:
            self._step_s = (time.monotonic() - started) / len(group)
        if self.trainer.hooks.observes_batches:
            self.trainer.hooks.batch_end(
                group[0].number, self.trainer.training_metrics.results(result.metrics)
            )
        self._remember(group, result)
        self._look(self.trainer.step)

    def _next_group(self) -> list[FedBatch]:
        """Take the batches up to the next step that somebody looks at."""
        first = self._next_batch()
        if first is None or first.batch is None:
            return []
        group = [first]
        limit = self._group_limit(first.batch)
        while len(group) < limit and not group[-1].finished:
            following = self.feed.peek()
            if following is None or not _alike(first.batch, following.batch):
                break
            group.append(self.feed.take())
        return group

    def _next_batch(self) -> FedBatch | None:
        """Take one batch; a shard without any is entered in the ledger at once."""
        following = self.feed.peek()
        if following is None:
            raise RuntimeError(f"The feed ended before the ledger did: {self.place.ledger}")
        following = self.feed.take()
        piece = self.place.ledger.piece_of(self.slot)
        if piece is None or (following.epoch, following.shard, following.number) != (
            self.place.ledger.epoch,
            piece.shard,
            piece.committed,
        ):
            raise RuntimeError(f"The feed and the ledger disagree: {following}, {piece}")
        if following.batch is None:
            row = Row(self.slot, 0, finished=True)
            self.place = replace(self.place, ledger=self.place.ledger.advance([row]))
            self._deal()
        return following

    def _group_limit(self, batch: Batch) -> int:
        if self.trainer.hooks.observes_batches:
            return 1
        limits = [_MAX_GROUP_STEPS, int(_MAX_GROUP_S / max(self._step_s, 1e-9)) or 1]
        limits.append(max(1, _MAX_GROUP_BYTES // max(1, arrays_bytes((batch.features,)))))
        step = self.trainer.step
        observed = (self.options.evaluation_steps, self.options.checkpoint_steps)
        limits.extend(interval - step % interval for interval in observed if interval)
        if self.options.max_steps:
            limits.append(self.options.max_steps - step)
        return min(limits)

    def _check_finite(self, result: StepResult, group: list[FedBatch]) -> None:
        bad = np.flatnonzero(~np.isfinite(result.losses))
        if not bad.size:
            return
        at = group[int(bad[0])]
        step = self.trainer.step - len(group) + int(bad[0]) + 1
        raise NonFiniteLossError(
            f"The loss is {result.losses[bad[0]]} at step {step} (epoch {at.epoch + 1}, shard "
            f"{at.shard}, batch {at.number}). The training stopped; the last good checkpoint is "
            f"of step {self._last_checkpoint_step}. Lower the learning rate, or look for NaN and "
            "huge values in the data of that batch."
        )

    # --- what is looked at ------------------------------------------------------------

    def _look(self, step: int) -> None:
        options = self.options
        if options.evaluation_steps and step % options.evaluation_steps == 0:
            self._evaluate()
        if options.checkpoint_steps:
            due = step % options.checkpoint_steps == 0
        else:
            due = time.monotonic() - self._last_checkpoint_s > self._checkpoint_interval_s()
        if due and self._unsaved:
            self._checkpoint()
        if time.monotonic() - self._last_event_s > _EVENT_INTERVAL_S:
            self._write_step_event()

    def _checkpoint_interval_s(self) -> float:
        return max(_CHECKPOINT_INTERVAL_S, self._blocked_s / _CHECKPOINT_BLOCKED_SHARE)

    def _evaluate(self) -> None:
        if self.evaluate is None:
            return
        self._last_evaluated_step = self.trainer.step
        self.trainer.hooks.test_begin()
        metrics = self.evaluate()
        self.trainer.hooks.test_end(metrics)
        self.metrics.update({f"val_{name}": value for name, value in metrics.items()})
        self._write_step_event()
        self.events.write(
            Evaluated(step=self.trainer.step, epoch=self.place.ledger.epoch, metrics=metrics)
        )
        self.reporter.note(f"step {self.trainer.step}: " + _in_words(metrics, prefix="validation "))
        loss = metrics.get("loss", math.inf)
        if isinstance(loss, float) and loss < self.place.best_loss:
            self.place = replace(self.place, best_loss=loss)
            self._checkpoint(best=True)

    def _end_epoch(self) -> None:
        if not self.options.evaluation_steps:
            self._evaluate()
        epoch = self.place.ledger.epoch
        # The training's own come first, as people read them.
        self.metrics = {
            **self.trainer.training_metrics.results(self.place.epoch_states),
            **{name: value for name, value in self.metrics.items() if name.startswith("val_")},
        }
        self._write_step_event()
        self.events.write(
            EpochFinished(epoch=epoch, step=self.trainer.step, metrics=dict(self.metrics))
        )
        self.trainer.hooks.epoch_end(epoch, self.metrics)
        self.place = Place(
            ledger=self.place.ledger.next_epoch(),
            best_loss=self.place.best_loss,
            stopped=self.trainer.hooks.stop_requested,
        )
        self._unsaved = True
        self._deal()

    def _checkpoint(self, *, best: bool = False) -> None:
        started = time.monotonic()
        state = self.trainer.state()
        _check_finite_state(state, self.trainer.step, self._last_checkpoint_step)
        metadata = {
            **self.checkpoint_metadata,
            "place": self.place.to_json(),
            "hooks": self.trainer.hooks.state(),
            "metrics": self.metrics,
        }
        self._write_step_event()
        # The store knows how long it kept us; the copy before that counts as well.
        self._copied_s[self.trainer.step] = time.monotonic() - started
        self.checkpoints.save_in_background(
            Checkpoint(step=self.trainer.step, state=state, metadata=metadata), best=best
        )
        self._last_checkpoint_s = time.monotonic()
        self._blocked_s = self._last_checkpoint_s - started
        self._last_checkpoint_step = self.trainer.step
        self._unsaved = False
        if best:
            self._best_step = self.trainer.step
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
                    best=saved.step == self._best_step,
                )
            )
        if saved_ones:
            self.events.publish()

    # --- telling ----------------------------------------------------------------------

    def _remember(self, group: list[FedBatch], result: StepResult) -> None:
        first, last = group[0], group[-1]
        self._rows.append((first.epoch, self.slot, first.shard, first.number, last.number + 1))
        self._since_event.append(result.metrics)
        seen = self.place.epoch_states["loss"][1] if self.place.epoch_states else 0
        loss = float(np.mean(result.losses))
        self.reporter.advanced(
            first.epoch * self.num_records + int(seen),
            {
                "epoch": f"{first.epoch + 1}/{self.options.num_epochs}",
                "step": str(self.trainer.step),
                "loss": f"{loss:.4g}",
            },
        )

    def _write_step_event(self) -> None:
        now = time.monotonic()
        if self._rows:
            total, count = add_states(self._since_event)["loss"]
            self.events.write(
                StepCommitted(
                    step=self.trainer.step,
                    epoch=self._rows[-1][0],
                    num_records=int(count),
                    loss=float(total / count),
                    records_per_s=float(count / max(now - self._last_event_s, 1e-9)),
                    rows=_joined(self._rows),
                )
            )
        self._rows, self._since_event, self._last_event_s = [], [], now

    def _deal(self) -> None:
        self.place = replace(self.place, ledger=self.place.ledger.deal([self.slot]))

    def _is_over(self) -> bool:
        return (
            self.place.stopped
            or self.place.ledger.epoch >= self.options.num_epochs
            or bool(self.options.max_steps and self.trainer.step >= self.options.max_steps)
        )


def _alike(one: Batch, other: Batch | None) -> bool:
    """Whether two batches can be steps of one group."""
    if other is None or one.num_examples != other.num_examples:
        return False
    mine, theirs = leaves((one.features, one.labels)), leaves((other.features, other.labels))
    return len(mine) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(mine, theirs, strict=True)
    )


def _check_finite_state(state: Mapping[str, Any], step: int, last_good: int) -> None:
    for path, array in state.items():
        with np.errstate(over="ignore", invalid="ignore"):
            # One pass without a temporary array; a sum that overflows asks for a closer look.
            if array.dtype.kind != "f" or np.isfinite(np.sum(array)):
                continue
        if not np.isfinite(array).all():
            raise NonFiniteLossError(
                f"{path} holds NaN or infinity at step {step}. The training stopped; the last "
                f"good checkpoint is of step {last_good}. Lower the learning rate or clip "
                "gradients."
            )


def _joined(rows: list[tuple[int, int, int, int, int]]) -> list[tuple[int, int, int, int, int]]:
    """Return rows with neighbours of one shard made one."""
    joined: list[tuple[int, int, int, int, int]] = []
    for row in rows:
        if joined and joined[-1][:3] == row[:3] and joined[-1][4] == row[3]:
            joined[-1] = (*joined[-1][:4], row[4])
        else:
            joined.append(row)
    return joined


def _in_words(metrics: Mapping[str, Any], prefix: str = "") -> str:
    return ", ".join(
        f"{prefix}{name} {value:.4g}"
        for name, value in metrics.items()
        if isinstance(value, (int, float))
    )

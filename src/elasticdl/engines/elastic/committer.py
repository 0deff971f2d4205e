"""A step that all workers agree upon; see `agreement.py` for what they agree on.

    begin    quorum, if none stands; who has fallen behind takes over a peer's state
    commit   gradients -> one sum over all workers -> agree -> one update, the same everywhere

One flat float32 buffer travels: gradients, metric states, and a row for each slot. Workers
without a batch add zeros to it, and the sum is divided once, by the summed count of examples.

Callers: `worker.py` gives it to the loop.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.engines.elastic.agreement import (
    NUM_LIMBS,
    Stance,
    Verdict,
    chain,
    encode,
    judge,
)
from elasticdl.engines.elastic.crash_note import CrashNote
from elasticdl.engines.elastic.reports import WAITING, Point
from elasticdl.engines.finite import check_sum
from elasticdl.engines.seams import Commit
from elasticdl.errors import TrainingError
from elasticdl.sharding.left_out import BatchId
from elasticdl.training.trainer import Contribution, Rehearser

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.engines.accumulator import Accumulator
    from elasticdl.engines.elastic.quorum import Quorum
    from elasticdl.engines.elastic.reports import History
    from elasticdl.engines.feed import FedBatch
    from elasticdl.engines.place import Place
    from elasticdl.sharding.ledger import Row
    from elasticdl.training.trainer import MetricStates, StepResult, Trainer

_FINGERPRINT_INTERVAL = 256


class SupersededError(Exception):
    """A younger process has this worker's slot: this one ends."""


class DriftError(TrainingError):
    """Workers that should have the same weights do not."""


class Layout:
    """Where in a flat buffer each metric state lies.

    Args:
        states: States like those to come; only names and shapes matter.
    """

    def __init__(self, states: MetricStates) -> None:
        self._shapes = {
            name: [np.shape(array) for array in arrays] for name, arrays in sorted(states.items())
        }
        self.size = sum(math.prod(s) for shapes in self._shapes.values() for s in shapes)

    def write(self, states: MetricStates, buffer: np.ndarray[Any, Any]) -> None:
        """Write states into a buffer of `size` numbers."""
        flat = [
            np.ravel(array) for name in self._shapes if name in states for array in states[name]
        ]
        if flat:
            buffer[:] = np.concatenate(flat)

    def read(self, buffer: np.ndarray[Any, Any]) -> MetricStates:
        """Return the states in a buffer."""
        states, at = {}, 0
        for name, shapes in self._shapes.items():
            arrays = []
            for shape in shapes:
                size = math.prod(shape)
                arrays.append(buffer[at : at + size].astype(np.float64).reshape(shape))
                at += size
            states[name] = tuple(arrays)
        return states


def _rehearse(trainer: Trainer, contribution: Contribution) -> None:
    """Have the trainer compile its update; its state stays as it is."""
    if isinstance(trainer, Rehearser):
        trainer.rehearse(contribution)
        return
    before = trainer.state()
    trainer.apply(contribution)
    trainer.load_state(before)


class ElasticCommitter:
    """See `seams.Committer`.

    Args:
        trainer: The model.
        example: A batch like those to come: all is traced on it before the first quorum, so
            that others do not wait for that.
        evaluates: There is validation data.
        num_slots: Most workers there can be.
        accumulator: Sums up what makes an update; None if each commit makes its own.
        note: Says after this process has died what it was computing.

    Attributes:
        slowest_s: The longest that a batch took here.
    """

    max_group_steps = 1
    # A replacement needs seconds; a death is told sooner, by the controller.
    patience_steps = 50

    def __init__(
        self,
        trainer: Trainer,
        example: Batch,
        *,
        evaluates: bool,
        num_slots: int,
        accumulator: Accumulator | None = None,
        note: CrashNote | None = None,
    ) -> None:
        self._trainer, self._accumulator, self._note = trainer, accumulator, note or CrashNote()
        started_s = time.monotonic()
        contribution, result = trainer.gradients(example)
        # The first one compiles, as later ones of other shapes will.
        self.slowest_s = time.monotonic() - started_s
        self._training = Layout(result.metrics)
        self._evaluation = Layout(trainer.evaluate(example) if evaluates else {})
        _rehearse(trainer, contribution)
        sizes = [
            contribution.buffer.size,
            self._training.size,
            self._evaluation.size,
            num_slots * NUM_LIMBS,
        ]
        self._buffer = np.zeros(sum(sizes), np.float32)
        self._gradients, self._metrics, self._measured, rows = np.split(
            self._buffer, np.cumsum(sizes)[:-1]
        )
        self._table = rows.reshape(num_slots, NUM_LIMBS)
        self._num_slots = num_slots
        self._lost: list[int] = []
        self._bad: list[BatchId] = []
        self._slots: Sequence[int] = ()
        # Who joins has nothing to compute before it has a peer's state.
        self._joins, self._has_quorum = True, False
        self._received: bytes | None = None
        # Of weights that are still those it was computed on.
        self._computed: tuple[FedBatch, Contribution, StepResult] | None = None
        self._model_in_use = threading.Lock()
        self.doing, self.doing_since_s = "preparing", time.monotonic()

    def enter(
        self,
        quorum: Quorum,
        history: History,
        slot: int,
        incarnation: int,
        take_over: Callable[[bytes], None],
    ) -> None:
        """Take a slot; called before the first step.

        Args:
            quorum: Who takes part.
            history: What was committed.
            slot: The slot.
            incarnation: Which process this is.
            take_over: Goes on from a peer's state.
        """
        self._quorum, self._history = quorum, history
        self._slot, self._incarnation = slot, incarnation
        self._take_over = take_over
        quorum.slowest_s = self.slowest_s

    def state_for_a_peer(self, save: Callable[[], bytes]) -> bytes:
        """Call `save` when the model is not in use: gradients move its statistics and back."""
        with self._model_in_use:
            return save()

    def receive(self, data: bytes) -> None:
        """Keep a peer's state until the quorum that it came with begins."""
        self._received = data

    def tell_lost(self, slot: int) -> None:
        """Let the others know, with the next step, that a slot's worker is dead."""
        self._lost.append(slot)

    def leave_out(self, batches: Iterable[BatchId]) -> None:
        """Touch these batches no more, and let all agree to leave out their records.

        May be called by any thread, and more than once.
        """
        self._bad.extend(batch for batch in batches if batch not in self._bad)

    @property
    def slots(self) -> Sequence[int]:
        """Who took part in the last commit."""
        return self._slots

    # --- loop.Committer ---------------------------------------------------------------------

    def begin(self, *, ahead: bool) -> None:
        """See `seams.Committer`."""
        if self._has_quorum:
            return
        self._quorum.begin()
        if self._joins or not ahead:
            self._wait_for_others()

    def _wait_for_others(self) -> bool:
        """Wait for the quorum; returns whether this worker has taken over a peer's state."""
        self._busy(WAITING)
        self._quorum.wait()
        self._joins, self._has_quorum = False, True
        received, self._received = self._received, None
        if received is None:
            return False
        self._computed = None
        self._take_over(received)
        return True

    def commit(self, batches: Sequence[FedBatch], place: Place, *, stop: bool) -> Commit | None:
        """See `seams.Committer`.

        Raises:
            NonFiniteLossError: The loss of the step is NaN or infinite; no worker applied it.
            DriftError: Workers have different weights.
            SupersededError: This process has to end.
        """
        stance = Stance(self._incarnation, stop=stop)
        self._buffer[:] = 0
        fed = batches[0] if batches and self._may_contribute(place) else None
        if fed is not None and BatchId(fed.epoch, fed.shard, fed.number) not in self._bad:
            stance = replace(stance, finished=fed.finished, digest=fed.digest)
            if fed.batch is not None or fed.is_empty:
                stance = replace(stance, num_batches=1, num_left_out=fed.num_left_out)
            if fed.batch is not None:
                contribution, result = self._contribution_of(fed, fed.batch)
                self._gradients[:] = contribution.buffer
                self._training.write(result.metrics, self._metrics)
                stance = replace(stance, num_examples=contribution.num_examples)
        if not self._has_quorum and self._wait_for_others():
            # What was computed belongs to a state that is no more. The quorum still stands: the
            # next turn takes part in it, from where the others are.
            return None
        verdict = self._agree(stance)
        if verdict is None:
            return None
        metrics: MetricStates = {}
        if verdict.num_examples:
            metrics = self._training.read(self._metrics)
            total, _ = metrics["loss"]
            check_sum(float(total), step=self._trainer.step + 1, epoch=place.ledger.epoch)
        self._apply(verdict, place)
        return self._entered(verdict, metrics)

    def commit_evaluation(self, states: MetricStates, row: Row | None) -> Commit | None:
        """See `seams.Committer`."""
        self._buffer[:] = 0
        self._evaluation.write(states, self._measured)
        verdict = self._agree(Stance(self._incarnation, finished=row is not None))
        if verdict is None:
            return None
        return self._entered(verdict, self._evaluation.read(self._measured))

    def leads(self) -> bool:
        """See `seams.Committer`."""
        return bool(self._slots) and self._slots[0] == self._slot

    def _contribution_of(self, fed: FedBatch, batch: Batch) -> tuple[Contribution, StepResult]:
        """Compute what a batch adds; after a step that did not commit, return it once more."""
        if self._computed is None or self._computed[0] is not fed:
            self._busy(f"computing on shard {fed.shard}, batch {fed.number}")
            with (
                self._note.working("computing", fed.epoch, fed.shard, fed.number),
                self._model_in_use,
            ):
                started_s = time.monotonic()
                self._computed = (fed, *self._trainer.gradients(batch))
            self.slowest_s = max(self.slowest_s, time.monotonic() - started_s)
        return self._computed[1:]

    def _may_contribute(self, place: Place) -> bool:
        """Whether the next update has room for this worker's batch: the lowest slots go first."""
        if self._accumulator is None:
            return True
        # Each batch of an update draws its own random numbers.
        self._trainer.slot = self._slot + self._num_slots * self._accumulator.num_batches
        before = sum(slot < self._slot for slot in place.ledger.in_hand)
        return before < self._accumulator.num_missing

    def _apply(self, verdict: Verdict, place: Place) -> None:
        if not verdict.rows:
            return
        total = None
        if verdict.num_examples:
            self._computed = None
            total = Contribution(self._gradients, verdict.num_examples)
        if self._accumulator is None:
            if total is not None:
                self._trainer.apply(total)
            return
        num_batches = sum(row.num_batches for row in verdict.rows)
        last = place.ledger.advance(verdict.rows).epoch_done
        self._accumulator.add(total, num_batches, last=last)

    # --- the agreement ------------------------------------------------------------------------

    def _agree(self, stance: Stance) -> Verdict | None:
        point = self._history.point
        bad = self._bad[0] if self._bad else None
        stance = replace(
            stance,
            lineage=point.lineage,
            asks=self._quorum.is_old,
            lost=self._lost[0] + 1 if self._lost else 0,
            bad_epoch=bad[0] + 1 if bad else 0,
            bad_shard=bad[1] if bad else 0,
            bad_batch=bad[2] if bad else 0,
            fingerprint=self._fingerprint() if self._fingerprint_is_due() else 0,
        )
        encode(stance, self._slot, self._table)
        self._busy("adding up")
        verdict = None
        if self._quorum.sum(self._buffer):
            verdict = judge(self._table, self._slot, stance)
        committed = self._quorum.vote(commit=verdict is not None and verdict.commits)
        # It stands until somebody wants another or a step fails. Whose step failed while others
        # committed has closed its connections, so their next sum fails and they ask as well.
        self._has_quorum = verdict is not None and committed and not verdict.asks
        if verdict is not None and verdict.leave:
            raise SupersededError(f"Slot {self._slot} has a younger worker.")
        if verdict is not None and verdict.drifted:
            raise DriftError(
                f"The workers in slots {', '.join(map(str, verdict.drifted))} have other weights "
                f"than slot {verdict.slots[0]} after the same {point.num_commits:,} commits. "
                "Callbacks that change weights must do the same on every worker, and all machines "
                "must compute alike. The job stopped; its last checkpoint is from before."
            )
        if verdict is not None and verdict.heal:
            self._quorum.give_up_state()
            self._joins = True
        if verdict is None or not committed:
            return None
        self._slots = verdict.slots
        if self._lost and self._lost[0] in {*verdict.lost, *verdict.slots}:
            self._lost.pop(0)
        for batch in verdict.left_out:
            if batch in self._bad:
                self._bad.remove(batch)
        return verdict

    def _entered(self, verdict: Verdict, metrics: MetricStates) -> Commit:
        before = self._history.point
        # Not torchft's own number: a worker that gives up its state sets that to 0, and if the
        # one it was to heal from dies just then, it counts anew from there.
        point = Point(before.num_commits + 1, chain(before.lineage, verdict))
        self._history.committed(point)
        return Commit(
            rows=verdict.rows,
            slots=verdict.slots,
            metrics=metrics,
            lost=verdict.lost,
            stop=verdict.stop,
            left_out=verdict.left_out,
            num_left_out=verdict.num_left_out,
        )

    def _fingerprint_is_due(self) -> bool:
        return self._history.point.num_commits % _FINGERPRINT_INTERVAL == 0

    def _fingerprint(self) -> int:
        digest = hashlib.blake2b(digest_size=8)
        for path, array in sorted(self._trainer.state().items()):
            if path.startswith("model/"):
                digest.update(np.ascontiguousarray(array).tobytes())
        return int.from_bytes(digest.digest(), "big")

    def _busy(self, doing: str) -> None:
        self.doing, self.doing_since_s = doing, time.monotonic()

"""Elastic committer: performs a step on which all workers agree, by `commit_decision.py`.

    begin    form a quorum unless one is valid; a worker that is behind takes over a peer's state
    commit   gradients -> one sum over all workers -> agree -> one update, the same everywhere

The workers sum one flat float32 buffer: gradients, metric states, and a row for each rank. Workers
without a batch add zeros, and the sum is divided once, by the summed number of examples.

Callers: `worker.py` passes it to the loop.
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

from elasticdl.engines.elastic.commit_decision import (
    NUM_LIMBS,
    Decision,
    Vote,
    chain,
    decide_commit,
    encode,
)
from elasticdl.engines.elastic.crash_note import CrashNote
from elasticdl.engines.elastic.event_buffer import WAITING, CommitId
from elasticdl.engines.finite import check_sum
from elasticdl.engines.interfaces import Commit
from elasticdl.engines.validation_errors import evaluate_first
from elasticdl.errors import DefinitionError, TrainingError
from elasticdl.sharding.left_out import BatchId
from elasticdl.training.trainer import Contribution, SupportsWarmup

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.engines.elastic.allreduce import Quorum
    from elasticdl.engines.elastic.event_buffer import EventBuffer
    from elasticdl.engines.feed import TrainingBatch
    from elasticdl.engines.gradient_accumulation import Accumulator
    from elasticdl.engines.train_progress import TrainProgress
    from elasticdl.sharding.ledger import LeaseUpdate
    from elasticdl.training.trainer import MetricStates, StepResult, Trainer

# Commits between two comparisons of weights; at first, each doubling of the number of commits.
_FINGERPRINT_INTERVAL = 256


class SupersededError(Exception):
    """Raised when a newer process has taken over this worker's rank, so this process must end."""


class DriftError(TrainingError):
    """Raised when the weights of two workers differ although their histories are the same."""


class Layout:
    """Layout of metric states in a flat buffer, in which all workers sum them.

    Args:
        states: The states of an example batch; only their names and shapes matter.

    Attributes:
        size: Number of float32 values that all states together take in the buffer.
    """

    def __init__(self, states: MetricStates) -> None:
        # In this order users read them; the buffer has the same order on all workers.
        self._names = tuple(states)
        self._shapes = {
            name: [np.shape(array) for array in arrays] for name, arrays in sorted(states.items())
        }
        self.size = sum(math.prod(s) for shapes in self._shapes.values() for s in shapes)

    def write(self, states: MetricStates, buffer: np.ndarray[Any, Any]) -> None:
        """Write states into a buffer of `size` numbers.

        The parts of the buffer for metrics that are not in `states` are left unchanged.

        Raises:
            DefinitionError: A metric is not in the layout: it was not reported on the example
                batch.
        """
        unknown = sorted(states.keys() - self._shapes.keys())
        if unknown:
            raise DefinitionError(
                f"The metric {unknown[0]!r} is reported on some batches but not on the first one "
                f"({', '.join(self._shapes)}). Workers sum the same metrics over all batches: "
                "report it on every batch, or train in one process."
            )
        at = 0
        for name, shapes in self._shapes.items():
            size = sum(map(math.prod, shapes))
            if name in states:
                buffer[at : at + size] = np.concatenate([np.ravel(a) for a in states[name]])
            at += size

    def read(self, buffer: np.ndarray[Any, Any]) -> MetricStates:
        """Return the metric states that a buffer contains, such as the sums over all workers."""
        states, at = {}, 0
        for name, shapes in self._shapes.items():
            arrays = []
            for shape in shapes:
                size = math.prod(shape)
                arrays.append(buffer[at : at + size].astype(np.float64).reshape(shape))
                at += size
            states[name] = tuple(arrays)
        return {name: states[name] for name in self._names}


def _warm_up(trainer: Trainer, contribution: Contribution) -> None:
    """Apply gradients and restore the state, to compile the trainer's update before training."""
    if isinstance(trainer, SupportsWarmup):
        trainer.warm_up(contribution)
        return
    before = trainer.state()
    trainer.apply(contribution)
    trainer.load_state(before)


class ElasticCommitter:
    """Commits a worker's steps together with all other workers; see `interfaces.Committer`.

    Args:
        trainer: The model and its optimizer.
        example: An example of a training batch. The step is compiled with it in the constructor, so
            that other workers do not wait for the compilation.
        evaluated: An example of a validation batch; None if there is no validation data.
        num_ranks: Maximum number of workers.
        accumulator: Sums commits into one update; None if each commit is an update.
        note: Records what this process is computing, to be read after its death.

    Attributes:
        slowest_s: The longest time in seconds that a batch took on this worker.
    """

    max_group_steps = 1
    # A replacement takes seconds to start; the controller reports a death sooner than this.
    patience_steps = 50

    def __init__(
        self,
        trainer: Trainer,
        example: Batch,
        *,
        evaluated: Batch | None,
        num_ranks: int,
        accumulator: Accumulator | None = None,
        note: CrashNote | None = None,
    ) -> None:
        self._trainer, self._accumulator, self._note = trainer, accumulator, note or CrashNote()
        started_s = time.monotonic()
        contribution, result = trainer.gradients(example)
        # Compilation is included, because later batches with new shapes are compiled as well.
        self.slowest_s = time.monotonic() - started_s
        self._training = Layout(result.metrics)
        self._evaluation = Layout(
            {} if evaluated is None else evaluate_first(trainer, evaluated, lambda: example)
        )
        _warm_up(trainer, contribution)
        sizes = [
            contribution.buffer.size,
            self._training.size,
            self._evaluation.size,
            num_ranks * NUM_LIMBS,
        ]
        self._buffer = np.zeros(sum(sizes), np.float32)
        self._gradients, self._metrics, self._measured, rows = np.split(
            self._buffer, np.cumsum(sizes)[:-1]
        )
        self._table = rows.reshape(num_ranks, NUM_LIMBS)
        self._num_ranks = num_ranks
        self._lost: list[int] = []
        self._bad: list[BatchId] = []
        self._ranks: Sequence[int] = ()
        # A joining worker skips computation until it has received a peer's state.
        self._joins, self._has_quorum = True, False
        self._received: bytes | None = None
        # Step of the last comparison of weights with the other workers.
        self._equal_at_step: int | None = None
        # Gradients of the current weights; dropped when the weights change.
        self._computed: tuple[TrainingBatch, Contribution, StepResult] | None = None
        self._model_in_use = threading.Lock()
        self.doing, self.doing_since_s = "preparing", time.monotonic()

    def enter(
        self,
        quorum: Quorum,
        history: EventBuffer,
        rank: int,
        incarnation: int,
        take_over: Callable[[bytes], None],
    ) -> None:
        """Join the run under a rank; called before the first step.

        Args:
            quorum: Connection to the other participants.
            history: This worker's buffer of events, which also records the commits.
            rank: The rank.
            incarnation: Number of this process among those of the job, from 1, in the order in
                which they were started.
            take_over: Function (data) that replaces this worker's state with that of a peer. `data`
                is the peer's encoded state.
        """
        self._quorum, self._history = quorum, history
        self._rank, self._incarnation = rank, incarnation
        self._take_over = take_over
        quorum.slowest_s = self.slowest_s

    def state_for_a_peer(self, save: Callable[[], bytes]) -> bytes:
        """Return the result of `save`, called when no gradients are being computed.

        Computing gradients temporarily changes the model's statistics (non-trainable variables,
        such as the moving mean of BatchNorm), and a state with changed statistics must not be sent
        to a peer.

        Args:
            save: Function () -> this worker's state, encoded.
        """
        with self._model_in_use:
            return save()

    def receive(self, data: bytes) -> None:
        """Keep the encoded state of a peer, to be loaded when the quorum is complete."""
        self._received = data

    def report_lost(self, rank: int) -> None:
        """Report a dead worker's rank in a following vote: all workers then release its lease."""
        self._lost.append(rank)

    def leave_out(self, batches: Iterable[BatchId]) -> None:
        """Stop training on these batches, and propose to all workers to skip their records.

        May be called from any thread, and more than once.
        """
        self._bad.extend(batch for batch in batches if batch not in self._bad)

    @property
    def ranks(self) -> Sequence[int]:
        """Ranks that took part in the last commit."""
        return self._ranks

    # --- loop.Committer ---------------------------------------------------------------------

    def begin(self, *, ahead: bool) -> None:
        """Start forming a quorum (the workers of the next step), unless the last one is valid.

        Args:
            ahead: Whether `commit` may compute gradients while the quorum is being formed. If not,
                or if this worker is joining the run, the call waits for the quorum.
        """
        if self._has_quorum:
            return
        self._quorum.begin()
        if self._joins or not ahead:
            self._wait_for_others()

    def _wait_for_others(self) -> bool:
        """Wait for the quorum; if a peer sent its state, take it over and return True."""
        self._busy(WAITING)
        self._quorum.wait()
        self._joins, self._has_quorum = False, True
        received, self._received = self._received, None
        if received is None:
            return False
        self._computed = None
        self._take_over(received)
        return True

    def commit(
        self, batches: Sequence[TrainingBatch], progress: TrainProgress, *, stop: bool
    ) -> Commit | None:
        """Train on one batch together with all workers; see `interfaces.Committer`.

        `batches` contains at most one, because `max_group_steps` is 1. Without one, or if it does
        not fit into the update, this worker adds zeros to the sums.

        Returns:
            The commit; None if the step was not committed, or if this worker took over a peer's
            state instead.

        Raises:
            NonFiniteLossError: The loss of the step is NaN or infinite; no worker applied it.
            DriftError: Workers have different weights.
            SupersededError: A newer process has this rank, so this process must end.
        """
        vote = Vote(self._incarnation, stop=stop)
        self._buffer[:] = 0
        fed = batches[0] if batches and self._may_contribute(progress) else None
        if fed is not None and BatchId(fed.epoch, fed.shard, fed.number) not in self._bad:
            vote = replace(vote, finished=fed.finished, digest=fed.digest)
            if fed.batch is not None or fed.is_empty:
                vote = replace(vote, num_batches=1, num_left_out=fed.num_left_out)
            if fed.batch is not None:
                contribution, result = self._contribution_of(fed, fed.batch)
                self._gradients[:] = contribution.buffer
                self._training.write(result.metrics, self._metrics)
                vote = replace(vote, num_examples=contribution.num_examples)
        if not self._has_quorum and self._wait_for_others():
            # The computation belongs to a state that was replaced. The quorum is still valid: the
            # loop's next iteration takes part in it, with the state of the others.
            return None
        decision = self._agree(vote, begins=not progress.epoch_examples)
        if decision is None:
            return None
        metrics: MetricStates = {}
        if decision.num_examples:
            metrics = self._training.read(self._metrics)
            total, _ = metrics["loss"]
            check_sum(float(total), step=self._trainer.step + 1, epoch=progress.ledger.epoch)
        self._apply(decision, progress)
        return self._entered(decision, metrics)

    def commit_evaluation(
        self, states: MetricStates, row: LeaseUpdate | None, *, begins: bool
    ) -> Commit | None:
        """Sum the metric states of all workers; see `interfaces.Committer`.

        Args:
            states: This worker's states.
            row: Update of this worker's lease of the validation data; None if it has no lease.
            begins: Whether this is the first commit of the evaluation.

        Returns:
            The commit, with the summed states; None if the step is not committed.
        """
        self._buffer[:] = 0
        self._evaluation.write(states, self._measured)
        decision = self._agree(Vote(self._incarnation, finished=row is not None), begins=begins)
        if decision is None:
            return None
        return self._entered(decision, self._evaluation.read(self._measured))

    def leads(self) -> bool:
        """Return whether this worker is the leader: the lowest rank of the last commit."""
        return bool(self._ranks) and self._ranks[0] == self._rank

    def _contribution_of(self, fed: TrainingBatch, batch: Batch) -> tuple[Contribution, StepResult]:
        """Return the gradients of a batch and the result of its step.

        If a step is retried with the same batch and weights, the earlier result is returned.

        Args:
            fed: The training batch, with its epoch, shard and number.
            batch: The arrays of `fed`.
        """
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

    def _may_contribute(self, progress: TrainProgress) -> bool:
        """Return whether this worker's batch fits into the next update, after those of lower ranks.

        An update takes a fixed number of batches (`--global_batch_size`). Without that option, any
        batch fits.
        """
        if self._accumulator is None:
            return True
        # Each batch of an update draws its own random numbers.
        self._trainer.rank = self._rank + self._num_ranks * self._accumulator.num_batches
        before = sum(rank < self._rank for rank in progress.ledger.leased)
        return before < self._accumulator.num_missing

    def _apply(self, decision: Decision, progress: TrainProgress) -> None:
        if not decision.rows:
            return
        total = None
        if decision.num_examples:
            self._computed = None
            total = Contribution(self._gradients, decision.num_examples)
        if self._accumulator is None:
            if total is not None:
                self._trainer.apply(total)
            return
        num_batches = sum(row.num_batches for row in decision.rows)
        last = progress.ledger.advance(decision.rows).epoch_done
        self._accumulator.add(total, num_batches, last=last)

    # --- the agreement ------------------------------------------------------------------------

    def _agree(self, vote: Vote, *, begins: bool) -> Decision | None:
        """Exchange votes with all workers; return the decision, None if the step does not commit.

        Args:
            vote: This worker's vote.
            begins: Whether an epoch or an evaluation begins; then the weights are compared.
        """
        point = self._history.point
        compares = begins or _is_due(point.num_commits)
        bad = self._bad[0] if self._bad else None
        vote = replace(
            vote,
            lineage=point.lineage,
            requests_quorum=self._quorum.is_old,
            lost=self._lost[0] + 1 if self._lost else 0,
            bad_epoch=bad[0] + 1 if bad else 0,
            bad_shard=bad[1] if bad else 0,
            bad_batch=bad[2] if bad else 0,
            fingerprint=self._fingerprint() if compares else 0,
        )
        encode(vote, self._rank, self._table)
        self._busy("in the allreduce")
        decision = None
        if self._quorum.sum(self._buffer):
            decision = decide_commit(self._table, self._rank, vote)
        committed = self._quorum.vote(commit=decision is not None and decision.commits)
        # A quorum is valid until a worker requests another or a step fails. A worker whose step
        # failed while others committed has closed its connections, so the next sum of the others
        # fails and they request a new quorum as well.
        self._has_quorum = decision is not None and committed and not decision.requests_quorum
        if decision is not None and decision.leave:
            raise SupersededError(f"A newer process holds rank {self._rank}.")
        if decision is not None and decision.drifted:
            drifted = ", ".join(map(str, decision.drifted))
            raise DriftError(
                f"The weights of ranks {drifted} differ from those of "
                f"rank {decision.ranks[0]} after the same {point.num_commits:,} commits. Callbacks "
                "that change weights must do the same on every worker, and all machines must "
                f"compute the same results. The job stopped. {self._last_compared()}"
            )
        if decision is not None and decision.heal:
            self._quorum.give_up_state()
            self._joins = True
        if decision is None or not committed:
            return None
        if compares:
            self._equal_at_step = self._trainer.step
        self._ranks = decision.ranks
        if self._lost and self._lost[0] in {*decision.lost, *decision.ranks}:
            self._lost.pop(0)
        for batch in decision.left_out:
            if batch in self._bad:
                self._bad.remove(batch)
        return decision

    def _entered(self, decision: Decision, metrics: MetricStates) -> Commit:
        before = self._history.point
        # Not torchft's step number: a worker that gives up its state resets that number to 0. It
        # counts from 0 again if the peer that should send it a state dies just then.
        point = CommitId(before.num_commits + 1, chain(before.lineage, decision))
        self._history.committed(point)
        return Commit(
            rows=decision.rows,
            ranks=decision.ranks,
            metrics=metrics,
            lost=decision.lost,
            stop=decision.stop,
            left_out=decision.left_out,
            num_left_out=decision.num_left_out,
            num_examples=decision.num_examples,
        )

    def _last_compared(self) -> str:
        """Return advice for `DriftError`, with the last step at which the weights were equal."""
        if self._equal_at_step is None:
            return "Mend the cause, and train again with another --output."
        return (
            f"The weights were equal at step {self._equal_at_step:,}; later checkpoints contain "
            "those of one worker. Mend the cause, and train again with another --output."
        )

    def _fingerprint(self) -> int:
        digest = hashlib.blake2b(digest_size=8)
        for path, array in sorted(self._trainer.state().items()):
            if path.startswith("model/"):
                digest.update(np.ascontiguousarray(array).tobytes())
        return int.from_bytes(digest.digest(), "big")

    def _busy(self, doing: str) -> None:
        self.doing, self.doing_since_s = doing, time.monotonic()


def _is_due(num_commits: int) -> bool:
    """Return whether to compare the weights of the workers after this commit.

    They are compared after 1, 2, 4, 8, ... commits, then after each `_FINGERPRINT_INTERVAL`
    commits.
    """
    if num_commits < _FINGERPRINT_INTERVAL:
        return num_commits & (num_commits - 1) == 0
    return num_commits % _FINGERPRINT_INTERVAL == 0

"""Simulation of a ledger: its correctness and its cost with thousands of workers, without any.

The `Ledger` and `ShardPlan` of a real training are driven by workers that are rows of an array:
they die, are replaced, join late, and steps fail, as often as a `Scenario` says. Every committed
batch is recorded in a book that is independent of the ledger, so that the two can be compared.
The simulation ignores the content of a batch and how long one takes: a step is a step.

    dead or joining --later--> present --assign, feed one batch, advance--> present
           ^                      |
           +------- dies ---------+   (noticed: its lease is released; else its rank misses steps)

Callers: `ledger.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticdl.sharding.epoch_order import DEFAULT_MINIBATCHES_PER_SHARD, ShardPlan
from elasticdl.sharding.ledger import Ints, Ledger, ShardLease

# How often the state is serialized, measured, and continued from its serialized form.
_STEPS_BETWEEN_STATES = 25


@dataclass(frozen=True)
class Scenario:
    """Parameters of a simulation; equal scenarios have equal outcomes.

    Attributes:
        num_workers: Ranks, each with a worker that may be replaced.
        num_records: Records of the dataset.
        minibatch_size: Records in one batch.
        minibatches_per_shard: Batches in a shard.
        splits: Whether shards can be entered at any batch, and therefore be split.
        num_epochs: The simulation ends after this many epochs.
        max_steps: It ends after this many steps at the latest, including failed ones.
        first_shard: Position in the first epoch's order at which to start.
        joining_steps: Number of steps over which the workers join, one by one.
        failure_rate: Fraction of the workers that die in a step.
        replacement_steps: Mean number of steps until a dead worker is replaced.
        noticed_share: Fraction of the deaths that are noticed at once; in the other cases the
            rank misses steps.
        patience: Missed steps after which a lease is released.
        failed_commit_rate: Fraction of the steps that no worker commits.
        seed: Seed of all random draws above, and of the order of shards.
    """

    num_workers: int
    num_records: int
    minibatch_size: int = 64
    minibatches_per_shard: int = DEFAULT_MINIBATCHES_PER_SHARD
    splits: bool = True
    num_epochs: int = 1
    max_steps: int = 10_000
    first_shard: int = 0
    joining_steps: int = 1
    failure_rate: float = 0.0
    replacement_steps: float = 10.0
    noticed_share: float = 0.5
    patience: int = 5
    failed_commit_rate: float = 0.0
    seed: int = 0

    @property
    def plan(self) -> ShardPlan:
        """The cut of the dataset."""
        return ShardPlan(
            self.num_records, self.minibatch_size, self.minibatches_per_shard, self.seed
        )


@dataclass(frozen=True)
class SimulationPhase:
    """Committed steps of one kind.

    Attributes:
        num_steps: Number of steps.
        mean_us: Ledger work of a step: `release`, `assign`, `advance` and `release_missing`, once.
        p99_us: 99th percentile of the ledger work of a step.
        max_us: The slowest step.
        idle_share: Fraction of the present workers' steps in which they fed no batch.
    """

    num_steps: int
    mean_us: float
    p99_us: float
    max_us: float
    idle_share: float


@dataclass(frozen=True)
class SimulationReport:
    """The outcome of a scenario.

    Attributes:
        middle: Steps while there were unassigned shards.
        end: Steps after the last shard of an epoch had been assigned.
        num_epochs: Epochs that were completed.
        num_batches: Batches committed.
        num_twice: Batches committed more than once in an epoch, or committed and still to come.
        num_missing: Batches that are neither committed nor to come.
        num_deaths: Workers that died.
        num_failed_commits: Steps that were not committed.
        state_bytes: The largest ledger seen, as compact JSON.
    """

    middle: SimulationPhase
    end: SimulationPhase
    num_epochs: int
    num_batches: int
    num_twice: int
    num_missing: int
    num_deaths: int
    num_failed_commits: int
    state_bytes: int


def simulate(
    scenario: Scenario, clock: Callable[[], float] = time.perf_counter
) -> SimulationReport:
    """Drive a ledger through a scenario.

    Args:
        scenario: The scenario.
        clock: Seconds, to measure the ledger's own work; it has no influence on the outcome.

    Raises:
        ValueError: The first shard is not in the epoch.

    Example:
        >>> report = simulate(Scenario(num_workers=2, num_records=512, failure_rate=0.1))
        >>> report.num_batches, report.num_twice, report.num_missing
        (8, 0, 0)
    """
    if not 0 <= scenario.first_shard < scenario.plan.num_shards:
        raise ValueError(
            f"first_shard={scenario.first_shard}: an epoch has {scenario.plan.num_shards} shards."
        )
    simulation = _Simulation(scenario, clock)
    for step in range(scenario.max_steps):
        if simulation.ledger.epoch == scenario.num_epochs:
            break
        simulation.step(step)
    return simulation.report()


def num_batches_by_position(plan: ShardPlan) -> Ints:
    """Return `plan.num_batches` of every position of an epoch's order."""
    starts = np.arange(plan.num_shards) * plan.shard_size
    num_records = np.minimum(starts + plan.shard_size, plan.num_records) - starts
    return -(-num_records // plan.minibatch_size)


class _Simulation:
    """A training in progress, in which only the ledger is real."""

    def __init__(self, scenario: Scenario, clock: Callable[[], float]) -> None:
        self._scenario = scenario
        self._clock = clock
        self._rng = np.random.default_rng(scenario.seed)
        self._workers = _Workers(scenario, self._rng)
        self._noticed: list[Ints] = []
        batches_per_shard = scenario.minibatches_per_shard if scenario.splits else 0
        self.ledger = Ledger(
            scenario.plan.num_shards, batches_per_shard, assigned=scenario.first_shard
        )
        self._book = _Book(scenario.plan, scenario.first_shard)
        self._steps: list[tuple[bool, float, int, int]] = []
        self._num_twice = self._num_missing = self._num_failed_commits = self._state_bytes = 0

    def step(self, step: int) -> None:
        """Let workers die and join, assign, feed one batch each, and commit."""
        scenario = self._scenario
        present, noticed = self._workers.at(step)
        self._noticed.append(noticed)
        if not len(present):
            return
        lost = np.concatenate(self._noticed)
        began = self._clock()
        dealt = (
            self.ledger.release(lost).assign(present) if len(lost) else self.ledger.assign(present)
        )
        taken_s = self._clock() - began
        if self._rng.random() < scenario.failed_commit_rate:
            # No worker's ledger has this step: the same leases are assigned again.
            self._num_failed_commits += 1
            return
        rows = self._book.feed(dealt, present)
        began = self._clock()
        self.ledger = dealt.advance(rows).release_missing(present, scenario.patience)
        taken_s += self._clock() - began
        self._noticed.clear()
        in_middle = dealt.assigned < dealt.num_shards
        self._steps.append((in_middle, taken_s, int(rows[:, 1].sum()), len(present)))
        if len(self._steps) % _STEPS_BETWEEN_STATES == 1:
            self._travel()
        if self.ledger.epoch_done:
            self._audit()
            self.ledger = self.ledger.next_epoch()
            self._book = _Book(scenario.plan)

    def report(self) -> SimulationReport:
        """Return the outcome so far."""
        self._travel()
        self._audit()
        return SimulationReport(
            middle=_phase([row[1:] for row in self._steps if row[0]]),
            end=_phase([row[1:] for row in self._steps if not row[0]]),
            num_epochs=self.ledger.epoch,
            num_batches=sum(num_batches for _, _, num_batches, _ in self._steps),
            num_twice=self._num_twice,
            num_missing=self._num_missing,
            num_deaths=self._workers.num_deaths,
            num_failed_commits=self._num_failed_commits,
            state_bytes=self._state_bytes,
        )

    def _travel(self) -> None:
        """Continue from the serialized state that a new worker would receive."""
        state = json.dumps(self.ledger.to_json(), separators=(",", ":"))
        self._state_bytes = max(self._state_bytes, len(state))
        self.ledger = Ledger.from_json(json.loads(state))

    def _audit(self) -> None:
        twice, missing = self._book.audit(self.ledger)
        self._num_twice += twice
        self._num_missing += missing


class _Workers:
    """The ranks that have a living worker."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        self._scenario = scenario
        self._rng = rng
        self._comes_at = rng.integers(0, scenario.joining_steps, scenario.num_workers)
        self.num_deaths = 0

    def at(self, step: int) -> tuple[Ints, Ints]:
        """Return the ranks that take part in a step, and those whose death was noticed before."""
        scenario, rng = self._scenario, self._rng
        dies = (self._comes_at <= step) & (rng.random(scenario.num_workers) < scenario.failure_rate)
        (dead,) = np.nonzero(dies)
        self.num_deaths += len(dead)
        # In the next step at the earliest.
        self._comes_at[dead] = step + rng.geometric(1 / scenario.replacement_steps, len(dead))
        noticed = dead[rng.random(len(dead)) < scenario.noticed_share]
        return np.nonzero(self._comes_at <= step)[0], noticed


class _Book:
    """Record of the batches of an epoch that the workers have fed, kept beside the ledger."""

    def __init__(self, plan: ShardPlan, first_shard: int = 0) -> None:
        self._width = plan.minibatches_per_shard
        self._first = first_shard
        self._lengths = num_batches_by_position(plan)
        num_batches = (plan.num_shards - first_shard) * self._width
        self._times = np.zeros(num_batches, np.uint8)

    def feed(self, ledger: Ledger, present: Ints) -> Ints:
        """Feed one batch of each present worker's lease, if it has one left.

        Returns:
            The committed batches, with the columns of `LeaseUpdate`.
        """
        shard, committed, _, _, rank, _ = ledger.leased_table.T
        here = np.isin(rank, present)
        shard, committed, rank = shard[here], committed[here], rank[here]
        ends = self._lengths[shard]
        num_batches = (committed < ends).astype(np.int64)
        np.add.at(self._times, self._place(shard, committed)[num_batches > 0], 1)
        finished = committed + num_batches >= ends
        return np.stack([rank, num_batches, finished, np.zeros_like(rank)], axis=1)

    def audit(self, ledger: Ledger) -> tuple[int, int]:
        """Return how many batches are fed more than once, and how many are never fed."""
        real = np.arange(self._width) < self._lengths[self._first :, np.newaxis]
        times = (self._times + self._to_come(ledger))[real.reshape(-1)]
        return int((times > 1).sum()), int((times == 0).sum())

    def _to_come(self, ledger: Ledger) -> Ints:
        """Return how often the ledger will have each batch fed."""
        leases = [*ledger.waiting, *ledger.leased.values(), ShardLease(ledger.assigned, 0, 0)]
        shard, committed, stop, _ = np.array(leases, np.int64).T
        # Where a lease begins, one more is to come, where it ends, one less; the last entry, the
        # unassigned rest, never ends.
        change = np.zeros(len(self._times) + 1, np.int64)
        np.add.at(change, self._place(shard, committed), 1)
        ends = self._place(shard, np.where(stop > 0, stop, self._width))
        np.add.at(change, ends[:-1], -1)
        return np.cumsum(change[:-1])

    def _place(self, shard: Ints, number: Ints) -> Ints:
        return (shard - self._first) * self._width + number


def _phase(steps: list[tuple[float, int, int]]) -> SimulationPhase:
    if not steps:
        return SimulationPhase(0, 0.0, 0.0, 0.0, 0.0)
    taken_s, num_batches, num_present = np.array(steps).T
    return SimulationPhase(
        num_steps=len(steps),
        mean_us=float(taken_s.mean() * 1e6),
        p99_us=float(np.quantile(taken_s, 0.99) * 1e6),
        max_us=float(taken_s.max() * 1e6),
        idle_share=float(1 - num_batches.sum() / num_present.sum()),
    )

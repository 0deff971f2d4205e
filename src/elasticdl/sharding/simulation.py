"""What a ledger does and costs for thousands of workers, without any of them.

The `Ledger` and `ShardPlan` of a real training are driven by workers that are rows of an array:
they die, are replaced, come late, and steps fail, as often as a `Scenario` says. Every batch that
is committed is entered in a book that knows nothing of the ledger, so that the two can be
compared. It refuses to know what a batch contains and how long one takes: a step is a step.

    dead or joining --later--> present --deal, feed one batch, advance--> present
           ^                      |
           +------- dies ---------+   (noticed: its piece is lost; else its slot misses steps)

Callers: `benchmarks/ledger.py`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from elasticdl.sharding.ledger import Ints, Ledger, Piece
from elasticdl.sharding.shard import DEFAULT_MINIBATCHES_PER_SHARD, ShardPlan

# How often the state is written, measured, and gone on with from what was written.
_STEPS_BETWEEN_STATES = 25


@dataclass(frozen=True)
class Scenario:
    """What is simulated; the same one has the same outcome.

    Attributes:
        num_workers: Slots, each with a worker that may be replaced.
        num_records: Records of the dataset.
        minibatch_size: Records in one batch.
        minibatches_per_shard: Batches in a shard.
        splits: Whether shards can be entered at any batch, and so be split.
        num_epochs: Where to end.
        max_steps: Where to end at the latest, failed steps counted as well.
        first_shard: Where in the first epoch's order to start.
        joining_steps: Workers come one by one during so many steps.
        failure_rate: Part of the workers that die in a step.
        replacement_steps: How many steps it takes on average until a dead worker is replaced.
        noticed_share: Part of the deaths that are noticed at once; of the others, steps are
            missed.
        patience: Missed steps after which a piece goes to somebody else.
        failed_commit_rate: Part of the steps that are not committed, by anybody.
        seed: Of everything above that is drawn, and of the order of shards.
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
class Phase:
    """Committed steps of one kind.

    Attributes:
        num_steps: How many.
        mean_us: Ledger work of a step: `lost`, `deal`, `advance` and `missed`, once.
        p99_us: As much as one step in a hundred takes or exceeds.
        max_us: The slowest.
        idle_share: Part of the present workers' steps in which they fed no batch.
    """

    num_steps: int
    mean_us: float
    p99_us: float
    max_us: float
    idle_share: float


@dataclass(frozen=True)
class Report:
    """What came of a scenario.

    Attributes:
        middle: Steps while there were shards nobody had been given.
        end: Steps after the last shard of an epoch had been given to somebody.
        num_epochs: Epochs that were done.
        num_batches: Batches committed.
        num_twice: Batches committed more than once in an epoch, or still to be.
        num_missing: Batches that neither were committed nor are to come.
        num_deaths: Workers that died.
        num_failed_commits: Steps that were not committed.
        state_bytes: The largest ledger seen, as compact JSON.
    """

    middle: Phase
    end: Phase
    num_epochs: int
    num_batches: int
    num_twice: int
    num_missing: int
    num_deaths: int
    num_failed_commits: int
    state_bytes: int


def simulate(scenario: Scenario, clock: Callable[[], float] = time.perf_counter) -> Report:
    """Drive a ledger through a scenario.

    Args:
        scenario: What happens.
        clock: Seconds, to measure the ledger's own work; nothing is decided by it.

    Raises:
        ValueError: The first shard is none of the epoch.

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
    """Return `plan.num_batches` of every position of an epoch's order at once."""
    starts = np.arange(plan.num_shards) * plan.shard_size
    num_records = np.minimum(starts + plan.shard_size, plan.num_records) - starts
    return -(-num_records // plan.minibatch_size)


class _Simulation:
    """A training in progress, of which only the ledger is real."""

    def __init__(self, scenario: Scenario, clock: Callable[[], float]) -> None:
        self._scenario = scenario
        self._clock = clock
        self._rng = np.random.default_rng(scenario.seed)
        self._workers = _Workers(scenario, self._rng)
        self._noticed: list[Ints] = []
        batches_per_shard = scenario.minibatches_per_shard if scenario.splits else 0
        self.ledger = Ledger(
            scenario.plan.num_shards, batches_per_shard, dealt=scenario.first_shard
        )
        self._book = _Book(scenario.plan, scenario.first_shard)
        self._steps: list[tuple[bool, float, int, int]] = []
        self._num_twice = self._num_missing = self._num_failed_commits = self._state_bytes = 0

    def step(self, step: int) -> None:
        """Let workers die and come, deal, feed a batch each, and commit."""
        scenario = self._scenario
        present, noticed = self._workers.at(step)
        self._noticed.append(noticed)
        if not len(present):
            return
        lost = np.concatenate(self._noticed)
        began = self._clock()
        dealt = self.ledger.lost(lost).deal(present) if len(lost) else self.ledger.deal(present)
        taken_s = self._clock() - began
        if self._rng.random() < scenario.failed_commit_rate:
            # Nobody's ledger knows of it: the same is dealt again.
            self._num_failed_commits += 1
            return
        rows = self._book.feed(dealt, present)
        began = self._clock()
        self.ledger = dealt.advance(rows).missed(present, scenario.patience)
        taken_s += self._clock() - began
        self._noticed.clear()
        in_middle = dealt.dealt < dealt.num_shards
        self._steps.append((in_middle, taken_s, int(rows[:, 1].sum()), len(present)))
        if len(self._steps) % _STEPS_BETWEEN_STATES == 1:
            self._travel()
        if self.ledger.epoch_done:
            self._audit()
            self.ledger = self.ledger.next_epoch()
            self._book = _Book(scenario.plan)

    def report(self) -> Report:
        """Return what came of it up to here."""
        self._travel()
        self._audit()
        return Report(
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
        """Go on with what a new worker would be handed."""
        state = json.dumps(self.ledger.to_json(), separators=(",", ":"))
        self._state_bytes = max(self._state_bytes, len(state))
        self.ledger = Ledger.from_json(json.loads(state))

    def _audit(self) -> None:
        twice, missing = self._book.audit(self.ledger)
        self._num_twice += twice
        self._num_missing += missing


class _Workers:
    """Which slots have somebody in them."""

    def __init__(self, scenario: Scenario, rng: np.random.Generator) -> None:
        self._scenario = scenario
        self._rng = rng
        self._comes_at = rng.integers(0, scenario.joining_steps, scenario.num_workers)
        self.num_deaths = 0

    def at(self, step: int) -> tuple[Ints, Ints]:
        """Return who takes part in a step, and whose death was noticed before it."""
        scenario, rng = self._scenario, self._rng
        dies = (self._comes_at <= step) & (rng.random(scenario.num_workers) < scenario.failure_rate)
        (dead,) = np.nonzero(dies)
        self.num_deaths += len(dead)
        # At the earliest in the next step.
        self._comes_at[dead] = step + rng.geometric(1 / scenario.replacement_steps, len(dead))
        noticed = dead[rng.random(len(dead)) < scenario.noticed_share]
        return np.nonzero(self._comes_at <= step)[0], noticed


class _Book:
    """Which batches of an epoch the workers have fed, written down beside the ledger."""

    def __init__(self, plan: ShardPlan, first_shard: int = 0) -> None:
        self._width = plan.minibatches_per_shard
        self._first = first_shard
        self._lengths = num_batches_by_position(plan)
        num_batches = (plan.num_shards - first_shard) * self._width
        self._times = np.zeros(num_batches, np.uint8)

    def feed(self, ledger: Ledger, present: Ints) -> Ints:
        """Feed one batch of each piece that is in a present worker's hand, if it has one left.

        Returns:
            What was committed, with the columns of `Row`.
        """
        shard, committed, _, _, slot, _ = ledger.in_hand_table.T
        here = np.isin(slot, present)
        shard, committed, slot = shard[here], committed[here], slot[here]
        ends = self._lengths[shard]
        num_batches = (committed < ends).astype(np.int64)
        np.add.at(self._times, self._place(shard, committed)[num_batches > 0], 1)
        finished = committed + num_batches >= ends
        return np.stack([slot, num_batches, finished, np.zeros_like(slot)], axis=1)

    def audit(self, ledger: Ledger) -> tuple[int, int]:
        """Return how many batches are fed more than once, and how many never."""
        real = np.arange(self._width) < self._lengths[self._first :, np.newaxis]
        times = (self._times + self._to_come(ledger))[real.reshape(-1)]
        return int((times > 1).sum()), int((times == 0).sum())

    def _to_come(self, ledger: Ledger) -> Ints:
        """Return how often the ledger has each batch fed in the future."""
        pieces = [*ledger.waiting, *ledger.in_hand.values(), Piece(ledger.dealt, 0, 0)]
        shard, committed, stop, _ = np.array(pieces, np.int64).T
        # Where a piece begins one more is to come, where it ends one less; nobody's ends nowhere.
        change = np.zeros(len(self._times) + 1, np.int64)
        np.add.at(change, self._place(shard, committed), 1)
        ends = self._place(shard, np.where(stop > 0, stop, self._width))
        np.add.at(change, ends[:-1], -1)
        return np.cumsum(change[:-1])

    def _place(self, shard: Ints, number: Ints) -> Ints:
        return (shard - self._first) * self._width + number


def _phase(steps: list[tuple[float, int, int]]) -> Phase:
    if not steps:
        return Phase(0, 0.0, 0.0, 0.0, 0.0)
    taken_s, num_batches, num_present = np.array(steps).T
    return Phase(
        num_steps=len(steps),
        mean_us=float(taken_s.mean() * 1e6),
        p99_us=float(np.quantile(taken_s, 0.99) * 1e6),
        max_us=float(taken_s.max() * 1e6),
        idle_share=float(1 - num_batches.sum() / num_present.sum()),
    )

"""The audit: it finds exactly what is wrong, and nothing where nothing is."""

from __future__ import annotations

import itertools
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.sharding.audit import AuditFinding, audit, unlogged_steps
from elasticdl.sharding.epoch_order import ShardPlan

# Two shards of 3 batches and one of 2: 5 + 5 + 5, and 5 + 1.
PLAN = ShardPlan(36, minibatch_size=5, minibatches_per_shard=3, shuffle=False)
WHOLE = [(0, 0, 0, 0, 3), (0, 1, 1, 0, 3), (0, 0, 2, 0, 2)]


def audited(rows, finished=(0,), plan=PLAN, *, by_record=True):
    """Return the audit of one epoch and the impossible rows."""
    (epoch,), impossible = audit(plan, rows, set(finished), by_record=by_record)
    return epoch, [tuple(row) for row in impossible.tolist()]


def test_an_epoch_logged_once_has_no_findings() -> None:
    epoch, impossible = audited(WHOLE)

    assert epoch.findings == []
    assert impossible == []
    assert (epoch.num_batches, epoch.num_records, epoch.ranks) == (8, 36, (0, 1))


def test_missing_batches_are_found() -> None:
    epoch, _ = audited([(0, 0, 0, 0, 1), (0, 0, 0, 2, 3), *WHOLE[1:]])

    assert epoch.findings == [AuditFinding(0, 1, 2, times=0)]
    assert epoch.num_records == 31


def test_duplicate_batches_are_found_with_their_rows() -> None:
    epoch, _ = audited([*WHOLE, (0, 7, 1, 1, 2)])

    assert epoch.findings == [AuditFinding(1, 1, 2, times=2)]
    assert epoch.rows_of(epoch.findings[0]) == [(0, 1, 1, 0, 3), (0, 7, 1, 1, 2)]


def test_an_unlogged_epoch_is_found_if_it_is_finished() -> None:
    epoch, _ = audited([], finished=[0])

    assert [finding.times for finding in epoch.findings] == [0, 0, 0]
    assert audit(PLAN, np.empty((0, 5)), set(), by_record=True)[0] == []


def test_in_an_unfinished_epoch_only_duplicates_are_wrong() -> None:
    epoch, _ = audited([(0, 0, 0, 2, 3), (0, 1, 0, 2, 3), (0, 1, 2, 1, 2)], finished=[])

    assert epoch.findings == [AuditFinding(0, 2, 3, times=2)]
    assert (epoch.num_batches, epoch.num_records) == (2, 6)


@pytest.mark.parametrize(
    "row",
    [
        (0, 0, 3, 0, 1),  # a fourth shard
        (0, 0, 2, 1, 3),  # a third batch of the last shard
        (0, 0, -1, 0, 1),
        (0, 0, 1, -1, 2),
        (0, 0, 1, 2, 2),
        (-1, 0, 1, 0, 3),
        (0, 0, 1, 0, 2**62),
    ],
)
def test_impossible_rows_are_named_and_not_counted(row) -> None:
    epoch, impossible = audited([row, *WHOLE])

    assert impossible == [row]
    assert epoch.findings == []


def test_the_short_shard_is_the_last_of_every_epoch() -> None:
    plan = ShardPlan(1000, minibatch_size=7, minibatches_per_shard=4, seed=3)
    rows = [
        (epoch, 0, position, 0, plan.num_batches(position))
        for epoch in range(5)
        for position in range(plan.num_shards)
    ]

    epochs, impossible = audit(plan, rows, set(range(5)), by_record=True)

    assert [(epoch.findings, epoch.num_records) for epoch in epochs] == [([], 1000)] * 5
    assert len(impossible) == 0


# --- batches of a pipeline ----------------------------------------------------------------


def test_shards_of_a_pipeline_may_have_any_number_of_batches() -> None:
    epoch, _ = audited([(0, 0, 0, 0, 50), (0, 0, 1, 0, 1), (0, 0, 2, 0, 7)], by_record=False)

    assert (epoch.findings, epoch.silent_shards) == ([], ())
    assert (epoch.num_batches, epoch.num_records) == (58, None)


@pytest.mark.parametrize("finished", [[], [0]])
def test_gaps_and_duplicates_of_a_pipeline_shard_are_found(finished) -> None:
    rows = [(0, 0, 0, 1, 4), (0, 0, 2, 0, 3), (0, 1, 2, 2, 5), (0, 1, 2, 6, 7)]

    epoch, _ = audited(rows, finished, by_record=False)

    assert epoch.findings == [
        AuditFinding(0, 0, 1, times=0),
        AuditFinding(2, 2, 3, times=2),
        AuditFinding(2, 5, 6, times=0),
    ]
    # A shard that is not there yet is nothing to speak of.
    assert epoch.silent_shards == ((1,) if finished else ())


def test_more_batches_than_any_pipeline_yields_are_impossible() -> None:
    row = (0, 0, 1, 0, 2**62)

    epoch, impossible = audited([row, (0, 0, 0, 0, 4)], by_record=False)

    assert impossible == [row]
    assert epoch.num_batches == 4


def test_steps_without_batches_are_counted() -> None:
    # Two workers made steps 3 and 4; an event is late; steps 5 to 7 were told by nobody.
    untold = unlogged_steps(np.array([2, 4, 3, 9, 9]), np.array([2, 4, 1, 2, 0]))

    assert untold.tolist() == [0, 0, 0, 3, 0]


# --- any history ----------------------------------------------------------------------------


@st.composite
def histories(draw):
    """Draw a plan, rows that tell each batch of its epochs once, and one of these batches."""
    plan = ShardPlan(
        num_records=draw(st.integers(1, 200)),
        minibatch_size=draw(st.integers(1, 7)),
        minibatches_per_shard=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 3)),
        shuffle=draw(st.booleans()),
    )
    num_epochs = draw(st.integers(1, 2))
    rows = []
    for epoch in range(num_epochs):
        for shard in range(plan.num_shards):
            stop = plan.num_batches(shard)
            cuts = draw(st.sets(st.integers(0, stop))) | {0, stop}
            edges = sorted(cuts)
            rows += [
                (epoch, draw(st.integers(0, 3)), shard, first, last)
                for first, last in itertools.pairwise(edges)
            ]
    rows = draw(st.permutations(rows))
    row = draw(st.sampled_from(rows))
    return plan, num_epochs, rows, row, draw(st.integers(row[3], row[4] - 1))


@given(history=histories(), doubled=st.booleans())
def test_one_missing_or_duplicate_batch_is_found_exactly(history, doubled) -> None:
    plan, num_epochs, rows, (epoch, rank, shard, first, stop), batch = history
    if doubled:
        rows = [*rows, (epoch, rank + 1, shard, batch, batch + 1)]
    else:
        rows = [row for row in rows if row[:1] + row[2:4] != (epoch, shard, first)]
        parts = [(first, batch), (batch + 1, stop)]
        rows += [(epoch, rank, shard, begin, end) for begin, end in parts if begin < end]

    epochs, impossible = audit(plan, rows, set(range(num_epochs)), by_record=True)

    found = [(each.epoch, *finding) for each in epochs for finding in each.findings]
    assert found == [(epoch, shard, batch, batch + 1, 2 if doubled else 0)]
    assert len(impossible) == 0


small = st.integers(0, 4)


@given(st.lists(st.tuples(st.integers(0, 1), small, small, small, small)), st.booleans())
def test_any_rows_are_counted_as_if_one_by_one(rows, by_record) -> None:
    plan = ShardPlan(31, minibatch_size=3, minibatches_per_shard=3)

    epochs, _ = audit(plan, rows, {0, 1}, by_record=by_record)

    for told in epochs:
        own = [row for row in rows if row[0] == told.epoch and row[2] < plan.num_shards]
        if by_record:
            own = [row for row in own if row[4] <= plan.num_batches(row[2])]
        counts = Counter((row[2], batch) for row in own for batch in range(row[3], row[4]))
        for shard in range(plan.num_shards):
            ends = [row[4] for row in own if row[2] == shard and row[3] < row[4]]
            stop = plan.num_batches(shard) if by_record else max(ends, default=0)
            counts.update({(shard, batch): 0 for batch in range(stop)})
        wrong = {key: times for key, times in counts.items() if times != 1}
        assert wrong == {
            (finding.shard, batch): finding.times
            for finding in told.findings
            for batch in range(finding.first, finding.stop)
        }


def test_ten_million_batches_are_audited_in_seconds() -> None:
    plan = ShardPlan(64 * 10**7, minibatch_size=64)
    position = np.repeat(np.arange(plan.num_shards), 4)
    first = np.tile(np.arange(4) * 8, plan.num_shards)
    rows = np.stack([0 * first, position % 100, position, first, first + 8], axis=1)
    rows = np.delete(rows, 777_777, axis=0)
    started = time.perf_counter()

    epoch, _ = audited(np.random.default_rng(0).permutation(rows), plan=plan)

    assert epoch.findings == [AuditFinding(777_777 // 4, 8, 16, times=0)]
    assert time.perf_counter() - started < 20

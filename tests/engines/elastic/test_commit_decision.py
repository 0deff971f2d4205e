"""Every worker draws the same conclusion from the same sum of rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.engines.elastic.commit_decision import (
    NUM_LIMBS,
    Decision,
    Vote,
    chain,
    decide_commit,
    encode,
    first_lineage,
)
from elasticdl.sharding.ledger import LeaseUpdate

NUM_RANKS = 4
LARGEST = Vote(
    incarnation=2**32 - 1,
    num_examples=2**32 - 1,
    num_batches=2**16 - 1,
    finished=True,
    stop=True,
    requests_quorum=True,
    digest=2**32 - 1,
    lost=2**32 - 1,
    lineage=2**64 - 1,
    fingerprint=2**64 - 1,
)
STANCES = st.builds(
    Vote,
    incarnation=st.integers(0, 2**32 - 1),
    num_examples=st.integers(0, 2**32 - 1),
    num_batches=st.integers(0, 2**16 - 1),
    finished=st.booleans(),
    stop=st.booleans(),
    requests_quorum=st.booleans(),
    digest=st.integers(0, 2**32 - 1),
    lost=st.integers(0, 2**32 - 1),
)


def summed(*placed, num_ranks=NUM_RANKS):
    """Return the sum of the tables of (rank, stance) pairs, added in their order."""
    total = np.zeros((num_ranks, NUM_LIMBS), np.float32)
    for rank, stance in placed:
        table = np.zeros_like(total)
        encode(stance, rank, table)
        total += table
    return total


def verdicts(*placed):
    """Return what each of these workers concludes."""
    table = summed(*placed)
    return [decide_commit(table, rank, stance) for rank, stance in placed]


def placed_by(stances):
    return list(zip((0, 2, 3), stances, strict=False))


# --- numbers in a sum of float32 ----------------------------------------------------------------


@given(STANCES, st.integers(0, NUM_RANKS - 1))
def test_the_contribution_of_a_worker_is_read_from_its_row(stance, rank):
    (verdict,) = verdicts((rank, stance))

    worked = (stance.num_batches or stance.finished) and not stance.stop
    row = LeaseUpdate(rank, stance.num_batches, stance.finished, stance.digest)
    assert verdict == Decision(
        commits=True,
        drifted=[],
        ranks=[rank],
        rows=[row] if worked else [],
        lost=[stance.lost - 1] if stance.lost and stance.lost - 1 != rank else [],
        stop=stance.stop,
        num_examples=0 if stance.stop else stance.num_examples,
        requests_quorum=stance.requests_quorum,
    )


def test_the_largest_numbers_fit():
    (verdict,) = verdicts((1, replace(LARGEST, stop=False)))

    assert verdict.rows == [LeaseUpdate(1, 2**16 - 1, finished=True, digest=2**32 - 1)]
    assert verdict.num_examples == 2**32 - 1
    assert verdict.lost == [2**32 - 2]


@pytest.mark.parametrize(
    "stance",
    [
        Vote(2**32),
        Vote(-1),
        Vote(1, num_batches=2**16),
        Vote(1, digest=2**32),
        Vote(1, lineage=2**64),
        Vote(1, fingerprint=2**64),
    ],
)
def test_a_number_that_does_not_fit_is_refused(stance):
    with pytest.raises(ValueError, match="does not fit"):
        encode(stance, 0, np.zeros((1, NUM_LIMBS), np.float32))


@given(st.lists(STANCES, min_size=3, max_size=3), st.permutations([0, 1, 2]))
def test_a_sum_in_float32_is_exact_in_any_order(stances, order):
    placed = placed_by(stances)
    table = summed(*placed)

    np.testing.assert_array_equal(table, summed(*[placed[i] for i in order]))
    for rank, stance in placed:
        alone = np.zeros_like(table)
        encode(stance, rank, alone)
        np.testing.assert_array_equal(table[rank], alone[rank])
    assert not table[1].any()


def test_example_counts_are_summed_beyond_float32_precision():
    a, b, c = (Vote(i, num_examples=2**31 + i, num_batches=1) for i in (1, 2, 3))

    assert {v.num_examples for v in verdicts((0, a), (2, b), (3, c))} == {3 * 2**31 + 6}


@given(st.lists(STANCES, min_size=3, max_size=3))
def test_agreeing_workers_reach_the_same_decision(stances):
    first, *others = verdicts(*placed_by(stances))

    assert first.commits
    assert others == [first, first]


# --- verdicts -----------------------------------------------------------------------------------


def test_workers_of_one_lineage_and_one_state_commit():
    working = Vote(1, num_examples=8, num_batches=1, lineage=5, fingerprint=9)
    done = replace(working, incarnation=2, num_batches=0, num_examples=0, finished=True, digest=3)
    idle = replace(working, incarnation=3, num_batches=0, num_examples=0)

    found = verdicts((0, working), (1, done), (3, idle))

    expected = Decision(
        commits=True,
        drifted=[],
        ranks=[0, 1, 3],
        rows=[LeaseUpdate(0, 1, finished=False), LeaseUpdate(1, 0, finished=True, digest=3)],
        lost=[],
        num_examples=8,
    )
    assert found == [expected] * 3


def test_the_older_of_two_processes_in_a_rank_leaves_without_commits():
    old, young, other = Vote(3), Vote(70_000), Vote(5)

    found = verdicts((1, old), (1, young), (2, other))

    assert [v.commits for v in found] == [False, False, False]
    assert [v.leave for v in found] == [True, False, False]
    assert not any(v.heal for v in found)


def test_the_youngest_of_three_processes_in_a_rank_stays():
    found = verdicts((1, Vote(3)), (1, Vote(4)), (1, Vote(5)))

    assert found[0].leave
    assert not found[2].leave
    assert not any(v.commits for v in found)


def test_workers_of_other_lineages_heal_and_no_worker_commits():
    # They differ in the highest bit only.
    low, high = 7, 7 + 2**63
    first, second, third = verdicts(
        (0, Vote(1, num_batches=1, lineage=low)),
        (2, Vote(2, num_batches=1, lineage=high)),
        (3, Vote(3, num_batches=1, lineage=low)),
    )

    assert [v.commits for v in (first, second, third)] == [False] * 3
    assert [v.heal for v in (first, second, third)] == [False, True, False]
    assert not second.leave


def test_the_lowest_present_rank_determines_the_lineage():
    found = verdicts((2, Vote(9, lineage=1)), (3, Vote(1, lineage=2)))

    assert [v.heal for v in found] == [False, True]


@given(st.lists(st.integers(0, 2), min_size=NUM_RANKS, max_size=NUM_RANKS))
def test_healing_leaves_one_lineage(lineages):
    placed = [(rank, Vote(rank + 1, lineage=lineage)) for rank, lineage in enumerate(lineages)]

    found = verdicts(*placed)

    assert len({v.commits for v in found}) == 1
    assert found[0].commits == (len(set(lineages)) == 1)
    stay = {lineages[rank] for rank, v in enumerate(found) if not v.heal}
    assert stay == {lineages[0]}


def test_different_weights_end_the_job_on_every_worker():
    found = verdicts(
        (0, Vote(1, fingerprint=2**40)),
        (1, Vote(2, fingerprint=2**40 + 1)),
        (3, Vote(3, fingerprint=2**40)),
    )

    assert [v.commits for v in found] == [False] * 3
    assert [v.drifted for v in found] == [[1]] * 3


def test_different_lineages_may_have_different_weights():
    found = verdicts((0, Vote(1, lineage=1, fingerprint=1)), (1, Vote(2, lineage=2, fingerprint=2)))

    assert [list(v.drifted) for v in found] == [[], []]


def test_a_rank_is_lost_only_if_it_is_not_present():
    found = verdicts((0, Vote(1, lost=2)), (1, Vote(2, lost=3)), (3, Vote(3)))

    # Rank 1 was replaced meanwhile; rank 2 was not.
    assert [v.lost for v in found] == [[2]] * 3


def test_rank_0_can_be_lost():
    assert [v.lost for v in verdicts((1, Vote(1, lost=1)), (3, Vote(2)))] == [[0], [0]]


@pytest.mark.parametrize(("stops", "ends"), [((True, False), True), ((False, True), False)])
def test_the_lowest_rank_decides_when_training_ends(stops, ends):
    found = verdicts(
        *(
            (rank, Vote(1, num_examples=16, num_batches=1, stop=stop))
            for rank, stop in enumerate(stops)
        )
    )

    assert [v.stop for v in found] == [ends, ends]
    # What comes with it does not count.
    assert [(len(v.rows), v.num_examples) for v in found] == [(0, 0) if ends else (2, 32)] * 2


# --- lineage ------------------------------------------------------------------------------------

COMMITTED = Decision(
    commits=True,
    ranks=[0, 1],
    rows=[LeaseUpdate(0, 1, finished=False), LeaseUpdate(1, 1, finished=True)],
)


@pytest.mark.parametrize(
    "other",
    [
        replace(COMMITTED, ranks=[0, 1, 2]),
        replace(COMMITTED, rows=COMMITTED.rows[:1]),
        replace(
            COMMITTED, rows=[LeaseUpdate(0, 1, finished=True), LeaseUpdate(1, 1, finished=True)]
        ),
        replace(
            COMMITTED, rows=[LeaseUpdate(0, 1, finished=False), LeaseUpdate(1, 2, finished=True)]
        ),
        replace(
            COMMITTED,
            rows=[LeaseUpdate(0, 1, finished=False, digest=1), LeaseUpdate(1, 1, finished=True)],
        ),
        replace(COMMITTED, lost=[2]),
    ],
)
def test_different_commits_give_different_lineages(other):
    assert chain(1, other) != chain(1, COMMITTED)


def test_the_same_commit_after_another_history_gives_another_lineage():
    assert chain(1, COMMITTED) != chain(2, COMMITTED)


@given(st.lists(STANCES, min_size=3, max_size=3), st.integers(0, 2**64 - 1))
def test_participants_of_a_commit_share_a_lineage(stances, lineage):
    found = verdicts(*placed_by([replace(s, lineage=lineage) for s in stances]))

    after = {chain(lineage, verdict) for verdict in found}
    assert len(after) == 1
    assert 0 <= after.pop() < 2**64


def test_each_round_of_each_start_begins_its_own_lineage():
    begun = [first_lineage(*start) for start in [(1, 0, 0), (1, 1, 0), (2, 0, 0), (1, 0, 5)]]

    assert len(set(begun)) == 4
    assert begun[0] == first_lineage(1, 0, 0)

"""Whom to start, give a rank, replace and give up on: one situation each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl.engines.elastic.scaling_policy import (
    AssignRank,
    ClusterState,
    FailJob,
    KillWorker,
    StartWorkers,
    WorkerState,
    WorkerStatus,
    decide,
)


def cluster(*members, **changes):
    """Return a cluster of two to three workers that has begun; `changes` say what is different."""
    usual = ClusterState(
        min_workers=2,
        max_workers=3,
        num_spares=0,
        members=members,
        begun=True,
        idle_s=0.0,
        fruitless_starts=0,
        give_up_after_s=600.0,
        hang_timeout_s=120.0,
    )
    return replace(usual, **changes)


def starting(incarnation, **times):
    return WorkerStatus(incarnation, WorkerState.STARTING, **times)


def ready(incarnation, **times):
    return WorkerStatus(incarnation, WorkerState.READY, **times)


def training(incarnation, rank, **times):
    return WorkerStatus(incarnation, WorkerState.TRAINING, rank, **times)


def finished(incarnation, rank, **times):
    return WorkerStatus(incarnation, WorkerState.FINISHED, rank, **times)


# --- how many -----------------------------------------------------------------------------------


def test_all_workers_and_spares_are_started_first():
    assert decide(cluster(begun=False, num_spares=2)) == [StartWorkers(5)]


def test_starting_workers_are_not_started_again():
    assert decide(cluster(*map(starting, (1, 2, 3)), begun=False)) == []


def test_a_lost_worker_is_replaced():
    assert decide(cluster(training(1, 0), training(2, 1))) == [StartWorkers(1)]


def test_nothing_is_done_while_all_workers_train():
    assert decide(cluster(*(training(i + 1, i) for i in range(3)))) == []


# --- who gets a rank ----------------------------------------------------------------------------


def test_ready_workers_wait_for_the_last_at_the_start():
    assert decide(cluster(ready(1), ready(2), starting(3), begun=False, idle_s=5.0)) == []


def test_the_start_waits_half_a_minute_for_the_last_worker():
    members = (ready(1), ready(2), starting(3))

    assert decide(cluster(*members, begun=False, idle_s=29.0)) == []
    assert decide(cluster(*members, begun=False, idle_s=31.0)) == [
        AssignRank(1, 0),
        AssignRank(2, 1),
    ]


def test_workers_waiting_for_room_are_not_awaited():
    waits = starting(3, waits_for_room=True)

    assert decide(cluster(ready(1), ready(2), waits, begun=False)) == [
        AssignRank(1, 0),
        AssignRank(2, 1),
    ]
    assert decide(cluster(ready(1), starting(2), waits, begun=False)) == []


def test_all_workers_begin_together_with_the_oldest_in_rank_0():
    actions = decide(cluster(ready(7), ready(4), ready(5), begun=False))

    assert actions == [AssignRank(4, 0), AssignRank(5, 1), AssignRank(7, 2)]


def test_fewer_workers_than_the_minimum_do_not_begin():
    assert decide(cluster(ready(1), starting(2), starting(3), begun=False, idle_s=31.0)) == []


def test_a_replacement_gets_the_lowest_free_rank_immediately():
    actions = decide(cluster(training(1, 0), ready(4), training(3, 2), idle_s=0.1))

    assert actions == [AssignRank(4, 1)]


def test_a_spare_replaces_a_lost_worker_and_is_itself_replaced():
    actions = decide(cluster(training(1, 0), training(3, 2), ready(4), num_spares=1))

    assert actions == [AssignRank(4, 1), StartWorkers(1)]


def test_a_spare_is_started_when_no_worker_is_awaited():
    joining = training(4, 1, joins=True)

    assert decide(cluster(training(1, 0), joining, training(3, 2), num_spares=1)) == []
    assert decide(cluster(training(1, 0), joining, num_spares=1)) == [StartWorkers(1)]


def test_the_older_of_two_spares_is_used_first():
    actions = decide(cluster(training(1, 0), training(3, 2), ready(6), ready(5), num_spares=2))

    assert actions == [AssignRank(5, 1), StartWorkers(1)]


def test_a_spare_gets_no_rank_while_all_ranks_are_taken():
    assert decide(cluster(*(training(i + 1, i) for i in range(3)), ready(4), num_spares=1)) == []


# --- who does not answer ------------------------------------------------------------------------


def test_a_silent_worker_is_killed_and_replaced_by_a_spare():
    members = (training(1, 0), training(2, 1, silent_s=121.0), training(3, 2), ready(4))

    actions = decide(cluster(*members, num_spares=1))

    assert actions == [
        KillWorker(2, "hung: no answer for 121 s"),
        AssignRank(4, 1),
        StartWorkers(1),
    ]


def test_a_worker_that_exceeds_the_batch_timeout_is_killed():
    members = (training(1, 0), training(2, 1, silent_s=1.0, stuck_s=130.0), training(3, 2))

    assert decide(cluster(*members)) == [
        KillWorker(2, "hung: on the same batch for 130 s"),
        StartWorkers(1),
    ]


def test_a_slow_worker_is_left_alone():
    members = (training(1, 0), training(2, 1, silent_s=119.0, stuck_s=120.0), training(3, 2))

    assert decide(cluster(*members)) == []


def test_a_worker_that_exceeds_the_preparation_timeout_is_killed():
    members = (training(1, 0), training(2, 1), starting(3, silent_s=121.0))

    assert decide(cluster(*members)) == [
        KillWorker(3, "hung: no answer for 121 s"),
        StartWorkers(1),
    ]


# --- machines that go ---------------------------------------------------------------------------


def test_a_worker_on_a_leaving_machine_is_replaced_while_training():
    members = (training(1, 0), training(2, 1, machine_leaves=True), training(3, 2))

    assert decide(cluster(*members)) == [StartWorkers(1)]
    assert decide(cluster(*members, starting(4))) == []


def test_a_rank_is_handed_over_when_a_worker_is_ready():
    members = (training(1, 0), training(2, 1, machine_leaves=True), training(3, 2), ready(4))

    actions = decide(cluster(*members))

    assert actions == [
        KillWorker(2, "was stopped: its machine will be reclaimed"),
        AssignRank(4, 1),
    ]


def test_each_ready_worker_takes_one_rank():
    members = (training(1, 0, machine_leaves=True), training(2, 1, machine_leaves=True), ready(4))

    actions = decide(cluster(*members, starting(5), starting(6)))

    assert actions == [
        KillWorker(1, "was stopped: its machine will be reclaimed"),
        AssignRank(4, 0),
    ]


def test_no_worker_begins_on_a_leaving_machine():
    members = (training(1, 0), training(2, 1), ready(3, machine_leaves=True))

    assert decide(cluster(*members)) == [
        KillWorker(3, "was stopped: its machine will be reclaimed"), StartWorkers(1),
    ]  # fmt: skip


# --- room for others ----------------------------------------------------------------------------


def test_the_highest_rank_makes_room_first_down_to_the_minimum():
    members = (training(1, 2), training(2, 1), training(3, 0))

    actions = decide(cluster(*members, make_room=True))

    assert actions == [KillWorker(1, "was preempted by a job with higher priority")]


def test_idle_workers_make_room_first():
    members = (training(1, 1), training(2, 0), ready(3), starting(4))

    actions = decide(cluster(*members, num_spares=1, make_room=True))

    assert [action.incarnation for action in actions] == [4, 3]


def test_at_the_minimum_workers_are_kept_and_replaced():
    assert decide(cluster(training(1, 1), training(2, 0), make_room=True)) == []
    assert decide(cluster(training(1, 1), make_room=True)) == [StartWorkers(1)]
    assert decide(cluster(training(1, 2), ready(4), make_room=True)) == [AssignRank(4, 0)]


def test_all_workers_are_wanted_again_when_there_is_room():
    assert decide(cluster(training(1, 1), training(2, 0), num_spares=1)) == [StartWorkers(2)]


def test_a_finished_job_makes_no_room():
    assert decide(cluster(finished(1, 0), training(2, 1), ready(3), make_room=True)) == []


# --- when to end --------------------------------------------------------------------------------


def test_five_consecutive_deaths_before_training_end_the_job():
    members = (starting(8), starting(9))

    assert decide(cluster(*members, begun=False, fruitless_starts=4)) == [StartWorkers(1)]
    (action,) = decide(cluster(*members, begun=False, fruitless_starts=5))
    assert isinstance(action, FailJob)
    assert not action.may_pass
    assert action.reason.startswith("5 workers in a row died while building the model")


def test_too_few_workers_for_too_long_end_the_job():
    members = (ready(1), starting(2), starting(3))

    assert decide(cluster(*members, idle_s=600.0)) == []
    (action,) = decide(cluster(*members, idle_s=601.0))
    assert isinstance(action, FailJob)
    assert "Only 1 of at least 2 workers were available for 601 s" in action.reason


def test_enough_workers_never_end_the_job():
    # The patience ends before the half minute in which those at the start wait for the last.
    actions = decide(
        cluster(ready(1), ready(2), starting(3), begun=False, idle_s=11.0, give_up_after_s=10.0)
    )

    assert actions == [AssignRank(1, 0), AssignRank(2, 1)]


@pytest.mark.parametrize("fruitless_starts", [0, 5])
def test_no_worker_is_started_after_one_has_finished(fruitless_starts):
    members = (finished(1, 0), training(2, 1), ready(4))

    assert decide(cluster(*members, idle_s=900.0, fruitless_starts=fruitless_starts)) == []


def test_a_worker_that_hangs_at_the_end_is_killed():
    members = (finished(1, 0), training(2, 1, silent_s=200.0))

    assert decide(cluster(*members)) == [KillWorker(2, "hung: no answer for 200 s")]


# --- in any situation ---------------------------------------------------------------------------


@st.composite
def fleets(draw):
    max_workers = draw(st.integers(1, 5))
    ranks = draw(st.permutations(range(max_workers)))
    states = draw(st.lists(st.sampled_from(list(WorkerState)), max_size=8))
    members = []
    for state in states:
        holds = state in {WorkerState.TRAINING, WorkerState.FINISHED}
        if holds and not ranks:
            continue
        members.append(
            WorkerStatus(
                len(members) + 1,
                state,
                ranks.pop() if holds else None,
                silent_s=draw(st.sampled_from([0.0, 500.0])),
                stuck_s=draw(st.sampled_from([0.0, 600.0])),
                machine_leaves=draw(st.booleans()),
            )
        )
    return cluster(
        *draw(st.permutations(members)),
        min_workers=draw(st.integers(1, max_workers)),
        max_workers=max_workers,
        num_spares=draw(st.integers(0, 2)),
        begun=draw(st.booleans()),
        idle_s=draw(st.sampled_from([0.0, 31.0, 700.0])),
        fruitless_starts=draw(st.integers(0, 6)),
        make_room=draw(st.booleans()),
    )


@given(fleets())
def test_ranks_and_processes_are_assigned_only_once(situation):
    actions = decide(situation)

    killed = {a.incarnation for a in actions if isinstance(a, KillWorker)}
    assigned = [a for a in actions if isinstance(a, AssignRank)]
    holders = [
        m.rank
        for m in situation.members
        if m.state is WorkerState.TRAINING and m.incarnation not in killed
    ]
    ranks = holders + [a.rank for a in assigned]
    assert len(ranks) == len(set(ranks))
    assert set(ranks) <= set(range(situation.max_workers))
    may = {m.incarnation for m in situation.members if m.state is WorkerState.READY} - killed
    chosen = [a.incarnation for a in assigned]
    assert len(chosen) == len(set(chosen))
    assert set(chosen) <= may


@given(fleets())
def test_actions_leave_nothing_to_start_or_assign(situation):
    """Apply the actions and decide again: nothing is left to start or assign."""
    actions = decide(situation)
    if any(isinstance(a, FailJob) for a in actions):
        return
    killed = {a.incarnation for a in actions if isinstance(a, KillWorker)}
    rank_of = {a.incarnation: a.rank for a in actions if isinstance(a, AssignRank)}
    members = [
        replace(m, state=WorkerState.TRAINING, rank=rank_of[m.incarnation])
        if m.incarnation in rank_of
        else m
        for m in situation.members
        if m.incarnation not in killed
    ]
    count = sum(a.count for a in actions if isinstance(a, StartWorkers))
    members += [starting(len(situation.members) + 1 + i) for i in range(count)]

    again = decide(replace(situation, members=members))

    assert not any(isinstance(a, (StartWorkers, KillWorker, AssignRank)) for a in again)


def test_replacements_that_die_do_not_end_a_job_that_trains():
    dying = cluster(training(1, 0), fruitless_starts=5)

    assert not any(isinstance(action, FailJob) for action in decide(dying))


@pytest.mark.timeout(30)
def test_killing_twenty_thousand_workers_takes_linear_time():
    members = [training(i, i, silent_s=121.0) for i in range(20_000)]

    actions = decide(cluster(*members))

    assert sum(isinstance(action, KillWorker) for action in actions) == 20_000

"""Scaling policy: decides which workers to start, assign, replace or abandon. Pure functions.

    starting -> ready -> training -> finished
       |          |          |
       +----------+----------+-----> gone      (died, hung, machine taken away, room needed)

The controller describes the current state, and `decide` returns the actions to take. Neither a
clock nor Ray is used, so a unit test can reproduce every situation.

Callers: `controller.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# At the start, workers that are ready wait this long for those that are not.
_GATHERING_S = 30.0
# If this many in a row die before they ever train, the environment is the cause.
_MAX_FRUITLESS_STARTS = 5


class WorkerState(StrEnum):
    """State of a worker's process: ready means that the model is built, but no rank assigned."""

    STARTING = "starting"
    READY = "ready"
    TRAINING = "training"
    FINISHED = "finished"


@dataclass(frozen=True)
class WorkerStatus:
    """Status of one worker's process.

    Attributes:
        incarnation: Number of the process in the job, from 1; higher is younger.
        state: State of the process.
        rank: The rank it trains under; None while it does not train.
        silent_s: Seconds without an answer to a report request. 0 before its first answer, because
            Ray may not have placed it on a machine yet.
        stuck_s: Seconds that it has spent on its current batch.
        machine_leaves: Whether its machine is about to be preempted or drained.
        waits_for_room: Whether it is not placed yet because there is no room.
        joins: Whether it has a rank, but has not committed a step with the other workers yet, or
            has not answered recently.
    """

    incarnation: int
    state: WorkerState
    rank: int | None = None
    silent_s: float = 0.0
    stuck_s: float = 0.0
    machine_leaves: bool = False
    waits_for_room: bool = False
    joins: bool = False


@dataclass(frozen=True)
class ClusterState:
    """Status of all workers, and the limits of the job; the input of `decide`.

    Attributes:
        min_workers: Minimum number of workers to train with.
        max_workers: Maximum number of workers to train with, which is the number of ranks.
        num_spares: Number of further processes to keep ready.
        members: The living processes.
        begun: Whether any worker has trained since this driver started.
        idle_s: Seconds since a worker last trained.
        fruitless_starts: Number of processes in a row that died before they ever trained.
        give_up_after_s: The job fails if too few workers have been available for this many seconds.
        hang_timeout_s: A worker that is silent, or on one batch, for this many seconds is
            considered hung and is replaced.
        make_room: Whether a job of higher priority waits for workers, so that this one shrinks to
            `min_workers`.
    """

    min_workers: int
    max_workers: int
    num_spares: int
    members: Sequence[WorkerStatus]
    begun: bool
    idle_s: float
    fruitless_starts: int
    give_up_after_s: float
    hang_timeout_s: float
    make_room: bool = False


@dataclass(frozen=True)
class StartWorkers:
    """Action: start a number of processes."""

    count: int


@dataclass(frozen=True)
class AssignRank:
    """Action: assign a rank to a ready process, which then trains."""

    incarnation: int
    rank: int


@dataclass(frozen=True)
class KillWorker:
    """Action: end a process; the reason is shown to the user."""

    incarnation: int
    reason: str


@dataclass(frozen=True)
class FailJob:
    """Action: end the job as failed.

    Attributes:
        reason: Why the job fails.
        may_pass: Whether the same command may succeed later.
    """

    reason: str
    may_pass: bool


Action: TypeAlias = StartWorkers | AssignRank | KillWorker | FailJob


def decide(cluster: ClusterState) -> list[Action]:
    """Decide which workers to start, assign or kill now; return these actions, in order."""
    ended = _to_end(cluster)
    actions: list[Action] = list(ended)
    gone = {kill.incarnation for kill in ended}
    members = [member for member in cluster.members if member.incarnation not in gone]
    if any(member.state is WorkerState.FINISHED for member in members):
        # The job is done; workers that are behind have nothing to contribute.
        return actions
    num_training = sum(member.state is WorkerState.TRAINING for member in members)
    if cluster.fruitless_starts >= _MAX_FRUITLESS_STARTS and not num_training:
        reason = (
            f"{cluster.fruitless_starts} workers in a row died while building the model, before "
            "the first batch. Check the memory of the machine, and what the model file does when "
            "it is imported."
        )
        return [FailJob(reason, may_pass=False)]
    most = _most_workers(cluster)
    # Starting a process takes a second of CPU time, which a joining worker, and those that wait
    # for it, need more.
    is_busy = cluster.make_room or any(member.joins for member in members)
    wanted = most if is_busy else most + cluster.num_spares
    # Workers whose machine is about to go are replaced while they still train.
    missing = wanted - sum(not member.machine_leaves for member in members)
    starts = [StartWorkers(missing)] if missing > 0 else []
    ready = sorted(m.incarnation for m in members if m.state is WorkerState.READY)
    taken = {m.rank for m in members if m.state is WorkerState.TRAINING}
    free = [rank for rank in range(cluster.max_workers) if rank not in taken]
    enough = num_training + len(ready)
    # A short `give_up_after_s` must not end the job while it waits for more workers at the start.
    gathering_s = min(_GATHERING_S, cluster.give_up_after_s)
    starting = [m for m in members if m.state is WorkerState.STARTING and not m.waits_for_room]
    gathered = (
        cluster.begun
        or not (starting or missing > 0)
        or enough >= most
        or cluster.idle_s > gathering_s
    )
    if gathered and enough >= cluster.min_workers:
        pairs = zip(ready, free[: max(0, most - num_training)], strict=False)
        # Before starting others, because they start at low priority once all ranks train.
        actions += [AssignRank(incarnation, rank) for incarnation, rank in pairs]
    elif cluster.idle_s > cluster.give_up_after_s:
        actions.append(
            FailJob(
                f"Only {enough} of at least {cluster.min_workers} workers were available for "
                f"{cluster.idle_s:.0f} s.",
                may_pass=True,
            )
        )
    return [*actions, *starts]


def _most_workers(cluster: ClusterState) -> int:
    return cluster.min_workers if cluster.make_room else cluster.max_workers


def _to_end(cluster: ClusterState) -> list[KillWorker]:
    """Return the workers to kill: hung, on a machine to be reclaimed, or preempted."""
    hung = [m for m in cluster.members if max(m.silent_s, m.stuck_s) > cluster.hang_timeout_s]
    ended = [KillWorker(m.incarnation, f"hung: {_why_hung(m)}") for m in hung]
    gone = {m.incarnation for m in hung}
    others = [
        m
        for m in cluster.members
        if m.incarnation not in gone and m.state is not WorkerState.FINISHED
    ]
    # A worker that trains on a machine about to go stays until another can take its rank.
    num_ready = sum(m.state is WorkerState.READY and not m.machine_leaves for m in others)
    training = [m for m in others if m.machine_leaves and m.state is WorkerState.TRAINING]
    leaving = [m for m in others if m.machine_leaves and m.state is not WorkerState.TRAINING]
    leaving += training[:num_ready]
    ended += [
        KillWorker(m.incarnation, "was stopped: its machine will be reclaimed") for m in leaving
    ]
    if cluster.make_room and len(others) == len(cluster.members) - len(hung):
        # Processes that do not train lose nothing; of those that do, the highest rank goes first.
        order = {WorkerState.STARTING: 0, WorkerState.READY: 1, WorkerState.TRAINING: 2}
        stay = [m for m in others if not m.machine_leaves]
        stay.sort(key=lambda m: (order[m.state], -(m.rank or 0)))
        surplus = stay[: max(0, len(stay) - _most_workers(cluster))]
        ended += [
            KillWorker(m.incarnation, "was preempted by a job with higher priority")
            for m in surplus
        ]
    return ended


def _why_hung(member: WorkerStatus) -> str:
    if member.silent_s > member.stuck_s:
        return f"no answer for {member.silent_s:.0f} s"
    return f"on the same batch for {member.stuck_s:.0f} s"

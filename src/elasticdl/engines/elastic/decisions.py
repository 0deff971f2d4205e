"""Whom to start, give work, replace and give up on: values in, values out.

    starting -> ready -> training -> finished
       |          |          |
       +----------+----------+-----> gone      (died, hung, its machine goes, others need the room)

The controller tells what is, `decide` says what to do about it. There is no clock in here and
no Ray: every situation can be written down in a unit test.

Callers: `controller.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# So long those that are ready wait at the start for those that are not.
_GATHERING_S = 30.0
# So many in a row that die before they ever train: it is the surroundings, not bad luck.
_MAX_FRUITLESS_STARTS = 5


class State(StrEnum):
    """Where a worker's process stands."""

    STARTING = "starting"
    READY = "ready"
    TRAINING = "training"
    FINISHED = "finished"


@dataclass(frozen=True)
class Member:
    """One worker's process.

    Attributes:
        incarnation: Which process of the job it is, counted from 1; higher is younger.
        state: Where it stands.
        slot: The number it trains under; None while it does not.
        silent_s: How long it has not answered, in seconds; 0 while it has never answered, for
            then it may only wait for a place.
        stuck_s: How long it has been computing on one batch, in seconds.
        machine_goes: Its machine is about to be taken away.
        waits_for_room: It has no place yet, for there is none.
        joins: It trains under a slot, and has not made a step with the others yet.
    """

    incarnation: int
    state: State
    slot: int | None = None
    silent_s: float = 0.0
    stuck_s: float = 0.0
    machine_goes: bool = False
    waits_for_room: bool = False
    joins: bool = False


@dataclass(frozen=True)
class Fleet:
    """All of them, and what is wanted.

    Attributes:
        min_workers: Fewer than these do not train.
        max_workers: So many slots there are.
        num_spares: Further processes to keep ready.
        members: The processes that live.
        begun: Somebody has trained since the start (of this driver).
        idle_s: How long nobody has trained, in seconds.
        fruitless_starts: Processes in a row that died before they ever trained.
        give_up_after_s: See `job.Workers`.
        hang_timeout_s: Silent, or on one batch, for so long: hung.
        make_room: A job of higher priority waits for workers.
    """

    min_workers: int
    max_workers: int
    num_spares: int
    members: Sequence[Member]
    begun: bool
    idle_s: float
    fruitless_starts: int
    give_up_after_s: float
    hang_timeout_s: float
    make_room: bool = False


@dataclass(frozen=True)
class Start:
    """Start processes."""

    count: int


@dataclass(frozen=True)
class Assign:
    """Let a ready process train under a slot."""

    incarnation: int
    slot: int


@dataclass(frozen=True)
class Kill:
    """End a process; the reason is told to people."""

    incarnation: int
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """End the job as failed.

    Attributes:
        reason: Why.
        may_pass: The same command may get further later.
    """

    reason: str
    may_pass: bool


Action: TypeAlias = Start | Assign | Kill | GiveUp


def decide(fleet: Fleet) -> list[Action]:
    """Return what to do now, in this order."""
    ended = _to_end(fleet)
    actions: list[Action] = list(ended)
    gone = {kill.incarnation for kill in ended}
    members = [member for member in fleet.members if member.incarnation not in gone]
    if any(member.state is State.FINISHED for member in members):
        # The job is done; whoever is behind has nothing to add.
        return actions
    num_training = sum(member.state is State.TRAINING for member in members)
    if fleet.fruitless_starts >= _MAX_FRUITLESS_STARTS and not num_training:
        reason = (
            f"{fleet.fruitless_starts} workers in a row died while they made the model, before the "
            "first batch. Look at the memory of the machine, and at what the model file does when "
            "it is imported."
        )
        return [GiveUp(reason, may_pass=False)]
    most = _most_workers(fleet)
    # To start a process takes a second of a core, which those that wait for who joins need more.
    is_busy = fleet.make_room or any(member.joins for member in members)
    wanted = most if is_busy else most + fleet.num_spares
    # Those whose machine goes are replaced while they still train.
    missing = wanted - sum(not member.machine_goes for member in members)
    starts = [Start(missing)] if missing > 0 else []
    ready = sorted(m.incarnation for m in members if m.state is State.READY)
    taken = {m.slot for m in members if m.state is State.TRAINING}
    free = [slot for slot in range(fleet.max_workers) if slot not in taken]
    enough = num_training + len(ready)
    # Who has little patience must not be given up on while others are waited for.
    gathering_s = min(_GATHERING_S, fleet.give_up_after_s)
    starting = [m for m in members if m.state is State.STARTING and not m.waits_for_room]
    gathered = (
        fleet.begun or not (starting or missing > 0) or enough >= most or fleet.idle_s > gathering_s
    )
    if gathered and enough >= fleet.min_workers:
        pairs = zip(ready, free[: max(0, most - num_training)], strict=False)
        # Before others are started: those give way to what trains, if all that is wanted does.
        actions += [Assign(incarnation, slot) for incarnation, slot in pairs]
    elif fleet.idle_s > fleet.give_up_after_s:
        actions.append(
            GiveUp(
                f"For {fleet.idle_s:.0f} s there were {enough} workers of the {fleet.min_workers} "
                "that are the least to train with.",
                may_pass=True,
            )
        )
    return [*actions, *starts]


def _most_workers(fleet: Fleet) -> int:
    return fleet.min_workers if fleet.make_room else fleet.max_workers


def _to_end(fleet: Fleet) -> list[Kill]:
    """Return who has to go: the hung, those on machines that go, those that are too many."""
    hung = [m for m in fleet.members if max(m.silent_s, m.stuck_s) > fleet.hang_timeout_s]
    ended = [Kill(m.incarnation, f"hung: {_why_hung(m)}") for m in hung]
    gone = {m.incarnation for m in hung}
    others = [
        m for m in fleet.members if m.incarnation not in gone and m.state is not State.FINISHED
    ]
    # Who trains on a machine that goes stays until somebody can take the slot.
    num_ready = sum(m.state is State.READY and not m.machine_goes for m in others)
    training = [m for m in others if m.machine_goes and m.state is State.TRAINING]
    leaving = [m for m in others if m.machine_goes and m.state is not State.TRAINING]
    leaving += training[:num_ready]
    ended += [Kill(m.incarnation, "hands over: its machine is about to go") for m in leaving]
    if fleet.make_room and len(others) == len(fleet.members) - len(hung):
        # Who has not begun loses nothing; of those that train, the highest slot goes first.
        order = {State.STARTING: 0, State.READY: 1, State.TRAINING: 2}
        stay = [m for m in others if not m.machine_goes]
        stay.sort(key=lambda m: (order[m.state], -(m.slot or 0)))
        surplus = stay[: max(0, len(stay) - _most_workers(fleet))]
        ended += [Kill(m.incarnation, "makes room for a job of higher priority") for m in surplus]
    return ended


def _why_hung(member: Member) -> str:
    if member.silent_s > member.stuck_s:
        return f"no answer for {member.silent_s:.0f} s"
    return f"on one batch for {member.stuck_s:.0f} s"

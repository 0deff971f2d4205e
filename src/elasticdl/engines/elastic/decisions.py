"""Whom to start, give work, replace and give up on: values in, values out.

    starting -> ready -> training -> finished
       |          |          |
       +----------+----------+-----> gone

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
        silent_s: How long it has not answered, in seconds.
        stuck_s: How long it has been computing on one batch, in seconds.
    """

    incarnation: int
    state: State
    slot: int | None = None
    silent_s: float = 0.0
    stuck_s: float = 0.0


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
    """End a process that does not answer."""

    incarnation: int
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """End the job as failed."""

    reason: str


Action: TypeAlias = Start | Assign | Kill | GiveUp


def decide(fleet: Fleet) -> list[Action]:
    """Return what to do now, in this order."""
    hung = [
        member
        for member in fleet.members
        if max(member.silent_s, member.stuck_s) > fleet.hang_timeout_s
        and member.state is not State.STARTING
    ]
    actions: list[Action] = [Kill(m.incarnation, _why_hung(m)) for m in hung]
    members = [member for member in fleet.members if member not in hung]
    if any(member.state is State.FINISHED for member in members):
        # The job is done; whoever is behind has nothing to add.
        return actions
    trains = any(member.state is State.TRAINING for member in members)
    if fleet.fruitless_starts >= _MAX_FRUITLESS_STARTS and not trains:
        return [GiveUp(f"{fleet.fruitless_starts} workers in a row died before they could train.")]
    wanted = fleet.max_workers + fleet.num_spares
    if len(members) < wanted:
        actions.append(Start(wanted - len(members)))
    ready = sorted(m.incarnation for m in members if m.state is State.READY)
    taken = {m.slot for m in members if m.state is State.TRAINING}
    free = [slot for slot in range(fleet.max_workers) if slot not in taken]
    enough = len(taken) + len(ready)
    # Who has little patience must not be given up on while others are waited for.
    gathering_s = min(_GATHERING_S, fleet.give_up_after_s)
    gathered = fleet.begun or enough >= fleet.max_workers or fleet.idle_s > gathering_s
    if gathered and enough >= fleet.min_workers:
        pairs = zip(ready, free, strict=False)
        actions += [Assign(incarnation, slot) for incarnation, slot in pairs]
    elif fleet.idle_s > fleet.give_up_after_s:
        actions.append(
            GiveUp(
                f"For {fleet.idle_s:.0f} s there were {enough} workers of the {fleet.min_workers} "
                "that are the least to train with."
            )
        )
    return actions


def _why_hung(member: Member) -> str:
    if member.silent_s > member.stuck_s:
        return f"no answer for {member.silent_s:.0f} s"
    return f"on one batch for {member.stuck_s:.0f} s"

"""How long nobody made an update, and how long that may last: the table in docs/guides/elastic.md.

The bounds are made of the settings. What takes a start (of Ray, of a process that imports the
frameworks) is measured in the storm's own first one, so that a loaded machine has its time.

Callers: `storm.py`.
"""

from dataclasses import dataclass
from itertools import pairwise

# Shorter ones need no reason.
_SHORT_S = 1.0


@dataclass(frozen=True)
class Bound:
    """How long a strike may keep all from training.

    Attributes:
        heartbeats: Times `--heartbeat_timeout`.
        joins: Times `--join_timeout`.
        seconds: Fixed ones.
        starts: Times what the job's own start takes.
    """

    heartbeats: float = 0.0
    joins: float = 0.0
    seconds: float = 0.0
    starts: float = 0.0

    def __add__(self, other):
        """Return the bound of both together."""
        return Bound(
            self.heartbeats + other.heartbeats,
            self.joins + other.joins,
            self.seconds + other.seconds,
            self.starts + other.starts,
        )

    def in_s(self, heartbeat_timeout_s, join_timeout_s, start_s):
        """Return it in seconds."""
        settings_s = self.heartbeats * heartbeat_timeout_s + self.joins * join_timeout_s
        return settings_s + self.seconds + self.starts * start_s


KILLED = Bound(heartbeats=1, joins=1)
FROZEN = Bound(heartbeats=8, joins=1)
# The driver asks it each second, and waits for ten seconds; then a process starts.
LIGHTHOUSE_DEAD = Bound(seconds=1, heartbeats=1, joins=1, starts=1)
LIGHTHOUSE_FROZEN = LIGHTHOUSE_DEAD + Bound(seconds=10)
# Twenty seconds for a last checkpoint.
RAY = Bound(seconds=21, starts=1)
DRIVER = Bound(starts=1)
DRIVER_WITH_CHECKPOINT = Bound(seconds=20, starts=1)
ALL_WORKERS = Bound(heartbeats=1, joins=1, starts=1)


@dataclass(frozen=True)
class Strike:
    """What was done.

    Attributes:
        name: What.
        since_s: From when on, in seconds since 1970.
        bound: How long it may keep all from training.
    """

    name: str
    since_s: float
    bound: Bound


@dataclass(frozen=True)
class Pause:
    """A time without an update.

    Attributes:
        duration_s: How long.
        names: What was done meanwhile, or last before.
        bound: How long it may be.
    """

    duration_s: float
    names: tuple[str, ...]
    bound: Bound


def pauses_between(times_s, strikes, starts_s=()):
    """Return the pauses of over a second, longest first.

    Args:
        times_s: When updates were made.
        strikes: What was done, in order; none is begun before updates follow the one before.
        starts_s: When the job went on from a checkpoint.
    """
    found = []
    for before, after in pairwise(sorted(times_s)):
        if after - before < _SHORT_S:
            continue
        during = [strike for strike in strikes if before < strike.since_s < after]
        last = [strike for strike in strikes if strike.since_s <= before][-1:]
        bound = sum((strike.bound for strike in (*last, *during)), Bound())
        if any(before < start < after for start in starts_s) and not bound.starts:
            bound += ALL_WORKERS
        names = tuple(strike.name for strike in (*last, *during))
        found.append(Pause(after - before, names, bound))
    return sorted(found, key=lambda pause: -pause.duration_s)

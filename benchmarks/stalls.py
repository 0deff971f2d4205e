"""What it costs that workers are killed, from the steps that all processes tell of.

The lines are those of `zoo/step_lines.py`, and everybody is measured by the same rules:

- A step is *new* when it is beyond all that were made before. What is done again after a restart
  counts as standing still.
- A *stall* is the longest time without a new step between a kill and its replacement, less the
  median step.
- The *replacement* is there with the first new step that three took part in, told by a process
  that had told nothing before the kill.
- *Goodput* is the share of the undisturbed rate, in records of new steps.

Callers: `kills.py`.
"""

import itertools
import json
import os
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path

NUM_WORKERS = 3


@dataclass
class Lines:
    """What the processes of a contestant have told.

    Attributes:
        folder: Where they write.
        told: Process -> a line for each of its steps.
        ready: Processes that could begin.
    """

    folder: Path
    told: dict[int, list[dict]] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)

    def __post_init__(self):
        self._offsets = {}

    def read(self):
        """Take in what was told since the last time."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for line in map(json.loads, whole.splitlines()):
                if "ready" in line:
                    self.ready.add(line["pid"])
                else:
                    self.told.setdefault(line["pid"], []).append(line)

    def team(self, since_s):
        """Return member -> its last line, of those that live and have told one since then."""
        last = [lines[-1] for lines in self.told.values()]
        return {
            line["member"]: line for line in last if line["time"] > since_s and _lives(line["pid"])
        }

    def highest(self):
        """Return the highest step of all, 0 if there is none yet."""
        return max((lines[-1]["step"] for lines in self.told.values()), default=0)

    def is_whole(self, since_s, beyond, killed=()):
        """Return whether all have made a step together since then, and beyond another one.

        Args:
            since_s: By the clock of the lines.
            beyond: A step.
            killed: Processes that do not count, though they may have told a last one.
        """
        team = {
            member: line for member, line in self.team(since_s).items() if line["pid"] not in killed
        }
        return len(team) == NUM_WORKERS and all(
            line["size"] == NUM_WORKERS and line["step"] > beyond and line.get("brought", 1)
            for line in team.values()
        )

    def num_spares(self):
        """Return how many are ready and have no part yet."""
        return sum(_lives(pid) for pid in self.ready - self.told.keys())


@dataclass(frozen=True)
class Kill:
    """One of them.

    Attributes:
        time: When, by the clock of the lines.
        pid: Whom.
        num_spares: Processes that stood ready then.
    """

    time: float
    pid: int
    num_spares: int


@dataclass(frozen=True)
class Figures:
    """What one run of a contestant came to.

    Attributes:
        undisturbed_records_per_s: At full strength.
        step_s: The median time from step to step there.
        goodput: Share of it that is left in the second phase; None if there was none.
        kills: For each its stall and its replacement in seconds (None: it never came), how
            many steps were made again, and whether a spare stood ready.
        given_up: What it did not come back from, within minutes; None if there was nothing.
    """

    undisturbed_records_per_s: float
    step_s: float
    goodput: float | None
    kills: list[dict]
    given_up: str | None = None

    def to_json(self):
        """Return JSON values, rounded."""
        return json.loads(json.dumps(asdict(self)), parse_float=lambda x: round(float(x), 4))


def figures(lines, kills, undisturbed, goodput, given_up=None):
    """Return what a run came to.

    Args:
        lines: What was told, all of it.
        kills: In their order.
        undisturbed: Begin and end of the first phase.
        goodput: ... and of the second; None if there was none.
        given_up: See `Figures`.
    """
    told = _outliving(lines, kills)
    steps = _new(told)
    calm = [line["time"] for line in steps if _is_within(line, undisturbed)]
    step_s = statistics.median(b - a for a, b in itertools.pairwise(calm))
    rate = _rate(steps, undisturbed)
    costs = []
    for kill, following in itertools.zip_longest(kills, kills[1:]):
        replaced = _replacement(steps, told, kill)
        # The next kill's stall is not this one's.
        end = min(replaced or float("inf"), following.time if following else float("inf"))
        gap_s = _longest_gap(steps, kill.time, end)
        costs.append(
            {
                "stall_s": None if gap_s is None else gap_s - step_s,
                "replacement_s": None if replaced is None else replaced - kill.time,
                "num_steps_again": _num_again(steps, told, kill.time, end),
                "spare": kill.num_spares > 0,
            }
        )
    share = None if goodput is None else _rate(steps, goodput) / rate
    return Figures(rate, step_s, share, costs, given_up)


def _outliving(lines, kills):
    """Return the lines of steps that outlived the kills, by time.

    The last step a victim tells of may be one that nobody else has made; if another has, that one
    tells it too. Who trained alone is the only one to ask.
    """
    killed = {kill.pid for kill in kills}
    told = []
    for pid, of_one in lines.told.items():
        alone = of_one[-1]["size"] == 1
        told += of_one[:-1] if pid in killed and not alone else of_one
    return sorted(told, key=lambda line: line["time"])


def _new(told):
    """Return the lines that were the first to tell of a step beyond all others."""
    steps, highest = [], 0
    for line in told:
        if line["step"] > highest:
            highest = line["step"]
            steps.append(line)
    return steps


def _replacement(steps, told, kill):
    """Return when the replacement took part in a new step; None if it never did."""
    highest = _highest(steps, kill.time)
    before = _processes(told, kill.time)
    return next(
        (
            line["time"]
            for line in told
            if line["pid"] not in before
            and line["step"] > highest
            and line["size"] == NUM_WORKERS
            # Ours may take part with no batch yet: that does not count.
            and line.get("brought", 1)
        ),
        None,
    )


def _longest_gap(steps, begin, end):
    """Return the longest time between two steps, of which some lies within begin and end.

    None if no step was made any more.
    """
    pairs = itertools.pairwise(line["time"] for line in steps)
    return max((b - a for a, b in pairs if b > begin and a < end), default=None)


def _num_again(steps, told, begin, end):
    """Return how many steps that had been made were made again by those who came in between."""
    highest, before = _highest(steps, begin), _processes(told, begin)
    return len(
        {
            line["step"]
            for line in told
            if begin < line["time"] < end and line["pid"] not in before and line["step"] <= highest
        }
    )


def _highest(steps, moment):
    return max((line["step"] for line in steps if line["time"] <= moment), default=0)


def _processes(told, moment):
    return {line["pid"] for line in told if line["time"] <= moment}


def _rate(steps, phase):
    records = sum(line["records"] for line in steps if _is_within(line, phase))
    return records / (phase[1] - phase[0])


def _is_within(line, phase):
    return phase[0] <= line["time"] < phase[1]


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

"""Kills workers of whatever trains on three of them, to see what that costs (`stalls.py`).

    strength   all three train, undisturbed
    goodput    a kill each 20 s, whatever the last one has left behind
    stalls     further kills at random moments, each when all is as it was before the last one

Callers: `failures.py`.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.stalls import NUM_WORKERS, Kill, Lines, figures

_SETTLING_S = 3.0
_PATIENCE_S = 180.0
_POLL_S = 0.05
# Who has told nothing for so long does not train.
_FRESH_S = 2.0


class StandstillError(Exception):
    """Nobody trains any more."""


@dataclass(frozen=True)
class Contestant:
    """Somebody who trains on three workers.

    Attributes:
        name: What it is called in the results.
        commands: Folder for what it writes -> what to start, all at once.
        num_spares: Processes that should stand ready before a kill of the last phase.
    """

    name: str
    commands: Callable[[Path], list[list[str]]]
    num_spares: int = 0


@dataclass(frozen=True)
class Phases:
    """How long it is measured.

    Attributes:
        undisturbed_s: The first phase, in seconds.
        goodput_s: The second; 0 for none.
        interval_s: From kill to kill in it.
        num_kills: How many there are in all.
    """

    undisturbed_s: float
    goodput_s: float
    interval_s: float
    num_kills: int


def measure(contestant, phases, folder):
    """Run a contestant through the phases.

    Args:
        contestant: Who.
        phases: How long.
        folder: An empty folder for what it writes.

    Returns:
        Its figures; if it does not come back from a kill, those up to there.

    Raises:
        StandstillError: It never was at full strength.
    """
    folder.mkdir()
    lines = Lines(folder / "lines")
    lines.folder.mkdir()
    with _started(contestant.commands(folder), folder, lines.folder) as processes:
        storm = _Storm(contestant, folder, lines, processes)
        storm.say("starts")
        storm.wait_for_strength()
        # What is done once, such as the first checkpoint, is not what is measured.
        storm.wait_until(time.time() + _SETTLING_S)
        begin = time.time()
        storm.wait_until(begin + phases.undisturbed_s)
        undisturbed, goodput, given_up = (begin, time.time()), None, None
        try:
            if phases.goodput_s:
                goodput = storm.kill_at_intervals(phases)
            while len(storm.kills) < phases.num_kills:
                storm.wait_for_strength()
                storm.wait_until(time.time() + storm.rng.uniform(1, 3))
                storm.kill()
            storm.wait_for_strength()
        except StandstillError as error:
            given_up = str(error)
            storm.say(given_up)
    return figures(lines, storm.kills, undisturbed, goodput, given_up)


class _Storm:
    """The kills of one run."""

    def __init__(self, contestant, folder, lines, processes):
        self._contestant, self._folder = contestant, folder
        self._lines, self._processes = lines, processes
        self.kills = []
        self.rng = random.Random(7)
        self._highest = 0

    def say(self, text):
        clock = time.strftime("%H:%M:%S")
        print(f"{clock} {self._contestant.name}: {text}", file=sys.stderr, flush=True)

    def wait_until(self, moment):
        self._wait_for(lambda: time.time() >= moment, "training on", moment + _PATIENCE_S)

    def wait_for_strength(self):
        def is_strong():
            since_s = max([time.time() - _FRESH_S, *(kill.time for kill in self.kills)])
            enough = self._lines.num_spares() >= self._contestant.num_spares
            # Who goes on from a checkpoint makes some steps again first.
            killed = {kill.pid for kill in self.kills}
            return enough and self._lines.is_whole(since_s, self._highest, killed)

        self._wait_for(is_strong, "being at full strength")

    def kill_at_intervals(self, phases):
        """Return begin and end."""
        begin = time.time()
        for i in range(int(phases.goodput_s / phases.interval_s)):
            self.wait_until(begin + i * phases.interval_s + self.rng.uniform(0, 1))
            self.kill()
        self.wait_until(begin + phases.goodput_s)
        return begin, time.time()

    def kill(self):
        """Kill the next in turn; while all stand still, whoever is first to go on."""
        team = {}

        def somebody_trains():
            team.update(self._lines.team(time.time() - _FRESH_S))
            return bool(team)

        self._wait_for(somebody_trains, "a step")
        member = len(self.kills) % NUM_WORKERS
        pid = team.get(member, next(iter(team.values())))["pid"]
        self._highest = max(self._highest, self._lines.highest())
        self.kills.append(Kill(time.time(), pid, self._lines.num_spares()))
        os.kill(pid, signal.SIGKILL)
        self.say(f"kill {len(self.kills)}; {self.kills[-1].num_spares} stood ready")

    def _wait_for(self, condition, what, deadline=None):
        deadline = deadline or time.time() + _PATIENCE_S
        while not condition():
            ended = [p.args for p in self._processes if p.poll() is not None]
            if ended or time.time() > deadline:
                output = (self._folder / "output.txt").read_text()
                raise StandstillError(
                    f"{self._contestant.name} {'ended' if ended else 'takes too long'} instead of "
                    f"{what}:\n{output[-3000:]}"
                )
            time.sleep(_POLL_S)
            self._lines.read()


@contextlib.contextmanager
def _started(commands, folder, lines):
    """Run commands until the block ends; yield their processes."""
    environment = {
        **os.environ,
        "STEP_LINES": str(lines),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_AUTH_MODE": "disabled",
    }
    with (folder / "output.txt").open("w") as output:
        processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=Path(__file__).parent.parent,
                start_new_session=True,
            )
            for command in commands
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.send_signal(signal.SIGINT)
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(60)
                # With whatever it left behind; it has a session of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

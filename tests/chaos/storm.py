"""A training in a storm: workers die at named points, the driver is killed, and it goes on.

The storm puts tokens where `zoo/kill_points.py` looks for them, waits until each was taken, and
sees in `events.jsonl` who trains; who made the last updates together, it is told from there too,
and sooner. Nothing in here looks into the engine.

At its end a storm asserts what is true of each: every end of the driver had the exit code of
docs/reference/exit-codes.md, no pause was longer than docs/guides/elastic.md says (`pauses.py`),
and after another run of the same user nothing is left on the machine (`leftovers.py`).

Callers: `test_storm.py` and `test_digits.py`.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
from tests.chaos import pauses
from tests.chaos.leftovers import Nest
from tests.chaos.small_disk import SmallDisk
from tests.engines.elastic.training import (
    COUNTING,
    HEARTBEAT_TIMEOUT_S,
    JOIN_TIMEOUT_S,
    PATIENCE_S,
    Training,
)

ZOO = Path(__file__).parent / "zoo"
# A heal, or a first trace, is had by having somebody killed.
NEEDS_A_JOIN = {"tracing", "serving", "fetching", "healed"}
DRIVER, ELSEWHERE, PAUSED = "driver", "elsewhere", "paused"
FROZEN, TERMINATED, INTERRUPTED, FULL_DISK = "frozen", "terminated", "interrupted", "full disk"
# How the driver ends then: docs/reference/exit-codes.md. (A shell makes 137 of the first one.)
EXIT_CODES = {DRIVER: -signal.SIGKILL, TERMINATED: 143, INTERRUPTED: 130, FULL_DISK: 6}
# Other processes of a job: what is killed -> a part of its name or command line.
SURROUNDINGS = {
    "lighthouse": "LighthouseProcess",
    "actor": "PlacedWorker",
    "fork server": "elastic.fork_server",
    "raylet": "raylet/raylet",
    "gcs": "gcs/gcs_server",
    "dashboard agent": "DashboardAgent",
    "runtime environment agent": "RuntimeEnvAgent",
}
# Each of them may fall asleep as well, and the driver.
SLEEPERS = {f"{name} asleep": name for name in (*SURROUNDINGS, DRIVER)}
_ASLEEP_S = 15.0
# Where a worker joins the others; see `zoo/joins.py`. It joins in "end" when the storm ends.
PHASES = ("training", "validation", "epoch end", "checkpoint")
JOINS = {f"join in {phase}": phase for phase in PHASES}
_MAX_JOINS = 3
_BOUNDS = {
    **dict.fromkeys(NEEDS_A_JOIN, pauses.KILLED + pauses.KILLED),
    **dict.fromkeys(("stopping", PAUSED, FROZEN), pauses.FROZEN),
    **dict.fromkeys(("raylet", "gcs", "dashboard agent", "runtime environment agent"), pauses.RAY),
    "lighthouse": pauses.LIGHTHOUSE_DEAD,
    "lighthouse asleep": pauses.LIGHTHOUSE_FROZEN,
    DRIVER: pauses.DRIVER,
    **dict.fromkeys((TERMINATED, INTERRUPTED), pauses.DRIVER_WITH_CHECKPOINT),
    # It is given the command once in vain, too.
    FULL_DISK: pauses.DRIVER_WITH_CHECKPOINT + pauses.DRIVER,
}
# A machine that is so busy that a start takes long makes everything else in the same proportion.
_SLACK_STARTS = 0.5
FORKED = "elasticdl.engines.elastic.fork_server"
# What was to happen in a join may have been overtaken by another death.
_JOIN_AGAIN_S = 30.0
# The one that is going on may end meanwhile.
_EPOCHS_TO_THE_END = 2
# So far must one that was left out be behind.
_STEPS_WITHOUT = 10


class Storm(Training):
    """See the module.

    Args:
        folder: For all that is written.
        model: The model file that is trained.
        arguments: Of `elasticdl train`, beside the model and the output.
        seed: Decides who is killed.
        faults: What is broken on purpose; see `zoo/faults.py`.
        pause_s: How long a worker rests before each step.
        has_small_disk: Whether the output is on a disk that the storm can fill.

    Attributes:
        done: What was done to it, in this order.
        has_small_disk: Whether it can be filled.

    Raises:
        CannotMountError: There can be no small disk here.
    """

    def __init__(
        self, folder, model, arguments, *, seed=0, faults=(), pause_s=0.03, has_small_disk=False
    ):
        self._tokens, zoo = folder / "tokens", folder / "zoo"
        self._disk = SmallDisk(folder / "disk") if has_small_disk else None
        self.has_small_disk = has_small_disk
        self._nest = Nest()
        super().__init__(
            (self._disk.folder if self._disk else folder) / "out",
            arguments,
            model=zoo / model.name,
            environment={
                "ELASTICDL_STORM": str(self._tokens),
                "ELASTICDL_STORM_FAULTS": " ".join(faults),
                **self._nest.environment,
            },
        )
        self._log = folder / "out.log"
        self._folder, self._arguments = folder, arguments
        self.done = []
        self._strikes, self._started_s = [], None
        self._rng = random.Random(seed)
        (self._tokens / "replicas").mkdir(parents=True)
        zoo.mkdir()
        for name in ("kill_points.py", "faults.py", "joins.py"):
            shutil.copy(ZOO / name, zoo)
        # What a user's file imports is in every worker.
        (zoo / model.name).write_text(model.read_text() + "\n\nimport kill_points\n")
        self.rest(pause_s)

    def start(self):
        """Give the command; after it has ended, once more."""
        self._started_s = self._started_s or time.time()
        super().start()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._nest.clear()

    def close(self):
        """Give back its disk, with the output."""
        if self._disk is not None:
            self._disk.close()

    # --- what is seen of it ---------------------------------------------------------------------

    def workers(self):
        """Return rank -> process of those that train and live, of this start of the job."""
        return {rank: pid for rank, pid in super().workers().items() if _is_a_worker(pid)}

    def num_starts(self):
        """Return how often the training began, or went on from a checkpoint."""
        return len(self.events("job_started"))

    def num_that_met(self):
        """Return how many came together again after a fork that was made on purpose."""
        return len(list(self._tokens.glob("met-*")))

    def step(self):
        """Return the last step that was told of; after a start, the one it went on from."""
        steps = [e.get("step", e.get("resumed_from_step")) for e in self.events()]
        return next((step for step in reversed(steps) if step is not None), 0)

    def updates(self, since=0):
        """Return (epoch, ranks) of each update that was made, without so many of the first."""
        path = self._tokens / "updates"
        lines = path.read_text().splitlines(keepends=True)[since:] if path.exists() else []
        return [tuple(json.loads(line)[:2]) for line in lines if line.endswith("\n")]

    def progress(self):
        """Return when updates were made, and shards of validation data evaluated."""
        found = [
            json.loads(line)[-1] if name == "updates" else float(line)
            for name in ("updates", "evaluations")
            if (self._tokens / name).exists()
            for line in (self._tokens / name).read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return sorted(found)

    def joins(self):
        """Return which joins were awaited in which phase, and in which they were."""
        path = self._tokens / "joins"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def epoch(self):
        """Return the epoch of the last update."""
        return next((epoch for epoch, _ in reversed(self.updates())), 0)

    def hits(self):
        """Return who died at which point."""
        path = self._tokens / "hits.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def replicas(self):
        """Return what the workers said of their weights at the ends of epochs."""
        return [
            json.loads(path.read_text())
            for path in sorted((self._tokens / "replicas").glob("[0-9]*.json"))
        ]

    def wait_for_steps_of(self, count):
        """Return when so many train together, or more: a step has records of each."""
        since = len(self.updates())
        self.wait_for(
            lambda: any(len(ranks) >= count for _, ranks in self.updates(since)),
            f"steps of {count} workers",
        )

    def wait_for_updates(self, count):
        """Return when so many more were made, whoever took part."""
        since = len(self.updates())
        self.wait_for(lambda: len(self.updates(since)) >= count, f"{count} updates")

    def diagnosis(self):
        """Return what a failure's reader needs."""
        hits = "\n".join(str(hit) for hit in self.hits()[-10:])
        return f"done: {self.done}\n{hits}\n{super().diagnosis()}"

    # --- what is done to it ---------------------------------------------------------------------

    def rest(self, pause_s):
        """Let each worker rest for so long before each step."""
        (self._tokens / "pause_s.new").write_text(str(pause_s))
        (self._tokens / "pause_s.new").rename(self._tokens / "pause_s")

    def strike(self, point, *besides):
        """Do one thing to it, others at the same time, and return when all is done."""
        self.done.append((point, *besides))
        bounds = [_BOUNDS.get(each, pauses.KILLED) for each in (point, *besides)]
        bound = sum(bounds, pauses.Bound())
        self._strikes.append(pauses.Strike("+".join((point, *besides)), time.time(), bound))
        for token in besides:
            self._drop(token)
        special = {
            DRIVER: self.kill_driver,
            ELSEWHERE: self.kill_a_worker,
            PAUSED: self.pause_a_worker,
            "stopping": self.stop_before_a_quorum,
            FROZEN: self.freeze_in_a_step,
            TERMINATED: partial(self.end_driver, signal.SIGTERM, EXIT_CODES[TERMINATED]),
            INTERRUPTED: partial(self.end_driver, signal.SIGINT, EXIT_CODES[INTERRUPTED]),
            FULL_DISK: self.fill_the_disk,
            **{p: partial(self.kill_one_of_the_surroundings, n) for p, n in SURROUNDINGS.items()},
            **{point: partial(self.put_to_sleep, name) for point, name in SLEEPERS.items()},
            **{point: partial(self.join_in, phase) for point, phase in JOINS.items()},
        }
        special.get(point, partial(self._drop, point))()
        for token in (point, *besides):
            self._wait_until_taken(token)

    def _drop(self, point):
        if point != ELSEWHERE:
            (self._tokens / point).touch()
        if point == ELSEWHERE or point in NEEDS_A_JOIN:
            self.kill_a_worker()

    def _wait_until_taken(self, point):
        """Return when somebody came to a point; if that takes a join that fails, by another."""
        token, due_again_s = self._tokens / point, time.monotonic() + _JOIN_AGAIN_S

        def is_taken():
            nonlocal due_again_s
            if token.exists() and point in NEEDS_A_JOIN and time.monotonic() > due_again_s:
                due_again_s = time.monotonic() + _JOIN_AGAIN_S
                self.kill_a_worker()
            return not token.exists()

        self.wait_for(is_taken, f"a death at {point!r}")

    def hold_one_back(self):
        """Let the next one that is started not become ready."""
        (self._tokens / "holding").touch()

    def release(self):
        """Let it come."""
        (self._tokens / "release").touch()

    def kill_a_worker(self, rank=None):
        """Kill one from outside, wherever it is; that of a rank, if it is there."""
        self.wait_for(self.workers, "a worker")
        workers = self.workers()
        if rank not in workers:
            rank = self._rng.choice(sorted(workers))
        pid = workers[rank]
        _signal(pid, signal.SIGKILL)
        self.wait_for(lambda: self.workers().get(rank) != pid, f"the death of {pid}")

    def kill_driver(self):
        """Kill the driver, and give the same command again."""
        self.end_driver(signal.SIGKILL, EXIT_CODES[DRIVER])

    def end_driver(self, number, exit_code):
        """End the driver by a signal, and give the same command again.

        Raises:
            AssertionError: It ended with another exit code.
        """
        before = self.workers().values()
        _signal(self.pid, number)
        self.wait_for_the_end(expected=exit_code)
        self._go_on(before)

    def _go_on(self, workers_before):
        self.start()
        # They have nobody to tell anything; the next token is for those that come.
        self.wait_for(lambda: not any(map(_is_a_worker, workers_before)), "the end of old workers")
        self.wait_for_steps_of(1)

    def fill_the_disk(self):
        """Fill the disk with the output; make room when the job has ended, and let it go on.

        Raises:
            AssertionError: It ended with another exit code than that for an output without room.
        """
        before = self.workers().values()
        self._disk.fill()
        self.wait_for_the_end(expected=EXIT_CODES[FULL_DISK])
        self._disk.fill()
        # The same command says the same as long as nothing has changed.
        self.start()
        self.wait_for_the_end(expected=EXIT_CODES[FULL_DISK])
        self._disk.make_room()
        self._go_on(before)

    def _one_of_the_surroundings(self, name):
        def processes():
            around = [*_below(self.pid), *map(_parent_of, self.workers().values())]
            return [each for each in around if each is not None and name in _command_of(each)]

        self.wait_for(processes, f"a process {name}")
        return self._rng.choice(processes() or [None])

    def kill_one_of_the_surroundings(self, name):
        """Kill a process of the job that does not train; return when steps are made after it."""
        victim = self._one_of_the_surroundings(name)
        if victim is not None:
            _signal(victim.pid, signal.SIGKILL)
            self.wait_for(lambda: not _command_of(victim), f"the death of {name}")
        # A quorum stands for a moment, so a few steps prove nothing.
        time.sleep(1.0)
        self.wait_for_steps_of(2)

    def put_to_sleep(self, name):
        """Stop a process of the job that does not train, and wake it up after a while."""
        pid = self.pid
        if name != DRIVER:
            sleeper = self._one_of_the_surroundings(SURROUNDINGS[name])
            pid = sleeper.pid if sleeper is not None else None
        if pid is not None:
            _signal(pid, signal.SIGSTOP)
            time.sleep(_ASLEEP_S)
            # It may have been replaced meanwhile.
            _signal(pid, signal.SIGCONT)
        time.sleep(1.0)
        self.wait_for_steps_of(2)

    def join_in(self, phase):
        """Kill a worker and have its replacement come when the others are in a phase.

        Raises:
            AssertionError: It came in another one, several times.
        """
        for _ in range(_MAX_JOINS):
            before = len(self.joins())
            self._await_join(phase)
            self.wait_for(lambda before=before: len(self.joins()) > before, f"a join in {phase!r}")
            self._forget_join()
            if self.joins()[-1]["was"] == phase:
                return
        raise AssertionError(f"No join in {phase!r}: {self.joins()}\n{self.diagnosis()}")

    def _await_join(self, phase, rank=None):
        self.wait_for_steps_of(2)
        (self._tokens / "joining").touch()
        (self._tokens / "awaited").write_text(phase)
        self.kill_a_worker(rank)
        self.wait_for((self._tokens / "door").exists, "a worker that is to join")

    def _forget_join(self):
        for name in ("awaited", "joining", "door", "reached", "asked"):
            (self._tokens / name).unlink(missing_ok=True)

    def freeze_in_a_step(self):
        """Stop one while the others add up; they go on without it, and it comes back."""
        self.wait_for_steps_of(2)
        before = len(self.hits())
        (self._tokens / FROZEN).touch()
        self._come_back(before)

    def pause_a_worker(self):
        """Stop one wherever it is, and let it go on after those it takes part with gave it up."""
        self.wait_for(self.workers, "a worker")
        _, pid = self._rng.choice(sorted(self.workers().items()))
        _signal(pid, signal.SIGSTOP)
        time.sleep(2 * (HEARTBEAT_TIMEOUT_S + JOIN_TIMEOUT_S))
        _signal(pid, signal.SIGCONT)

    def stop_before_a_quorum(self):
        """Stop one where the others need not wait for it; they go on, and it comes back."""
        self.wait_for_steps_of(2)
        before = len(self.hits())
        (self._tokens / "stopping").touch()
        self._come_back(before)

    def _come_back(self, before):
        """Wait until one has stopped itself and others train without it; let it go on."""
        self.wait_for(lambda: len(self.hits()) > before, "a stop")
        hit = self.hits()[-1]
        since = len(self.updates())
        self.wait_for(
            lambda: self._num_updates(hit["rank"], since, own=False) >= _STEPS_WITHOUT,
            "steps without the one that is stopped",
        )
        since = len(self.updates())
        _signal(hit["pid"], signal.SIGCONT)
        self.wait_for(lambda: self._num_updates(hit["rank"], since, own=True), "its return")

    def _num_updates(self, rank, since, *, own):
        return sum((rank in ranks) == own for _, ranks in self.updates(since))

    def finish(self, finally_hit=None):
        """Let the training come to its end; returns the number of epochs.

        Args:
            finally_hit: A point that somebody dies at meanwhile.

        Raises:
            AssertionError: It failed, paused for too long, or left something behind.
        """
        # The lowest rank decides whether the training ends, and that is who joins.
        self._await_join("end", rank=min(self.workers(), default=None))
        if finally_hit is not None:
            (self._tokens / finally_hit).touch()
        last = self.epoch() + _EPOCHS_TO_THE_END
        (self._tokens / "last_epoch").write_text(str(last))
        self.rest(0)
        self.wait_for_the_end()
        assert self.joins()[-1]["was"] == "end", f"{self.joins()}\n{self.diagnosis()}"
        self._forget_join()
        self.assert_no_pause_was_too_long()
        self.assert_nothing_is_left()
        return last + 1

    def pauses(self):
        """Return the pauses of this storm, longest first."""
        starts_s = [event["time"] for event in self.events("job_started")]
        return pauses.pauses_between(self.progress(), self._strikes, starts_s)

    def assert_no_pause_was_too_long(self):
        """Assert it by the table of docs/guides/elastic.md."""
        start_s = self.progress()[0] - self._started_s
        for pause in self.pauses():
            limit_s = pause.bound.in_s(HEARTBEAT_TIMEOUT_S, JOIN_TIMEOUT_S, 1.5 * start_s)
            limit_s += _SLACK_STARTS * start_s
            assert pause.duration_s <= limit_s, (
                f"{pause} is longer than {limit_s:.1f} s; a start takes {start_s:.1f} s\n"
                f"{self.diagnosis()}"
            )

    def assert_nothing_is_left(self):
        """Assert it after the next run of the same user, which removes what killed ones left."""
        # What a process that lives may still use, the next run leaves alone.
        self._nest.assert_no_process_is_left()
        data = next(each for each in self._arguments if each.startswith("--data="))
        command = [
            sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={COUNTING.parent}",
            f"--model_def={COUNTING.stem}", f"--output={self._folder / 'next'}", "--max_steps=1",
            data,
        ]  # fmt: skip
        environment = {**os.environ, **self._nest.environment}
        subprocess.run(
            command, env=environment, check=True, capture_output=True, timeout=PATIENCE_S
        )
        self._nest.assert_it_is_empty()

    # --- what came of it ------------------------------------------------------------------------

    def assert_each_record_counts(self, num_epochs):
        """Assert it by the weights of every replica at every epoch's end, besides."""
        wrong = [told for told in self.replicas() if told["wrong"]]
        assert not wrong, f"{wrong[:3]}\n{self.diagnosis()}"
        assert {told["epoch"] for told in self.replicas()} == set(range(num_epochs))
        for told in self.replicas():
            self._assert_callbacks_count(told)
        super().assert_each_record_counts(num_epochs)

    def _assert_callbacks_count(self, told):
        """Assert what the callbacks remember at an epoch's end, before they are told of it."""
        for name, state in told["callbacks"].items():
            expected = {}
            if name.endswith("/Moments"):
                num_tests = told["epoch"] + 1
                expected = {
                    "num_epochs_begun": told["epoch"] + 1, "num_epochs": told["epoch"],
                    "num_tests_begun": num_tests, "num_tests": num_tests,
                }  # fmt: skip
            if name.endswith("/EarlyStopping"):
                # Of the epoch before: the mean count is how often each record was used.
                expected = {"best": float(told["epoch"]), "wait": 0} if told["epoch"] else {}
            found = {key: state.get(key) for key in expected}
            assert found == expected, f"{name}: {told}\n{self.diagnosis()}"


def _is_a_worker(pid):
    """Return whether it lives; numbers of processes come around again, and others need theirs."""
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and FORKED in process.cmdline()
    except psutil.Error:
        return False


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It died of something else meanwhile.
        return


def _parent_of(pid):
    """Return the server that a worker was forked from; None if one is gone."""
    try:
        return psutil.Process(pid).parent()
    except psutil.Error:
        return None


def _below(pid):
    """Return the living processes below one, oldest first."""
    try:
        found = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []
    return [each for each in found if _command_of(each)]


def _command_of(process):
    """Return what a process is called; nothing of one that is gone."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""

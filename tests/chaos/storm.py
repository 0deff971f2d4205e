"""A training in a storm: workers die at named points, the driver is killed, and it goes on.

The storm puts tokens where `zoo/kill_points.py` looks for them, waits until each was taken, and
sees in `events.jsonl` who trains; who made the last updates together, it is told from there too,
and sooner. Nothing in here looks into the engine.

Callers: `test_storm.py` and `test_digits.py`.
"""

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import psutil
from tests.engines.elastic.training import HEARTBEAT_TIMEOUT_S, JOIN_TIMEOUT_S, Training

ZOO = Path(__file__).parent / "zoo"
# A heal, or a first trace, is had by having somebody killed.
NEEDS_A_JOIN = {"tracing", "serving", "fetching", "healed"}
DRIVER, ELSEWHERE, PAUSED = "driver", "elsewhere", "paused"
FROZEN, TERMINATED = "frozen", "terminated"
# Other processes of a job: what is killed -> a part of its name or command line.
SURROUNDINGS = {
    "lighthouse": "LighthouseProcess",
    "actor": "PlacedWorker",
    "fork server": "elastic.fork_server",
    "raylet": "raylet/raylet",
    "gcs": "gcs/gcs_server",
}
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

    Attributes:
        done: What was done to it, in this order.
    """

    def __init__(self, folder, model, arguments, *, seed=0, faults=(), pause_s=0.03):
        self._tokens, zoo = folder / "tokens", folder / "zoo"
        super().__init__(
            folder / "out",
            arguments,
            model=zoo / model.name,
            environment={
                "ELASTICDL_STORM": str(self._tokens),
                "ELASTICDL_STORM_FAULTS": " ".join(faults),
            },
        )
        self.done = []
        self._rng = random.Random(seed)
        (self._tokens / "replicas").mkdir(parents=True)
        zoo.mkdir()
        for name in ("kill_points.py", "faults.py"):
            shutil.copy(ZOO / name, zoo)
        # What a user's file imports is in every worker.
        (zoo / model.name).write_text(model.read_text() + "\n\nimport kill_points\n")
        self.rest(pause_s)

    # --- what is seen of it ---------------------------------------------------------------------

    def workers(self):
        """Return slot -> process of those that train and live, of this start of the job."""
        return {slot: pid for slot, pid in super().workers().items() if _is_a_worker(pid)}

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
        """Return (epoch, slots) of each update that was made, without so many of the first."""
        path = self._tokens / "updates"
        lines = path.read_text().splitlines(keepends=True)[since:] if path.exists() else []
        return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]

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
            lambda: any(len(slots) >= count for _, slots in self.updates(since)),
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
        for token in besides:
            self._drop(token)
        match point:
            case "driver":
                self.kill_driver()
            case "elsewhere":
                self.kill_a_worker()
            case "paused":
                self.pause_a_worker()
            case "stopping":
                self.stop_before_a_quorum()
            case "frozen":
                self.freeze_in_a_step()
            case "terminated":
                self.terminate_driver()
            case "lighthouse" | "actor" | "fork server" | "raylet" | "gcs":
                self.kill_one_of_the_surroundings(SURROUNDINGS[point])
            case _:
                self._drop(point)
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

    def kill_a_worker(self):
        """Kill one from outside, wherever it is."""
        self.wait_for(self.workers, "a worker")
        slot, pid = self._rng.choice(sorted(self.workers().items()))
        _signal(pid, signal.SIGKILL)
        self.wait_for(lambda: self.workers().get(slot) != pid, f"the death of {pid}")

    def kill_driver(self):
        """Kill the driver, and give the same command again."""
        before = self.workers().values()
        self.kill()
        self.start()
        # They have nobody to tell anything; the next token is for those that come.
        self.wait_for(lambda: not any(map(_is_a_worker, before)), "the end of old workers")
        self.wait_for_steps_of(1)

    def terminate_driver(self):
        """End the driver as Kubernetes and Slurm do, and give the same command again."""
        before = self.workers().values()
        self.terminate()
        self.start()
        self.wait_for(lambda: not any(map(_is_a_worker, before)), "the end of old workers")
        self.wait_for_steps_of(1)

    def kill_one_of_the_surroundings(self, name):
        """Kill a process of the job that does not train; return when steps are made after it."""

        def processes():
            around = [*_below(self.pid), *map(_parent_of, self.workers().values())]
            return [each for each in around if each is not None and name in _command_of(each)]

        self.wait_for(processes, f"a process {name}")
        victim = self._rng.choice(processes())
        _signal(victim.pid, signal.SIGKILL)
        self.wait_for(lambda: not victim.is_running(), f"the death of {name}")
        # A quorum stands for a moment, so a few steps prove nothing.
        time.sleep(1.0)
        self.wait_for_steps_of(2)

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
            lambda: self._num_updates(hit["slot"], since, own=False) >= _STEPS_WITHOUT,
            "steps without the one that is stopped",
        )
        since = len(self.updates())
        _signal(hit["pid"], signal.SIGCONT)
        self.wait_for(lambda: self._num_updates(hit["slot"], since, own=True), "its return")

    def _num_updates(self, slot, since, *, own):
        return sum((slot in slots) == own for _, slots in self.updates(since))

    def finish(self, finally_hit=None):
        """Let the training come to its end; returns the number of epochs.

        Args:
            finally_hit: A point that somebody dies at meanwhile.

        Raises:
            AssertionError: It failed.
        """
        if finally_hit is not None:
            (self._tokens / finally_hit).touch()
        last = self.epoch() + _EPOCHS_TO_THE_END
        (self._tokens / "last_epoch").write_text(str(last))
        self.rest(0)
        self.wait_for_the_end()
        return last + 1

    # --- what came of it ------------------------------------------------------------------------

    def assert_each_record_counts(self, num_epochs):
        """Assert it by the weights of every replica at every epoch's end, besides."""
        wrong = [told for told in self.replicas() if told["wrong"]]
        assert not wrong, f"{wrong[:3]}\n{self.diagnosis()}"
        assert {told["epoch"] for told in self.replicas()} == set(range(num_epochs))
        super().assert_each_record_counts(num_epochs)


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

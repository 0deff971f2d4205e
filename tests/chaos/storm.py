"""A training in a storm: workers die at named points, the driver is killed, and it goes on.

The storm puts tokens where `zoo/kill_points.py` looks for them, waits until each was taken, and
sees in `events.jsonl` who trains. Nothing in here looks into the engine.

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
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
from safetensors.numpy import load_file

from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.events import StepCommitted, read_events

ZOO = Path(__file__).parent / "zoo"
COUNTING = Path(__file__).parent.parent / "engines" / "elastic" / "zoo" / "counting.py"
NUM_RECORDS = 1000
# A heal, or a first trace, is had by having somebody killed.
NEEDS_A_JOIN = {"tracing", "serving", "fetching", "healed"}
DRIVER, ELSEWHERE, PAUSED = "driver", "elsewhere", "paused"
# A machine with two cores may have much else to do.
_PATIENCE_S = 240.0
# What was to happen in a join may have been overtaken by another death.
_JOIN_AGAIN_S = 30.0
_HEARTBEAT_TIMEOUT_S, _JOIN_TIMEOUT_S = 1.0, 0.5
# The driver tells what happened within two seconds; an epoch at the storm's pace takes one.
_EPOCHS_TO_THE_END = 5


def write_numbers(path):
    """Write the records that the counting model counts."""
    with recordio.Writer(str(path)) as writer:
        for number in range(NUM_RECORDS):
            writer.write(encode({"number": np.int64([number])}))
    return path


class Storm:
    """See the module.

    Args:
        folder: For all that is written.
        model: The model file that is trained.
        arguments: Of `elasticdl train`, beside the model and the output.
        seed: Decides who is killed.
        faults: What is broken on purpose; see `zoo/faults.py`.
        pause_s: How long a worker rests before each step.

    Attributes:
        output: Of the training.
        done: What was done to it, in this order.
    """

    def __init__(self, folder, model, arguments, *, seed=0, faults=(), pause_s=0.03):
        self.output, self._tokens, self._zoo = folder / "out", folder / "tokens", folder / "zoo"
        self.done = []
        self._rng = random.Random(seed)
        (self._tokens / "replicas").mkdir(parents=True)
        self._zoo.mkdir()
        for name in ("kill_points.py", "faults.py"):
            shutil.copy(ZOO / name, self._zoo)
        # What a user's file imports is in every worker.
        text = model.read_text() + "\n\nimport kill_points\n"
        (self._zoo / model.name).write_text(text)
        self._command = [
            sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={self._zoo}",
            f"--model_def={model.stem}", f"--output={self.output}",
            f"--heartbeat_timeout={_HEARTBEAT_TIMEOUT_S}", f"--join_timeout={_JOIN_TIMEOUT_S}",
            *arguments,
        ]  # fmt: skip
        self._environment = {
            **os.environ,
            "ELASTICDL_STORM": str(self._tokens),
            "ELASTICDL_STORM_FAULTS": " ".join(faults),
        }
        self._log = folder / "log.txt"
        self.rest(pause_s)
        self._process = None

    def __enter__(self):
        self._launch()
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _launch(self):
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )

    # --- what is seen of it ---------------------------------------------------------------------

    def events(self):
        """Return what was told so far."""
        path = self.output / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def workers(self):
        """Return slot -> process of those that train, of this start of the job."""
        alive = {}
        for event in self.events():
            match event["event"]:
                case "job_started":
                    alive.clear()
                case "worker_joined":
                    alive[event["slot"]] = event["pid"]
                case "worker_left":
                    alive.pop(event["slot"], None)
        return {slot: pid for slot, pid in alive.items() if _is_a_worker(pid)}

    def num_steps(self):
        """Return how many times it was told of steps, of whatever start."""
        return sum(event["event"] == "step_committed" for event in self.events())

    def num_starts(self):
        """Return how often the training began, or went on from a checkpoint."""
        return sum(event["event"] == "job_started" for event in self.events())

    def num_that_met(self):
        """Return how many came together again after a fork that was made on purpose."""
        return len(list(self._tokens.glob("met-*")))

    def step(self):
        """Return the last step that was told of; after a start, the one it went on from."""
        steps = [e.get("step", e.get("resumed_from_step")) for e in self.events()]
        return next((step for step in reversed(steps) if step is not None), 0)

    def epoch(self):
        """Return the epoch of the last step that was told of."""
        epochs = [e["epoch"] for e in self.events() if e["event"] == "step_committed"]
        return epochs[-1] if epochs else 0

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

    def wait_for(self, condition, what):
        """Return when something is so."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition():
            assert self._process.poll() is None, f"It ended before {what}:\n{self.diagnosis()}"
            assert time.monotonic() < deadline, f"Waited in vain for {what}:\n{self.diagnosis()}"
            time.sleep(0.05)

    def wait_for_workers(self, count):
        """Return when so many train together."""
        since = len(self.events())
        self.wait_for(
            lambda: any(len(_slots_of(e)) >= count for e in self.events()[since:]),
            f"steps of {count} workers",
        )

    def log(self):
        """Return what the commands printed."""
        return self._log.read_text()

    def diagnosis(self):
        """Return what a failure's reader needs."""
        parts = [
            f"done: {self.done}",
            *(str(hit) for hit in self.hits()[-10:]),
            *(str(event)[:300] for event in self.events()[-30:]),
            self.log()[-5000:],
        ]
        return "\n".join(parts)

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
        """Let one that is started not become ready; called before the training begins."""
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
        self._process.kill()
        self._process.wait()
        self._launch()
        # They have nobody to tell anything; the next token is for those that come.
        self.wait_for(lambda: not any(map(_is_a_worker, before)), "the end of old workers")
        self.wait_for_workers(1)

    def pause_a_worker(self):
        """Stop one wherever it is, and let it go on after those it takes part with gave it up."""
        self.wait_for(self.workers, "a worker")
        _, pid = self._rng.choice(sorted(self.workers().items()))
        _signal(pid, signal.SIGSTOP)
        time.sleep(2 * (_HEARTBEAT_TIMEOUT_S + _JOIN_TIMEOUT_S))
        _signal(pid, signal.SIGCONT)

    def stop_before_a_quorum(self):
        """Stop one where the others need not wait for it; they go on, and it comes back."""
        self.wait_for_workers(2)
        before = len(self.hits())
        (self._tokens / "stopping").touch()
        self.wait_for(lambda: len(self.hits()) > before, "a stop")
        hit = self.hits()[-1]
        steps = self.num_steps()
        time.sleep(2 * (_HEARTBEAT_TIMEOUT_S + _JOIN_TIMEOUT_S))
        self.wait_for(lambda: self.num_steps() > steps + 1, "steps without the one that is stopped")
        since = len(self.events())
        _signal(hit["pid"], signal.SIGCONT)
        self.wait_for(
            lambda: any(hit["slot"] in _slots_of(e) for e in self.events()[since:]), "its return"
        )

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

    def wait_for_the_end(self):
        """Return when the command has ended well."""
        code = self._process.wait(timeout=2 * _PATIENCE_S)
        assert code == 0, self.diagnosis()

    # --- what came of it ------------------------------------------------------------------------

    def audit(self):
        """Return what `elasticdl job audit` says: exit code and JSON."""
        done = subprocess.run(
            [
                sys.executable, "-m", "elasticdl.cli.main", "job", "audit", str(self.output),
                "--json",
            ],
            check=False, capture_output=True, text=True, timeout=_PATIENCE_S,
        )  # fmt: skip
        return done.returncode, json.loads(done.stdout)

    def assert_each_record_counts(self, num_epochs):
        """Assert it by the weights of every replica at every epoch's end, and by the log."""
        wrong = [told for told in self.replicas() if told["wrong"]]
        assert not wrong, f"{wrong[:3]}\n{self.diagnosis()}"
        assert {told["epoch"] for told in self.replicas()} == set(range(num_epochs))
        counts = load_file(self.output / "params.safetensors")["counts"]
        np.testing.assert_array_equal(counts, np.full(NUM_RECORDS, num_epochs, np.float32))
        code, report = self.audit()
        assert (code, report["wrong"]) == (0, []), report
        assert len(report["epochs"]) == num_epochs
        batches = Counter(
            (epoch, shard, batch)
            for event in read_events(self.output / "events.jsonl")
            if isinstance(event, StepCommitted)
            for epoch, _, shard, first, stop in event.rows
            for batch in range(first, stop)
        )
        assert set(batches.values()) == {1}


def _slots_of(event):
    return {row[1] for row in event.get("rows", ())}


def _is_a_worker(pid):
    """Return whether it lives; numbers of processes come around again, and others need theirs."""
    try:
        return any(part.startswith("ray::") for part in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        # It died of something else meanwhile.
        return

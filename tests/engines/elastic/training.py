"""`elasticdl train` as a user gives it, on workers: what it tells meanwhile, and what came of it.

Nothing in here looks into the engine: who trains and how far is read from `events.jsonl`.

Callers: the tests of whole trainings beside this file, and `tests/chaos/storm.py`.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
from safetensors.numpy import load_file

from elasticdl.cli.main import _run
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.event_file import read_events
from elasticdl.events import StepCommitted

COUNTING = Path(__file__).parent / "zoo" / "counting.py"
NUM_RECORDS = 1000
MINIBATCH_SIZE = 16
HEARTBEAT_TIMEOUT_S, JOIN_TIMEOUT_S = 1.0, 0.5
# A machine with two cores may have much else to do.
PATIENCE_S = 240.0
# A process that is aborted prints its stacks within this time.
STACKS_S = 10.0


def write_numbers(path, count=NUM_RECORDS):
    """Write the records that the counting model counts, or the first of them."""
    with recordio.Writer(str(path)) as writer:
        for number in range(count):
            writer.write(encode({"number": np.int64([number])}))
    return path


def counting_and(folder, more):
    """Write a model file: the counting model, and more lines of Python; returns its path."""
    zoo = folder / "zoo"
    zoo.mkdir()
    model = zoo / COUNTING.name
    model.write_text(COUNTING.read_text() + "\n\n" + more)
    return model


class Training:
    """A training in a process of its own; within `with` it runs, after it nothing of it is left.

    Args:
        output: Of the training; what it prints is in a file beside it.
        arguments: Of `elasticdl train`, beside the model, the output and short timeouts.
        model: The model file that is trained.
        run_by: A command that runs the command, somewhere else.
        environment: Variables, beside those of this process.
    """

    def __init__(self, output, arguments, *, model=COUNTING, run_by=(), environment=None):
        self.output = output
        self._command = [
            *run_by, sys.executable, "-m", "elasticdl.cli.main", "train",
            f"--model_zoo={model.parent}", f"--model_def={model.stem}", f"--output={output}",
            f"--heartbeat_timeout={HEARTBEAT_TIMEOUT_S}", f"--join_timeout={JOIN_TIMEOUT_S}",
            *arguments,
        ]  # fmt: skip
        self._environment = {**os.environ, "PYTHONFAULTHANDLER": "1", **(environment or {})}
        self._log = output.parent / f"{output.name}.log"
        self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self._process.pid).children(recursive=True):
                process.kill()
        self.kill()

    def start(self):
        """Give the command; after `kill`, once more."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )

    def kill(self):
        """Kill the driver; if it has ended, nothing happens."""
        self._process.kill()
        self._process.wait()

    @property
    def pid(self):
        """The driver's process."""
        return self._process.pid

    def terminate(self):
        """Do what Kubernetes and Slurm do to end a job; return when it has ended.

        Raises:
            AssertionError: Its exit code is not the one for that.
        """
        self._process.terminate()
        self.wait_for_the_end(expected=143)

    def interrupt(self):
        """Do what Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    # --- what is seen of it ---------------------------------------------------------------------

    def events(self, *kinds):
        """Return what was told so far; some kinds of it, or all."""
        path = self.output / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        return [event for event in events if not kinds or event["event"] in kinds]

    def workers(self):
        """Return rank -> process of those that train, of this start of the job."""
        alive = {}
        for event in self.events("job_started", "worker_joined", "worker_left"):
            match event["event"]:
                case "job_started":
                    alive.clear()
                case "worker_joined":
                    alive[event["rank"]] = event["pid"]
                case "worker_left":
                    alive.pop(event["rank"], None)
        return alive

    def reasons(self):
        """Return why workers left, and how many did for each reason."""
        return Counter(event["reason"] for event in self.events("worker_left"))

    def log(self):
        """Return what the commands printed."""
        return self._log.read_text()

    def diagnosis(self):
        """Return what a failure's reader needs."""
        return "\n".join([*(str(event)[:300] for event in self.events()[-30:]), self.log()[-5000:]])

    def wait_for(self, condition, what, timeout_s=PATIENCE_S):
        """Return when something is so.

        Raises:
            AssertionError: The training ended, or too much time passed.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            code = self._process.poll()
            assert code is None, f"It ended with {code} before {what}:\n{self.diagnosis()}"
            assert time.monotonic() < deadline, f"Waited in vain for {what}:\n{self.diagnosis()}"
            time.sleep(0.05)

    def wait_for_workers(self, count):
        """Return when exactly so many train."""
        self.wait_for(lambda: len(self.workers()) == count, f"{count} workers")

    def wait_for_the_end(self, expected=0):
        """Return when the command has ended with this exit code.

        Raises:
            AssertionError: It ended with another one, or did not.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=PATIENCE_S)
        code = self._process.poll()
        if code is None:
            last = str(self.events()[-1:])[:300]
            raise AssertionError(f"It did not end; {last}:\n{self._stacks()}\n{self.diagnosis()}")
        assert code == expected, f"Its exit code is {code}:\n{self.diagnosis()}"

    def _stacks(self):
        """Kill the command; return what its threads did."""
        num_chars = len(self.log())
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or ()
            if "elasticdl.cli.main" in command and f"--output={self.output}" in command:
                process.send_signal(signal.SIGABRT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STACKS_S)
        return self.log()[num_chars:][:5000]

    # --- what came of it ------------------------------------------------------------------------

    def audit(self):
        """Return what `elasticdl job audit` says: exit code and JSON."""
        with contextlib.redirect_stdout(io.StringIO()) as said:
            code = _run(["job", "audit", str(self.output), "--json"], debug=False)
        return code, json.loads(said.getvalue())

    def assert_each_record_counts(self, num_epochs):
        """Assert it by the weights of the trained model, by the audit, and by the events."""
        # One tensor, which Keras calls by the name of its layer as well.
        (counts,) = load_file(self.output / "params.safetensors").values()
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

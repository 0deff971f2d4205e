"""Predicting on two workers against one, each of one thread, on a Ray cluster of this machine.

Rows a second from the moment when all workers have the model to the last row, so without start-up
and with whatever one waits for the other at the end. A worker reads records in a thread beside the
one that computes, so one worker alone takes more than a core; it is measured once as it is and once
kept to one core.
"""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.record import ratio
from benchmarks.training import train, write_data

RUNS = 3
NUM_RECORDS = 49152
PORT = 26379
BAR = 1.8
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def run():
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    with tempfile.TemporaryDirectory() as work:
        few = Path(work, "few")
        few.mkdir()
        model = Path(work, "model")
        train("cnn", write_data(few, "cnn", 128), model, 64, 1)
        data = write_data(Path(work), "cnn", NUM_RECORDS)
        two, one, one_core = [], [], []
        for i in range(RUNS):
            output = Path(work, f"predicted{i}")
            two.append(_rows_per_s(model, data, output, 2))
            one.append(_rows_per_s(model, data, output, 1))
            one_core.append(_rows_per_s(model, data, output, 1, cores="0"))
    return {
        "cnn_rows_per_s_two_workers_to_one": ratio(two, one, BAR),
        "cnn_rows_per_s_two_workers_to_one_on_one_core": ratio(two, one_core, BAR),
    }


class Clock:
    """A reporter that notes when all workers have begun, how far it was then, and the end."""

    def started(self, title, total, unit, done=0):
        self.total, self.begun = total, None

    def advanced(self, done, facts):
        ready, wanted = facts["workers"].split("/")
        if self.begun is None and ready == wanted:
            self.begun = (time.perf_counter(), done)
        if done == self.total:
            self.end_s = time.perf_counter()

    def note(self, message):
        sys.exit(f"No worker should die here: {message}")

    def ended(self):
        pass


def _rows_per_s(model, data, output, num_workers, cores="0-1"):
    import elasticdl

    clock = Clock()
    with _cluster(cores) as address:
        elasticdl.predict(
            trained_model=str(model),
            data=str(data),
            output=str(output),
            num_workers=num_workers,
            ray_address=address,
            reporter=clock,
        )
    begun_s, done = clock.begun
    return (clock.total - done) / (clock.end_s - begun_s)


@contextlib.contextmanager
def _cluster(cores):
    address = f"127.0.0.1:{PORT}"
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ray", ignore_cleanup_errors=True) as temp:
        ray = str(Path(sys.executable).parent / "ray")
        options = ["--head", "--block", f"--port={PORT}", "--node-ip-address=127.0.0.1"]
        options += ["--num-cpus=2", "--include-dashboard=false", f"--temp-dir={temp}"]
        head = subprocess.Popen(
            ["taskset", "-c", cores, ray, "start", *options],
            env={**os.environ, **ENVIRONMENT},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = ""
            while "Ray runtime started" not in said:
                line = head.stdout.readline()
                if not line:
                    sys.exit(f"Ray did not start:\n{said}")
                said += line
            yield address
        finally:
            head.terminate()
            head.wait()
            head.stdout.close()

"""Processes that answer for simulated parties: the same bits, and nothing of them is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
from tests.engines.federated.conftest import assert_same_bits

from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated.simulation import party_processes, simulate
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import UsageError
from elasticdl.event_file import read_events
from elasticdl.events import Checkpointed, PartyJoined, RoundFinished

PATIENCE_S = 60
NUM_ROUNDS = 40
# In a process of its own: that of the tests has imported too much to be forked.
SIMULATION = """
    import signal, sys
    from pathlib import Path
    from elasticdl.engines.federated.simulation import simulate
    from elasticdl.engines.federated.config.settings import Recorder
    from elasticdl.engines.federated.simulation.simulate import SimulatedMember
    from elasticdl.engines.progress_bar import Silent
    from elasticdl.job import Job

    # Also where the tests run in the background of a shell.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    simulate.train(
        Job.from_json(open(sys.argv[1]).read()),
        Silent(),
        [
            SimulatedMember("p0", sys.argv[2], recorder=Recorder(Path(sys.argv[4]), False, False)),
            SimulatedMember("p1", sys.argv[3]),
        ],
        num_processes=2,
    )
"""


@pytest.fixture
def one_thread():
    """Let this process compute as one of a crew does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Simulation:
    """The same simulation, started as often as it takes."""

    def __init__(self, job, place, folder):
        self.log = folder / "out" / "events.jsonl"
        self.recorded = folder / "metrics.json"
        (folder / "job.json").write_text(job.to_json())
        data = [place / f"party{number}.recordio" for number in (0, 1)]
        arguments = [folder / "job.json", *data, self.recorded]
        self._command = [sys.executable, "-c", textwrap.dedent(SIMULATION), *map(str, arguments)]

    def start(self):
        return subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)

    def run_to(self, num_rounds):
        """Start it; returns the process once it has finished so many rounds, and its crew."""
        process = self.start()
        deadline = time.monotonic() + PATIENCE_S
        while len(self.rounds()) < num_rounds:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return process, psutil.Process(process.pid).children()

    def rounds(self):
        return [e.step for e in self.events() if isinstance(e, RoundFinished)]

    def events(self):
        return list(read_events(self.log)) if self.log.exists() else []


def test_results_match_one_process_despite_kills(job, member, run, place, tmp_path, one_thread):
    asked = job(model_def="torch_small", num_rounds=NUM_ROUNDS)
    simulation = Simulation(asked, place, tmp_path)

    process, helpers = simulation.run_to(3)
    assert len(helpers) == 2
    helpers[0].kill()
    said = process.communicate(timeout=PATIENCE_S)[1]
    assert "A process that runs parties" in said
    process, helpers = simulation.run_to(11)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert psutil.wait_procs(helpers, PATIENCE_S)[1] == []
    assert max(simulation.rounds()) < NUM_ROUNDS, "It was over before it could be killed."
    process = simulation.start()
    said = process.communicate(timeout=PATIENCE_S)[1].splitlines()
    # The model refuses to be exported; see `TORCH_MODEL`.
    assert [line for line in said if "cannot be exported" not in line] == []
    assert process.returncode == 0

    run(job("whole", model_def="torch_small", num_rounds=NUM_ROUNDS), member(0), member(1))
    found, whole = (load_trained_model(str(tmp_path / name)).params for name in ("out", "whole"))
    assert_same_bits(dict(found), dict(whole))
    assert simulation.rounds() == list(range(1, NUM_ROUNDS + 1))
    checkpoints = [e.step for e in simulation.events() if isinstance(e, Checkpointed)]
    assert checkpoints[-1] == NUM_ROUNDS
    recorded = json.loads(simulation.recorded.read_text())
    assert [entry["round"] for entry in recorded] == list(range(1, NUM_ROUNDS + 1))


SLOW = """
import time
from torch_small import *
from torch_small import input_fn as fast


def input_fn(records):
    # An example, by which parties join, is no minibatch.
    time.sleep(20 * (len(records) == 16))
    return fast(records)
"""


def test_ctrl_c_ends_the_work_of_all_processes(job, place, tmp_path):
    (place / "zoo" / "slow_small.py").write_text(SLOW)
    simulation = Simulation(job(model_def="slow_small"), place, tmp_path)
    process = simulation.start()
    while not any(isinstance(event, PartyJoined) for event in simulation.events()):
        assert process.poll() is None
        time.sleep(0.01)
    # Now they train, or will at once.
    time.sleep(1.0)
    helpers, began_s = psutil.Process(process.pid).children(), time.monotonic()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=PATIENCE_S)[1]

    assert time.monotonic() - began_s < 10
    assert "KeyboardInterrupt" in said
    assert len(helpers) == 2
    assert psutil.wait_procs(helpers, 5)[1] == []


def test_tensorflow_is_refused_in_several_processes(job, member):
    with pytest.raises(UsageError, match="--num_processes=2: only PyTorch"):
        simulate.train(job(), Silent(), [member(0), member(1)], num_processes=2)


class Model:
    """As much of a definition as is asked for."""

    origin = "model.py"

    def __init__(self, framework):
        self.framework = framework


@pytest.mark.parametrize(
    ("framework", "num_parties", "asked", "expected"),
    [
        ("torch", 5, None, 3),
        ("torch", 2, None, 1),
        ("torch", 2, 4, 2),
        ("torch", 5, 1, 1),
        ("keras", 5, None, 1),
    ],
)
def test_all_cores_are_used_if_there_are_enough_parties(
    framework, num_parties, asked, expected, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})

    assert party_processes.num_processes_for(Model(framework), num_parties, asked) == expected

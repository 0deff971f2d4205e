"""Two parties and an aggregator as a person runs them: commands, TLS, keys, kill -9."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL, assert_same_bits
from tests.engines.federated.flower.conftest import still_alive
from tests.engines.federated.flower.deployed import Commands, connect, rounds

from elasticdl import federated
from elasticdl.artifacts.trained_model import load_trained_model

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(400)]
# One before the round in which the aggregator dies, and one after it.
NUM_ROUNDS = 3


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A federation of two hospitals with keys, whose configs say where everybody is."""
    folder = tmp_path_factory.mktemp("deployment")
    (folder / "zoo").mkdir()
    (folder / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    data = write_records(folder / "all.recordio", 160)
    made = federated.init(
        str(folder / "h"),
        data=str(data),
        model_zoo=str(folder / "zoo"),
        model_def="torch_small",
        num_rounds=NUM_ROUNDS,
    )
    connect(made, folder / "keys")
    return made


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    found = Commands(tmp_path_factory.mktemp("logs"))
    yield found
    found.end()


def kill(process):
    """Kill with SIGKILL; returns what it had started."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    return started


@dataclass(frozen=True)
class Killed:
    """What came of a federation in which everything was killed once.

    Attributes:
        output: The aggregator's.
        again: A second process of party 1's, started beside the first.
        left: What the killed aggregator had started.
        outlived: What of it was there 20 s later.
        resumed: How many rounds had been finished when the aggregator was killed.
    """

    output: Path
    again: subprocess.Popen
    left: list[psutil.Process]
    outlived: list[psutil.Process]
    resumed: int


@pytest.fixture(scope="module")
def killed(hospitals, commands, simulation):
    """Train with a hospital that dies between two rounds, and an aggregator that dies in one.

    The hospital dies first, so that the aggregator waits for it when it is killed; and hears that
    it has gone, or Flower would let nobody in with its key for a minute.
    """
    output = hospitals.aggregator.parent / "trained_model"
    party0, party1 = (commands.start(path.stem, "party", path) for path in hospitals.parties)
    first = commands.start("aggregator", "aggregator", hospitals.aggregator)
    lock = hospitals.parties[1].with_suffix("") / "state" / ".party"
    commands.wait_until(lock.exists, party1)
    again = commands.start("again", "party", hospitals.parties[1])
    commands.wait_until(lambda: rounds(output), first)
    assert still_alive(kill(party0), 20) == []
    left = kill(first)
    resumed = len(rounds(output))
    outlived = still_alive(left, 20)
    commands.start("party0", "party", hospitals.parties[0])
    second = commands.start("aggregator", "aggregator", hospitals.aggregator)
    assert commands.end_of(second) == 0, commands.logs()
    return Killed(output, again, left, outlived, resumed)


@pytest.fixture(scope="module")
def simulation(hospitals, commands):
    """Start the same federation in one process; returns that, and its output."""
    output = hospitals.aggregator.parent / "simulated"
    process = commands.start(
        "simulation",
        "simulate",
        hospitals.aggregator,
        f"--output={output}",
        "--num_processes=1",
    )
    return process, output


def test_killed_hospitals_and_a_killed_aggregator_train_what_a_simulation_does(
    killed, simulation, commands
):
    """No bit of the model tells that any of them died."""
    process, simulated = simulation
    assert commands.end_of(process) == 0, commands.logs()

    for output in (killed.output, simulated):
        assert [event.step for event in rounds(output)] == list(range(1, NUM_ROUNDS + 1))
        assert all(list(event.parties) == ["party0", "party1"] for event in rounds(output))
    deployed = dict(load_trained_model(str(killed.output)).params)
    assert_same_bits(deployed, dict(load_trained_model(str(simulated)).params))
    assert all(np.isfinite(array).all() for array in deployed.values())


def test_nothing_outlives_a_killed_aggregator_and_the_next_one_goes_on(killed):
    assert killed.left
    assert killed.outlived == []
    assert 0 < killed.resumed < NUM_ROUNDS
    assert [event.step for event in rounds(killed.output)] == list(range(1, NUM_ROUNDS + 1))


def test_one_party_is_one_process(killed, commands):
    assert commands.end_of(killed.again) == 6
    assert "party party1" in commands.log("again")

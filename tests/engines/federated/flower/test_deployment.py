"""Federations as a person deploys them: commands, real processes, TLS, keys, kill -9.

Two of them, beside each other because most of their time is waiting: of one everybody is killed,
the other is told what to do.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL, assert_same_bits
from tests.engines.federated.flower.conftest import still_alive
from tests.engines.federated.flower.deployed import PATIENCE_S, Commands, change, connect, rounds

from elasticdl import federated
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.errors import UsageError
from elasticdl.event_file import read_events
from elasticdl.events import JobFinished

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(900)]
# One before the round in which the aggregator dies, and one after it.
NUM_ROUNDS = 3
# A process that has just begun imports Flower before it notices the end of its parent, and ten
# processes do that at once.
GONE_S = 60


def write_federation(folder, num_rounds, *, evaluates=False):
    """Write the configs of a federation of two hospitals."""
    (folder / "zoo").mkdir()
    (folder / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    data = str(write_records(folder / "all.recordio", 160))
    return federated.init(
        str(folder / "h"),
        data=data,
        validation_data=data if evaluates else None,
        model_zoo=str(folder / "zoo"),
        model_def="torch_small",
        num_rounds=num_rounds,
    )


# --- killed --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A federation with keys, whose configs say where everybody is."""
    folder = tmp_path_factory.mktemp("deployment")
    made = write_federation(folder, NUM_ROUNDS)
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
        outlived: What of it was still there `GONE_S` later.
        resumed: How many rounds had been finished when the aggregator was killed.
    """

    output: Path
    again: subprocess.Popen
    left: list[psutil.Process]
    outlived: list[psutil.Process]
    resumed: int


def kill_everybody(hospitals, commands):
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
    assert still_alive(kill(party0), GONE_S) == []
    left = kill(first)
    resumed = len(rounds(output))
    outlived = still_alive(left, GONE_S)
    commands.start("party0", "party", hospitals.parties[0])
    second = commands.start("aggregator", "aggregator", hospitals.aggregator)
    assert commands.end_of(second) == 0, commands.logs()
    return Killed(output, again, left, outlived, resumed)


@pytest.fixture(scope="module", autouse=True)
def happening(hospitals, commands, clinics, tmp_path_factory):
    """Begin both federations at once, whichever test comes first."""
    others = Commands(tmp_path_factory.mktemp("told"))
    with ThreadPoolExecutor(2) as pool:
        yield {
            "killed": pool.submit(kill_everybody, hospitals, commands),
            "told": pool.submit(tell_everything, clinics, others),
        }
        # If it was not waited for, it has nothing to wait for any more.
        commands.end()
        others.end()


@pytest.fixture(scope="module")
def killed(happening):
    return happening["killed"].result()


def test_a_deployment_with_kills_matches_a_simulation(killed, hospitals, commands):
    """Every bit of the model is the same as without the kills."""
    simulated = hospitals.aggregator.parent / "simulated"
    # As the parties do, it computes with all threads of a process.
    options = f"--output={simulated}", "--num_processes=1"
    process = commands.start("simulation", "simulate", hospitals.aggregator, *options)
    assert commands.end_of(process) == 0, commands.logs()

    for output in (killed.output, simulated):
        assert [event.step for event in rounds(output)] == list(range(1, NUM_ROUNDS + 1))
        assert all(list(event.parties) == ["party0", "party1"] for event in rounds(output))
    deployed = dict(load_trained_model(str(killed.output)).params)
    assert_same_bits(deployed, dict(load_trained_model(str(simulated)).params))
    assert all(np.isfinite(array).all() for array in deployed.values())


def test_a_killed_aggregator_leaves_nothing_and_can_resume(killed):
    assert killed.left
    assert killed.outlived == []
    assert 0 < killed.resumed < NUM_ROUNDS
    assert [event.step for event in rounds(killed.output)] == list(range(1, NUM_ROUNDS + 1))


def test_one_party_is_one_process(killed, commands):
    assert commands.end_of(killed.again) == 6
    assert "party party1" in commands.log("again")


# --- told ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clinics(tmp_path_factory):
    """A federation without keys, of which the second party does not report metrics."""
    made = write_federation(tmp_path_factory.mktemp("clinics"), 1, evaluates=True)
    connect(made)
    change(made.parties[1], privacy={"metrics": False})
    return made


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", "federated", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def wait_for(config, condition, process):
    deadline = time.monotonic() + PATIENCE_S
    while not condition(found := federated.status(str(config))):
        assert process.poll() is None
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def all_joined(found):
    return sum(seen.joined and seen.connected for seen in found.parties.values()) == 2


def test_a_federation_executes_all_commands(happening):
    happening["told"].result()


def tell_everything(clinics, commands):
    """Start, tell and stop a federation, and look at what it says and leaves."""

    def start(*arguments):
        return commands.start(arguments[0], *arguments)

    config, party = clinics.aggregator, str(clinics.parties[0])
    output = config.parent / "trained_model"
    with pytest.raises(UsageError, match="is running; start one with"):
        federated.train(str(config))
    for path in clinics.parties:
        start("party", path)
    first = start("aggregator", config, "--serve")
    found = wait_for(config, all_joined, first)
    assert (found.state, found.round, found.num_rounds) == ("idle", 0, 1)

    lines = []
    assert federated.train(str(config), note=lines.append).round == 1
    assert any(line.startswith("round 1 of 1: parties 2/2") for line in lines)
    own = federated.evaluate(party)
    everywhere = federated.evaluate(str(config))
    assert federated.status(party).model == "own"
    assert list(federated.sync(str(config)).parties) == ["party0", "party1"]
    synced = federated.evaluate(party)

    assert (own.model, synced.model) == ("own", "global")
    assert own.merged != synced.merged
    # The same weights on the same records, here and there.
    assert synced.merged == everywhere.parties["party0"]
    assert "does not report metrics" in everywhere.silent["party1"]

    said = command("train", config, "--num_rounds=1")
    assert "round 2 of 2: parties 2/2" in said
    assert federated.status(party).model == "own"
    saved = federated.save(str(config))
    assert load_trained_model(saved.output).description.step == 2

    address = json.loads((output / "control.json").read_text())
    assert address["pid"] == first.pid
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    kept = federated.status(str(config))
    assert (kept.state, kept.round, kept.num_rounds) == ("not running", 2, 2)
    second = start("aggregator", config, "--serve")
    wait_for(config, lambda found: found.state == "idle", second)
    assert "idle, after round 2 of 2" in command("status", config)
    federated.stop(str(config))
    assert second.wait(60) == 0
    federated.stop(party)
    assert federated.status(party).state == "not running"
    assert [one.step for one in rounds(output)] == [1, 2]
    log = read_events(output / "events.jsonl")
    assert [one.step for one in log if isinstance(one, JobFinished)] == [1, 2]

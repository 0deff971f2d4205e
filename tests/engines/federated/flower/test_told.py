"""A federation that is told what to do, as a person does it: commands, real processes, kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL
from tests.engines.federated.flower.deployed import change, connect

from elasticdl import federated
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.errors import UsageError
from elasticdl.events import JobFinished, RoundFinished, read_events

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(480)]
PATIENCE_S = 90


@pytest.fixture
def hospitals(tmp_path):
    """Return the configs of two hospitals on this machine; the second keeps its metrics."""
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    data = write_records(tmp_path / "all.recordio", 160)
    made = federated.init(
        str(tmp_path / "h"),
        data=str(data),
        validation_data=str(data),
        model_zoo=str(tmp_path / "zoo"),
        model_def="torch_small",
        num_rounds=1,
    )
    connect(made)
    change(made.parties[1], privacy={"metrics": False})
    return made


@pytest.fixture
def start(tmp_path):
    """Return what starts a command of `elasticdl federated` that stays; all end with the test."""
    started = []

    def run(*arguments):
        with (tmp_path / f"{arguments[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", "federated", *map(str, arguments)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
    for process in started:
        process.wait(60)


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


def cores_used_by(processes):
    """Return what share of a core each process uses while nobody asks it anything."""

    def used_s():
        times = [psutil.Process(process.pid).cpu_times() for process in processes]
        return np.array([each.user + each.system for each in times])

    before_s, started_s = used_s(), time.monotonic()
    time.sleep(1)
    return (used_s() - before_s) / (time.monotonic() - started_s)


def test_a_federation_does_what_it_is_told_from_start_to_stop(hospitals, start):
    config, party = hospitals.aggregator, str(hospitals.parties[0])
    output = config.parent / "trained_model"
    with pytest.raises(UsageError, match="is running; start it with"):
        federated.train(str(config))
    parties = [start("party", path) for path in hospitals.parties]
    first = start("aggregator", config, "--serve")
    found = wait_for(config, all_joined, first)
    assert (found.state, found.round, found.num_rounds) == ("idle", 0, 1)
    assert max(cores_used_by([*parties, first])) < 0.3

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
    assert "keeps its metrics" in everywhere.silent["party1"]

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
    log = read_events(output / "events.jsonl")
    assert [one.step for one in log if isinstance(one, RoundFinished)] == [1, 2]
    assert [one.step for one in log if isinstance(one, JobFinished)] == [1, 2]

"""Two parties and an aggregator as a person runs them: three commands, TLS, keys, kill -9."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL, assert_same_bits

from elasticdl import federated
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.progress import Silent
from elasticdl.events import RoundFinished, read_events

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(240)]
NUM_ROUNDS = 5


@pytest.fixture
def hospitals(tmp_path):
    """A federation of two hospitals with keys, whose configs say where everybody is."""
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    data = write_records(tmp_path / "all.recordio", 160)
    made = federated.init(
        str(tmp_path / "h"),
        data=str(data),
        model_zoo=str(tmp_path / "zoo"),
        model_def="torch_small",
        num_rounds=NUM_ROUNDS,
    )
    federated.make_keys(str(tmp_path / "keys"), parties=["party0", "party1"], hosts=["127.0.0.1"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = {"ip": "127.0.0.1", "port": server.getsockname()[1]}
    keys = tmp_path / "keys" / "aggregator"
    tls = {"ca_certificate": "ca.crt", "certificate": "server.crt", "private_key": "server.key"}
    tls = {name: str(keys / file) for name, file in tls.items()}
    change(made.aggregator, connection={"info": {**at, "tls_config": tls}})
    for path in made.parties:
        own = tmp_path / "keys" / "parties" / path.stem
        tls = {"ca_certificate": str(own / "ca.crt"), "private_key": str(own / "node.key")}
        info = {"id": path.stem, "tls_config": tls}
        change(path, connection={"info": info}, aggregator=at)
    return made


def change(path, **sections):
    values = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**values, **sections}))


class Commands:
    """Processes of `elasticdl federated`, ended with the test."""

    def __init__(self, folder):
        self._folder = folder
        self._started = []

    def start(self, name, *arguments):
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "elasticdl.cli.main", "federated", *map(str, arguments)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._started.append(process)
        return process

    def logs(self):
        return "\n".join(
            f"== {path.name}\n{path.read_text()[-2000:]}"
            for path in sorted(self._folder.glob("*.log"))
        )

    def end(self):
        for process in self._started:
            if process.poll() is None:
                process.terminate()
        for process in self._started:
            process.wait(30)


@pytest.fixture
def commands(tmp_path):
    found = Commands(tmp_path)
    yield found
    found.end()


def rounds(output):
    log = output / "events.jsonl"
    if not log.exists():
        return []
    return [event for event in read_events(log) if isinstance(event, RoundFinished)]


def wait_for_round(number, output, process, commands):
    deadline = time.monotonic() + 120
    while len(rounds(output)) < number:
        assert process.poll() is None, commands.logs()
        assert time.monotonic() < deadline, commands.logs()
        time.sleep(0.05)


@pytest.mark.chaos  # bits have differed once on a loaded machine
def test_killed_hospitals_and_a_killed_aggregator_train_what_a_simulation_does(
    hospitals, commands, tmp_path
):
    """The aggregator dies within a round, a hospital between two; no bit of the model tells."""
    output = hospitals.aggregator.parent / "trained_model"
    for path in hospitals.parties:
        commands.start(path.stem, "party", path)
    first = commands.start("aggregator", "aggregator", hospitals.aggregator)
    wait_for_round(2, output, first, commands)
    # The questions of the third round are on their way.
    time.sleep(0.3)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    victim = commands._started[0]
    os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    commands.start("party0", "party", hospitals.parties[0])
    second = commands.start("aggregator", "aggregator", hospitals.aggregator)
    try:
        assert second.wait(150) == 0, commands.logs()
    except subprocess.TimeoutExpired:
        pytest.fail(commands.logs())

    federated.simulate(
        str(hospitals.aggregator), output=str(tmp_path / "simulated"), reporter=Silent()
    )
    deployed = dict(load_trained_model(str(output)).params)
    assert_same_bits(deployed, dict(load_trained_model(str(tmp_path / "simulated")).params))
    assert [event.step for event in rounds(output)] == list(range(1, NUM_ROUNDS + 1))
    assert all(list(event.parties) == ["party0", "party1"] for event in rounds(output))
    assert all(np.isfinite(array).all() for array in deployed.values())


def test_one_party_is_one_process(hospitals, commands):
    first = commands.start("party0", "party", hospitals.parties[0])
    state = hospitals.parties[0].with_suffix("") / "state"
    deadline = time.monotonic() + 60
    while not (state / ".party").exists():
        assert first.poll() is None, commands.logs()
        assert time.monotonic() < deadline, commands.logs()
        time.sleep(0.05)
    second = commands.start("again", "party", hospitals.parties[0])

    assert second.wait(60) == 6
    assert "party party0" in commands.logs()

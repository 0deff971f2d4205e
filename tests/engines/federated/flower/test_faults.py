"""What parties and the disk can do to a training across processes: it is named, and goes on.

One federation goes through all of it, with an honest party, one that misbehaves in each round in
another way (`liar.py`), and one that has another model.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL
from tests.engines.federated.flower.deployed import change, connect, rounds

from elasticdl import federated
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.event_file import read_events
from elasticdl.events import PartyJoined

# What each fault comes to is in `test_aggregator.py` as well, without processes.
pytestmark = [pytest.mark.chaos, pytest.mark.flower, pytest.mark.timeout(500)]
HONEST, LIAR, OTHER = "party0", "party1", "party2"
NUM_ROUNDS = 6
# A round waits so long for the liar; Flower's detector of dead nodes would need 38 to 60 s.
MAX_TIMEOUT_S = 8
PATIENCE_S = 180
LIAR_FILE = Path(__file__).with_name("liar.py")
COMMAND = [sys.executable, "-m", "elasticdl.cli.main", "federated"]


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Let it all happen, and return what was told."""
    folder = tmp_path_factory.mktemp("ward")
    configs = write_configs(folder)
    output = folder / "h" / "trained_model"
    with contextlib.ExitStack() as stack:
        disk = stack.enter_context(a_small_disk(output))

        def start(name, *command):
            log = stack.enter_context((folder / f"{name}.log").open("ab"))
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            stack.callback(end, process)
            return process

        start(HONEST, *COMMAND, "party", configs[HONEST])
        start(OTHER, *COMMAND, "party", configs[OTHER])
        liar = start(LIAR, sys.executable, LIAR_FILE, configs[LIAR])
        first = start("aggregator", *COMMAND, "aggregator", configs["aggregator"])

        def wait_for_round(number):
            deadline = time.monotonic() + PATIENCE_S
            while len(rounds(output)) < number:
                assert first.poll() is None, logs(folder)
                assert time.monotonic() < deadline, logs(folder)
                time.sleep(0.05)

        wait_for_round(4)
        assert psutil.Process(liar.pid).status() == psutil.STATUS_STOPPED
        liar.send_signal(signal.SIGCONT)
        wait_for_round(5)
        assert liar.wait(30) == -signal.SIGKILL
        if disk is not None:
            disk.fill()
            failed = first.wait(PATIENCE_S), (folder / "aggregator.log").read_text()
            disk.free()
            first = start("aggregator", *COMMAND, "aggregator", configs["aggregator"])
        else:
            failed = None
        assert first.wait(PATIENCE_S) == 0, logs(folder)
        yield SimpleNamespace(
            rounds=rounds(output),
            events=read_events(output / "events.jsonl"),
            failed=failed,
            model=load_trained_model(str(output)),
            logs={path.stem: path.read_text() for path in folder.glob("*.log")},
        )


def write_configs(folder):
    """Return the configs of a federation with keys, by name."""
    (folder / "zoo").mkdir()
    (folder / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    (folder / "other").mkdir()
    (folder / "other" / "torch_small.py").write_text(
        TORCH_MODEL.replace("(4, 8)", "(4, 9)").replace("d(8)", "d(9)").replace("(8, 3)", "(9, 3)")
    )
    made = federated.init(
        str(folder / "h"),
        data=str(write_records(folder / "all.recordio", 120)),
        num_parties=3,
        model_zoo=str(folder / "zoo"),
        model_def="torch_small",
        num_rounds=NUM_ROUNDS,
    )
    connect(made, folder / "keys")
    hyperparams = yaml.safe_load(made.aggregator.read_text())["hyperparams"]
    hyperparams["global"] |= {"perc_quorum": 0.3, "max_timeout": MAX_TIMEOUT_S}
    change(made.aggregator, hyperparams=hyperparams)
    configs = {path.stem: path for path in made.parties}
    change(configs[OTHER], model={"model_def": "torch_small", "model_zoo": str(folder / "other")})
    return {"aggregator": made.aggregator, **configs}


@contextlib.contextmanager
def a_small_disk(folder):
    """Make a folder a disk of its own that can be filled; None where that is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        yield None
        return
    filler = folder / "filler"

    def fill():
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    try:
        yield SimpleNamespace(fill=fill, free=filler.unlink)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def end(process):
    if process.poll() is None:
        os.kill(process.pid, signal.SIGCONT)
        process.terminate()
        process.wait(30)


def logs(folder):
    return "\n".join(
        f"== {path.name}\n{path.read_text()[-3000:]}" for path in sorted(folder.glob("*.log"))
    )


FAULTS = {
    1: ("NaN", "finite"),
    2: ("another shape", "shape"),
    3: ("the answer of the round before", "round 2"),
    4: ("stopped", f"no answer within {MAX_TIMEOUT_S} s"),
    5: ("killed", "no answer while the others replied"),
}


@pytest.mark.parametrize("number", FAULTS, ids=[what for what, _ in FAULTS.values()])
def test_a_party_without_a_usable_answer_is_excluded_and_named(story, number):
    told = story.rounds[number - 1]

    assert told.step == number
    assert list(told.parties) == [HONEST]
    assert FAULTS[number][1] in told.left_out[LIAR]


def test_waiting_ends_after_the_timeout(story):
    # Who was refused before is asked again besides, which takes a message.
    assert all(told.seconds < 2 * MAX_TIMEOUT_S for told in story.rounds)


def test_a_party_with_another_model_is_excluded_in_each_round(story):
    joined = {event.party for event in story.events if isinstance(event, PartyJoined)}
    assert joined == {HONEST, LIAR}
    assert all("shape" in told.left_out[OTHER] for told in story.rounds)


def test_a_federation_can_resume_after_a_full_disk(story):
    if story.failed is None:
        pytest.skip("No disk can be mounted here.")
    code, log = story.failed

    assert code == 6, log
    assert "ree some space" in log.splitlines()[-1]
    assert [told.step for told in story.rounds] == list(range(1, NUM_ROUNDS + 1))
    assert story.model.description.step == NUM_ROUNDS

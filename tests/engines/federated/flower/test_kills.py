"""Whatever of a federation is killed with SIGKILL, it is noticed in time and goes on."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from elasticdl.engines.federated.flower.commands import ask_flwr, environment, free_port
from elasticdl.engines.federated.flower.keys import PartyKeys, make_keys
from elasticdl.engines.federated.flower.supernode import Supernode
from elasticdl.engines.federated.flower.words import UNANSWERED

pytestmark = pytest.mark.flower

BOTH = ["north", "south"]
PARTY = Path(__file__).with_name("party.py")
AGGREGATOR = Path(__file__).with_name("aggregator.py")


def alive(processes):
    return [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill(processes):
    assert processes
    for one in processes:
        os.kill(one.pid, signal.SIGKILL)


def test_a_killed_serverapp_is_replaced_within_the_round(federation):
    for party in federation.processes.values():
        party.answer_after(1)
    thread = threading.Timer(0.5, lambda: kill(federation.flower("flwr-serverapp")))
    thread.start()

    answers = federation.ask({}, 40, round=1)

    thread.join()
    assert sorted(answers) == BOTH
    # Or parties would be given the other one's messages as well.
    runs = ask_flwr(["ls", "elasticdl"], environment(federation.link.folder / "flwr"))["runs"]
    assert [run["status"] for run in runs].count("running") == 1


def test_a_killed_superlink_is_started_again_with_what_it_knew(federation):
    (before,) = federation.flower("flower-superlink")
    kill([before])
    wait_until(lambda: federation.flower("flower-superlink") not in ([], [before]))

    # The same parties under the same names: nobody had to register or be told.
    assert sorted(federation.ask({}, 60, round=2)) == BOTH


def test_a_killed_front_is_started_again(federation):
    (before,) = federation.flower("federated.flower.front")
    kill([before])

    assert sorted(federation.ask({}, 40, round=3)) == BOTH


def test_a_killed_supernode_is_noticed_when_the_time_is_over(federation):
    """Not after the 48 s that Flower takes, and nobody else has to wait for that."""
    west = federation.start("west")
    wait_until(lambda: "west" in federation.parties.here())
    try:
        kill(west.supernodes())
        started_s = time.monotonic()

        answers = federation.ask({}, 12, [*BOTH, "west"], round=4)

        assert sorted(answers) == BOTH
        assert time.monotonic() - started_s < 13
    finally:
        west.end()


@pytest.mark.chaos
def test_a_killed_supernode_connects_again_when_flower_has_forgotten_it(federation):
    """Until then, up to a minute, Flower lets nobody in with the dead one's key."""
    kill(federation.processes["south"].supernodes())

    assert sorted(federation.ask({}, 110, round=6)) == BOTH


def test_a_killed_party_leaves_nothing_behind_and_is_asked_again_when_it_is_back(federation):
    south = federation.processes["south"]
    left = south.everything()
    south.answer_after(20)
    answers = federation.parties.ask(dict.fromkeys(BOTH, ({}, {})), 90)
    assert next(answers)[0] == "north"
    south.kill()

    wait_until(lambda: not alive(left), 20)
    wait_until(lambda: list(federation.parties.here()) == ["north"], 20)
    south.answer_after(0)
    federation.start("south")

    assert [name for name, *_ in answers] == ["south"]


@pytest.mark.chaos  # Flower may refuse its key for a minute
def test_a_node_whose_party_does_not_answer_says_so_itself(federation, tmp_path):
    """The process that trains is not there, but Flower's part of the party is."""
    keys = PartyKeys.read(federation.folder / "keys/parties/west")
    supernode = Supernode(tmp_path, federation.link.address, keys, tmp_path / "nobody")
    supernode.start()
    try:
        assert supernode.wait(30)
        wait_until(lambda: "west" in federation.parties.here(), 10)
        started_s = time.monotonic()

        answers = federation.ask({"w": np.ones(1)}, 60, ["west"])

        assert time.monotonic() - started_s < 15
        assert set(answers["west"][1]) == {UNANSWERED}
        assert "the process that trains is not running" in answers["west"][1][UNANSWERED]
    finally:
        supernode.close()
    wait_until(lambda: "west" not in federation.parties.here(), 10)


def test_nothing_outlives_a_killed_aggregator_and_the_next_one_goes_on(tmp_path):
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    make_keys(folder / "keys", ["north"], ["127.0.0.1"])
    port = free_port()

    def aggregator():
        return subprocess.Popen(
            [sys.executable, "-P", AGGREGATOR, folder, str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )

    first = aggregator()
    second = north = None
    try:
        assert first.stdout.readline() == "started\n"
        (folder / "north").mkdir()
        north = subprocess.Popen(
            [
                *(sys.executable, "-P", PARTY, folder / "north", "north", f"127.0.0.1:{port}"),
                folder / "keys/parties/north",
            ],
            stderr=subprocess.DEVNULL,
        )
        assert first.stdout.readline() == "north answered\n"
        left = psutil.Process(first.pid).children(recursive=True)

        first.kill()

        wait_until(lambda: not alive(left), 20)
        second = aggregator()
        assert second.stdout.readline() == "started\n"
        assert second.stdout.readline() == "north answered\n"
    finally:
        for process in (first, second, north):
            if process is not None:
                process.terminate()
                # Reads what is left, and closes.
                process.communicate(timeout=30)
        shutil.rmtree(folder, ignore_errors=True)

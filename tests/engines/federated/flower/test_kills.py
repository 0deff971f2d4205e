"""Whatever of a federation is killed with SIGKILL, it is noticed in time and goes on.

A killed aggregator is in `test_deployment.py`.
"""

import os
import signal
import time
from dataclasses import dataclass

import numpy as np
import pytest
from tests.engines.federated.flower.conftest import still_alive, wait_until

from elasticdl.engines.federated.flower.keys import PartyKeys
from elasticdl.engines.federated.flower.protocol_constants import UNANSWERED
from elasticdl.engines.federated.flower.supernode import Supernode

# The time of the first test is that of its federation's start as well.
pytestmark = [pytest.mark.chaos, pytest.mark.flower, pytest.mark.timeout(300)]

BOTH = ["north", "south"]
TIME_S = 10


def kill(processes):
    assert processes
    for one in processes:
        os.kill(one.pid, signal.SIGKILL)


def test_a_killed_serverapp_is_replaced_within_the_round(federation):
    parties = [federation.processes[name] for name in BOTH]
    for party in parties:
        party.hold()
    answers = federation.parties.ask(dict.fromkeys(BOTH, ({}, {"round": 1})), 90)
    wait_until(lambda: all(party.is_held for party in parties))

    kill(federation.flower("flwr-serverapp"))
    for party in parties:
        party.release()

    assert sorted(name for name, *_ in answers) == BOTH
    # Or parties would be given the other one's messages as well.
    runs = federation.flwr("ls", "elasticdl")["runs"]
    assert [run["status"] for run in runs].count("running") == 1


def test_a_killed_superlink_is_restarted_with_its_state(federation):
    (before,) = federation.flower("flower-superlink")
    kill([before])
    wait_until(lambda: federation.flower("flower-superlink") not in ([], [before]))

    # The same parties under the same names: nobody had to register or be told.
    assert sorted(federation.ask({}, 60, round=2)) == BOTH


def test_a_killed_proxy_is_restarted(federation):
    (before,) = federation.flower("federated.flower.tls_proxy")
    kill([before])

    assert sorted(federation.ask({}, 40, round=3)) == BOTH


@dataclass(frozen=True)
class Round:
    """What four parties came to, of which two cannot answer.

    Attributes:
        answers: The facts of each, by name.
        took_s: Seconds until nobody was waited for any more.
    """

    answers: dict[str, dict]
    took_s: float


@pytest.fixture(scope="module")
def a_round(federation, tmp_path_factory):
    """Ask all parties, when of two but a half is there.

    `west` has lost its supernode, `east` the process that trains. Each has a key of its own: Flower
    lets nobody in with a killed supernode's for a minute.
    """
    folder = tmp_path_factory.mktemp("east")
    keys = PartyKeys.read(federation.folder / "keys/parties/east")
    east = Supernode(folder, federation.link.address, keys, folder / "nobody")
    west = federation.start("west")
    east.start()
    try:
        wait_until(lambda: {"west", "east"} <= {*federation.parties.here()})
        kill(west.supernodes())
        started_s = time.monotonic()
        answers = federation.ask({"w": np.ones(1)}, TIME_S, [*BOTH, "west", "east"], round=4)
        took_s = time.monotonic() - started_s
        return Round({name: facts for name, (_, facts) in answers.items()}, took_s)
    finally:
        west.end()
        east.close()
        wait_until(lambda: "east" not in federation.parties.here())


def test_a_killed_supernode_is_noticed_after_the_timeout(a_round):
    """Not after the 38 to 60 s that Flower takes, and other parties do not wait for it."""
    assert sorted(a_round.answers) == ["east", *BOTH]
    assert a_round.took_s < TIME_S + 1


def test_a_node_reports_that_its_party_does_not_answer(a_round):
    """The training process is missing, but Flower's part of the party runs."""
    assert set(a_round.answers["east"]) == {UNANSWERED}
    assert "its training process is not running" in a_round.answers["east"][UNANSWERED]


def test_a_killed_supernode_reconnects_after_flower_drops_it(federation):
    """Until then, up to a minute, Flower refuses the key of the dead one."""
    kill(federation.processes["south"].supernodes())

    assert sorted(federation.ask({}, 110, round=6)) == BOTH


def test_a_killed_party_leaves_nothing_and_can_return(federation):
    south = federation.processes["south"]
    left = south.everything()
    south.hold()
    answers = federation.parties.ask(dict.fromkeys(BOTH, ({}, {})), 90)
    assert next(answers)[0] == "north"
    wait_until(lambda: south.is_held)
    south.kill()

    assert still_alive(left, 20) == []
    wait_until(lambda: "south" not in federation.parties.here(), 20)
    south.release()
    federation.start("south")

    assert [name for name, *_ in answers] == ["south"]

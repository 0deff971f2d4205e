"""Other users of the machine reach nothing of a federation that they could use.

They can connect to every TCP port of it, and to a unix socket in a folder that they can enter. They
can read the command line of every process.
"""

from __future__ import annotations

import os
import re

import pytest
import yaml
from tests.engines.conftest import write_records
from tests.engines.federated.conftest import TORCH_MODEL
from tests.engines.federated.flower.conftest import wait_until
from tests.engines.federated.flower.deployed import Commands, connect, rounds
from tests.engines.federated.flower.listeners import (
    SOCKETS_OF_COMMANDS,
    listeners,
    seen_until_the_end,
    served_to_anyone,
    words,
)

from elasticdl import federated

pytestmark = [pytest.mark.flower, pytest.mark.timeout(300)]
# Flower's task tokens are 32 random bytes or more.
SECRET = re.compile(r"[0-9a-f]{32,}")
BOTH = ["north", "south"]


@pytest.fixture(scope="module", autouse=True)
def before():
    """Return what other tests' servers listen on, made before the federation."""
    return set(listeners(os.getpid()))


def test_a_federation_has_one_port_that_refuses_strangers(before, federation):
    """All else is unix sockets in folders that only this user can enter."""
    found = [one for one in listeners(os.getpid()) if one not in before]

    ports = [one.port for one in found if one.family != "unix"]
    assert {port: served_to_anyone(port) for port in ports} == {federation.link.port: []}
    sockets = [one for one in found if one.family == "unix"]
    # This process', the superlink's; of each party: its own, its prefork server's, its supernode's.
    assert len(sockets) == 2 + 2 * 3
    assert [one for one in sockets if not one.is_closed_to_others] == []


def test_command_lines_contain_no_secret(federation):
    """Not even that of a process that answers a message."""
    federation.processes["north"].hold()
    answers = federation.parties.ask(dict.fromkeys(BOTH, ({}, {})), 60)
    wait_until(lambda: federation.processes["north"].is_held)

    seen = words(os.getpid())

    federation.processes["north"].release()
    assert sorted(name for name, *_ in answers) == BOTH
    assert any(word.endswith("flwr-serverapp") for word in seen)
    assert any(word.endswith("prefork_client.py") for word in seen)
    assert [word for word in seen if SECRET.search(word)] == []


# --- from a shell --------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path):
    """Return the configs of two hospitals that train one round."""
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "torch_small.py").write_text(TORCH_MODEL)
    return federated.init(
        str(tmp_path / "h"),
        data=str(write_records(tmp_path / "all.recordio", 160)),
        model_zoo=str(tmp_path / "zoo"),
        model_def="torch_small",
        num_rounds=1,
    )


@pytest.fixture
def commands(tmp_path):
    (tmp_path / "logs").mkdir()
    found = Commands(tmp_path / "logs")
    yield found
    found.end()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_simulation_opens_no_port(made, commands):
    process = commands.start("simulate", "simulate", made.aggregator, "--num_processes=2")

    ports, open_sockets, sockets = seen_until_the_end(process)

    assert process.returncode == 0, commands.logs()
    assert (ports, open_sockets, sockets) == (set(), set(), set())


@pytest.mark.slow
# Commands without keys, in `test_plain_text.py`; with keys it is the federation above.
@pytest.mark.exhaustive
def test_only_the_aggregator_opens_a_port(made, commands, tmp_path):
    connect(made, tmp_path / "keys")
    port = yaml.safe_load(made.aggregator.read_text())["connection"]["info"]["port"]
    parties = [commands.start(path.stem, "party", path) for path in made.parties]
    aggregator = commands.start("aggregator", "aggregator", made.aggregator)

    ports, open_sockets, sockets = seen_until_the_end(aggregator, *parties)

    assert aggregator.returncode == 0, commands.logs()
    assert len(rounds(made.aggregator.parent / "trained_model")) == 1
    assert (ports, open_sockets) == ({port}, set())
    assert sorted(path.rpartition("/")[2] for path in sockets) == SOCKETS_OF_COMMANDS

"""Other users of the machine reach nothing of a federation that they could use.

They can connect to every TCP port of it, and to a unix socket in a folder that they can enter. They
can read the command line of every process.
"""

from __future__ import annotations

import os
import re

import pytest
from tests.engines.federated.flower.conftest import wait_until
from tests.engines.federated.flower.listeners import listeners, served_to_anyone, words

pytestmark = [pytest.mark.flower, pytest.mark.timeout(300)]
# Flower's task tokens are 32 random bytes or more.
SECRET = re.compile(r"[0-9a-f]{32,}")
BOTH = ["north", "south"]


def test_a_federation_has_one_port_and_answers_no_stranger_there(federation):
    """All else is unix sockets in folders that only this user can enter."""
    found = listeners(os.getpid())

    ports = [one.port for one in found if one.family != "unix"]
    assert {port: served_to_anyone(port) for port in ports} == {federation.link.port: []}
    sockets = [one for one in found if one.family == "unix"]
    # This process', the superlink's; of each party: its own, its messenger's, its supernode's.
    assert len(sockets) == 2 + 2 * 3
    assert [one for one in sockets if not one.is_closed_to_others] == []


def test_no_command_line_has_a_secret(federation):
    """Also not that of a process which answers a message."""
    federation.processes["north"].hold()
    answers = federation.parties.ask(dict.fromkeys(BOTH, ({}, {})), 60)
    wait_until(lambda: federation.processes["north"].is_held)

    seen = words(os.getpid())

    federation.processes["north"].release()
    assert sorted(name for name, *_ in answers) == BOTH
    assert any(word.endswith("flwr-serverapp") for word in seen)
    assert any(word.endswith("errand.py") for word in seen)
    assert [word for word in seen if SECRET.search(word)] == []

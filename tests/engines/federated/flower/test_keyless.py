"""On one machine a federation can do without keys; then parties say who they are."""

import contextlib
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.engines.federated.flower.conftest import wait_until

from elasticdl.engines.federated.flower.exchange import Exchange
from elasticdl.engines.federated.flower.protocol_constants import SOCKET
from elasticdl.engines.federated.flower.superlink import Superlink
from elasticdl.errors import UsageError


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "fl.example.org", "::"])
def test_serving_other_machines_without_keys_is_refused(tmp_path, host):
    with pytest.raises(UsageError, match="Create keys with `elasticdl federated keys`"):
        Superlink(tmp_path, None, host)


@pytest.mark.chaos
@pytest.mark.flower
@pytest.mark.timeout(300)
def test_a_duplicate_party_is_excluded_until_the_first_has_left(start_party, caplog):
    """Both are started at once; the test finds out which one was first."""
    caplog.set_level(logging.INFO, "elasticdl")
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        exchange = stack.enter_context(Exchange(Superlink(folder / "agg", None)))
        twins = {
            at: start_party(folder / at, "north", exchange.address, "") for at in ("one", "other")
        }
        wait_until(lambda: list(exchange.here()) == ["north"])
        ((_, _, facts),) = exchange.ask({"north": ({}, {})}, 60)
        first = facts["at"]
        wait_until(lambda: "A second party with the name 'north'" in caplog.text)
        (second,) = (party for at, party in twins.items() if at != first)
        wait_until(lambda: "Another party with the name 'north'" in second.log)

        ((name, _, facts),) = exchange.ask({"north": ({}, {})}, 60)
        assert (name, facts["at"], facts["asked"]) == ("north", first, 2)
        twins.pop(first).end()
        ((name, _, facts),) = exchange.ask({"north": ({}, {})}, 60)
        # It is the second one's first.
        assert (name, facts["asked"]) == ("north", 1)
        assert facts["at"] in twins


def test_other_users_cannot_read_flowers_files(tmp_path):
    """Its database holds what parties have sent. An earlier version left the folder open."""
    folder = tmp_path / "out" / "flower"
    folder.mkdir(parents=True, mode=0o755)

    Superlink(folder, None)._write_files()

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.flower
@pytest.mark.timeout(300)
def test_other_users_of_the_machine_are_not_served():
    """Neither at the port nor at the sockets, whose folder that user cannot enter."""
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        link = Superlink(folder / "agg", None)
        stack.enter_context(Exchange(link))

        own, foreign = (ask(link, user) for user in (0, 65534))

    assert own == ["200", "connected"]
    assert foreign == ["403", "PermissionError"]


STRANGER = """
import encodings.idna, http.client, os, socket, sys
port, path, user = sys.argv[1:]
# What Python still has to import may lie where only root can read.
os.setgroups([])
os.setresgid(int(user), int(user), int(user))
os.setresuid(int(user), int(user), int(user))
connection = http.client.HTTPConnection("127.0.0.1", int(port))
connection.request("GET", "/health")
print(connection.getresponse().status)
try:
    socket.socket(socket.AF_UNIX).connect(path)
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


def ask(link, user):
    """Return what a user gets from the port of a federation, and from the superlink's socket."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(link.port), link._variables[SOCKET], str(user)],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()

"""A party that is ended by a signal says so by its exit code."""

import os
import signal
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tests.engines.federated.flower.deployed import Commands, connect
from tests.engines.federated.flower.test_deployment import write_federation

from elasticdl.engines.federated.flower.client_daemon import ClientDaemon
from elasticdl.engines.federated.flower.deployment import ended_by_signals
from elasticdl.engines.federated.flower.protocol_constants import TASK
from elasticdl.engines.federated.protocol import wire

pytestmark = [pytest.mark.flower, pytest.mark.timeout(200)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_current_request_of_a_party(number):
    before = signal.getsignal(number)

    def answer(arrays, facts):
        threading.Timer(0.2, os.kill, (os.getpid(), number)).start()
        # As a long training.
        time.sleep(30)

    with (
        tempfile.TemporaryDirectory() as folder,
        ClientDaemon(Path(folder, "s"), "north", answer) as daemon,
        wire.connect(Path(folder, "s")) as stream,
    ):
        wire.send(stream, wire.Frame(TASK))
        began_s = time.monotonic()
        with ended_by_signals(daemon) as noted:
            daemon.run()

        assert time.monotonic() - began_s < 10
        with pytest.raises(EOFError):
            wire.receive(stream)
    assert list(noted) == [number]
    assert signal.getsignal(number) is before


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_party_ends_with_the_code_of_the_signal(tmp_path, number, code):
    made = write_federation(tmp_path, 1)
    connect(made)
    (tmp_path / "logs").mkdir()
    commands = Commands(tmp_path / "logs")
    try:
        # No aggregator is there: it is trying to connect.
        party = commands.start("party", "party", made.parties[0])
        commands.wait_until(lambda: "is connecting to" in commands.log("party"), party)
        party.send_signal(number)

        assert commands.end_of(party) == code, commands.logs()
        said = commands.log("party")
        assert "has not accepted this party, and nothing was trained; run the same command" in said
        assert "saved" not in said
    finally:
        commands.end()

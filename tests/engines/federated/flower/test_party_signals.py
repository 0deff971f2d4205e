"""A party that is ended by a signal says so by its exit code."""

import signal

import pytest
from tests.engines.federated.flower.deployed import Commands, connect
from tests.engines.federated.flower.test_deployment import write_federation

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.timeout(200)]


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
        assert "the same command goes on" in commands.log("party")
    finally:
        commands.end()

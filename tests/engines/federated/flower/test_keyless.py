"""On one machine a federation can do without keys; then parties say who they are."""

import contextlib
import logging
import shutil
import tempfile
from pathlib import Path

import pytest
from tests.engines.federated.flower.conftest import wait_until

from elasticdl.engines.federated.flower.exchange import Exchange
from elasticdl.engines.federated.flower.superlink import Superlink
from elasticdl.errors import UsageError


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "fl.example.org", "::"])
def test_without_keys_nobody_else_is_served(tmp_path, host):
    with pytest.raises(UsageError, match="Make keys with `elasticdl federated keys`"):
        Superlink(tmp_path, None, host)


@pytest.mark.chaos
@pytest.mark.flower
@pytest.mark.timeout(300)
def test_a_second_party_of_one_name_is_left_out_until_the_first_has_gone(start_party, caplog):
    """Both are started at once; which one is the first is seen."""
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
        wait_until(lambda: "A second party says its name is 'north'" in caplog.text)

        ((name, _, facts),) = exchange.ask({"north": ({}, {})}, 60)
        assert (name, facts["at"], facts["asked"]) == ("north", first, 2)
        twins.pop(first).end()
        ((name, _, facts),) = exchange.ask({"north": ({}, {})}, 60)
        # It is the second one's first.
        assert (name, facts["asked"]) == ("north", 1)
        assert facts["at"] in twins

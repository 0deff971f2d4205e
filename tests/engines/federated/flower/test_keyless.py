"""On one machine a federation can do without keys; then parties say who they are."""

import contextlib
import logging
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from elasticdl.engines.federated.flower.exchange import Exchange
from elasticdl.engines.federated.flower.superlink import Superlink
from elasticdl.errors import UsageError


def wait_until(condition, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.7", "fl.example.org", "::"])
def test_without_keys_nobody_else_is_served(tmp_path, host):
    with pytest.raises(UsageError, match="Make keys with `elasticdl federated keys`"):
        Superlink(tmp_path, None, host)


@pytest.mark.flower
def test_a_second_party_of_one_name_is_left_out_until_the_first_has_gone(start_party, caplog):
    caplog.set_level(logging.INFO, "elasticdl")
    folder = Path(tempfile.mkdtemp(prefix="fl-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        exchange = stack.enter_context(Exchange(Superlink(folder / "agg", None)))
        first = start_party(folder / "first", "north", exchange.address, "")
        wait_until(lambda: list(exchange.here()) == ["north"])

        second = start_party(folder / "second", "north", exchange.address, "")
        wait_until(lambda: "A second party says its name is 'north'" in caplog.text)

        ((name, _, facts),) = exchange.ask({"north": ({}, {})}, 30)
        assert (name, facts["asked"]) == ("north", 1)
        first.end()
        wait_until(lambda: "Party 'north' has gone" in caplog.text or len(exchange.here()) == 1)
        ((name, _, facts),) = exchange.ask({"north": ({}, {})}, 30)
        # It is the second one's first.
        assert facts["asked"] == 1
        second.end()

"""Where Flower's processes listen."""

import contextlib
import socket

import pytest

from elasticdl.engines.federated.flower.superlink import Superlink
from elasticdl.engines.federated.flower.supernode import Supernode


@pytest.fixture
def unlucky(monkeypatch):
    """Let the system say twice that 8080 is free, and then that 8081 is."""
    found = iter([8080, 8080, 8081])

    class Listener(contextlib.nullcontext):
        def __init__(self):
            super().__init__(self)

        def bind(self, address):
            pass

        def getsockname(self):
            return "127.0.0.1", next(found)

    monkeypatch.setattr(socket, "socket", Listener)


def test_a_superlink_leaves_the_aggregators_port_to_the_front(unlucky, tmp_path):
    """The front may be slower, so that the port is free still."""
    assert Superlink(tmp_path, None, port=8080)._inner_port == 8081


def test_a_supernode_leaves_the_aggregators_port_to_an_aggregator_that_comes_later(
    unlucky, tmp_path
):
    assert Supernode(tmp_path, "127.0.0.1:8080", None, tmp_path)._command()[-2] == "8081"

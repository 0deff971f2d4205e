"""Whose process is at the other end of a connection."""

import os
import socket
import sys

import pytest

from elasticdl.peer_user import user_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of Linux")


def connection(host, family):
    """Return a client's socket, and the addresses of both its ends as a server sees them."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.socket(family)
        client.connect((host, server.getsockname()[1]))
        accepted, peer = server.accept()
        accepted.close()
        return client, peer, server.getsockname()


@pytest.mark.parametrize(
    ("host", "family"),
    [("127.0.0.1", socket.AF_INET), ("::ffff:127.0.0.1", socket.AF_INET6)],
)
def test_a_connection_of_this_process_belongs_to_this_user(host, family):
    client, peer, server = connection(host, family)
    with client:
        assert user_of(peer, server) == os.getuid()


def test_a_missing_connection_has_no_user():
    assert user_of(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
    assert user_of(("::1", 1), ("::1", 2)) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_a_connection_of_another_user_belongs_to_that_user():
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.seteuid(65534)
        try:
            client = socket.socket()
        finally:
            os.seteuid(0)
        with client:
            client.connect(server.getsockname())
            assert user_of(client.getsockname(), server.getsockname()) == 65534

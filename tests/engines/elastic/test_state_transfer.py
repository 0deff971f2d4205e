"""A state crosses whole or not at all, and nothing in it is executed."""

import pickle
import socket
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from elasticdl.artifacts.checkpoint_store import Checkpoint
from elasticdl.engines.elastic.state_transfer import (
    Fetch,
    StateServer,
    TransportError,
    decode,
    encode,
)
from elasticdl.errors import OutputError

HOST = "127.0.0.1"
KEY = bytes(range(32))


@pytest.fixture
def server():
    one = StateServer(HOST, timeout_s=0.3, key=KEY)
    yield one
    one.close()


@pytest.fixture
def dying_peer():
    """Returns the address of a peer that answers with these bytes and is gone."""
    listeners = []

    def start(answer):
        listener = socket.create_server((HOST, 0))
        listeners.append(listener)

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        return f"http://{HOST}:{listener.getsockname()[1]}/secret"

    yield start
    for listener in listeners:
        listener.close()


def test_a_checkpoint_is_transferred_bit_by_bit(server):
    state = {
        "model/half": np.array([[1.5, -0.0], [np.inf, 3e38]], ml_dtypes.bfloat16),
        "model/scalar": np.float32(np.nan).reshape(()),
        "model/empty": np.zeros((0, 3), np.int8),
        "model/transposed": np.arange(6, dtype=np.float64).reshape(2, 3).T,
        "optimizer/step": np.array(2**62 + 1),
        "model/é": np.array([True, False]),
    }
    metadata = {"progress": {"ledger": [1, 2**62 + 1, None]}, "history": {"points": []}, "ä": "ö"}
    server.publish(7, encode(Checkpoint(2**40, state, metadata)))

    arrived = decode(Fetch(server.address, 7, 5.0, KEY).read(), "a test")

    assert arrived.step == 2**40
    assert arrived.metadata == metadata
    assert arrived.state.keys() == state.keys()
    for path, array in state.items():
        assert arrived.state[path].dtype == array.dtype, path
        assert arrived.state[path].shape == array.shape, path
        assert arrived.state[path].tobytes() == array.tobytes(), path


def test_an_empty_state_is_transferred(server):
    server.publish(0, encode(Checkpoint(0, {}, {})))

    arrived = decode(Fetch(server.address, 0, 5.0, KEY).read(), "a test")

    assert (arrived.step, dict(arrived.state), arrived.metadata) == (0, {}, {})


def test_a_request_without_the_secret_gets_nothing(server):
    server.publish(1, b"weights")
    base, _, secret = server.address.rpartition("/")
    assert len(secret) >= 20

    for path in (secret[:-1], secret[::-1], "", "secret"):
        with pytest.raises(TransportError, match="404"):
            Fetch(f"{base}/{path}", 1, 5.0, KEY).read()


def test_each_worker_has_its_own_secret(server):
    other = StateServer(HOST, timeout_s=0.3, key=KEY)
    other.close()

    assert other.address.rpartition("/")[2] != server.address.rpartition("/")[2]


def test_the_state_of_another_step_is_not_served(server):
    server.publish(5, b"weights")

    with pytest.raises(TransportError, match="The state of step 4 was not received"):
        Fetch(server.address, 4, 5.0, KEY).read()
    with pytest.raises(TransportError, match="The state of step 6 was not received"):
        Fetch(server.address, 6, 5.0, KEY).read()


def test_only_the_newest_state_is_served(server):
    server.publish(5, b"old")
    server.publish(6, b"new")

    assert Fetch(server.address, 6, 5.0, KEY).read() == b"new"
    with pytest.raises(TransportError):
        Fetch(server.address, 5, 5.0, KEY).read()


def test_a_request_before_the_copy_is_made_waits():
    server = StateServer(HOST, timeout_s=10.0, key=KEY)
    timer = threading.Timer(0.1, server.publish, (3, b"weights"))
    timer.start()
    started = time.monotonic()

    assert Fetch(server.address, 3, 10.0, KEY).read() == b"weights"

    assert time.monotonic() - started < 5.0
    timer.join()
    server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.0 200 OK\r\nContent-Le",
        b"",
        b"\0\1\2",
    ],
    ids=["in the state", "in the headers", "at once", "no HTTP"],
)
def test_a_peer_that_dies_during_the_transfer_is_an_error(dying_peer, answer):
    with pytest.raises(TransportError, match="The state of step 2 was not received"):
        Fetch(dying_peer(answer), 2, 5.0, KEY).read()


def test_a_missing_peer_is_an_error(server):
    gone = StateServer(HOST, timeout_s=0.3, key=KEY)
    gone.close()

    with pytest.raises(TransportError):
        Fetch(gone.address, 1, 1.0, KEY).read()


def test_waiting_for_a_silent_peer_times_out():
    with socket.create_server((HOST, 0)) as silent, pytest.raises(TransportError):
        Fetch(f"http://{HOST}:{silent.getsockname()[1]}/secret", 1, 0.2, KEY).read()


def test_only_worker_addresses_are_accepted(tmp_path):
    (tmp_path / "1").write_bytes(b"weights")

    with pytest.raises(TransportError, match="expected the address of a worker"):
        Fetch(tmp_path.as_uri(), 1, 1.0, KEY).read()


class Trap:
    """Gives itself away when it is unpickled."""

    sprung = False

    def __setstate__(self, state):
        Trap.sprung = True


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Trap.__new__(Trap)),
        encode(Checkpoint(1, {}, {}))[:16] + pickle.dumps([1, 2]) * 9,
        encode(Checkpoint(1, {"w": np.ones(3)}, {"a": 1}))[:-5],
        encode(Checkpoint(1, {"w": np.ones(3)}, {"a": 1}))[:20],
        b"",
    ],
    ids=["pickle", "pickle in JSON's place", "half a tensor", "half of JSON", "nothing"],
)
def test_other_bytes_are_refused_and_not_executed(data):
    with pytest.raises(OutputError, match="the state of a peer"):
        decode(data, "the state of a peer")

    assert not Trap.sprung


def test_values_that_need_pickle_are_refused():
    with pytest.raises(OutputError):
        encode(Checkpoint(1, {"w": np.array([object()])}, {}))
    with pytest.raises(OutputError):
        encode(Checkpoint(1, {}, {"callback": object()}))

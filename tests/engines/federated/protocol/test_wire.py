"""What goes through a socket comes out the same, or is refused."""

import socket
import struct
import threading

import numpy as np
import pytest

from elasticdl.engines.federated.protocol import wire
from elasticdl.engines.federated.protocol.wire import Frame, WireError


def sent(frame):
    """Return a frame after it has gone through a socket."""
    here, there = socket.socketpair()
    with here, there:
        writer = threading.Thread(target=wire.send, args=(here, frame))
        writer.start()
        arrived = wire.receive(there)
        writer.join()
    return arrived


def received(*pieces):
    here, there = socket.socketpair()
    with here, there:
        here.sendall(b"".join(pieces))
        here.shutdown(socket.SHUT_WR)
        return wire.receive(there)


def head(text, arrays_bytes=0):
    return struct.pack(">QQ", len(text), arrays_bytes) + text


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6.0).reshape(3, 2)[:, :1],
        np.array(3, np.int64),
        np.zeros((0, 4), np.float16),
        np.array([True, False]),
        np.array([np.nan, np.inf, -0.0]),
        np.arange(4, dtype=">i4"),
    ],
    ids=["float32", "fortran", "column", "scalar", "empty", "bool", "nan", "big endian"],
)
def test_an_array_survives_a_round_trip_bit_by_bit(array):
    arrived = sent(Frame("k", {}, {"w": array})).arrays["w"]

    assert arrived.dtype == array.dtype
    assert arrived.shape == array.shape
    assert arrived.tobytes() == array.tobytes()


def test_kind_facts_and_order_of_arrays_survive_a_round_trip():
    arrived = sent(Frame("k", {"round": 3, "ä": [1.5, None]}, {"b": np.ones(1), "a": np.ones(2)}))

    assert arrived.kind == "k"
    assert arrived.facts == {"round": 3, "ä": [1.5, None]}
    assert list(arrived.arrays) == ["b", "a"]


def test_received_arrays_are_writable():
    arrived = sent(Frame("k", {}, {"w": np.zeros(2)})).arrays["w"]

    arrived += 1

    assert arrived.tolist() == [1, 1]


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([object()]), np.zeros(1, "V2")])
def test_only_numbers_are_sent(array):
    with pytest.raises(WireError, match="'w' is an array of"):
        sent_into_nothing(Frame("k", {}, {"w": array}))


def test_facts_that_are_not_json_are_refused_before_sending():
    with pytest.raises(WireError, match="cannot be encoded as JSON"):
        sent_into_nothing(Frame("k", {"x": object()}))


def sent_into_nothing(frame):
    here, there = socket.socketpair()
    with here, there:
        wire.send(here, frame)


@pytest.mark.parametrize(
    "pieces",
    [
        [head(b"\x80\x04N.")],
        [head(b'["k", {}, [["w", "O", [1]]]]', 8), b"12345678"],
        [head(b'["k", {}, [["w", "<f4", [-1]]]]', 0)],
        [head(b'["k", {}, [["w", "<f4", [-1]], ["v", "<f4", [1]]]]', 0)],
        [head(b'["k", {}, [["w", "<f4", [2.5]]]]', 0)],
        [head(b'["k", {}, [["w", "<f4", [3]]]]', 4), b"1234"],
        [head(b'["k", {}, [["w", "<f4", [1]]]]', 8), b"12341234"],
        [head(b'["k", [], []]')],
        [head(b"[1, {}, []]")],
        [head(b'"k"')],
        [head(b"[" * 200_000)],
        [struct.pack(">QQ", 2**40, 0)],
        [head(b'["k", {}, [["w", "|u1", [1099511627776]]]]', 2**40)],
    ],
    ids=[
        "pickle",
        "objects",
        "negative",
        "negative and positive",
        "fraction",
        "too long",
        "too short",
        "facts",
        "kind",
        "text",
        "deep",
        "huge head",
        "huge array",
    ],
)
def test_an_invalid_frame_is_refused(pieces):
    with pytest.raises(WireError):
        received(*pieces)


@pytest.mark.parametrize("bound", ["MAX_HEAD_BYTES", "MAX_ARRAYS_BYTES"])
def test_a_frame_beyond_a_limit_is_neither_sent_nor_received(bound, monkeypatch):
    arrays = {"w": np.zeros(3, np.float32)}
    whole = head(b'["k", {}, [["w", "<f4", [3]]]]', 12) + bytes(12)
    received(whole)
    monkeypatch.setattr(wire, bound, 11)

    with pytest.raises(WireError, match="exceeds the limit"):
        received(whole)
    near, far = socket.socketpair()
    with near, far, pytest.raises(WireError, match="exceed the limits"):
        wire.send(near, Frame("k", {}, arrays))


@pytest.mark.parametrize("length", [0, 5, 20, 40])
def test_a_truncated_frame_raises_eof_error(length):
    whole = head(b'["k", {}, [["w", "<f4", [3]]]]', 12) + b"123412341234"

    with pytest.raises(EOFError):
        received(whole[:length])


def test_only_this_user_can_connect(tmp_path):
    with wire.listen(tmp_path / "s"):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_a_path_too_long_for_a_socket_is_reported(tmp_path):
    with pytest.raises(OSError, match="must not be longer than 107 bytes"):
        wire.listen(tmp_path / ("x" * 120))

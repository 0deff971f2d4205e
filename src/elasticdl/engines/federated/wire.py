"""Arrays and facts on a stream between two processes of one machine.

    | bytes of the head | bytes of the arrays |         head          |      arrays       |
    |      8 bytes      |       8 bytes       | JSON: kind, facts,    | one after another |
    |                   |                     | names, dtypes, shapes |                   |

Never pickle: what arrives came over the network a moment ago. Everything is checked against a
bound before memory is asked for.

Callers: `control.py`; both ends of the two sockets of `flower/`.
"""

from __future__ import annotations

import json
import math
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
Facts: TypeAlias = Mapping[str, Any]
# Of each array: its name, what NumPy calls its type, its shape.
Plan: TypeAlias = list[list[Any]]

MAX_HEAD_BYTES = 64 * 2**20
MAX_ARRAYS_BYTES = 16 * 2**30
# Booleans, whole numbers, floats and complex ones: what NumPy can read from plain bytes.
_KINDS = "biufc"
_SIZES = struct.Struct(">QQ")
# The path of a socket has room for 107 characters.
_MAX_PATH = 107


class WireError(ValueError):
    """What arrived is no frame, or what is to be sent cannot be one."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One message.

    Attributes:
        kind: What it is about, for the receiver to choose by.
        facts: What JSON can hold.
        arrays: By name; not changed, and not to be changed while it is sent.
    """

    kind: str
    facts: Facts = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def send(stream: socket.socket, frame: Frame) -> None:
    """Send a frame whole.

    Raises:
        WireError: It has an array that is not of numbers, or facts that JSON cannot hold.
        OSError: The other end is gone.
    """
    plan, pieces = flatten(frame.arrays)
    try:
        head = json.dumps([frame.kind, dict(frame.facts), plan]).encode()
    except (TypeError, ValueError) as error:
        raise WireError(f"{frame.kind}: JSON cannot hold its facts: {error}.") from error
    num_bytes = sum(map(len, pieces))
    if len(head) > MAX_HEAD_BYTES or num_bytes > MAX_ARRAYS_BYTES:
        raise WireError(
            f"{frame.kind}: {len(head)} bytes of facts and {num_bytes} of arrays are more than "
            f"the {MAX_HEAD_BYTES} and {MAX_ARRAYS_BYTES} that are allowed."
        )
    stream.sendall(_SIZES.pack(len(head), num_bytes) + head)
    for piece in pieces:
        stream.sendall(piece)


def receive(stream: socket.socket) -> Frame:
    """Wait for a frame.

    Raises:
        EOFError: The other end was closed, between two frames or within one.
        WireError: It is no frame.
        OSError: The connection broke, or its time is over.
    """
    head_bytes, arrays_bytes = _SIZES.unpack(_read(stream, _SIZES.size))
    if head_bytes > MAX_HEAD_BYTES or arrays_bytes > MAX_ARRAYS_BYTES:
        raise WireError(f"A frame of {head_bytes} and {arrays_bytes} bytes is larger than allowed.")
    head = _read(stream, head_bytes)
    try:
        kind, facts, plan = json.loads(head)
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"A frame's head cannot be read: {error}") from error
    if not (isinstance(kind, str) and isinstance(facts, dict)):
        raise WireError(f"A frame starts with {str(kind)[:40]!r}.")
    arrays = empty_arrays(plan, arrays_bytes)
    for array in arrays.values():
        if array.nbytes:
            _fill(stream, _bytes_of(array))
    return Frame(kind, facts, arrays)


def flatten(arrays: Arrays) -> tuple[Plan, list[memoryview]]:
    """Return how arrays lie one after another, and their bytes.

    Raises:
        WireError: One is not of numbers.
    """
    plan, pieces = [], []
    for name, given in arrays.items():
        array = np.asarray(given)
        if array.dtype.kind not in _KINDS:
            raise WireError(f"{name!r} is an array of {array.dtype}; only numbers can be sent.")
        plan.append([name, array.dtype.str, list(array.shape)])
        if array.nbytes:
            pieces.append(_bytes_of(array))
    return plan, pieces


def empty_arrays(plan: Any, num_bytes: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return arrays to be filled as a plan says, which may be anything.

    Args:
        plan: Of `flatten`, or of somebody who is up to something.
        num_bytes: How many there are to fill them with.

    Raises:
        WireError: It is no plan, or one for another number of bytes.
    """
    try:
        entries = [_entry(entry) for entry in plan]
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"{str(plan)[:80]} does not say what arrays are like: {error}") from error
    if sum(entry_bytes for *_, entry_bytes in entries) != num_bytes:
        raise WireError("The arrays are not as long as their plan says.")
    try:
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape, _ in entries}
    except (ValueError, OverflowError, MemoryError) as error:
        # An axis of 2^70 beside one of 0 has no bytes.
        raise WireError(f"There can be no such arrays: {error}") from error
    if len(arrays) != len(entries):
        raise WireError("Two arrays have one name.")
    return arrays


def fill(arrays: Arrays, content: bytes) -> None:
    """Fill arrays with bytes, one after another; there must be exactly as many."""
    offset = 0
    for array in arrays.values():
        if array.nbytes:
            _bytes_of(array)[:] = memoryview(content)[offset : offset + array.nbytes]
            offset += array.nbytes


def listen(path: Path) -> socket.socket:
    """Return a socket of this user's that others can connect to; one that lay there is replaced.

    Raises:
        OSError: It cannot be made there, or the path is too long for a socket.
    """
    _check_path(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        # Before anybody can connect: that needs `listen`.
        path.chmod(0o600)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: Path, timeout_s: float | None = None) -> socket.socket:
    """Return a connection to who listens at a path.

    Raises:
        OSError: Nobody does.
    """
    _check_path(path)
    stream = socket.socket(socket.AF_UNIX)
    stream.settimeout(timeout_s)
    try:
        stream.connect(str(path))
    except OSError:
        stream.close()
        raise
    return stream


def _check_path(path: Path) -> None:
    if len(os.fsencode(path)) > _MAX_PATH:
        raise OSError(
            f"{path}: the path of a socket must not be longer than {_MAX_PATH} bytes. "
            "Set TMPDIR to a folder with a shorter path."
        )


def _entry(entry: Any) -> tuple[str, np.dtype[Any], tuple[int, ...], int]:
    name, type_name, shape = entry
    dtype = np.dtype(type_name) if isinstance(type_name, str) else None
    if (
        not isinstance(name, str)
        or dtype is None
        or dtype.kind not in _KINDS
        or not all(type(size) is int and size >= 0 for size in shape)
    ):
        raise WireError(f"An entry {str(entry)[:80]} is no array of numbers.")
    return name, dtype, tuple(shape), math.prod(shape) * dtype.itemsize


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    # In C order; memory of numbers is a buffer, though the types do not say so.
    return memoryview(np.ascontiguousarray(array).reshape(-1)).cast("B")  # type: ignore[arg-type]


def _read(stream: socket.socket, num_bytes: int) -> bytes:
    buffer = bytearray(num_bytes)
    _fill(stream, memoryview(buffer))
    return bytes(buffer)


def _fill(stream: socket.socket, buffer: memoryview) -> None:
    while buffer:
        num_bytes = stream.recv_into(buffer)
        if not num_bytes:
            raise EOFError
        buffer = buffer[num_bytes:]

"""Framing of arrays and JSON values on a stream between two processes of one machine.

    | bytes of the head | bytes of the arrays |         head          |      arrays       |
    |      8 bytes      |       8 bytes       | JSON: kind, facts,    | one after another |
    |                   |                     | names, dtypes, shapes |                   |

Pickle is never used, because the contents come from the network. All sizes are checked against a
limit before memory is allocated.

Callers: `control_server.py`; both ends of the two sockets of `flower/`.
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
# For each array: its name, NumPy's name of its dtype, its shape.
Plan: TypeAlias = list[list[Any]]

MAX_HEAD_BYTES = 64 * 2**20
MAX_ARRAYS_BYTES = 16 * 2**30
# Booleans, integers, floats and complex numbers: the kinds that NumPy can read from plain bytes.
_KINDS = "biufc"
_SIZES = struct.Struct(">QQ")
# The operating system limits the path of a socket to 107 bytes.
_MAX_PATH = 107


class WireError(ValueError):
    """Raised when received bytes are not a frame, or a message cannot be encoded as one."""


@dataclass(frozen=True, eq=False)
class Frame:
    """One message on a stream.

    Attributes:
        kind: Type of the message, which tells the receiver how to handle it.
        facts: JSON values.
        arrays: Name -> array. `send` does not modify or copy them, so other threads must not modify
            them while it runs.
    """

    kind: str
    facts: Facts = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)


def send(stream: socket.socket, frame: Frame) -> None:
    """Send a complete frame.

    Raises:
        WireError: An array is not numeric, JSON cannot hold the facts, or the frame is larger
            than allowed.
        OSError: The other end is gone.
    """
    plan, pieces = flatten(frame.arrays)
    try:
        head = json.dumps([frame.kind, dict(frame.facts), plan]).encode()
    except (TypeError, ValueError) as error:
        raise WireError(f"{frame.kind}: cannot be encoded as JSON: {error}.") from error
    num_bytes = sum(map(len, pieces))
    if len(head) > MAX_HEAD_BYTES or num_bytes > MAX_ARRAYS_BYTES:
        raise WireError(
            f"{frame.kind}: {len(head)} bytes of header and {num_bytes} bytes of arrays exceed the "
            f"limits of {MAX_HEAD_BYTES} and {MAX_ARRAYS_BYTES}."
        )
    stream.sendall(_SIZES.pack(len(head), num_bytes) + head)
    for piece in pieces:
        stream.sendall(piece)


def receive(stream: socket.socket) -> Frame:
    """Wait for a frame and return it.

    Raises:
        EOFError: The other end was closed, between two frames or within one.
        WireError: The bytes are not a frame.
        OSError: The connection broke or timed out.
    """
    head_bytes, arrays_bytes = _SIZES.unpack(_read(stream, _SIZES.size))
    if head_bytes > MAX_HEAD_BYTES or arrays_bytes > MAX_ARRAYS_BYTES:
        raise WireError(
            f"A frame with {head_bytes} bytes of header and {arrays_bytes} bytes of "
            "arrays exceeds the limit."
        )
    head = _read(stream, head_bytes)
    try:
        kind, facts, plan = json.loads(head)
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"The header of a frame cannot be read: {error}") from error
    if not (isinstance(kind, str) and isinstance(facts, dict)):
        raise WireError(f"Not a frame: it starts with {str(kind)[:40]!r}.")
    arrays = empty_arrays(plan, arrays_bytes)
    for array in arrays.values():
        if array.nbytes:
            _fill(stream, _bytes_of(array))
    return Frame(kind, facts, arrays)


def flatten(arrays: Arrays) -> tuple[Plan, list[memoryview]]:
    """Return the layout of arrays in one sequence of bytes, and the bytes of each array.

    Returns:
        The layout: [name, dtype, shape] of each array, in order. And the bytes: a view for each
        array that is not empty.

    Raises:
        WireError: An array is not numeric.
    """
    plan, pieces = [], []
    for name, given in arrays.items():
        array = np.asarray(given)
        if array.dtype.kind not in _KINDS:
            raise WireError(
                f"{name!r} is an array of {array.dtype}; only numeric arrays can be sent."
            )
        plan.append([name, array.dtype.str, list(array.shape)])
        if array.nbytes:
            pieces.append(_bytes_of(array))
    return plan, pieces


def empty_arrays(plan: Any, num_bytes: int) -> dict[str, np.ndarray[Any, Any]]:
    """Allocate arrays as a received plan describes them, after checking the plan.

    Args:
        plan: A layout as `flatten` returns it. It was received, so it may be malformed or hostile.
        num_bytes: Number of bytes that will fill the arrays.

    Raises:
        WireError: `plan` is not a layout, or its arrays have another number of bytes.
    """
    try:
        entries = [_entry(entry) for entry in plan]
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(f"{str(plan)[:80]} is not a valid array layout: {error}") from error
    if sum(entry_bytes for *_, entry_bytes in entries) != num_bytes:
        raise WireError("The length of the arrays differs from the length in their layout.")
    try:
        arrays = {name: np.empty(shape, dtype) for name, dtype, shape, _ in entries}
    except (ValueError, OverflowError, MemoryError) as error:
        # A shape with an axis of 2^70 and one of 0 has zero bytes and passes the size check.
        raise WireError(f"Arrays with this layout cannot be allocated: {error}") from error
    if len(arrays) != len(entries):
        raise WireError("Two arrays have the same name.")
    return arrays


def fill(arrays: Arrays, content: bytes) -> None:
    """Copy bytes into arrays in place, one after another; the sizes must match exactly."""
    offset = 0
    for array in arrays.values():
        if array.nbytes:
            _bytes_of(array)[:] = memoryview(content)[offset : offset + array.nbytes]
            offset += array.nbytes


def listen(path: Path) -> socket.socket:
    """Return a listening socket that only this user can connect to; replaces a file at its path.

    Raises:
        OSError: The socket cannot be created there, or the path is too long for a socket.
    """
    _check_path(path)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        # Before `listen`, so that no other user can connect first.
        path.chmod(0o600)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def connect(path: Path, timeout_s: float | None = None) -> socket.socket:
    """Connect to the process that listens at a path.

    Raises:
        OSError: No process listens there, or the path is too long for a socket.
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
        raise WireError(f"An entry {str(entry)[:80]} is not a numeric array.")
    return name, dtype, tuple(shape), math.prod(shape) * dtype.itemsize


def _bytes_of(array: np.ndarray[Any, Any]) -> memoryview:
    # In C order; NumPy arrays support the buffer protocol, though their types do not declare it.
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

"""Reads the memory of values that are neither arrays nor plain objects, to find out if they change.

These are values of ctypes, `bytearray`, `array.array`, and the values that processes share:
`multiprocessing.Value`, `Array` and `SharedMemory`.

Callers: `torch/untracked_state.py`, `engines/file_variables.py`.
"""

from __future__ import annotations

import array
import ctypes
from typing import Any

# The base class of the numbers of ctypes has no public name.
_NUMBER: Any = ctypes.c_int.__mro__[1]
_TYPES: Any = _NUMBER, ctypes.Array, ctypes.Structure, bytearray, array.array, memoryview


def raw_memory(value: Any) -> memoryview | None:
    """Return the bytes of a value that consists of raw memory.

    Returns:
        Its memory, 1-D, not a copy. None if the value is of another kind, or has no bytes.

    Example:
        >>> bytes(raw_memory(bytearray(b"ab")))
        b'ab'
    """
    if type(value).__module__ == "multiprocessing.shared_memory":
        value = getattr(value, "buf", None)
    elif type(value).__module__ == "multiprocessing.sharedctypes":
        value = value.get_obj() if hasattr(value, "get_obj") else value
    if not isinstance(value, _TYPES):
        return None
    memory = memoryview(value)
    # Values of ctypes have formats that only `cast` reads; an empty view cannot be cast.
    return memory.cast("B") if memory.nbytes and memory.c_contiguous else None

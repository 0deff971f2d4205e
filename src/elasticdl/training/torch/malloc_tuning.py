"""Keeps freed memory in the process after a step, so that the next step can use it at once.

At the end of a step nearly all memory that it allocated is free. glibc then returns the end of its
heap to the system, and the next step faults in each of its pages again: up to 5 % of a step on a
CPU (ResNet-18: 12,000 pages per step). A plain loop often avoids this because it keeps gradients
until the next step, and these are located at the end of the heap.

Callers: `trainer.py`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from typing import Any

import numpy as np

# malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_NEVER = -1
# The largest value that glibc accepts. By default glibc raises the threshold to it when such blocks
# are freed, but no longer once the other option is set. Larger blocks are returned when they are
# freed; see `ReusedArray`.
_LARGEST_IN_HEAP_BYTES = 32 * 2**20
# Settings with which a user controls the allocator.
_SETTINGS = {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"}


@functools.cache
def keep_freed_memory() -> None:
    """Make the heap of this process keep freed memory until the process ends.

    Does nothing if the user has configured the allocator, or with another C library than glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or _SETTINGS & os.environ.keys():
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_IN_HEAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _NEVER)


class ReusedArray:
    """Provides a large float32 array for each step, in the memory of the last step's array.

    This saves the time to allocate memory for each step. If the last array is still referenced
    elsewhere, or has another size, a new one is allocated.
    """

    def __init__(self) -> None:
        self._array = np.empty(0, np.float32)
        # The number of references to an otherwise unused array depends on the interpreter.
        self._num_own_references = self._num_references()

    def of_size(self, size: int) -> np.ndarray[Any, Any]:
        """Return an uninitialized array [size] whose memory is not in use elsewhere."""
        # A view of an array, or a tensor made from it, counts as a reference to it.
        is_free = self._num_references() == self._num_own_references
        if not is_free or self._array.size != size:
            self._array = np.empty(size, np.float32)
        return self._array

    def _num_references(self) -> int:
        return sys.getrefcount(self._array)

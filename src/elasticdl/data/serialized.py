"""Arranges serialized records of equal length as the rows of one array, to decode them together.

That is faster than decoding one record after the other. How records are copied to the array depends
on their storage: `Listed` copies them from a list, `bytes_unit.py` directly from the units of a
source, without a `bytes` object for each.

Callers: `example_groups.py`, `bytes_unit.py`.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    Array: TypeAlias = np.ndarray[Any, Any]


class Serialized(Protocol):
    """Serialized records, read one by one or as 2-D arrays of records of one length."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, row: int, /) -> bytes:
        """Return one record."""
        ...

    def blocks(self, smallest: int) -> Iterator[tuple[list[int], Array | None]]:
        """Yield the records grouped by length.

        Args:
            smallest: Smallest group that is returned as an array.

        Yields:
            For each length: the indices of the records of that length; and these records, in this
            order, as rows of an array, uint8 `[records, length]`. The array is None for fewer than
            `smallest` records. The next array may use the same memory.
        """
        ...


class Listed:
    """Serialized records that are in a list of `bytes`; implements `Serialized`."""

    def __init__(self, records: Sequence[bytes]) -> None:
        self._records = records

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, row: int) -> bytes:
        return self._records[row]

    def blocks(self, smallest: int) -> Iterator[tuple[list[int], Array | None]]:
        """Yield the records grouped by length; see `Serialized.blocks`."""
        by_length: dict[int, list[int]] = {}
        for row, record in enumerate(self._records):
            by_length.setdefault(len(record), []).append(row)
        for length, rows in by_length.items():
            if len(rows) < smallest:
                yield rows, None
                continue
            with scratch_buffer(len(rows), length) as block:
                room = block.reshape(-1).data
                for i, row in enumerate(rows):
                    room[i * length : (i + 1) * length] = self._records[row]
                yield rows, block


_room = threading.local()
_MAX_ROOM_KEPT_BYTES = 1 << 25


@contextlib.contextmanager
def scratch_buffer(num_records: int, length: int) -> Iterator[Array]:
    """Context manager that lends an array from a buffer, which each thread reuses.

    Allocating memory of this size for each use would take longer than decoding the records. A
    nested call in the same thread gets another buffer.

    Args:
        num_records: Number of records.
        length: Bytes in each record.

    Yields:
        uint8 `[records, length]`, not initialized.
    """
    num_bytes = num_records * length
    kept: Array | None = getattr(_room, "kept", None)
    _room.kept = None
    if kept is None or kept.size < num_bytes:
        kept = np.empty(num_bytes, np.uint8)
    try:
        yield kept[:num_bytes].reshape(num_records, length)
    finally:
        if kept.size <= _MAX_ROOM_KEPT_BYTES:
            _room.kept = kept

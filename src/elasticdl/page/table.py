"""Growable table of NumPy columns; its memory is at most a small multiple of its contents.

It stores the steps in a job's event log, which may be millions.

Callers: `history.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

_FIRST_LENGTH = 256


class GrowingTable:
    """NumPy columns of equal length to which rows can be appended.

    Args:
        columns: Name -> type of its values.

    Example:
        >>> table = GrowingTable({"step": np.int64})
        >>> table.append({"step": np.array([1, 2])})
        >>> table["step"].tolist(), len(table)
        ([1, 2], 2)
    """

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self._arrays = {name: np.empty(_FIRST_LENGTH, kind) for name, kind in columns.items()}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._arrays[name][: self._length]

    def append(self, values: Mapping[str, npt.NDArray[Any]]) -> None:
        """Append to every column; `values` must contain all columns, with equal lengths."""
        before = self._length
        self._length += len(next(iter(values.values())))
        for name, array in self._arrays.items():
            grown = array
            if self._length > len(array):
                grown = np.empty(max(self._length, 4 * len(array)), array.dtype)
                grown[:before] = array[:before]
                self._arrays[name] = grown
            grown[before : self._length] = values[name]

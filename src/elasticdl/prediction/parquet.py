"""Predictions as Parquet: typed columns, arrays as lists of fixed size.

This is the only file of the folder that knows pyarrow.

Callers: `parts.py`, which loads it when this format is asked for.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from elasticdl.prediction.rows import KEY, as_bytes, is_text, plain_floats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elasticdl.prediction.rows import Columns, Field

# Rows are collected into groups of about this size: small groups make a file slow to read.
_GROUP_BYTES = 32 << 20


class RowWriter:
    """Writes rows into a new file."""

    def __init__(self, path: Path, fields: Sequence[Field]) -> None:
        del fields  # the first rows say what the columns are
        self._path = path
        self._writer: Any = None
        self._tables: list[Any] = []
        self._num_bytes = 0

    def write(self, keys: Sequence[str], columns: Columns) -> None:
        """Append rows.

        Raises:
            OSError: They cannot be written.
        """
        arrays = [_as_column(array) for array in columns.values()]
        table = pa.table([pa.array(keys, pa.string()), *arrays], [KEY, *columns])
        self._tables.append(table)
        self._num_bytes += table.nbytes
        if self._num_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)
        self._tables, self._num_bytes = [], 0
        if self._writer is None:
            self._writer = pyarrow.parquet.ParquetWriter(str(self._path), table.schema)
        self._writer.write_table(table, row_group_size=table.num_rows)

    def close(self) -> None:
        """Complete the file."""
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def discard(self) -> None:
        """Leave the file as it is; it is going to be removed."""
        if self._writer is not None:
            self._writer.close()


def _as_column(array: np.ndarray[Any, Any]) -> Any:
    if array.dtype.kind == "U":
        column = pa.array([value.decode() for value in as_bytes(array)], pa.string())
    elif is_text(array):
        column = pa.array(as_bytes(array), pa.binary())
    else:
        column = pa.array(plain_floats(array).ravel())
    for axis in reversed(range(1, array.ndim)):
        size = array.shape[axis]
        if size > 0:
            column = pa.FixedSizeListArray.from_arrays(column, size)
        else:
            # pyarrow has no lists of fixed size 0.
            offsets = np.zeros(math.prod(array.shape[:axis]) + 1, np.int32)
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column

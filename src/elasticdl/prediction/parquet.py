"""Predictions as Parquet: typed columns, arrays as lists of fixed size, single numbers as they are.

The only file of the folder that imports pyarrow.

Callers: `parts.py` and `target.py`, which load it when this format is requested.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from elasticdl.errors import DataError
from elasticdl.prediction.input_columns import arrow_type
from elasticdl.prediction.rows import KEY, as_bytes, is_text, missing, plain_floats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from elasticdl.prediction.rows import Columns, PredictionField

# Rows are collected into groups of about this size, because small groups are slow to read.
_GROUP_BYTES = 32 << 20
# Rows of a group in a joined file, regardless of the parts they come from.
_JOINED_ROWS = 1 << 16


class RowWriter:
    """Writes predictions as rows of a new Parquet file."""

    def __init__(self, path: Path, fields: Sequence[PredictionField]) -> None:
        del fields  # the first rows define the columns
        self._path = path
        self._writer: Any = None
        self._tables: list[Any] = []
        self._num_bytes = 0

    def write(self, keys: Sequence[str], columns: Columns) -> None:
        """Append rows.

        Raises:
            OSError: The rows cannot be written.
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
        """Close the unfinished file; the caller removes it."""
        if self._writer is not None:
            self._writer.close()


def join(parts: Iterable[Path], joined: Path) -> None:
    """Write the rows of Parquet parts into one new file, in the order of the parts."""
    writer: Any = None
    waiting: list[Any] = []
    count = 0

    def write(*, everything: bool) -> None:
        nonlocal waiting, count
        table = pa.concat_tables(waiting)
        stop = table.num_rows if everything else table.num_rows // _JOINED_ROWS * _JOINED_ROWS
        writer.write_table(table.slice(0, stop), row_group_size=_JOINED_ROWS)
        waiting, count = [table.slice(stop)], table.num_rows - stop

    for part in parts:
        with pyarrow.parquet.ParquetFile(part) as source:
            if writer is None:
                writer = pyarrow.parquet.ParquetWriter(str(joined), source.schema_arrow)
            for batch in source.iter_batches(_JOINED_ROWS):
                waiting.append(pa.table(batch))
                count += batch.num_rows
                if count >= _JOINED_ROWS:
                    write(everything=False)
    if writer is None:
        pyarrow.parquet.write_table(pa.table({KEY: pa.array([], pa.string())}), str(joined))
        return
    write(everything=True)
    writer.close()


def first_key(path: Path) -> bytes | None:
    """Return the key in the first row of a file, which shows whether the file is a prediction.

    The key of a prediction has the form `FILE:NUMBER`. The result is empty if the rows have no key,
    and None if there are no rows.

    Raises:
        DataError: The file is not a Parquet file.
    """
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            if KEY not in file.schema_arrow.names:
                return b""
            batch = next(file.iter_batches(1, columns=[KEY]), None)
    except pa.ArrowException as error:
        raise DataError(f"{path}: {error}") from error
    if batch is None or not batch.num_rows:
        return None
    key = batch.column(0)[0].as_py()
    return key.encode() if isinstance(key, str) else b""


def _as_column(array: np.ndarray[Any, Any]) -> Any:
    gone = missing(array)
    mask = None if gone is None else gone.ravel()
    array = np.ma.getdata(array)
    # In a model's outputs, objects are byte strings.
    is_str = gone is not None and all(isinstance(value, str) for value in array.ravel())
    if array.dtype.kind == "U" or is_str:
        texts = [value.decode() for value in as_bytes(array)]
        column = pa.array(texts, pa.string(), mask=mask)
        if (kind := arrow_type(array.dtype)) is not None:
            column = column.cast(kind)
    elif is_text(array):
        column = pa.array(as_bytes(array), pa.binary(), mask=mask)
    else:
        values = array if array.dtype.kind == "m" else plain_floats(array)
        column = pa.array(values.ravel(), mask=mask)
    if math.prod(array.shape[1:]) == 1:
        return column
    for axis in reversed(range(1, array.ndim)):
        size = array.shape[axis]
        if size > 0:
            column = pa.FixedSizeListArray.from_arrays(column, size)
        else:
            # pyarrow has no lists of fixed size 0.
            offsets = np.zeros(math.prod(array.shape[:axis]) + 1, np.int32)
            column = pa.ListArray.from_arrays(pa.array(offsets), column)
    return column

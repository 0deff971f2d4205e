"""Predictions as RecordIO: each row a serialized `tf.Example`, like training data.

A `tf.Example` holds only lists of float32, int64 and bytes: float64 is rounded, and arrays are
flattened. If the output is a folder, its manifest contains the original types and shapes. Files of
rows can be concatenated.

Callers: `parts.py`; `target.py` joins parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.example import encode
from elasticdl.data.recordio import RecordIOSource, Writer
from elasticdl.errors import DefinitionError
from elasticdl.prediction.rows import KEY, as_bytes, is_text, missing, plain_floats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from elasticdl.prediction.rows import Columns, PredictionField

_INT64_MAX = np.iinfo(np.int64).max
_ROWS_AT_ONCE = 4096


class RowWriter:
    """Writes predictions as records of a new RecordIO file, each a serialized `tf.Example`."""

    def __init__(self, path: Path, fields: Sequence[PredictionField]) -> None:
        del fields  # every record describes itself
        self._writer = Writer(str(path))

    def write(self, keys: Sequence[str], columns: Columns) -> None:
        """Append rows.

        Raises:
            OutputError: The rows cannot be written.
            DefinitionError: A number does not fit into an int64.
        """
        lists = {name: _as_lists(name, array) for name, array in columns.items()}
        for row, key in enumerate(keys):
            features = {name: values[row] for name, values in lists.items()}
            self._writer.write(encode({KEY: [key.encode()], **features}))

    def close(self) -> None:
        """Complete the file."""
        self._writer.close()

    def discard(self) -> None:
        """Close the unfinished file; the caller removes it."""
        self._writer.discard()


def join(parts: Iterable[Path], joined: Path) -> None:
    """Write the rows of RecordIO parts into one new file, in the order of the parts.

    The rows are written one by one. If the parts' chunks were copied, the file would depend on the
    sizes of the parts, and so on the number of workers.
    """
    with Writer(str(joined)) as writer:
        for part in parts:
            rows = RecordIOSource([str(part)])
            for start in range(0, rows.num_records, _ROWS_AT_ONCE):
                stop = min(start + _ROWS_AT_ONCE, rows.num_records)
                for row in rows.read_bytes(start, stop):
                    writer.write(row)


def first_key(path: Path) -> bytes | None:
    """Return the key in the first row of a file, which shows whether the file is a prediction.

    The key of a prediction has the form `FILE:NUMBER`. The result is empty if the rows have no key,
    and None if there are no rows.

    Raises:
        DataError: The file is not a RecordIO file.
    """
    source = RecordIOSource([str(path)])
    if source.num_records == 0:
        return None
    keys = source.read_records(0, 1, None)[0].get(KEY)
    key = keys[0] if keys is not None and len(keys) == 1 else b""
    return key if isinstance(key, bytes) else b""


def _as_lists(name: str, array: np.ndarray[Any, Any]) -> Sequence[Any] | np.ndarray[Any, Any]:
    """Return each row as a list for a `tf.Example`; a missing value is an empty list."""
    gone = missing(array)
    if gone is not None:
        rows = _as_lists(name, np.ma.getdata(array))
        lost = [row.any() for row in gone]
        return [row[:0] if is_lost else row for row, is_lost in zip(rows, lost, strict=True)]
    if is_text(array):
        size = int(np.prod(array.shape[1:]))
        values = as_bytes(array)
        return [values[row * size : (row + 1) * size] for row in range(len(array))]
    array = plain_floats(array)
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, np.float32).reshape(len(array), -1)
    if array.dtype.kind == "u" and array.size and array.max() > _INT64_MAX:
        raise DefinitionError(
            f"The model's output {name!r} holds {array.max()}; a tf.Example cannot hold integers "
            f"above {_INT64_MAX}. Write with --format=parquet."
        )
    return array.astype(np.int64).reshape(len(array), -1)

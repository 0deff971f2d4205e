"""Predictions as RecordIO: each row a serialized `tf.Example`, as training data are.

An example has lists of float32, int64 and bytes only: float64 is rounded, and shapes are
flattened (a folder's manifest tells both). Files of rows can be joined end to end.

Callers: `parts.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.example import encode
from elasticdl.data.recordio import Writer
from elasticdl.errors import DefinitionError
from elasticdl.prediction.rows import KEY, as_bytes, is_text, plain_floats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elasticdl.prediction.rows import Columns, Field

_INT64_MAX = np.iinfo(np.int64).max


class RowWriter:
    """Writes rows into a new file."""

    def __init__(self, path: Path, fields: Sequence[Field]) -> None:
        del fields  # every record says itself what it holds
        self._writer = Writer(str(path))

    def write(self, keys: Sequence[str], columns: Columns) -> None:
        """Append rows.

        Raises:
            OutputError: They cannot be written.
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
        """Leave the file as it is; it is going to be removed."""
        self._writer.discard()


def _as_lists(
    name: str, array: np.ndarray[Any, Any]
) -> Sequence[Sequence[bytes]] | np.ndarray[Any, Any]:
    """Return each row as what an example can hold."""
    if is_text(array):
        size = int(np.prod(array.shape[1:]))
        values = as_bytes(array)
        return [values[row * size : (row + 1) * size] for row in range(len(array))]
    array = plain_floats(array)
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, np.float32).reshape(len(array), -1)
    if array.dtype.kind == "u" and array.size and array.max() > _INT64_MAX:
        raise DefinitionError(
            f"The model's output {name!r} holds {array.max()}; a tf.Example has no integers above "
            f"{_INT64_MAX}. Write with --format=parquet."
        )
    return array.astype(np.int64).reshape(len(array), -1)

"""Arrays in memory as a record source: for data that a user's own code has read.

Record i is row i of every array. Whether the arrays fit a model's schema is not checked when the
source is created, but when its records are decoded with the schema.

Callers: `engines/federated/client/data_handlers.py`, for a party's data, which a user's class in
the style of IBM FL loads; `engines/load.py`, to call a model with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.example import decode_batch_schemaless, encode
from elasticdl.data.record_source import RecordFile
from elasticdl.errors import DataError

if TYPE_CHECKING:
    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema


class ArraySource:
    """Rows of arrays as records; see `record_source.RecordSource`.

    Args:
        arrays: Name -> array, with one entry per record along the first axis.
        name: Name of the data in messages.

    Raises:
        DataError: The arrays differ in length, or there are none.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray[Any, Any]], name: str) -> None:
        self._arrays = {key: np.asarray(array) for key, array in arrays.items()}
        self._name = name
        lengths = {key: len(a) if a.ndim else 0 for key, a in self._arrays.items()}
        if len(set(lengths.values())) != 1:
            lengths_text = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise DataError(
                f"{name}: expected arrays with the same number of rows, one row per example; got "
                f"{lengths_text or 'none'}."
            )
        self._num_records = next(iter(lengths.values()))

    @property
    def files(self) -> Sequence[RecordFile]:
        """A single placeholder file with all rows, because the arrays are in memory."""
        return [RecordFile(self._name, self._num_records)]

    @property
    def num_records(self) -> int:
        """Number of rows."""
        return self._num_records

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return rows `start` to `stop` (exclusive) as serialized `tf.Example`s.

        Raises:
            IndexError: The range is not within 0 .. num_records.
        """
        self._check(start, stop)
        return [encode(_row(self._arrays, i)) for i in range(start, stop)]

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return rows `start` to `stop` (exclusive), decoded; see `RecordSource`.

        Raises:
            SchemaError: A row does not fit the schema.
            IndexError: The range is not within 0 .. num_records.
        """

        def where(i: int) -> str:
            return f"{self._name}, row {start + i}"

        raw = self.read_bytes(start, stop)
        if schema is None:
            booleans = {name for name, array in self._arrays.items() if array.dtype == bool}
            return [
                {k: v.astype(bool) if k in booleans else v for k, v in record.items()}
                for record in decode_batch_schemaless(raw, where)
            ]
        return list(schema.decode_batch(raw, where))

    def _check(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self._num_records:
            raise IndexError(f"{start} to {stop} of {self._num_records} records.")


def _row(arrays: Mapping[str, np.ndarray[Any, Any]], number: int) -> dict[str, Any]:
    """Return row `number` of each array in a form that a `tf.Example` can store.

    Returns:
        Name -> values of the row, flattened. Integers and booleans become int64, other numbers
        float32; strings become a list of bytes.
    """
    row: dict[str, Any] = {}
    for name, array in arrays.items():
        value = array[number].reshape(-1)
        if value.dtype.kind in "US":
            row[name] = [str(v).encode() if v.dtype.kind == "U" else bytes(v) for v in value]
        elif value.dtype.kind in "iub":
            row[name] = value.astype(np.int64)
        else:
            row[name] = value.astype(np.float32)
    return row

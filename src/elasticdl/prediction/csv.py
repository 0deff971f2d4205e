"""Predictions as CSV (RFC 4180, UTF-8, a header line): for people and spreadsheets.

An output with one value per row is a column of its name; one with several is flattened into
`NAME_0`, `NAME_1`, ... Floats have as many digits as it takes to read the same value again.

Callers: `parts.py`.
"""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.errors import DefinitionError
from elasticdl.prediction.rows import KEY, as_bytes, is_text, plain_floats

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elasticdl.prediction.rows import Columns, Field


class RowWriter:
    """Writes rows into a new file.

    Raises:
        DefinitionError: Two outputs would share a column.
    """

    def __init__(self, path: Path, fields: Sequence[Field]) -> None:
        header = [KEY, *(name for field in fields for name in _column_names(field))]
        twice = {name for name in header if header.count(name) > 1}
        if twice:
            raise DefinitionError(
                f"Two of the model's outputs would be the CSV column {min(twice)!r}. Rename a "
                "layer, or write with --format=parquet."
            )
        self._file = path.open("w", encoding="utf-8", newline="")
        self._csv = csv.writer(self._file, lineterminator="\n")
        self._csv.writerow(header)

    def write(self, keys: Sequence[str], columns: Columns) -> None:
        """Append rows.

        Raises:
            OSError: They cannot be written.
            DefinitionError: A text is not UTF-8.
        """
        texts = [_as_texts(name, array) for name, array in columns.items()]
        for row, key in enumerate(keys):
            self._csv.writerow([key, *(value for text in texts for value in text[row])])

    def close(self) -> None:
        """Complete the file."""
        self._file.close()

    def discard(self) -> None:
        """Leave the file as it is; it is going to be removed."""
        self._file.close()


def _column_names(field: Field) -> list[str]:
    size = math.prod(field.shape)
    return [field.name] if size == 1 else [f"{field.name}_{i}" for i in range(size)]


def _as_texts(name: str, array: np.ndarray[Any, Any]) -> Any:
    shape = (len(array), math.prod(array.shape[1:]))
    if not is_text(array):
        return plain_floats(array).astype(np.str_).reshape(shape)
    try:
        texts = [value.decode() for value in as_bytes(array)]
    except UnicodeDecodeError as error:
        raise DefinitionError(
            f"The model's output {name!r} holds bytes that are no UTF-8 text. Write with "
            "--format=recordio or --format=parquet."
        ) from error
    return [texts[row * shape[1] : (row + 1) * shape[1]] for row in range(shape[0])]

"""Predictions as CSV (RFC 4180, UTF-8, a header line), for spreadsheets.

An output with one value per row is written as the column `NAME`; one with several values per row as
the columns `NAME_0`, `NAME_1`, ... Floats have enough digits to restore the same value. A missing
value is an empty cell.

Callers: `parts.py`; `target.py` joins parts.
"""

from __future__ import annotations

import csv
import io
import math
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.errors import DataError, DefinitionError
from elasticdl.prediction.rows import KEY, as_bytes, is_text, missing, plain_floats

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from elasticdl.prediction.rows import Columns, PredictionField


class RowWriter:
    """Writes predictions as rows of a new CSV file.

    Args:
        path: Path of the file.
        fields: Name, type and shape of each output.

    Raises:
        DefinitionError: Two outputs would share a column.
    """

    def __init__(self, path: Path, fields: Sequence[PredictionField]) -> None:
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
            OSError: The rows cannot be written.
            DefinitionError: A string is not UTF-8.
        """
        texts = [_as_texts(name, array) for name, array in columns.items()]
        for row, key in enumerate(keys):
            self._csv.writerow([key, *(value for text in texts for value in text[row])])

    def close(self) -> None:
        """Complete the file."""
        self._file.close()

    def discard(self) -> None:
        """Close the unfinished file; the caller removes it."""
        self._file.close()


def join(parts: Iterable[Path], joined: Path) -> None:
    """Write the rows of CSV parts into one new file, with the header once.

    Args:
        parts: The parts, which have the same header.
        joined: Path of the new file.
    """
    number = -1
    with joined.open("wb") as target:
        for number, part in enumerate(parts):
            with part.open("rb") as source:
                if number:
                    source.seek(_header_bytes(part))
                shutil.copyfileobj(source, target)
        if number < 0:
            target.write(f"{KEY}\n".encode())


def _header_bytes(path: Path) -> int:
    """Return the size in bytes of a part's header, which may have line breaks within names."""
    with path.open(encoding="utf-8", newline="") as file:
        header = next(csv.reader(file))
    again = io.StringIO()
    csv.writer(again, lineterminator="\n").writerow(header)
    return len(again.getvalue().encode())


def first_key(path: Path) -> bytes | None:
    """Return the key in the first row of a file, which shows whether the file is a prediction.

    The key of a prediction has the form `FILE:NUMBER`. The result is empty if the rows have no key,
    and None if there are no rows.

    Raises:
        DataError: The file is not a CSV file.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.reader(file)
            header, first = next(rows, []), next(rows, None)
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from error
    if header[:1] != [KEY]:
        return b""
    return None if first is None else "".join(first[:1]).encode()


def _column_names(field: PredictionField) -> list[str]:
    size = math.prod(field.shape)
    return [field.name] if size == 1 else [f"{field.name}_{i}" for i in range(size)]


def _as_texts(name: str, array: np.ndarray[Any, Any]) -> Any:
    shape = (len(array), math.prod(array.shape[1:]))
    gone = missing(array)
    if gone is not None:
        whole = np.asarray(_as_texts(name, np.ma.getdata(array)), object)
        return np.where(gone.reshape(shape), "", whole)
    if not is_text(array):
        return plain_floats(array).astype(np.str_).reshape(shape)
    try:
        texts = [value.decode() for value in as_bytes(array)]
    except UnicodeDecodeError as error:
        raise DefinitionError(
            f"The model's output {name!r} holds bytes that are not UTF-8 text. Write with "
            "--format=recordio or --format=parquet."
        ) from error
    return [texts[row * shape[1] : (row + 1) * shape[1]] for row in range(shape[0])]

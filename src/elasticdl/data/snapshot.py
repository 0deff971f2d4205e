"""Snapshot of a table: its rows as record files, written once and read by any engine.

    Arrow batches --write_snapshot--> FOLDER/training.parquet
                                      FOLDER/validation.parquet   rows held out
                                      FOLDER/snapshot.json        columns; written last

A query returns its rows once and in its own order, while training reads records by number, again
in each epoch, on several machines and after a crash. So the rows are stored first, with memory that
does not grow with their number, and the database is queried only once. A snapshot is complete when
`snapshot.json` exists.

Used by `sql/`.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.column_summary import ColumnSummary, Summarizer
from elasticdl.data.find_files import exists
from elasticdl.data.hash_mixing import shares
from elasticdl.data.row_hash import row_hashes
from elasticdl.data.stored_file import local_path, open_stored
from elasticdl.data.wording import listed
from elasticdl.errors import DataError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np

TRAINING, VALIDATION = "training.parquet", "validation.parquet"
_SUMMARY = "snapshot.json"
_GROUP_ROWS = 1 << 16
_GROUP_BYTES = 32 << 20


class NoRowError(DataError):
    """Raised if there are no rows to train on.

    Args:
        message: The error message.
        num_held_out: Number of rows that were held out.
    """

    def __init__(self, message: str, num_held_out: int = 0) -> None:
        super().__init__(message)
        self.num_held_out = num_held_out


@dataclass(frozen=True)
class FileSnapshot:
    """The stored rows of a table.

    Attributes:
        folder: URI of their folder.
        num_training: Number of rows to train on.
        num_validation: Number of rows that are held out.
        columns: Summary of each column, over the rows of the query: both those to train on and
            those held out of it. Rows of a separate validation query are not included.
        held_out_summary: Summary of one column (`held_column` of `write_snapshot`) over the
            validation rows only. If it is the label, it shows which classes have no such row. None
            if `held_column` was None.
    """

    folder: str
    num_training: int
    num_validation: int
    columns: Sequence[ColumnSummary]
    held_out_summary: ColumnSummary | None = None

    @property
    def training(self) -> str:
        """URI of the rows to train on."""
        return f"{self.folder}/{TRAINING}"

    @property
    def validation(self) -> str | None:
        """URI of the held-out rows; None if there are none."""
        return f"{self.folder}/{VALIDATION}" if self.num_validation else None

    def column(self, name: str) -> ColumnSummary:
        """Return the summary of a column by its name.

        Raises:
            KeyError: There is no such column.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def write_snapshot(
    schema: pa.Schema,
    batches: Iterable[pa.RecordBatch],
    folder: str,
    *,
    held_out: float = 0.0,
    validation: Iterable[pa.RecordBatch] | None = None,
    on_rows: Callable[[int], None] = lambda _: None,
    purpose: str = "train on",
    held_column: str | None = None,
) -> FileSnapshot:
    """Store a table's rows as a Parquet file, and held-out rows as another one.

    Args:
        schema: Schema of the batches.
        batches: The rows.
        folder: URI of a folder; an incomplete snapshot in it is replaced.
        held_out: Share of the rows to hold out, chosen by a hash of each row.
        validation: Rows of a separate validation query, with the same columns; they are stored as
            the held-out rows. Pass them only if `held_out` is 0.
        on_rows: Called with the number of rows so far, after each batch.
        purpose: What the rows are for, worded to follow "The SELECT returned no rows to" in an
            error message.
        held_column: Name of a column, such as the label, for `FileSnapshot.held_out_summary`.

    Raises:
        NoRowError: There are no rows.
        DataError: Two columns share a name, or the validation rows have other
            columns.
        OutputError: The folder cannot be written.
    """
    names = list(schema.names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(
            f"Two columns are called {listed(twice)}. Give one of them another name: "
            "SELECT ... AS other_name."
        )
    path = local_path(folder)
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)
    summarizers = [Summarizer(field.name, field.type) for field in schema]
    held_at = -1 if held_column is None else schema.get_field_index(held_column)
    of_held = None if held_at < 0 else Summarizer(names[held_at], schema.field(held_at).type)
    counts = {TRAINING: 0, VALIDATION: 0}
    with (
        TableWriter(f"{folder}/{TRAINING}", schema) as training,
        TableWriter(f"{folder}/{VALIDATION}", schema) as held,
    ):
        for batch in batches:
            for summarizer, column in zip(summarizers, batch.columns, strict=True):
                summarizer.add(column)
            out = shares(row_hashes(batch)) < held_out
            counts[TRAINING] += training.write(batch, ~out)
            counts[VALIDATION] += held.write(batch, out)
            if of_held is not None:
                of_held.add(batch.column(held_at).filter(pa.array(out)))
            on_rows(sum(counts.values()))
        for batch in validation or ():
            plain = _as(batch, schema)
            counts[VALIDATION] += held.write(plain, None)
            if of_held is not None:
                of_held.add(plain.column(held_at))
    found = FileSnapshot(
        folder,
        counts[TRAINING],
        counts[VALIDATION],
        [each.summary() for each in summarizers],
        None if of_held is None else of_held.summary(),
    )
    if not found.num_training:
        raise NoRowError(f"The SELECT returned no rows to {purpose}.", found.num_validation)
    summary = AtomicFile(f"{folder}/{_SUMMARY}")
    summary.write(_to_json(found))
    summary.publish()
    return found


def read_snapshot(folder: str) -> FileSnapshot | None:
    """Return the snapshot in a folder; None if there is no complete one."""
    where = f"{folder}/{_SUMMARY}"
    if not exists(where):
        return None
    stored = open_stored(where)
    found = json.loads(stored.read(0, stored.size_bytes))
    columns = [ColumnSummary.from_json(column) for column in found["columns"]]
    held = found.get("held")
    return FileSnapshot(
        folder,
        found["num_training"],
        found["num_validation"],
        columns,
        None if held is None else ColumnSummary.from_json(held),
    )


def _to_json(snapshot: FileSnapshot) -> bytes:
    return json.dumps(
        {
            "num_training": snapshot.num_training,
            "num_validation": snapshot.num_validation,
            "columns": [column.to_json() for column in snapshot.columns],
            "held": None
            if snapshot.held_out_summary is None
            else snapshot.held_out_summary.to_json(),
        }
    ).encode()


def _as(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch of validation rows with the columns and types of the training rows.

    Args:
        batch: The validation rows.
        schema: Schema of the training rows; columns are matched by name.

    Raises:
        DataError: A column is missing, or its values cannot be converted to the type.
    """
    missing = [name for name in schema.names if name not in batch.schema.names]
    if missing:
        raise DataError(
            f"The validation rows have no column {missing[0]!r}; they have "
            f"{listed(batch.schema.names)}. Select the same columns for both."
        )
    try:
        columns = [batch.column(field.name).cast(field.type) for field in schema]
    except pa.ArrowException as error:
        raise DataError(
            f"The validation rows and the training rows have different types: {error}."
        ) from error
    return pa.record_batch(columns, schema=schema)


class TableWriter:
    """Writes rows as a Parquet file, in groups of bounded size; a context manager.

    Args:
        uri: The file; it appears when the `with` block ends without an error.
        schema: Schema of the batches.

    Raises:
        OutputError: The file cannot be written.
    """

    def __init__(self, uri: str, schema: pa.Schema) -> None:
        self._file = AtomicFile(uri)
        self._schema = schema
        self._writer = pq.ParquetWriter(
            pa.PythonFile(_Stream(self._file), mode="w"),
            schema,
            compression="zstd",
            write_page_checksum=True,
        )
        self._batches: list[pa.RecordBatch] = []
        self._num_rows = self._num_bytes = 0

    def write(self, batch: pa.RecordBatch, mask: np.ndarray[Any, Any] | None) -> int:
        """Append rows of a batch, and return the number of appended rows.

        Args:
            batch: The rows.
            mask: bool [rows], whether to append each row. None: append all rows.

        Raises:
            OutputError: The file cannot be written.
        """
        if mask is not None and not mask.all():
            batch = batch.filter(pa.array(mask))
        if not batch.num_rows:
            return 0
        self._batches.append(batch)
        self._num_rows += batch.num_rows
        self._num_bytes += batch.nbytes
        if self._num_rows >= _GROUP_ROWS or self._num_bytes >= _GROUP_BYTES:
            self._flush()
        return int(batch.num_rows)

    def _flush(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=_GROUP_ROWS)
        self._batches, self._num_rows, self._num_bytes = [], 0, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._flush()
            self._writer.close()
            self._file.publish()
            return
        # If left open, it would later write its end into the discarded file.
        with contextlib.suppress(OSError, OutputError):
            self._writer.close()
        self._file.discard()


class _Stream:
    """A file object through which pyarrow writes into an `AtomicFile`."""

    closed = False

    def __init__(self, file: AtomicFile) -> None:
        self._file = file
        self._position = 0

    def write(self, data: Any) -> int:
        """Append bytes."""
        self._file.write(bytes(data))
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def flush(self) -> None:
        """Do nothing when pyarrow calls it: only publishing the `AtomicFile` completes the file."""

    def close(self) -> None:
        """Do nothing, as in `flush`: the writer publishes or discards the file itself."""

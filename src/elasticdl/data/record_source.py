"""Record sources: the interface of everything that records can be read from.

Records are numbered 0 .. num_records-1 over all files, in the order of `files`; a range may
span files, so that only the last minibatch of an epoch can be short. Each reader is one file in
this folder (`recordio.py`, `tfrecord.py`, `csv.py`, `parquet.py`, `images.py`); `open_source` in
`sources.py` chooses one by the files' format.

Contract, checked for every reader by `tests/contracts/test_record_source.py`:

* `read_bytes(a, b) + read_bytes(b, c) == read_bytes(a, c)`: ranges are exact, an empty record
  counts as a record, and reading twice gives the same.
* `read_records` decodes the same records that `read_bytes` returns.
* Opening decodes no record. It costs one listing and what the format needs to count records: the
  headers of chunks (RecordIO), the footer (Parquet), the lengths of records (TFRecord), every byte
  once (CSV, compressed TFRecord).
* Opened with an index (`data_index.py`), a reader does not access the storage, and files, units and
  records are the same; a file that has changed since then raises a `DataError` when it is read.
* A damaged byte raises `CorruptDataError`; it never shortens a range.
* A source can be read from several threads and survives pickling (workers open their own).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    from elasticdl.data.batch import Record
    from elasticdl.data.schema import Schema


@dataclass(frozen=True)
class RecordFile:
    """A file and its number of records."""

    uri: str
    num_records: int


@runtime_checkable
class RecordSource(Protocol):
    """Interface of a reader: records that are read by number, from any storage."""

    @property
    def files(self) -> Sequence[RecordFile]:
        """The files in reading order (sorted by URI); their counts add up to `num_records`."""
        ...

    @property
    def num_records(self) -> int:
        """Number of records in all files."""
        ...

    def read_bytes(self, start: int, stop: int) -> list[bytes]:
        """Return records `start` to `stop` (exclusive) as stored.

        Readers of tables and images return each record as a serialized `tf.Example`, so that
        pipelines which parse examples work on them too. For an image, the example has the
        content of the image file.

        Raises:
            CorruptDataError: The file is damaged in this range.
            IndexError: The range is not within 0 .. num_records.
        """
        ...

    def read_records(self, start: int, stop: int, schema: Schema | None) -> list[Record]:
        """Return records `start` to `stop`, decoded.

        Args:
            start: First record.
            stop: One past the last.
            schema: The result of the user's `data_schema()`. None: decode every field as a 1-D
                array, and images as arrays of their own size. Its dtype is the one that
                `read_bytes` stores, but booleans, which a `tf.Example` does not have, are bool.

        Raises:
            CorruptDataError: The file is damaged in this range.
            SchemaError: A record does not fit the schema; the message names file, record and
                field.
            IndexError: The range is not within 0 .. num_records.
        """
        ...


@runtime_checkable
class HasClassNames(Protocol):
    """A record source whose labels are class numbers, and that provides the classes' names."""

    @property
    def classes(self) -> Sequence[str]:
        """Name of each class, in the order of their numbers from 0; empty if it has no classes."""
        ...


@runtime_checkable
class HasClassColumns(Protocol):
    """A record source that may provide the class names for numbers in a column (0 = cat)."""

    def class_columns(self) -> Mapping[str, Sequence[str]]:
        """Return column -> names of its classes, ordered by number; empty if none are known.

        Raises:
            DataError: A file cannot be read.
        """
        ...


@runtime_checkable
class HasColumns(Protocol):
    """A record source whose files have named columns, which are known without reading records."""

    def columns(self, file_index: int) -> Sequence[str]:
        """Return the names of the columns of one file, in order."""
        ...


@runtime_checkable
class TableSource(Protocol):
    """A `RecordSource` whose records are rows of tables.

    The methods defined here return all columns unchanged. `read_records`, in contrast, leaves out
    columns that cannot be a field, and accepts missing values only if a schema allows them.
    """

    def arrow_schema(self) -> pa.Schema:
        """Return the columns, with types that fit all files.

        Raises:
            SchemaError: The files have different columns.
            DataError: A file cannot be read.
        """
        ...

    def arrow_tables(self) -> Iterator[pa.Table]:
        """Yield all rows in order, with the columns and types of `arrow_schema`.

        Raises:
            DataError: A file cannot be read.
        """
        ...

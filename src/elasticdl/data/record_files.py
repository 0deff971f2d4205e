"""Lets user programs write and read record files: `RecordWriter` and `Records`.

    from elasticdl import data

    with data.RecordWriter("points.recordio") as writer:
        writer.write({"x": [1.5, 2.0], "label": 1})

    data.Records("points.recordio")[0]["x"]

Callers: user programs, through `elasticdl.data`.
"""

from __future__ import annotations

import contextlib
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from elasticdl.data.atomic_writer import AtomicWriter
from elasticdl.data.field import STRING, Field
from elasticdl.data.recordio import Writer as RecordIOWriter
from elasticdl.data.schema import Schema
from elasticdl.data.sources import open_source
from elasticdl.data.stored_file import local_path
from elasticdl.data.tfrecord import TFRecordWriter
from elasticdl.data.wording import shown
from elasticdl.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from elasticdl.data.batch import Record
    from elasticdl.data.recordio_chunk import Compressor

_WRITERS = {".recordio": RecordIOWriter, ".tfrecord": TFRecordWriter, ".tfrecords": TFRecordWriter}
_RECORDS_AT_ONCE = 1024


class RecordWriter(AtomicWriter):
    """Writes records into a RecordIO or TFRecord file, as serialized `tf.Example`s.

    Used in a `with` statement: the file appears as a whole at its end; an exception in its body
    leaves no file.

    Args:
        path: A path or a URI that ends with `.recordio`, `.tfrecord` or `.tfrecords`. An existing
            file is replaced at the end; its folder is created.
        schema: The fields of each record, as `data_schema()` of a model file returns them. By
            default, each field has the shape and dtype of its value in the first record.
        compressor: RecordIO: `none`, `snappy` (default) or `gzip`; TFRecord: `none` (default),
            `gzip` or `zlib`.

    Raises:
        UsageError: The ending or the compressor is unknown.
        DefinitionError: The schema is invalid.
        OutputError: The file cannot be written.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/points.recordio"
        >>> with RecordWriter(path) as writer:
        ...     writer.write({"x": [1.5, 2.0], "label": 1})
        ...     writer.write({"x": [0.0, 3.0], "label": 0})
        >>> [int(record["label"][0]) for record in Records(path)]
        [1, 0]
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        schema: Any = None,
        *,
        compressor: Compressor | None = None,
    ) -> None:
        uri = os.fspath(path)
        writer = _WRITERS.get(PurePath(uri).suffix)
        if writer is None:
            raise UsageError(
                f"{uri}: expected a name that ends with {', '.join(sorted(_WRITERS))}."
            )
        self._schema = None if schema is None else Schema.from_user(schema, "schema")
        _make_folder(uri)
        self._file = writer(uri) if compressor is None else writer(uri, compressor)
        self._num_records = 0

    @property
    def schema(self) -> list[dict[str, Any]] | None:
        """The fields of the records, in the form that `data_schema()` of a model file returns.

        None before the first record, if no schema was given.
        """
        return None if self._schema is None else [field.entry() for field in self._schema.fields]

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a record.

        Args:
            record: Field name -> value: a number, string, bytes, an array, or nested lists.

        Raises:
            SchemaError: A field is missing, unknown or of a wrong shape, or its value would change
                (3.5 for an integer).
            OutputError: The file cannot be written.
            ValueError: The file is closed.
        """
        where = f"Record {self._num_records}"
        if self._schema is None:
            self._schema = _schema_of(record, where)
        self._file.write(self._schema.encode(record, where))
        self._num_records += 1

    def close(self) -> None:
        """Complete the file; it appears under its name.

        Raises:
            OutputError: The file cannot be written; none is left.
        """
        self._file.close()

    def discard(self) -> None:
        """Close without publishing: no file appears, and an existing one is kept."""
        self._file.discard()


class Records(Sequence[Mapping[str, Any]]):
    """The records of files, folders or patterns, in any format that ElasticDL reads.

    A sequence: it supports `len()`, indices and slices, and iterating over it takes bounded memory.

    Args:
        data: A path, a URI or a glob; separate several with commas.
        schema: The fields to read, as `data_schema()` of a model file returns them. By default,
            all fields. RecordIO and TFRecord store no shapes: without a schema, a field is a list
            of float32, int64 or bytes.

    Raises:
        DataError: A file cannot be read, or has an unknown format.
        NoDataError: There are no records.
        DefinitionError: The schema is invalid.
    """

    def __init__(self, data: str | os.PathLike[str], schema: Any = None) -> None:
        self._source = open_source(os.fspath(data))
        self._schema = None if schema is None else Schema.from_user(schema, "schema")

    def __len__(self) -> int:
        return self._source.num_records

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        """Return a record, or a list of records: field name -> array.

        Raises:
            IndexError: There is no such record.
            SchemaError: A record does not have the fields of the schema.
            CorruptDataError: A file violates its format.
        """
        if isinstance(index, slice):
            numbers = range(len(self))[index]
            if numbers.step != 1:
                return [self[number] for number in numbers]
            return self._read(numbers.start, max(numbers.start, numbers.stop))
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"There is no record {number}: there are {len(self)}.")
        number %= len(self)
        return self._read(number, number + 1)[0]

    def __iter__(self) -> Iterator[Record]:
        for start in range(0, len(self), _RECORDS_AT_ONCE):
            yield from self._read(start, min(start + _RECORDS_AT_ONCE, len(self)))

    def _read(self, start: int, stop: int) -> list[Record]:
        return self._source.read_records(start, stop, self._schema)


def _make_folder(uri: str) -> None:
    """Create the parent folder of a local file, as `--output` of the commands does."""
    if (path := local_path(uri)) is not None:
        # If that fails, opening the file does, with the reason.
        with contextlib.suppress(OSError):
            Path(path).parent.mkdir(parents=True, exist_ok=True)


def _schema_of(record: Any, where: str) -> Schema:
    """Return a schema that fits a record: each field has the shape and dtype of its value.

    Args:
        record: Field name -> value.
        where: Name of the record, as the start of an error.

    Raises:
        SchemaError: The record is not a dict, or a value cannot be stored.
    """
    if not isinstance(record, Mapping) or not record:
        raise SchemaError(f"{where}: expected a dict of fields, got {shown(record)}.")
    return Schema(tuple(_field_of(name, value, where) for name, value in record.items()))


def _field_of(name: str, value: Any, where: str) -> Field:
    try:
        array = np.asarray(value)
    except ValueError:
        raise SchemaError(
            f"{where}, field {name!r}: its lists have different lengths; expected an array, or "
            f"lists that make one. It is {shown(value)}."
        ) from None
    if array.dtype.kind in "SUO":
        if not all(isinstance(each, (str, bytes)) for each in array.ravel().tolist()):
            raise SchemaError(
                f"{where}, field {name!r}: expected numbers, text or bytes, got {shown(value)}."
            )
        return Field(name, array.shape, STRING)
    if array.dtype.kind not in "biuf":
        raise SchemaError(
            f"{where}, field {name!r}: values of the dtype {array.dtype} cannot be stored; "
            "expected numbers, text or bytes."
        )
    return Field(name, array.shape, array.dtype)

"""Divides a data set into parts and writes each to separate files.

    files --open_source--> hashes, classes --assigned_parts--> part of each record
      |                                                            |
      +-- each file is read once, in order ------------------------+--> OUTPUT/PART/FILE

If a part gets records of an input file, the part has one output file for them: of the same format,
in the same order, and compressed (`.gz`) if the input file is. Rows of CSV files and serialized
records are copied byte by byte. The output appears as a whole: it is written to a hidden folder
beside it, which is renamed at the end.

`split_parts.py` decides which record goes where.

Callers: `cli/data_split.py`.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import secrets
import shutil
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from elasticdl import durable
from elasticdl.data import recordio, tfrecord
from elasticdl.data.field import STRING
from elasticdl.data.formats import format_of
from elasticdl.data.schema import Field, Schema
from elasticdl.data.sources import open_source
from elasticdl.data.split import RecordHashes
from elasticdl.data.split_parts import ClassCodes, assigned_parts
from elasticdl.data.stored_file import local_path
from elasticdl.data.units import HasDecodedSize
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import OutputError, OutputTakenError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.split_parts import PartNumbers, SplitPart

_RECORDS_AT_ONCE = 256
_GZIP = ".gz"


class WrittenPart(NamedTuple):
    """A part of a data set, as `split_files` wrote it.

    Attributes:
        folder: Its folder.
        num_records: Number of its records.
        num_files: Number of its files.
    """

    folder: str
    num_records: int
    num_files: int


class Progress(Protocol):
    """Interface of a callback that receives the progress of a split."""

    def __call__(self, title: str, done: int, total: int) -> None:
        """Report that `done` of `total` records are processed in the pass called `title`."""


def split_files(
    data: str,
    output: str,
    parts: Sequence[SplitPart],
    *,
    stratify: str | None = None,
    seed: int = 0,
    on_progress: Progress,
) -> list[WrittenPart]:
    """Divide the records of some files into parts, and write a folder of files for each part.

    Args:
        data: Names of files, folders or patterns, separated by commas.
        output: The folder to write; it must be new or empty, and on this machine.
        parts: The parts.
        stratify: Name of a field, such as the label: the records with each value of it are divided
            among the parts by their shares. None: divide all records without regard to values.
        seed: Determines which records each part gets. The same data and seed give the same parts.
        on_progress: Called with the progress.

    Returns:
        The parts that were written, in order.

    Raises:
        UsageError: A part gets no record, or the field cannot be used.
        DataError: The data cannot be read.
        OutputTakenError: The output contains files.
        OutputError: The output cannot be written.
    """
    target = _new_folder(output)
    source = open_source(data)
    if isinstance(source, HasDecodedSize):
        raise UsageError(
            f"{data} is a folder of images, which are not copied. Train with --validation_split, "
            "or move the images into folders such as pictures/train/cat and pictures/test/cat."
        )
    hashes, _ = RecordHashes(source.files, seed).between(0, source.num_records)
    codes = None if stratify is None else _codes(source, stratify, len(parts), on_progress)
    assigned = assigned_parts(hashes, codes, parts)
    names = _names(source)
    aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    with _removed_on_error(aside):
        for part in parts:
            (aside / part.name).mkdir(parents=True)
        first = 0
        for index, file in enumerate(source.files):
            here = assigned[first : first + file.num_records]
            if file.num_records:
                paths = [aside / part.name / names[index] for part in parts]
                for done in _write_file(source, index, first, here, paths):
                    on_progress("Writing", first + done, source.num_records)
            first += file.num_records
        num_files = [len(list((aside / part.name).iterdir())) for part in parts]
        durable.replace(aside, target)
    counts = np.bincount(assigned, minlength=len(parts)).tolist()
    folders = (str(Path(output, part.name)) for part in parts)
    return [WrittenPart(*each) for each in zip(folders, counts, num_files, strict=True)]


def _new_folder(output: str) -> Path:
    path = local_path(output)
    if path is None:
        raise UsageError(
            f"--output={output}: the parts are written to a folder of this machine, where they "
            "appear as a whole. Choose one, and copy it."
        )
    folder = Path(path).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputTakenError(
            f"{output} exists and is not an empty folder. Nothing is overwritten: choose another "
            "--output."
        )
    return folder


@contextlib.contextmanager
def _removed_on_error(aside: Path) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if isinstance(error, OSError):
            raise OutputError(
                f"{error.filename or aside}: the parts cannot be written: "
                f"{error.strerror or error}. Partial output was removed."
            ) from error
        raise


def _names(source: RecordSource) -> list[str]:
    """Return the name that each input file gets in the output.

    It is the name of the input file, with `.recordio` added if the format of the file cannot be
    written. If two files would get the same name, every name is prefixed with its file's number.
    """
    names = [file.uri.rstrip("/").rpartition("/")[2] for file in source.files]
    if _format(source) not in _WRITERS:
        names = [f"{name}.recordio" for name in names]
    if max(Counter(names).values()) == 1:
        return names
    return [f"{number:05}-{name}" for number, name in enumerate(names)]


def _format(source: RecordSource) -> str | None:
    return format_of(source.files[0].uri)


# --- classes -----------------------------------------------------------------------------------


def _codes(
    source: RecordSource, field: str, num_parts: int, on_progress: Progress
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the class number of each record, for parts with equal shares of each class.

    Records with equal values of the field are one class. All records are read.

    Args:
        source: The records.
        field: Name of the field.
        num_parts: Number of parts. Each class must have at least this number of records.
        on_progress: Called with the progress.

    Raises:
        UsageError: There is no such field, or its values are not classes.
    """
    classes = ClassCodes(field)
    codes = np.empty(source.num_records, np.int64)
    done = 0
    for values in _values(source, field):
        codes[done : done + len(values)] = [classes.code(value) for value in values]
        done += len(values)
        on_progress(f"Reading {field}", done, source.num_records)
    classes.check(codes, num_parts)
    return codes


def _values(source: RecordSource, field: str) -> Iterator[list[Any]]:
    """Yield lists of the values of a field in consecutive records, for all records in order.

    Raises:
        UsageError: A file has no such field, or a record has several values of it.
    """
    if _format(source) in ("csv", "parquet"):
        _check_columns(source, field)
    if _format(source) == "parquet":
        yield from _column(source, field)
        return
    schema = _schema_of(source, field)
    for start in range(0, source.num_records, _RECORDS_AT_ONCE):
        stop = min(start + _RECORDS_AT_ONCE, source.num_records)
        yield [record[field].item() for record in source.read_records(start, stop, schema)]


def _check_columns(source: Any, field: str) -> None:
    for index, file in enumerate(source.files):
        columns = source.columns(index)
        if field not in columns:
            raise _no_field(file.uri, field, columns)


def _column(source: Any, field: str) -> Iterator[list[Any]]:
    for index in range(len(source.files)):
        for table in source.tables(index, (field,)):
            values = table.column(0).to_pylist()
            kind = next((type(value) for value in values if isinstance(value, (list, dict))), None)
            if kind is not None:
                raise _many_values(source.files[index].uri, field)
            yield values


def _schema_of(source: RecordSource, field: str) -> Schema:
    """Return a schema of only the given field, so that nothing else is decoded.

    The dtype of the field is that in the first record; for CSV it is a string.

    Raises:
        UsageError: The first record has no such field, or several values of it.
    """
    if _format(source) == "csv":
        # As strings: equal cells are one class, and empty cells are a separate one.
        return Schema((Field(field, (), STRING, nullable=True),))
    first = source.read_records(0, 1, None)[0]
    uri = source.files[0].uri
    if field not in first:
        raise _no_field(uri, field, first)
    if first[field].size != 1:
        raise _many_values(uri, field)
    dtype = first[field].dtype
    return Schema((Field(field, (), dtype, nullable=dtype == STRING or dtype.kind == "f"),))


def _no_field(uri: str, field: str, known: Any) -> UsageError:
    return UsageError(
        f"--stratify={field}: {uri} has no such field{did_you_mean(field, known)} It has "
        f"{', '.join(known)}."
    )


def _many_values(uri: str, field: str) -> UsageError:
    return UsageError(
        f"--stratify={field}: a record of {uri} has several values of it; expected one, such as a "
        "label."
    )


# --- files -------------------------------------------------------------------------------------


def _write_file(
    source: RecordSource, index: int, first: int, here: PartNumbers, paths: Sequence[Path]
) -> Iterator[int]:
    """Write each record of an input file to the file of its part.

    Args:
        source: The records of all input files.
        index: Number of the input file.
        first: Number of its first record.
        here: Number of the part of each of its records.
        paths: File to write in each part; not created if the part gets no record.

    Yields:
        The number of records written so far.
    """
    write = _WRITERS.get(_format(source) or "", _write_recordio)
    with contextlib.ExitStack() as stack:
        yield from write(source, index, first, here, _PartFiles(paths, stack))


class _PartFiles:
    """The files, one per part, that the records of one input file are written to.

    A file is created when its first record is written.

    Args:
        paths: Path of the file in each part.
        stack: Exit stack of the caller, which closes the files at its end.
    """

    def __init__(self, paths: Sequence[Path], stack: contextlib.ExitStack) -> None:
        self._paths = paths
        self._stack = stack
        self._files: dict[int, Any] = {}

    def get(
        self, part: int, create: Callable[[Path], contextlib.AbstractContextManager[Any]]
    ) -> Any:
        """Return the file of a part; the first call for a part creates it.

        Args:
            part: Number of the part.
            create: Function (path) -> context manager that opens the path for writing.
        """
        if part not in self._files:
            self._files[part] = self._stack.enter_context(create(self._paths[part]))
        return self._files[part]


def _write_recordio(
    source: RecordSource, index: int, first: int, here: PartNumbers, files: _PartFiles
) -> Iterator[int]:
    del index
    return _write_records(source, first, here, files, recordio.Writer)


def _write_tfrecord(
    source: RecordSource, index: int, first: int, here: PartNumbers, files: _PartFiles
) -> Iterator[int]:
    del index
    return _write_records(source, first, here, files, _tfrecord_writer)


def _tfrecord_writer(path: str) -> tfrecord.TFRecordWriter:
    return tfrecord.TFRecordWriter(path, "gzip" if path.endswith(_GZIP) else "none")


def _write_records(
    source: RecordSource,
    first: int,
    here: PartNumbers,
    files: _PartFiles,
    writer: Callable[[str], recordio.Writer | tfrecord.TFRecordWriter],
) -> Iterator[int]:
    for start in range(0, len(here), _RECORDS_AT_ONCE):
        stop = min(start + _RECORDS_AT_ONCE, len(here))
        records = source.read_bytes(first + start, first + stop)
        for part, record in zip(here[start:stop].tolist(), records, strict=True):
            files.get(part, lambda path: writer(str(path))).write(record)
        yield stop


def _write_csv(
    source: Any, index: int, first: int, here: PartNumbers, files: _PartFiles
) -> Iterator[int]:
    del first
    rows = source.rows_as_stored(index)
    header = next(rows)
    begun = set()
    for number, (part, row) in enumerate(zip(here.tolist(), rows, strict=True)):
        file = files.get(part, _csv_file)
        if part not in begun:
            begun.add(part)
            file.write(header)
        file.write(row)
        if number % _RECORDS_AT_ONCE == 0:
            yield number
    yield len(here)


def _csv_file(path: Path) -> IO[bytes] | gzip.GzipFile:
    if path.suffix != _GZIP:
        return path.open("xb")
    # Without a time, so that dividing again gives the same bytes.
    return gzip.GzipFile(path, "xb", mtime=0)


def _write_parquet(
    source: Any, index: int, first: int, here: PartNumbers, files: _PartFiles
) -> Iterator[int]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - not for the other formats

    del first
    done = 0
    for table in source.tables(index):
        parts = here[done : done + table.num_rows]
        done += table.num_rows
        create = functools.partial(pq.ParquetWriter, schema=table.schema, write_page_checksum=True)
        for part in np.unique(parts).tolist():
            files.get(part, create).write_table(table.filter(parts == part))
        yield done


_WRITERS: dict[str, Callable[[Any, int, int, PartNumbers, _PartFiles], Iterator[int]]] = {
    "recordio": _write_recordio,
    "tfrecord": _write_tfrecord,
    "csv": _write_csv,
    "parquet": _write_parquet,
}

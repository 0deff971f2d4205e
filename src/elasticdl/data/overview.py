"""Overview of record files: format, number of records, layout, fields, and the first records.

The cost is small for files of any size. RecordIO and Parquet have the number of records in their
headers; of a large TFRecord or CSV file without an index only the beginning is read, and the number
is estimated from it.

Callers: `cli/data_show.py`, which displays the overview.
"""

from __future__ import annotations

import codecs
import collections
import contextlib
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from elasticdl import scratch
from elasticdl.data.find_files import find_files
from elasticdl.data.formats import IMAGES
from elasticdl.data.index_file import find_index
from elasticdl.data.record_source import TableSource
from elasticdl.data.sources import one_format, open_files, open_named
from elasticdl.data.stored_file import open_each, open_stored
from elasticdl.data.wording import counted, listed
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from elasticdl.data.batch import Record
    from elasticdl.data.formats import Format
    from elasticdl.data.images import ImageSource
    from elasticdl.data.parquet import ParquetSource
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.recordio import RecordIOSource
    from elasticdl.data.schema import Schema
    from elasticdl.data.stored_file import StoredFile
    from elasticdl.data.table_overview import TableRows

_WHOLE_BYTES = 256 << 20
"""Up to this size, files without an index are read as a whole to count their records."""

_HEAD_BYTES = 8 << 20
_MAX_LOOKED_AT, _FEW_LOOKED_AT = 100, 5
_MAX_CLASSES_NAMED = 10
_GZIP_START = b"\x1f\x8b"
_TFRECORD_FRAME_BYTES = 16
_ALL_MISSING = "all missing"
# Arrow's name for the type of a column without any value.
_NULL = "null"


@dataclass(frozen=True)
class FieldOverview:
    """Overview of one field in the sampled records.

    Attributes:
        name: Its name.
        dtype: "float32", "int64", ..., "string" for text, "bytes", or for a column of a table the
            name of its type.
        shape: Its shape in words: `[28, 28]`, `[96 to 128, 128, 3]` or `1 to 5 values`.
        values: The range of its numbers, or the number of its distinct strings, in words.
        can_be_shown: Whether the records have its values, or show that all are missing.
    """

    name: str
    dtype: str
    shape: str
    values: str
    can_be_shown: bool = True


@dataclass(frozen=True)
class Overview:
    """What `elasticdl data show` displays about some record files.

    Attributes:
        format: Format of all files.
        files: Their URIs.
        size_bytes: Their total size.
        num_records: Number of records in all files.
        is_estimate: Whether `num_records` is an estimate.
        layout: How records are laid out in the files, in words.
        fields: Fields of the records; empty if they cannot be decoded, because they are serialized
            in another form than `tf.Example`.
        num_looked_at: Number of records, from the first, on which `fields` is based.
        records: The first records, decoded; empty if they cannot be.
        raw: The first records as they are stored, if they cannot be decoded; else empty.
        label: Name of the field with the number of a record's class; empty if there is none.
        classes: Names of the classes, in the order of their numbers.
        note: A remark about probably wrong data; mostly empty.
    """

    format: Format
    files: tuple[str, ...]
    size_bytes: int
    num_records: int
    is_estimate: bool
    layout: str
    fields: tuple[FieldOverview, ...]
    num_looked_at: int
    records: tuple[Record, ...]
    raw: tuple[bytes, ...] = ()
    label: str = ""
    classes: tuple[str, ...] = ()
    note: str = ""


def summarize_files(data: str, limit: int, schema: Schema | None = None) -> Overview:
    """Return an overview of files.

    Args:
        data: Names of files, folders or patterns, as for `open_source`.
        limit: Number of records to return.
        schema: Schema of the records. None: decode them without a schema.

    Raises:
        NoDataError: A file does not exist.
        DataError: A format is unknown, or formats are mixed.
        CorruptDataError: A file is damaged.
        SchemaError: One of the first records does not fit the schema.
    """
    uris = find_files(data)
    file_format = one_format(uris)
    stored = open_each(uris, open_stored)
    size_bytes = sum(file.size_bytes for file in stored)
    with contextlib.ExitStack() as stack:
        num_records = None
        layout = ""
        index = find_index(uris)
        is_known = index is not None and len(index.files) == len(uris)
        must_be_read = file_format in ("tfrecord", "csv") and not is_known
        if must_be_read and size_bytes > _WHOLE_BYTES:
            head, read_bytes = stack.enter_context(_head(stored[0], file_format))
            source = open_files([head], file_format)
            num_records = round(source.num_records * size_bytes / max(read_bytes, 1))
        else:
            source = open_named(data, uris, file_format, index)
            layout = _layout(source, file_format)
        # Photographs take megabytes each.
        least = _FEW_LOOKED_AT if file_format == IMAGES else _MAX_LOOKED_AT
        num_looked_at = min(max(limit, least), source.num_records)
        records, fields, raw = _first_records(source, num_looked_at, schema, limit)
        label, classes = _classes(source, file_format, schema)
        note = _note(cast("ImageSource", source)) if file_format == IMAGES else ""
    return Overview(
        file_format,
        tuple(uris),
        size_bytes,
        source.num_records if num_records is None else num_records,
        num_records is not None,
        layout,
        fields,
        len(records),
        tuple(records[:limit]),
        raw,
        label,
        classes,
        note,
    )


def _first_records(
    source: RecordSource, count: int, schema: Schema | None, limit: int
) -> tuple[Sequence[Record], tuple[FieldOverview, ...], tuple[bytes, ...]]:
    """Read the first records of a source.

    Args:
        source: The records.
        count: Number of records to decode.
        schema: Schema of the records. None: decode them without a schema.
        limit: Maximum number of records to return as stored bytes.

    Returns:
        The decoded records, an overview of each field, and the records as stored. The third is
        empty if the records are decoded; the first two are empty if the records cannot be decoded
        because they are not `tf.Example`s.

    Raises:
        SchemaError: A record does not fit the schema.
    """
    if schema is None and isinstance(source, TableSource):
        from elasticdl.data.table_overview import first_rows  # noqa: PLC0415 - imports pyarrow

        rows = first_rows(source, count)
        return rows.records, _columns(source.arrow_schema().names, rows), ()
    try:
        records = source.read_records(0, count, schema)
    except SchemaError:
        if schema is not None or isinstance(source, TableSource):
            raise
        return [], (), tuple(source.read_bytes(0, min(limit, count)))
    return records, tuple(_fields(records)), ()


# --- files -------------------------------------------------------------------------------------


def _layout(source: RecordSource, file_format: Format) -> str:
    """Return in words how a source's records are stored, such as `3 chunks, compressor: snappy`.

    For images, these are the classes and their numbers of images; for other formats it is empty.
    """
    if file_format == "recordio":
        chunked = cast("RecordIOSource", source)
        chunks = [chunk for i in range(len(source.files)) for chunk in chunked.chunks(i)]
        compressors = ", ".join(sorted({chunk.compressor for chunk in chunks}))
        return f"{counted(len(chunks), 'chunk')}, compressor: {compressors or 'none'}"
    if file_format == "parquet":
        grouped = cast("ParquetSource", source)
        groups = [group for i in range(len(source.files)) for group in grouped.row_groups(i)]
        names = sorted({group.compression.lower() for group in groups})
        return f"{counted(len(groups), 'row group')}, compression: {', '.join(names) or 'none'}"
    if file_format == IMAGES:
        numbers = cast("ImageSource", source).num_by_class
        words = [f"{name} ({count:,})" for name, count in numbers.items()]
        more = len(words) - _MAX_CLASSES_NAMED
        shown = ", ".join(words[:_MAX_CLASSES_NAMED]) + (f" and {more:,} more" * (more > 0))
        return f"classes: {shown or 'none'}"
    return ""


def _note(source: ImageSource) -> str:
    """Return a note if the class folders of images seem to be parts of a data set; else ""."""
    if not source.are_parts():
        return ""
    return (
        f"The folders {listed(source.classes)} count as classes here, but are named like parts of "
        "a data set. Name each part separately, such as pictures/train."
    )


def _classes(
    source: RecordSource, file_format: Format, schema: Schema | None
) -> tuple[str, tuple[str, ...]]:
    """Return the name of the label field of images, and the names of their classes.

    Both are empty for other formats; the name is also empty if the schema has no label.
    """
    if file_format != IMAGES:
        return "", ()
    from elasticdl.data.image_unit import LABEL, roles_of  # noqa: PLC0415 - imports Pillow

    label = None if schema is None else roles_of(schema).label
    name = LABEL if schema is None else "" if label is None else label.name
    return name, cast("ImageSource", source).classes


@contextlib.contextmanager
def _head(file: StoredFile, file_format: Format) -> Iterator[tuple[str, int]]:
    """Context manager that copies the first records of a TFRecord or CSV file to a temporary file.

    The caller counts the records of the copy to estimate the number of records of the whole file.

    Args:
        file: The file, which may be compressed with gzip.
        file_format: Its format, `tfrecord` or `csv`.

    Yields:
        Path of the temporary file, which is deleted at the end of the block; and the number of
        bytes that these records take in the original file.
    """
    data = file.read(0, _HEAD_BYTES)
    read_bytes = len(data)
    is_compressed = data.startswith(_GZIP_START)
    if is_compressed:
        data = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(data)
    if file_format == "tfrecord":
        whole = _whole_tfrecords(data)
    else:
        data = _as_utf8(data)
        whole = _whole_lines(data)
    if whole and not is_compressed:
        read_bytes = round(read_bytes * whole / len(data))
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
        path = Path(folder, Path(file.uri).name).with_suffix(f".{file_format}")
        path.write_bytes(data[:whole])
        yield str(path), read_bytes


def _whole_tfrecords(data: bytes) -> int:
    """Return the size in bytes of all complete records at the start of a TFRecord file's bytes."""
    end = 0
    while end + 8 <= len(data):
        next_end = end + _TFRECORD_FRAME_BYTES + int.from_bytes(data[end : end + 8], "little")
        if next_end > len(data):
            break
        end = next_end
    return end


def _as_utf8(data: bytes) -> bytes:
    """Convert the first bytes of a CSV file to UTF-8 if they are UTF-16, else return them as is."""
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16", "ignore").encode() if is_utf16 else data


def _whole_lines(data: bytes) -> int:
    """Return the number of bytes up to the end of the last complete row of a CSV file."""
    array = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(array == ord("\n"))
    quotes = np.searchsorted(np.flatnonzero(array == ord('"')), ends)
    outside = ends[quotes % 2 == 0]
    return int(outside[-1]) + 1 if len(outside) else len(data)


# --- fields ------------------------------------------------------------------------------------


def _fields(records: Sequence[Record]) -> Iterator[FieldOverview]:
    columns: dict[str, list[np.ndarray[Any, Any]]] = collections.defaultdict(list)
    for record in records:
        for name, array in record.items():
            columns[name].append(array)
    for name, arrays in columns.items():
        absent = len(records) - len(arrays)
        values = _values(arrays) + _absent(absent)
        dtype = arrays[0].dtype.name
        if arrays[0].dtype == object:
            dtype = "bytes" if _texts(arrays) is None else "string"
        yield FieldOverview(name, dtype, _shape(arrays), values)


def _columns(names: Sequence[str], rows: TableRows) -> tuple[FieldOverview, ...]:
    """Return an overview of each column of a table.

    Args:
        names: Names of all columns, in order.
        rows: The first rows.
    """
    found = {field.name: field for field in _fields(rows.records)}
    for name in names:
        field = found.get(name, FieldOverview(name, rows.types.get(name, ""), "", _ALL_MISSING))
        if name in rows.unusable:
            is_empty = rows.types.get(name) == _NULL
            reason = _ALL_MISSING if is_empty else rows.unusable[name]
            field = replace(field, values=f"not usable: {reason}", can_be_shown=is_empty)
        elif name in rows.types and name in found:
            texts = [row[name].item().decode() for row in rows.records if name in row]
            field = replace(field, values=_span(texts, len(rows.records)))
        found[name] = replace(field, dtype=rows.types.get(name, field.dtype))
    return tuple(found[name] for name in names)


def _span(texts: Sequence[str], num_rows: int) -> str:
    absent = num_rows - len(texts)
    return f"{min(texts)} .. {max(texts)}" + _absent(absent)


def _absent(count: int) -> str:
    return f", missing in {counted(count, 'record')}" if count else ""


def _texts(arrays: Sequence[np.ndarray[Any, Any]]) -> list[str] | None:
    """Decode byte strings as UTF-8; None if one is invalid or has a zero byte: it is not text."""
    try:
        texts = [value.decode() for array in arrays for value in array.ravel().tolist()]
    except UnicodeDecodeError:
        return None
    # Numbers and archives may be valid UTF-8, too.
    are_readable = all("\0" not in text for text in texts)
    return texts if are_readable else None


def _shape(arrays: Sequence[np.ndarray[Any, Any]]) -> str:
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return str(list(shapes.pop()))
    num_axes = {len(shape) for shape in shapes}
    if len(num_axes) == 1 and max(num_axes) > 1:
        sides = [sorted(set(side)) for side in zip(*shapes, strict=True)]
        words = [f"{s[0]} to {s[-1]}" if len(s) > 1 else str(s[0]) for s in sides]
        return f"[{', '.join(words)}]"
    sizes = sorted(array.size for array in arrays)
    return f"{sizes[0]} to {sizes[-1]} values"


def _values(arrays: Sequence[np.ndarray[Any, Any]]) -> str:
    joined = np.concatenate([array.ravel() for array in arrays])
    if not joined.size:
        return "no value"
    if joined.dtype == object:
        texts = _texts(arrays)
        different: set[Any] = set(joined.tolist() if texts is None else texts)
        least, most = min(map(len, different)), max(map(len, different))
        unit = "byte" if texts is None else "character"
        return f"{len(different)} different, {f'{least} to ' * (least < most)}{counted(most, unit)}"
    if joined.dtype.kind != "f":
        return f"{joined.min()} .. {joined.max()}"
    finite = joined[np.isfinite(joined)]
    words = f"{finite.min():.4g} .. {finite.max():.4g}" if finite.size else "none finite"
    odd = joined.size - finite.size
    return words + (f", {odd} not finite" if odd and finite.size else "")

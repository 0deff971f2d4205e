"""Every reader follows the laws in the docstring of `record_source.py`.

A reader joins by one line in `FORMATS`: how a file of its format is written, and how such files
are opened.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from elasticdl.data import csv, example, images, parquet, recordio, tfrecord, units
from elasticdl.data.data_index import DataIndex, IndexedSource, decode, encode
from elasticdl.data.schema import Field, Schema
from elasticdl.data.split_source import SplitSource, split_records
from elasticdl.data.unit_reader import UnitReader
from elasticdl.data.units import UnitSource
from elasticdl.errors import CorruptDataError, DataError
from elasticdl.testing.record_source import check_decoding, check_gathering, check_record_source

if TYPE_CHECKING:
    from elasticdl.data.example import Features
    from elasticdl.data.record_source import RecordSource

EXAMPLES: list[Features] = [
    {"label": np.int64([i % 3]), "name": [f"row {i}".encode()], "weight": np.float32([i / 4])}
    for i in range(23)
]
"""The records, as many fields as every format has: a whole number, a text, a fraction."""

FILES = [EXAMPLES[:5], [], EXAMPLES[5:6], EXAMPLES[6:]]
"""Which file holds which; readers must get over one without a record, and over borders."""


@dataclass(frozen=True)
class Format:
    """A format and its reader.

    Attributes:
        name: What the test is called.
        write: Writes examples into one file.
        open: Opens files, by an index where one is given.
        files: Which file holds which examples.
        decodes: Whether records without a schema are what is stored.
    """

    name: str
    write: Callable[[Path, Sequence[Features]], None]
    open: Callable[..., RecordSource]
    files: Sequence[Sequence[Features]] = tuple(FILES)
    decodes: bool = True

    @property
    def examples(self) -> list[Features]:
        """The examples of all files."""
        return [example for file in self.files for example in file]


def write_recordio(compressor: recordio.Compressor, path: Path, rows: Sequence[Features]) -> None:
    # Some chunks of a few records each, so that ranges cross their borders as well.
    with recordio.Writer(str(path), compressor, max_chunk_bytes=150) as writer:
        for row in rows:
            writer.write(example.encode(row))


def write_tfrecord(compressor: tfrecord.Compressor, path: Path, rows: Sequence[Features]) -> None:
    with tfrecord.TFRecordWriter(str(path), compressor) as writer:
        for row in rows:
            writer.write(example.encode(row))


def write_csv(path: Path, rows: Sequence[Features]) -> None:
    lines = ["label,name,weight"]
    for row in rows:
        (label,), (name,), (weight,) = row["label"], row["name"], row["weight"]
        lines.append(f"{label},{name.decode()},{weight}")
    path.write_text("\n".join(lines) + "\n")


def write_parquet(path: Path, rows: Sequence[Features]) -> None:
    columns = {
        "label": pa.array([row["label"][0] for row in rows], pa.int64()),
        "name": pa.array([row["name"][0] for row in rows], pa.binary()),
        "weight": pa.array([row["weight"][0] for row in rows], pa.float32()),
    }
    pq.write_table(pa.table(columns), path, row_group_size=4)


def write_image(path: Path, rows: Sequence[Features]) -> None:
    # The contents are stored, and the class is the folder.
    (image,) = rows[0]["image"]
    path.write_bytes(image * len(rows))


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (2, 2), colour).save(buffer, "PNG")
    return buffer.getvalue()


def open_images(uris: Sequence[str], index: DataIndex | None = None) -> RecordSource:
    # Their folder is their class.
    roots = [uri.rpartition("/")[0].rpartition("/")[0] for uri in uris]
    return images.ImageSource(uris, index, None if index is not None else roots)


IMAGES: list[Features] = [{"image": [png(i)], "label": np.int64([0])} for i in range(4)]

FORMATS = [
    *(
        Format(f"recordio {name}", partial(write_recordio, name), recordio.RecordIOSource)
        for name in recordio.COMPRESSORS
    ),
    *(
        Format(f"tfrecord {name}", partial(write_tfrecord, name), tfrecord.TFRecordSource)
        for name in tfrecord.COMPRESSORS
    ),
    Format("csv", write_csv, csv.CSVSource),
    Format("parquet", write_parquet, parquet.ParquetSource),
    # A file is a record, so there are neither empty files nor longer ones.
    Format("images", write_image, open_images, [[image] for image in IMAGES], decodes=False),
]


@pytest.fixture(params=FORMATS, ids=lambda fmt: fmt.name)
def fmt(request: pytest.FixtureRequest) -> Format:
    """Return each format."""
    return request.param


@pytest.fixture
def uris(fmt: Format, tmp_path: Path) -> list[str]:
    """Return files of a format that hold its examples."""
    paths = [tmp_path / f"part-{index}" for index in range(len(fmt.files))]
    for path, rows in zip(paths, fmt.files, strict=True):
        fmt.write(path, rows)
    return [str(path) for path in paths]


def before_file(fmt: Format, number: int) -> int:
    """Return the number of records before those of a file."""
    return sum(map(len, fmt.files[:number]))


def reopened(fmt: Format, source: RecordSource) -> RecordSource:
    """Return a source opened by the index of another, which has travelled."""
    assert isinstance(source, IndexedSource)
    index = decode(encode(source.index()), "the index")
    return fmt.open([file.uri for file in source.files], index)


@pytest.fixture(params=["looked into", "by its index"])
def source(request: pytest.FixtureRequest, fmt: Format, uris: list[str]) -> RecordSource:
    """Return each reader on files that hold its examples, opened in each way."""
    opened = fmt.open(uris)
    return opened if request.param == "looked into" else reopened(fmt, opened)


def test_ranges_are_exact_in_threads_and_after_pickling(fmt: Format, source: RecordSource) -> None:
    check_record_source(source, [example.encode(row) for row in fmt.examples])


def test_files_are_listed_with_their_counts(fmt: Format, source: RecordSource) -> None:
    assert [file.num_records for file in source.files] == [*map(len, fmt.files)]


@pytest.mark.parametrize("cache_bytes", [units.CACHE_BYTES, 100])
def test_records_are_gathered_in_any_order(
    source: RecordSource, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "CACHE_BYTES", cache_bytes)

    check_gathering(source)
    check_gathering(source, Schema((Field("label", (), np.dtype(np.int64)),)))


def test_records_without_a_schema_are_self_describing(fmt: Format, source: RecordSource) -> None:
    if fmt.decodes:
        check_decoding(source)


def test_records_are_decoded_by_a_schema(fmt: Format, source: RecordSource) -> None:
    fields = {"weight": np.float32, "label": np.int64}
    here = [name for name in fields if name in fmt.examples[0]]
    schema = Schema(tuple(Field(name, (), np.dtype(fields[name])) for name in here))

    check_decoding(source, schema)


# --- one side of a validation split ------------------------------------------------------------


@pytest.fixture(params=["training", "validation"])
def side(request: pytest.FixtureRequest, fmt: Format, uris: list[str]) -> SplitSource:
    """Return each side of a split of the examples."""
    return getattr(split_records(fmt.open(uris), 0.4), request.param)


def test_a_side_of_a_split_is_a_source(fmt: Format, side: SplitSource) -> None:
    numbers = side.numbering.span(0, side.num_records)

    check_record_source(side, [example.encode(fmt.examples[number]) for number in numbers])


@pytest.mark.parametrize("cache_bytes", [units.CACHE_BYTES, 100])
def test_a_side_of_a_split_is_gathered_and_decoded(
    side: SplitSource, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "CACHE_BYTES", cache_bytes)
    schema = Schema((Field("label", (), np.dtype(np.int64)),))

    check_gathering(side)
    check_gathering(side, schema)
    check_decoding(side, schema)


# --- opened by an index ------------------------------------------------------------------------


def test_a_source_opened_from_its_index_is_the_same(fmt: Format, uris: list[str]) -> None:
    source = fmt.open(uris)

    again = reopened(fmt, source)

    assert again.files == source.files
    assert isinstance(source, UnitSource)
    assert isinstance(again, UnitSource)
    ours, theirs = source.units(None), again.units(None)
    np.testing.assert_array_equal(theirs.sizes, ours.sizes)
    assert theirs[1:] == ours[1:]
    assert isinstance(source, IndexedSource)
    assert isinstance(again, IndexedSource)
    assert again.index() == source.index()


def test_opening_from_an_index_does_not_access_the_storage(fmt: Format, uris: list[str]) -> None:
    source = fmt.open(uris)
    for uri in uris:
        Path(uri).unlink()

    again = reopened(fmt, source)

    assert again.files == source.files


def test_a_deleted_file_is_named(fmt: Format, uris: list[str]) -> None:
    again = reopened(fmt, fmt.open(uris))
    first = before_file(fmt, 2)
    Path(uris[2]).unlink()

    with pytest.raises(DataError, match=f"^{re.escape(uris[2])} cannot be read: the file does not"):
        again.read_bytes(first, first + 1)


@pytest.mark.parametrize("longer", [False, True])
def test_a_changed_file_is_named_and_not_read(
    fmt: Format, uris: list[str], *, longer: bool
) -> None:
    first = before_file(fmt, 2)
    rows: list[Features] = [{**fmt.examples[first], "label": np.int64([1])}] * (1 + longer)
    again = reopened(fmt, fmt.open(uris))
    before = Path(uris[2]).stat()

    fmt.write(Path(uris[2]), rows)
    os.utime(uris[2], ns=(before.st_atime_ns, before.st_mtime_ns + 1))

    with pytest.raises(
        DataError, match=f"^{re.escape(uris[2])} has changed since its records were counted"
    ):
        again.read_bytes(first, first + 1)
    with pytest.raises(
        DataError, match=f"^{re.escape(uris[2])} has changed since its records were counted"
    ):
        UnitReader(again, None, serialized=True).gather(np.arange(len(fmt.examples)))
    # The others are what they were.
    schema = Schema((Field("label", (), np.dtype(np.int64)),))
    assert len(again.read_records(0, first, schema)) == first


def test_an_index_of_some_files_is_used_for_those(fmt: Format, uris: list[str]) -> None:
    known = fmt.open(uris[:2])
    assert isinstance(known, IndexedSource)

    source = fmt.open(uris, known.index())

    assert source.files == fmt.open(uris).files


@pytest.mark.parametrize(
    "damage", [lambda _: b"", lambda layout: layout[:-1], lambda layout: layout * 2]
)
def test_an_invalid_index_entry_is_refused(
    fmt: Format, uris: list[str], damage: Callable[[bytes], bytes]
) -> None:
    source = fmt.open(uris)
    assert isinstance(source, IndexedSource)
    index = source.index()
    last = index.files[-1]
    damaged = last._replace(layout=damage(last.layout))

    with pytest.raises(CorruptDataError, match="part-3"):
        fmt.open(uris, DataIndex(index.format, (damaged,)))

"""Every reader follows the laws in the docstring of `record_source.py`.

A reader joins by one line in `FORMATS`: how a file of its format is written, and how such files
are opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import csv, parquet, recordio, tfrecord, units
from elasticdl.data.example import Features, encode
from elasticdl.data.schema import Field, Schema
from elasticdl.testing.record_source import check_decoding, check_gathering, check_record_source

if TYPE_CHECKING:
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
        open: Opens files.
    """

    name: str
    write: Callable[[Path, Sequence[Features]], None]
    open: Callable[[Sequence[str]], RecordSource]


def write_recordio(compressor: recordio.Compressor, path: Path, rows: Sequence[Features]) -> None:
    # Some chunks of a few records each, so that ranges cross their borders as well.
    with recordio.Writer(str(path), compressor, max_chunk_bytes=150) as writer:
        for row in rows:
            writer.write(encode(row))


def write_tfrecord(compressor: tfrecord.Compressor, path: Path, rows: Sequence[Features]) -> None:
    with tfrecord.Writer(str(path), compressor) as writer:
        for row in rows:
            writer.write(encode(row))


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
]


@pytest.fixture(params=FORMATS, ids=lambda fmt: fmt.name)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> RecordSource:
    """Return each reader on files that hold `EXAMPLES`."""
    uris = []
    for index, rows in enumerate(FILES):
        path = tmp_path / f"part-{index}"
        request.param.write(path, rows)
        uris.append(str(path))
    return request.param.open(uris)


def test_ranges_are_exact_in_threads_and_after_pickling(source: RecordSource) -> None:
    check_record_source(source, [encode(example) for example in EXAMPLES])


def test_files_are_listed_with_their_counts(source: RecordSource) -> None:
    assert [file.num_records for file in source.files] == [5, 0, 1, 17]


@pytest.mark.parametrize("cache_bytes", [units.CACHE_BYTES, 100])
def test_records_are_gathered_in_any_order(
    source: RecordSource, cache_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(units, "CACHE_BYTES", cache_bytes)

    check_gathering(source)
    check_gathering(source, Schema((Field("label", (), np.dtype(np.int64)),)))


def test_records_say_of_themselves_what_they_hold(source: RecordSource) -> None:
    check_decoding(source)


def test_records_are_decoded_by_a_schema(source: RecordSource) -> None:
    schema = Schema(
        (
            Field("weight", (), np.dtype(np.float32)),
            Field("label", (), np.dtype(np.int64)),
        )
    )

    check_decoding(source, schema)

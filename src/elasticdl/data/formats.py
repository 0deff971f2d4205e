"""Which format a file is of, told by its name or by its first bytes.

How a format is read is not known here.

Callers: `find_files.py`, `sources.py`.
"""

from __future__ import annotations

import zlib
from typing import Literal, TypeAlias

from elasticdl.data.stored_file import open_stored

Format: TypeAlias = Literal["recordio", "tfrecord", "csv", "parquet"]

EXTENSIONS: dict[str, Format] = {
    ".recordio": "recordio",
    ".rec": "recordio",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tfrecord.gz": "tfrecord",
    ".tfrecords.gz": "tfrecord",
    ".csv": "csv",
    ".parquet": "parquet",
}

_RECORDIO_START = b"\x04\x03\x02\x01"
_PARQUET_START = b"PAR1"
_GZIP_START = b"\x1f\x8b"
_TFRECORD_HEADER_BYTES = 12
_TFRECORD_LENGTH_BYTES = 8
_START_BYTES = 256


def format_of(uri: str) -> Format | None:
    """Return the format of a file, None if neither its name nor its start tells.

    Raises:
        NoDataError: There is no such file.
    """
    known = format_by_name(uri)
    return known if known is not None else format_by_start(uri)


def format_by_name(uri: str) -> Format | None:
    """Return the format a file's extension says, None if it says none."""
    # Not by a Path: of a hundred thousand files that would take longer than listing them.
    name = uri.rpartition("/")[2].lower()
    if (known := EXTENSIONS.get(name[name.rfind(".") :])) is not None:
        return known
    return next((known for end, known in EXTENSIONS.items() if name.endswith(end)), None)


def format_by_start(uri: str) -> Format | None:
    """Return the format a file starts like, None if it is none of those that can be told."""
    start = open_stored(uri).read(0, _START_BYTES)
    if start.startswith(_RECORDIO_START):
        return "recordio"
    if start.startswith(_PARQUET_START):
        return "parquet"
    if start.startswith(_GZIP_START):
        try:
            start = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(start)
        except zlib.error:
            return None
    return "tfrecord" if _starts_with_tfrecord_header(start) else None


def _starts_with_tfrecord_header(start: bytes) -> bool:
    from elasticdl.data.tfrecord import masked_crc32c  # noqa: PLC0415 - rarely needed

    length = start[:_TFRECORD_LENGTH_BYTES]
    checksum = int.from_bytes(start[_TFRECORD_LENGTH_BYTES:_TFRECORD_HEADER_BYTES], "little")
    return len(start) >= _TFRECORD_HEADER_BYTES and masked_crc32c(length) == checksum


def unknown_format(uri: str) -> str:
    """Return what to say of a file whose format is none that is known."""
    if uri.lower().endswith(".csv.gz"):
        return (
            f"{uri} is a compressed CSV file, in which no row can be found by its number. "
            "Decompress it with gunzip, or write it as Parquet."
        )
    # Never its content: errors are logged, and this may be any file of the user.
    return (
        f"{uri} is of no format that is known: its name ends in none of "
        f"{', '.join(EXTENSIONS)}, and neither does it start like one of these. Rename it if it "
        "is one, or name the data files alone."
    )

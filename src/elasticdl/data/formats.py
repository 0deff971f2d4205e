"""Detection of a file's format, by its name or by its first bytes.

A format is a name, such as "csv". To add a format, extend `BUILT_IN` and `EXTENSIONS` here, and add
its reader to `sources.py`. The format of a plugin is detected by the file's extension only.

Callers: `find_files.py`, `sources.py`, `data_index.py`.
"""

from __future__ import annotations

import functools
import zlib
from typing import TypeAlias

from elasticdl import plugins
from elasticdl.data.stored_file import open_stored
from elasticdl.errors import UsageError

Format: TypeAlias = str
"""Name of a format: one of `BUILT_IN`, or of a plugin."""

IMAGES: Format = "images"
"""Images, one record per file; see `images.py`."""

BUILT_IN = ("recordio", "tfrecord", "csv", "parquet", IMAGES)

EXTENSIONS: dict[str, Format] = {
    ".recordio": "recordio",
    ".rec": "recordio",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
    ".tfrecord.gz": "tfrecord",
    ".tfrecords.gz": "tfrecord",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "csv",
    ".tsv.gz": "csv",
    ".parquet": "parquet",
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp"), IMAGES),
}


_OTHER_COMPRESSED = tuple(
    f"{name}.{end}" for name in (".csv", ".tsv") for end in ("bz2", "xz", "zst", "zip", "lz4")
)
_RECORDIO_START = b"\x04\x03\x02\x01"
_PARQUET_START = b"PAR1"
_GZIP_START = b"\x1f\x8b"
_TFRECORD_HEADER_BYTES = 12
_TFRECORD_LENGTH_BYTES = 8
_START_BYTES = 256


def format_of(uri: str) -> Format | None:
    """Return the format of a file; None if neither its name nor its start reveals it.

    Raises:
        NoDataError: The file does not exist.
    """
    known = format_by_name(uri)
    return known if known is not None else format_by_start(uri)


def format_by_name(uri: str) -> Format | None:
    """Return the format of a file's extension; None if the extension is unknown."""
    # No Path: for a hundred thousand files that would take longer than listing them.
    name = uri.rpartition("/")[2].lower()
    if (known := EXTENSIONS.get(name[name.rfind(".") :])) is not None:
        return known
    ends = {**EXTENSIONS, **_extensions_of_plugins()}
    return next((known for end, known in ends.items() if name.endswith(end)), None)


def readable_formats() -> list[str]:
    """Return the names of all formats that can be read, sorted."""
    return sorted({*BUILT_IN, *plugins.names("formats")})


@functools.cache
def _extensions_of_plugins() -> dict[str, Format]:
    found: dict[str, Format] = {}
    for name in plugins.names("formats"):
        ends = getattr(plugins.load("formats", name), "EXTENSIONS", ())
        if isinstance(ends, str) or not all(isinstance(end, str) and end for end in ends):
            raise UsageError(
                f"{name}: EXTENSIONS of the plugin is {ends!r}; expected a sequence of file name "
                'endings such as (".jsonl",).'
            )
        found.update({end.lower(): name for end in ends})
    return found


def format_by_start(uri: str) -> Format | None:
    """Detect the format from a file's first bytes; None if they match no known format.

    Raises:
        NoDataError: The file does not exist.
        DataError: The file cannot be read.
    """
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
    from elasticdl.data.masked_crc import masked_crc32c  # noqa: PLC0415 - rarely needed

    length = start[:_TFRECORD_LENGTH_BYTES]
    checksum = int.from_bytes(start[_TFRECORD_LENGTH_BYTES:_TFRECORD_HEADER_BYTES], "little")
    return len(start) >= _TFRECORD_HEADER_BYTES and masked_crc32c(length) == checksum


def unknown_format_message(uri: str) -> str:
    """Return the error message for a file whose format is unknown."""
    if uri.lower().endswith(_OTHER_COMPRESSED):
        return (
            f"{uri} is a CSV file in a compression that is not supported. Decompress it, compress "
            "it with gzip, or write it as Parquet."
        )
    if advice := json_advice(uri):
        return f"{uri} is a JSON file, which cannot be read directly. {advice}"
    if not open_stored(uri).read(0, 1):
        return f"{uri} is empty: it has no bytes. Write it again, or name only the data files."
    # Never its content: errors are logged, and this may be any of the user's files.
    known = ", ".join((*EXTENSIONS, *_extensions_of_plugins()))
    return (
        f"{uri} has an unknown format: its name does not end in any of {known}, "
        "and its first bytes match none of them. Rename it if it is one of these, or name only "
        "the data files."
    )


def json_advice(uri: str) -> str:
    """Return advice, for an error, on how to train on a JSON file; empty for other files."""
    name = uri.lower()
    if not name.endswith((".json", ".jsonl", ".ndjson")):
        return ""
    lines = "" if name.endswith(".json") else ", lines=True"
    table = f'pandas.read_json("{uri}"{lines})'
    return (
        f'In Python, pass its table: data={table}, or data=datasets.load_dataset("json", '
        f'data_files="{uri}", split="train"). For the command line, write it as Parquet: '
        f'{table}.to_parquet("NAME.parquet").'
    )

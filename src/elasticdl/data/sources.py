"""Data sources: opens a reader for the files that `--data` names.

    "train/*.recordio, s3://bucket/more" --find_files--> files --one_format--> one reader
                                                           |                      ^
                                                           +---- their index -----+

Files of two formats are not read together, and a folder that is still being prepared is not read
at all. `find_files.py` resolves names to files, `formats.py` detects formats, `index_file.py` finds
indexes, and each reader reads its own format.

Callers: `cli/data.py`, `prepare.py`, `overview.py`, the engines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from elasticdl import plugins
from elasticdl.data.data_index import DataIndex, index_of
from elasticdl.data.find_files import exists, find_files, find_folders, some
from elasticdl.data.formats import (
    IMAGES,
    Format,
    format_of,
    readable_formats,
    unknown_format_message,
)
from elasticdl.data.index_file import find_index
from elasticdl.data.stored_file import open_each
from elasticdl.data.wording import counted
from elasticdl.errors import DataError, NoDataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.data.data_index import FileEntry
    from elasticdl.data.record_source import RecordSource

__all__ = [
    "INCOMPLETE_MARK",
    "find_files",
    "format_of",
    "index_data",
    "one_format",
    "open_files",
    "open_index",
    "open_named",
    "open_source",
]

INCOMPLETE_MARK = ".incomplete"
"""A file of this name is in every folder that `elasticdl data prepare` has not finished."""

# Files per batch: progress is reported after each batch, and remote files of a batch are opened
# concurrently.
_FILES_AT_ONCE = 256


class FormatPlugin(Protocol):
    """Interface of a record format that another package adds; see `elasticdl.plugins`.

    The plugin may be a module that has the attribute and the function below.

    Attributes:
        EXTENSIONS: File name extensions of the format, in lower case: `(".jsonl", ".ndjson")`.
    """

    EXTENSIONS: Sequence[str]

    def open_files(self, uris: Sequence[str], index: DataIndex | None) -> RecordSource:
        """Return a reader of files of this format.

        Args:
            uris: Files in reading order, local or remote (`data.stored_file.open_stored`).
            index: The index that a reader of these files returned earlier; None if there is none.

        Raises:
            CorruptDataError: A file violates the format.
            DataError: A file cannot be read.
        """
        ...


def open_source(data: str) -> RecordSource:
    """Return a reader of all files that the names match.

    Files covered by an index file are not opened.

    Args:
        data: Names of files, folders or patterns, separated by commas.

    Raises:
        NoDataError: A name matches no file, or the files contain no records.
        DataError: A file's format is unknown, formats are mixed, or a file cannot be read.
        CorruptDataError: A file violates its format.
        MissingExtraError: The package for a protocol is not installed.
        UsageError: A protocol is unknown.
    """
    uris = find_files(data)
    _refuse_incomplete(uris)
    index = find_index(uris)
    # In the order of the names: an index lists its files by folder.
    is_complete = index is not None and len(index.files) == len(uris)
    file_format = index.format if index is not None and is_complete else one_format(uris)
    source = open_named(data, uris, file_format, index)
    if not source.num_records:
        raise NoDataError(
            f"{data}: {counted(len(uris), 'file')} ({some(uris)}), but no records in "
            f"{'it' if len(uris) == 1 else 'them'}."
        )
    return source


def open_index(index: DataIndex) -> RecordSource:
    """Return a reader of the files of an index, without accessing the storage.

    Raises:
        CorruptDataError: The index is invalid.
    """
    return open_files(index.uris, index.format, index)


def index_data(data: str, on_progress: Callable[[int, int], None]) -> DataIndex:
    """Index all files that the names match, ignoring existing indexes.

    Args:
        data: Names of files, folders or patterns, separated by commas.
        on_progress: Called with the number of finished files and the number of all files.

    Raises:
        ElasticDLError: The files cannot be found or read; `open_source` lists the errors.
    """
    uris = find_files(data)
    _refuse_incomplete(uris)
    file_format = one_format(uris)
    entries: list[FileEntry] = []
    while len(entries) < len(uris):
        on_progress(len(entries), len(uris))
        begin = len(entries)
        index = index_of(open_files(uris[begin : begin + _FILES_AT_ONCE], file_format))
        if index is None:
            raise UsageError(f"{data}: the plugin that reads {file_format} files has no index.")
        entries += index.files
    on_progress(len(entries), len(uris))
    return DataIndex(file_format, tuple(entries))


def open_named(
    data: str, uris: Sequence[str], file_format: Format, index: DataIndex | None = None
) -> RecordSource:
    """Return a reader of the files that were found for the names in `--data`.

    Args:
        data: The names. For images, each subfolder of a folder named here is a class.
        uris: The files that `find_files` returned for these names.
        file_format: Format of all files.
        index: Index of some or all of the files; ignored if it is of another format.

    Raises:
        ElasticDLError: A file cannot be read or violates its format; `open_files` lists the errors.
    """
    if file_format != IMAGES:
        return open_files(uris, file_format, index)
    from elasticdl.data.images import ImageSource  # noqa: PLC0415 - as below

    index = index if index is not None and index.format == file_format else None
    return ImageSource(uris, index, find_folders(data))


def open_files(
    uris: Sequence[str], file_format: Format, index: DataIndex | None = None
) -> RecordSource:
    """Return a reader of files of one format.

    Args:
        uris: Files in reading order.
        file_format: Format of all files.
        index: Index of some or all of the files; ignored if it is of another format.

    Raises:
        CorruptDataError: A file violates its format.
        DataError: A file cannot be read.
        UsageError: No installed package reads the format.
    """
    if index is not None and index.format != file_format:
        index = None
    # Each reader imports only what it needs: importing pyarrow takes longer than reading a file.
    if file_format == "recordio":
        from elasticdl.data.recordio import RecordIOSource  # noqa: PLC0415

        return RecordIOSource(uris, index)
    if file_format == "tfrecord":
        from elasticdl.data.tfrecord import TFRecordSource  # noqa: PLC0415

        return TFRecordSource(uris, index)
    if file_format == "csv":
        from elasticdl.data.csv import CSVSource  # noqa: PLC0415

        return CSVSource(uris, index)
    if file_format == "parquet":
        from elasticdl.data.parquet import ParquetSource  # noqa: PLC0415

        return ParquetSource(uris, index)
    if file_format == IMAGES:
        from elasticdl.data.images import ImageSource  # noqa: PLC0415

        return ImageSource(uris, index)
    return _plugin(file_format).open_files(uris, index)


def _plugin(name: Format) -> FormatPlugin:
    if name not in plugins.names("formats"):
        raise UsageError(
            f"No installed package reads the format {name!r}; {', '.join(readable_formats())} can "
            "be read. Install the package that wrote these files."
        )
    plugin: FormatPlugin = plugins.load("formats", name)
    return plugin


def one_format(uris: Sequence[str]) -> Format:
    """Return the format of files, which must be the same for all.

    Raises:
        DataError: A file's format is unknown, or there are several.
    """
    formats = open_each(uris, format_of)
    by_format: dict[Format, str] = {}
    for uri, file_format in zip(uris, formats, strict=True):
        if file_format is None:
            raise DataError(unknown_format_message(uri))
        by_format.setdefault(file_format, uri)
    if len(by_format) > 1:
        examples = ", ".join(f"{uri} is {name}" for name, uri in by_format.items())
        raise DataError(
            f"The files have {len(by_format)} different formats: {examples}. Pass files of one "
            "format, such as 'FOLDER/*.recordio'."
        )
    return next(iter(by_format))


def _refuse_incomplete(uris: Sequence[str]) -> None:
    """Check that no file is in a folder that `elasticdl data prepare` has not completed.

    Raises:
        DataError: A file is in such a folder.
    """
    for folder in sorted({uri.rpartition("/")[0] for uri in uris}):
        mark = f"{folder}/{INCOMPLETE_MARK}" if folder else INCOMPLETE_MARK
        if exists(mark):
            raise DataError(
                f"The data in {folder or '.'} is not complete: `elasticdl data prepare` is running "
                "there, or was stopped before it finished. Run the same command again to resume "
                f"it. To use the data as they are, delete {mark}."
            )

"""Index files: the data index of a folder, stored in a hidden file beside the data.

    data index, data prepare --write--> FOLDER/.elasticdl-index --find--> the requested part

There is one index file for each folder with data files. It names the files without the folder, so
that it may be moved with them. An index file is used only if it agrees with a listing of its
folder: the same files, with the same sizes and versions. Otherwise a warning is logged, and the
files are opened as if it did not exist.

Callers: `sources.py`, `prepare.py`.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from typing import TYPE_CHECKING, TypeVar

from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.data_index import DataIndex, FileEntry, decode, encode
from elasticdl.data.find_files import exists
from elasticdl.data.stored_file import (
    filesystem,
    local_path,
    local_state,
    open_stored,
    reachable,
    remote_state,
    why,
)
from elasticdl.errors import CorruptDataError, DataError
from elasticdl.user_files import check_regular, special_kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_Value = TypeVar("_Value")

_log = logging.getLogger("elasticdl")

# An index of a million files is smaller; a larger file is not read into memory.
_MAX_BYTES = 1 << 30

INDEX_FILE = ".elasticdl-index"
"""Name of an index file; hidden, so that it does not count as data."""


def write_index_files(index: DataIndex) -> list[str]:
    """Write an index beside the files it describes, and return the URIs of the index files.

    Raises:
        OutputError: A folder cannot be written to.
    """
    written = []
    for folder, entries in _by_folder((entry.uri, entry) for entry in index.files).items():
        named = tuple(entry._replace(uri=_name(entry.uri)) for entry in entries)
        uri = _beside(folder)
        file = AtomicFile(uri)
        file.write(encode(DataIndex(index.format, named)))
        file.publish()
        written.append(uri)
    return written


def find_index(uris: Sequence[str]) -> DataIndex | None:
    """Return an index of some or all of the files, from the index files in their folders.

    An index file that does not agree with its folder is ignored, with a warning. The result is None
    if no index file remains, or if those that remain describe files of different formats.

    Args:
        uris: Files, as `find_files` returns them.

    Raises:
        DataError: An index file is damaged or not a regular file, or a folder cannot be listed.
    """
    found = []
    for folder, inside in _by_folder((uri, uri) for uri in uris).items():
        uri = _beside(folder)
        # A file in an archive has no folder that could be written to.
        if "::" in uri or not _is_there(uri, folder or "."):
            continue
        index = _read(uri, folder or ".")
        known = {entry.uri: entry for entry in index.files}
        wanted = {_name(file): file for file in inside}
        if known.keys().isdisjoint(wanted):
            # It describes other files of the folder, and none of these.
            continue
        reason = why_stale(known, wanted, _listing(folder))
        if reason is None:
            found.append(DataIndex(index.format, _chosen(known, wanted)))
        else:
            _log.warning(
                "Ignoring %s: %s. The files are counted again; to rebuild the index: elasticdl "
                "data index %s",
                uri,
                reason,
                folder or ".",
            )
    formats = {index.format for index in found}
    if len(formats) != 1:
        return None
    return DataIndex(formats.pop(), tuple(entry for index in found for entry in index.files))


def _is_there(uri: str, folder: str) -> bool:
    """Return whether an index file exists.

    Args:
        uri: URI of the index file.
        folder: Its folder, for the error message.

    Raises:
        DataError: Something else has its name: a folder, a pipe, a link that leads nowhere.
    """
    path = local_path(uri)
    if path is None:
        return exists(uri)
    if not os.path.lexists(path):
        return False
    try:
        check_regular(path)
    except OSError as error:
        kind = special_kind(path) or why(error)
        raise DataError(
            f"{uri} cannot be read: expected an index, which is a regular file; found {kind}. "
            f"{_remedy(folder)}"
        ) from error
    return True


def _remedy(folder: str) -> str:
    return f"Rebuild it: elasticdl data index {folder}. Or delete it; it is optional."


def _read(uri: str, folder: str) -> DataIndex:
    stored = open_stored(uri)
    remedy = _remedy(folder)
    if stored.size_bytes > _MAX_BYTES:
        raise DataError(
            f"{uri}: expected at most {_MAX_BYTES:,} bytes, found {stored.size_bytes:,}. {remedy}"
        )
    try:
        return decode(stored.read(0, stored.size_bytes), uri)
    except CorruptDataError as error:
        found = str(error).partition(" Write the file again")[0]
        raise DataError(f"{found} {remedy}") from error


def why_stale(
    known: Mapping[str, FileEntry],
    wanted: Iterable[str],
    listing: Mapping[str, tuple[int | None, str]],
) -> str | None:
    """Return why an index file does not agree with its folder; None if it does.

    Args:
        known: The entries of the index file, by the names of the files.
        wanted: Names of the requested files; each must be in the index file.
        listing: Size and version of each file in the folder.
    """
    added = [name for name in wanted if name not in known]
    if added:
        return f"{added[0]} is not in it"
    for name, (_, size_bytes, version, _, _) in known.items():
        now = listing.get(name)
        if now != (size_bytes, version):
            return f"{name} {'was deleted' if now is None else 'has changed'}"
    return None


def _chosen(known: Mapping[str, FileEntry], wanted: Mapping[str, str]) -> tuple[FileEntry, ...]:
    return tuple([FileEntry(uri, *known[name][1:]) for name, uri in wanted.items()])


def _listing(folder: str) -> dict[str, tuple[int | None, str]]:
    """Return the size and the version of each file in a folder, with a single listing."""
    path = local_path(folder)
    if path is None:
        system, path = filesystem(folder)
        with reachable(folder):
            entries = system.ls(path, detail=True)
        return {_name(entry["name"]): remote_state(entry) for entry in entries}
    states: dict[str, tuple[int | None, str]] = {}
    try:
        with os.scandir(path or ".") as scanned:
            for entry in scanned:
                try:
                    status = entry.stat()
                except OSError:
                    # A dangling link, for example, is not a file of the index.
                    continue
                states[entry.name] = local_state(status)
    except OSError as error:
        raise DataError(f"{folder} cannot be listed: {error.strerror or error}.") from error
    return states


def _by_folder(items: Iterable[tuple[str, _Value]]) -> dict[str, list[_Value]]:
    folders: dict[str, list[_Value]] = defaultdict(list)
    for uri, value in items:
        folders[uri.rpartition("/")[0]].append(value)
    return folders


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]


def _beside(folder: str) -> str:
    return f"{folder}/{INDEX_FILE}" if folder else INDEX_FILE

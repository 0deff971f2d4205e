"""File discovery: resolves the names in `--data` to files.

A name is a file, a folder or a pattern with `*`, `?`, `[...]` and `**`; several names are separated
by commas. A folder stands for the data files directly in it, or else for its images
(`image_folders.py`). Plain paths, `~` and every protocol of fsspec are supported. Hidden and
temporary files (`.x`, `_x`, `x.tmp`, ...) are skipped unless requested explicitly. If nothing is
found, the error lists what exists.

Callers: `sources.py`, `prepare.py`, `overview.py`.
"""

from __future__ import annotations

import contextlib
import difflib
import glob
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeAlias

from elasticdl import user_files
from elasticdl.data.formats import (
    IMAGES,
    format_by_name,
    format_by_start,
    json_advice,
    readable_formats,
)
from elasticdl.data.image_folders import images_of_folder, is_image
from elasticdl.data.stored_file import filesystem, local_path, open_each, reachable, why
from elasticdl.data.wording import listed
from elasticdl.errors import DataError, NoDataError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_HIDDEN = (".", "_")
_TEMPORARY = (".tmp", ".temp", ".part", ".partial", ".crc", ".swp", "~")
_MAX_NAMED = 5
# In the output folder of a job; see `artifacts/claim.py`.
_JOB_FILE = "job.json"


def find_files(data: str) -> list[str]:
    """Resolve paths, URIs, folders and patterns to data files, sorted and without duplicates.

    Args:
        data: Names of files, folders or patterns, separated by commas.

    Raises:
        NoDataError: A name matches no file; the message lists what exists.
        DataError: A folder or a name cannot be read.
        MissingExtraError: The package for a protocol is not installed.
        UsageError: A protocol is unknown.
    """
    return _found(data, _data_of_folder)


def find_any_files(names: str) -> list[str]:
    """Resolve paths, URIs, folders and patterns to files of any kind, sorted, without duplicates.

    Args:
        names: Names of files, folders or patterns, separated by commas. A folder stands for every
            file in it, at any depth.

    Raises:
        NoDataError: A name matches no file; the message lists what exists.
        DataError: A folder or a name cannot be read.
        MissingExtraError: The package for a protocol is not installed.
        UsageError: A protocol is unknown.
    """
    return _found(names, _all_of_folder)


def find_folders(data: str) -> set[str]:
    """Return the URIs of those folders that the user named: as paths, as URIs or by patterns.

    The subfolders of these are the classes of images. They are not included in the result.

    Args:
        data: Names of files, folders or patterns, separated by commas.

    Raises:
        DataError: A folder or a name cannot be read.
        MissingExtraError: The package for a protocol is not installed.
        UsageError: A protocol is unknown.
    """
    folders: set[str] = set()

    def only_folder(place: _Local | _Remote, folder: str, name: str) -> list[str]:
        del name
        folders.add(place.uri(folder))
        return [folder]

    _found(data, only_folder)
    return folders


def exists(uri: str) -> bool:
    """Return whether a file (not a folder) exists at a path or URI.

    Raises:
        DataError: The storage cannot be accessed.
    """
    place = _place(uri)
    return place.is_file(place.path)


def some(names: Sequence[str]) -> str:
    """Return the first few names, and the number of the others, for a message.

    Example:
        >>> some(["a", "b", "c", "d", "e", "f", "g"])
        'a, b, c, d, e and 2 more'
    """
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _found(data: str, of_folder: _OfFolder) -> list[str]:
    path = local_path(_expanded(data))
    names = [data]
    # A local name may contain a comma. A long list of names is too long to be one file name.
    if "," in data and (path is None or not os.path.exists(path)):  # noqa: PTH110 - as it says
        names = [name.strip() for name in data.split(",")]
    names = [name for name in names if name]
    if not names:
        raise NoDataError(
            "The name of the data is empty; expected files, such as 'train/*.recordio'."
        )
    return sorted({uri for name in names for uri in _matches(name, of_folder)})


def _matches(name: str, of_folder: _OfFolder) -> list[str]:
    place = _place(name)
    if place.is_file(place.path):
        return [place.uri(place.path)]
    if place.is_folder(place.path):
        return [place.uri(path) for path in of_folder(place, place.path, name)]
    if (kind := place.special_kind(place.path)) is not None:
        raise DataError(
            f"{name} cannot be read: it is {kind}, but records are read more than once and in any "
            "order. Write them to a file and pass its name."
        )
    found = [path for path in place.glob(place.path) if _is_visible(path, place.path)]
    # A pipe or a device that a pattern matches is rejected by name where it is opened.
    files = [path for path in found if not place.is_folder(path)]
    if not files:
        # `data/train*` may well stand for the folder data/train.
        files = [path for folder in found for path in of_folder(place, folder, name)]
    if not files:
        raise NoDataError(_no_match(place, name))
    return [place.uri(path) for path in files]


def _all_of_folder(place: _Local | _Remote, folder: str, name: str) -> list[str]:
    """Return the path of every visible file in a folder, at any depth.

    Args:
        place: The file system.
        folder: Path of the folder.
        name: The user's name for the folder; "" for a subfolder, which may contain no files.

    Raises:
        NoDataError: The folder that the user named contains no files.
        DataError: A folder cannot be read.
    """
    files, folders = place.listing(folder)
    found = [path for path in files if _is_visible_name(path)]
    for inner in filter(_is_visible_name, folders):
        found += _all_of_folder(place, inner, "")
    if name and not found:
        raise NoDataError(f"The folder {name} contains no files.")
    return found


def _data_of_folder(place: _Local | _Remote, folder: str, name: str) -> list[str]:
    """Return the paths of the data files directly in a folder or, without any, of its images.

    Args:
        place: The file system.
        folder: Path of the folder.
        name: The user's name for the folder, for the error message.

    Raises:
        NoDataError: The folder has neither; the message lists what it contains.
        DataError: A folder or a file cannot be read, or the images are mixed up (see
            `images_of_folder`).
    """
    files, folders = place.listing(folder)
    visible = [path for path in files if _is_visible_name(path)]
    data = [path for path in visible if format_by_name(path) not in (None, IMAGES)]
    if not data:
        # Images are recognized by name only, so they are not opened here.
        unknown = [path for path in visible if format_by_name(path) is None]
        formats = open_each([place.uri(path) for path in unknown], format_by_start)
        data = [path for path, known in zip(unknown, formats, strict=True) if known is not None]
    if data:
        return data
    images, tree = images_of_folder(place, folder, files, folders)
    if images:
        return images
    names = _base_names(f"{path}/" for path in folders if _is_visible_name(path))
    other = tree.other or next(iter(visible), None)
    if names:
        advice = f"It contains the folders {some(names)}: choose one of them."
    elif visible:
        advice = f"It contains {some(_base_names(visible))}."
    else:
        advice = "It is empty."
    base_names = {path.rpartition("/")[2] for path in visible}
    is_dict = "dataset_dict.json" in base_names
    if is_dict or {"state.json", "dataset_info.json"} <= base_names:
        part = '["train"]' if is_dict else ""
        advice = (
            "It was written by save_to_disk() of Hugging Face. In Python, pass the data set: "
            f'data=datasets.load_from_disk("{name}"){part}.'
        )
    elif other is not None and format_by_name(other) is None:
        advice += (
            f" {json}"
            if (json := json_advice(place.uri(other)))
            else f" To turn other files such as {place.uri(other)} into records, write a function "
            "prepare_data_for_a_single_file: see `elasticdl data prepare --help`."
        )
    raise NoDataError(
        f"The folder {name} contains no data files ({', '.join(readable_formats())} "
        f"can be read). {advice}"
    )


def _is_visible(path: str, pattern: str) -> bool:
    """Return whether to read a path that a pattern matched.

    Temporary files are not read. Hidden files, and files in hidden folders, are only read if the
    pattern asks for hidden names, as `data/_part-*` does.
    """
    pattern_parts = PurePosixPath(pattern).parts
    num_fixed = len(_before_pattern(pattern_parts))
    asked_for = any(part.startswith(_HIDDEN) for part in pattern_parts[num_fixed:])
    parts = PurePosixPath(path).parts[num_fixed:]
    if is_image(path):
        parts = parts[:-1]
    hidden = any(part.startswith(_HIDDEN) for part in parts)
    return (asked_for or not hidden) and not path.endswith(_TEMPORARY)


def _is_visible_name(path: str) -> bool:
    # No Path objects: for a hundred thousand files, they would take longer than the listing.
    return not path.rpartition("/")[2].startswith(_HIDDEN) and not path.endswith(_TEMPORARY)


_OfFolder: TypeAlias = "Callable[[_Local | _Remote, str, str], list[str]]"
"""File system, path of a folder, the user's name for it -> paths of the files to use."""


class _Local:
    """The file system of this machine; has the same methods as `_Remote`.

    Args:
        path: The path that the user gave.
        prefix: Prefix that makes a path a URI; empty if the user gave a plain path.
    """

    def __init__(self, path: str, prefix: str) -> None:
        self.path = path
        self._prefix = prefix

    def uri(self, path: str) -> str:
        return self._prefix + path

    def is_file(self, path: str) -> bool:
        with _readable(path):
            return Path(path).is_file()

    def is_folder(self, path: str) -> bool:
        with _readable(path):
            return Path(path).is_dir()

    def identity(self, folder: str) -> tuple[int, int]:
        with _readable(folder):
            status = os.stat(folder)  # noqa: PTH116 - as in `listing`
        return status.st_dev, status.st_ino

    def special_kind(self, path: str) -> str | None:
        return user_files.special_kind(path)

    def is_output(self, folder: str) -> bool:
        # Of a job, such as the one that looks for its data.
        return os.path.exists(f"{folder}/{_JOB_FILE}")  # noqa: PTH110 - as in `identity`

    def glob(self, pattern: str) -> list[str]:
        # Unlike Path.glob, it keeps names as they were given, and leaves hidden ones out.
        return glob.glob(pattern, recursive=True)  # noqa: PTH207

    def listing(self, folder: str) -> tuple[list[str], list[str]]:
        with _readable(folder), os.scandir(folder) as entries:
            paths = [(entry.path, _is_folder(entry)) for entry in entries]
        files = [path for path, is_folder in paths if not is_folder]
        return files, [path for path, is_folder in paths if is_folder]


@contextlib.contextmanager
def _readable(path: str) -> Iterator[None]:
    """Context manager that turns the operating system's errors about a path into a `DataError`."""
    try:
        yield
    except OSError as error:
        right = " Give this user read permission." * isinstance(error, PermissionError)
        raise DataError(f"{path} cannot be read: {why(error)}.{right}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A circular link, for example; the error is raised where it is opened.
        return False


class _Remote:
    """An fsspec file system; has the same methods as `_Local`.

    Args:
        name: The URI or pattern that the user gave.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._system, self.path = filesystem(name)

    def uri(self, path: str) -> str:
        return str(self._system.unstrip_protocol(path))

    def is_file(self, path: str) -> bool:
        with reachable(self._name):
            return bool(self._system.isfile(path))

    def is_folder(self, path: str) -> bool:
        with reachable(self._name):
            return bool(self._system.isdir(path))

    def identity(self, folder: str) -> None:
        del folder  # object stores have no links

    def special_kind(self, path: str) -> str | None:
        del path
        return None

    def is_output(self, folder: str) -> bool:
        del folder  # a request for each folder
        return False

    def glob(self, pattern: str) -> list[str]:
        with reachable(self._name):
            return [str(path) for path in self._system.glob(pattern)]

    def listing(self, folder: str) -> tuple[list[str], list[str]]:
        with reachable(self._name):
            entries: list[Any] = self._system.ls(folder, detail=True)
        files = [entry["name"] for entry in entries if entry["type"] != "directory"]
        return files, [entry["name"] for entry in entries if entry["type"] == "directory"]


def _expanded(name: str) -> str:
    return os.path.expanduser(name)  # noqa: PTH111 - a Path would take a URI apart


def _place(name: str) -> _Local | _Remote:
    path = local_path(_expanded(name))
    if path is None:
        return _Remote(name)
    prefix = name[: len(name) - len(path)] if name.endswith(path) else ""
    return _Local(path, prefix)


# --- error messages when nothing is found ------------------------------------------------------


def _no_match(place: _Local | _Remote, name: str) -> str:
    """Return the error message for a name that matches no file; it lists what exists there.

    Args:
        place: The file system.
        name: The path, URI or pattern that the user gave.
    """
    wanted = place.path.rstrip("/")
    folder, _, base = wanted.rpartition("/")
    folder = folder or ("/" if wanted.startswith("/") else ".")
    literal = PurePosixPath(*_before_pattern(PurePosixPath(folder).parts))
    existing = literal
    while not place.is_folder(str(existing)) and existing.parent != existing:
        existing = existing.parent
    if not place.is_folder(str(existing)):
        return f"No file matches {name!r}: there is no folder {literal}."
    files, folders = place.listing(str(existing))
    folders = [path for path in folders if not place.is_output(path)]
    names = _base_names([*files, *(f"{path}/" for path in folders)])
    if existing != literal:
        missing = literal.parts[len(existing.parts)]
        near = difflib.get_close_matches(f"{missing}/", names, n=1)
        hint = f"; did you mean {str(existing / near[0])!r}?" if near else f" ({_holds(names)})."
        return f"No file matches {name!r}: the folder {existing} has no {missing!r} in it{hint}"
    near = difflib.get_close_matches(base, names, n=_MAX_NAMED)
    hint = f" Did you mean {listed(near)}?" if near else ""
    return f"No file matches {name!r}. The folder {existing} exists; {_holds(names)}.{hint}"


def _before_pattern(parts: Iterable[str]) -> list[str]:
    before = []
    for part in parts:
        if glob.has_magic(part):
            break
        before.append(part)
    return before


def _holds(names: Sequence[str]) -> str:
    return f"it contains {some(names)}" if names else "it is empty"


def _base_names(paths: Iterable[str]) -> list[str]:
    return sorted(PurePosixPath(path).name + "/" * path.endswith("/") for path in paths)

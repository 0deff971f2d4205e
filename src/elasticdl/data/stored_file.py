"""Bytes of a file by position, wherever it is stored: the only thing readers know of storage.

Plain paths and `file://` are read with the operating system's own calls, everything else
(`s3://`, `gs://`, `memory://`, ...) through fsspec. Nothing stays open between two reads: a
file can be read from several threads, sent to another process, and ten thousand of them cost
no file descriptor. What the bytes mean is not known here.

Callers: the readers of this folder; `atomic_file.py`, for what a URI is.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from elasticdl import user_files
from elasticdl.errors import DataError, ElasticDLError, MissingExtraError, NoDataError, UsageError

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Iterator, Mapping, Sequence

Opened = TypeVar("Opened")

_LOCAL_PREFIXES = ("file://", "local://")
# Which package fsspec wants for a protocol, and our extra that installs it.
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}
_HTTP = ("http", "https")
SILENCE_S = 30.0
"""How long a server may say nothing, where its file system can be told so."""
# An answer of an object store takes tens of milliseconds, most of them waiting.
_PARALLEL_OPENS = 16
# What stores call what changes with a file, the surest first.
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "created")


def local_path(uri: str) -> str | None:
    """Return the path of a plain path or `file://` URI, None for any other URI.

    Example:
        >>> local_path("file:///data/a.recordio"), local_path("s3://bucket/a.recordio")
        ('/data/a.recordio', None)
    """
    for prefix in _LOCAL_PREFIXES:
        if uri.startswith(prefix):
            return uri.removeprefix(prefix)
    # `::` chains file systems in fsspec (`zip://a.csv::s3://bucket/b.zip`).
    return None if "://" in uri or "::" in uri else uri


def why(error: Exception) -> str:
    """Return what an error of a storage says, without its number."""
    return str(getattr(error, "strerror", None) or error).removesuffix(".")


def check_output(uri: str, option: str = "--output") -> str:
    """Return the address of an output, if what is written there outlives this process.

    Args:
        uri: A path or URI.
        option: How it was given, for errors.

    Raises:
        UsageError: It is empty, or in the memory of this process (`memory://` of fsspec).

    Example:
        >>> check_output("s3://bucket/model")
        's3://bucket/model'
    """
    if not uri.strip():
        raise UsageError(
            f"{option} is empty; expected a folder or a URI, such as {option}=my_model."
        )
    # `simplecache::memory://x` ends in memory, too.
    if any(part.strip().startswith("memory://") or part == "memory" for part in uri.split("::")):
        raise UsageError(
            f"{option}={uri} is in the memory of this process, and is lost when it ends. Name a "
            "folder, or an object store such as s3:// or gs://."
        )
    return uri


def filesystem(uri: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URI and the path within it.

    Raises:
        MissingExtraError: The package for this protocol is not installed.
        UsageError: fsspec knows no such protocol.
    """
    # A tenth of a second that local files need not wait for.
    import fsspec.core  # noqa: PLC0415

    protocol = uri.partition("://")[0]
    try:
        system, path = fsspec.core.url_to_fs(uri, **_patience(protocol))
    except ImportError as error:
        if protocol in _EXTRAS:
            raise MissingExtraError(*_EXTRAS[protocol], needed_for=uri) from error
        raise UsageError(f"{uri} cannot be opened: {error}.") from error
    except ValueError as error:
        raise UsageError(
            f"{uri} cannot be opened: {error}. A file is named by a path or by a URI of a "
            "protocol that fsspec knows, such as s3:// or gs://."
        ) from error
    return system, path


def _patience(protocol: str) -> dict[str, Any]:
    """Return how a file system is told not to wait for a server that is silent.

    Object stores have limits of their own; for HTTP there is only one for a whole transfer, of five
    minutes, which is too short for a large file and too long for a server that says nothing.
    """
    import fsspec.config  # noqa: PLC0415

    if protocol not in _HTTP or "client_kwargs" in fsspec.config.conf.get(protocol, {}):
        return {}
    import aiohttp  # noqa: PLC0415 - only there; fsspec needs it, too

    limits = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
    return {"client_kwargs": {"timeout": limits}}


@contextlib.contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Turn what a store raises while it is asked what there is into a `DataError`.

    Args:
        uri: What it is asked about.

    Raises:
        DataError: It is not there, does not answer, or wants credentials.
    """
    try:
        yield
    except ElasticDLError:
        raise
    except Exception as error:  # each store has errors of its own
        silent = isinstance(error, TimeoutError)
        said = f"no answer for {SILENCE_S:g} s" if silent else why(error) or type(error).__name__
        raise DataError(
            f"{uri} cannot be looked at: {said}. Check the address, the network and your "
            "credentials."
        ) from error


@dataclass(frozen=True)
class StoredFile:
    """A file of known size.

    Attributes:
        uri: As it was given.
        size_bytes: Size when it was opened.
        counted: What an error message adds to an offset in this file: nothing, it is one.
        version: Changes when the file does: when it was written, or the tag that an object store
            gives it. Empty where the storage tells nothing of the kind.
    """

    uri: str
    size_bytes: int
    counted: str = ""
    version: str = ""

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` (exclusive), fewer where the file ends before.

        Raises:
            DataError: The storage refuses: the file is gone, or may not be read.
        """
        # Or room would be made for bytes that cannot come.
        stop = min(stop, self.size_bytes)
        path = local_path(self.uri)
        if path is not None:
            try:
                return _read_local(path, start, stop)
            except OSError as error:
                raise _unreadable(self.uri, error) from error
        system, path = filesystem(self.uri)
        try:
            data: bytes = system.cat_file(path, start=start, end=max(start, stop))
        except Exception as error:  # each store has errors of its own
            raise _unreadable(self.uri, error) from error
        return data

    def read_into(self, memory: mmap.mmap, start: int, size_bytes: int) -> int:
        """Read into memory instead of returning bytes; its first bytes are overwritten.

        Args:
            memory: At least `size_bytes` of it.
            start: Where to start in the file.
            size_bytes: How much to read.

        Returns:
            How much was read, less than `size_bytes` where the file ends before.

        Raises:
            DataError: The storage refuses: the file is gone, or may not be read.
        """
        path = local_path(self.uri)
        if path is None:
            data = self.read(start, start + size_bytes)
            memory[: len(data)] = data
            return len(data)
        try:
            with memoryview(memory) as view:
                return _read_local_into(path, view[:size_bytes], start)
        except OSError as error:
            raise _unreadable(self.uri, error) from error

    def look(self) -> None:
        """Look whether it is still the file that an index was made of: there is none here.

        Raises:
            DataError: It is another one (see `CountedFile`).
        """

    def require_unchanged(self) -> None:
        """Ask the storage whether it is still the file that an index was made of: as `look`.

        Raises:
            DataError: It is another one (see `CountedFile`).
        """


def open_stored(uri: str, *, fresh: bool = False) -> StoredFile:
    """Return the file at a URI, after asking for its size and version and nothing else.

    Args:
        uri: Where it is.
        fresh: Ask the storage, and not what it has said of the whole folder before.

    Raises:
        NoDataError: There is no such file.
        DataError: The storage refuses, or does not tell the size.
        MissingExtraError: The package for this protocol is not installed.
        UsageError: fsspec knows no such protocol.
    """
    path = local_path(uri)
    if path is not None:
        try:
            # A folder has a size, too, and would fail much later, when it is read.
            user_files.check_regular(path)
            size_bytes, version = local_state(os.stat(path))  # noqa: PTH116 - twice as quick
            return StoredFile(uri, size_bytes, version=version)
        except OSError as error:
            raise _unreadable(uri, error) from error
    system, path = filesystem(uri)
    try:
        if fresh:
            system.invalidate_cache(path)
        info = system.info(path)
    except Exception as error:  # each store has errors of its own
        raise _unreadable(uri, error) from error
    remote_bytes, version = remote_state(info)
    if remote_bytes is None:
        raise DataError(
            f"{uri} cannot be read: its server does not tell the size of a file, which reading "
            "by record number needs. Copy the file to a disk or an object store."
        )
    return StoredFile(uri, remote_bytes, version=version)


def local_state(status: os.stat_result) -> tuple[int, str]:
    """Return the size and the version of a local file."""
    return status.st_size, str(status.st_mtime_ns)


def remote_state(info: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the size and the version of a remote file, by what fsspec says of it.

    Example:
        >>> remote_state({"name": "bucket/a", "size": 7, "ETag": '"5d41"'})
        (7, '"5d41"')
    """
    # The first there is: a listing and a look at one object may round its time differently.
    versions = (_text(info[key]) for key in _VERSION_KEYS if info.get(key))
    return info.get("size"), next(versions, "")


def _text(version: Any) -> str:
    return str(version.timestamp() if isinstance(version, dt.datetime) else version)


def open_each(uris: Sequence[str], open_one: Callable[[str], Opened]) -> list[Opened]:
    """Return `open_one(uri)` for each URI, remote ones several at a time.

    Args:
        uris: URIs or paths.
        open_one: Opens one of them; called from several threads.

    Raises:
        Exception: What `open_one` raised first, in the order of the URIs.
    """
    if all(local_path(uri) is not None for uri in uris):
        return [open_one(uri) for uri in uris]
    with ThreadPoolExecutor(max_workers=_PARALLEL_OPENS) as threads:
        return list(threads.map(open_one, uris))


def _read_local(path: str, start: int, stop: int) -> bytes:
    """Return bytes `start` to `stop` of a local file, fewer where it ends before."""
    pieces = []
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # One call returns 2 GiB at most.
        while start < stop and (piece := os.pread(descriptor, stop - start, start)):
            pieces.append(piece)
            start += len(piece)
    finally:
        os.close(descriptor)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_local_into(path: str, memory: memoryview, start: int) -> int:
    """Fill memory from a local file and return how much of it, less where the file ends."""
    num_read = 0
    descriptor = os.open(path, os.O_RDONLY)
    try:
        while num_read < len(memory) and (
            more := os.preadv(descriptor, [memory[num_read:]], start + num_read)
        ):
            num_read += more
    finally:
        os.close(descriptor)
    return num_read


def _unreadable(uri: str, error: Exception) -> DataError:
    """Return the error a user reads when the storage refuses."""
    if isinstance(error, FileNotFoundError):
        return NoDataError(f"{uri} cannot be read: there is no such file.")
    return DataError(f"{uri} cannot be read: {why(error)}.")

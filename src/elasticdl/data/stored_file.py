"""Stored files: reads bytes by position from any storage. All readers access storage through it.

Plain paths and `file://` are read with the operating system's own calls, everything else
(`s3://`, `gs://`, `memory://`, ...) through fsspec. Nothing stays open between two reads: a
file can be read from several threads and sent to another process, and ten thousand files use
no file descriptor. The bytes are not interpreted here.

Callers: the readers in this folder; `atomic_file.py`, to interpret URIs.
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
# The package that fsspec needs for a protocol, and our extra that installs it.
_EXTRAS = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gcs"),
    "http": ("aiohttp", "http"),
    "https": ("aiohttp", "http"),
}
_HTTP = ("http", "https")
SILENCE_S = 30.0
"""Timeout for a server that sends nothing, in seconds, for file systems that allow setting it."""
# A response of an object store takes tens of milliseconds, most of them waiting.
_PARALLEL_OPENS = 16
# The stores' names for a value that changes with a file, the most reliable first.
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "generation", "mtime", "LastModified", "created")


def local_path(uri: str) -> str | None:
    """Return the path of a plain path or `file://` URI; None for any other URI.

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
    """Return the message of a storage error, without the operating system's error number."""
    return str(getattr(error, "strerror", None) or error).removesuffix(".")


def check_output(uri: str, option: str = "--output") -> str:
    """Return the URI of an output, after checking that it outlives this process.

    Args:
        uri: A path or URI.
        option: Name of the option, for errors.

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
            f"{option}={uri} is in the memory of this process and is lost when the process ends. "
            "Choose a folder, or an object store such as s3:// or gs://."
        )
    return uri


def filesystem(uri: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URI and the path within it.

    Raises:
        MissingExtraError: The package for this protocol is not installed.
        UsageError: fsspec does not support the protocol.
    """
    # Importing it takes a tenth of a second that local files need not wait for.
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
            f"{uri} cannot be opened: {error}. Expected a path, or a URI of a protocol that fsspec "
            "supports, such as s3:// or gs://."
        ) from error
    return system, path


def _patience(protocol: str) -> dict[str, Any]:
    """Return fsspec options that end an HTTP transfer when the server sends nothing for a while.

    By default, fsspec only limits a whole HTTP transfer to five minutes. That is too short for a
    large file, and too long to wait for a silent server. The result is empty for other protocols,
    whose packages have their own timeouts, and for HTTP if the user has configured `client_kwargs`.
    """
    import fsspec.config  # noqa: PLC0415

    if protocol not in _HTTP or "client_kwargs" in fsspec.config.conf.get(protocol, {}):
        return {}
    import aiohttp  # noqa: PLC0415 - only there; fsspec needs it, too

    limits = aiohttp.ClientTimeout(total=None, sock_connect=SILENCE_S, sock_read=SILENCE_S)
    return {"client_kwargs": {"timeout": limits}}


@contextlib.contextmanager
def reachable(uri: str) -> Iterator[None]:
    """Context manager that turns errors of a storage that is listed or queried into a `DataError`.

    Args:
        uri: The URI that is looked up.

    Raises:
        DataError: It does not exist, does not respond, or requires credentials.
    """
    try:
        yield
    except ElasticDLError:
        raise
    except Exception as error:  # each store has its own errors
        silent = isinstance(error, TimeoutError)
        reason = (
            f"no response for {SILENCE_S:g} s" if silent else why(error) or type(error).__name__
        )
        raise DataError(
            f"{uri} cannot be accessed: {reason}. Check the address, the network and your "
            "credentials."
        ) from error


@dataclass(frozen=True)
class StoredFile:
    """A local or remote file of known size, from which bytes are read by position.

    Attributes:
        uri: URI of the file.
        size_bytes: Size when it was opened.
        offset_note: Text that error messages put after a byte offset. It is empty in this class,
            and " (counted after decompression)" in `InflatedFile`.
        version: Changes when the file does: the time of its last change, or the tag that an object
            store assigns. Empty where the storage has neither.
    """

    uri: str
    size_bytes: int
    offset_note: str = ""
    version: str = ""

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` (exclusive), fewer at the end of the file.

        Raises:
            DataError: The file does not exist, or cannot be read.
        """
        # Otherwise memory would be allocated for bytes that do not exist.
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
        except Exception as error:  # each store has its own errors
            raise _unreadable(self.uri, error) from error
        return data

    def read_into(self, memory: mmap.mmap, start: int, size_bytes: int) -> int:
        """Read bytes of the file into the given memory.

        Args:
            memory: Memory to fill from its first byte on; at least `size_bytes` long.
            start: Where to start in the file.
            size_bytes: Number of bytes to read.

        Returns:
            The number of bytes read, less than `size_bytes` at the end of the file.

        Raises:
            DataError: The file does not exist, or cannot be read.
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

    def check(self) -> None:
        """Check that the file has not changed since it was indexed.

        `IndexedFile` does so. This class has no index, and does nothing.

        Raises:
            DataError: The file has changed (see `IndexedFile`).
        """

    def require_unchanged(self) -> None:
        """Check that the file has not changed since it was indexed, even if it was checked before.

        `IndexedFile` does so. This class has no index, and does nothing.

        Raises:
            DataError: The file has changed (see `IndexedFile`).
        """


def open_stored(uri: str, *, fresh: bool = False) -> StoredFile:
    """Return the file at a URI, after requesting only its size and version.

    Args:
        uri: Its URI.
        fresh: Request them from the storage, to notice a change of the file. Otherwise, a listing
            of the folder that fsspec has cached is used.

    Raises:
        NoDataError: The file does not exist.
        DataError: The file cannot be accessed, or the storage does not report its size.
        MissingExtraError: The package for this protocol is not installed.
        UsageError: fsspec does not support the protocol.
    """
    path = local_path(uri)
    if path is not None:
        try:
            # A folder also has a size, and would fail much later, when it is read.
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
    except Exception as error:  # each store has its own errors
        raise _unreadable(uri, error) from error
    remote_bytes, version = remote_state(info)
    if remote_bytes is None:
        raise DataError(
            f"{uri} cannot be read: its server does not report file sizes, which are needed to "
            "read records by number. Copy the file to a disk or an object store."
        )
    return StoredFile(uri, remote_bytes, version=version)


def local_state(status: os.stat_result) -> tuple[int, str]:
    """Return the size of a local file, and its modification time in nanoseconds as a string."""
    return status.st_size, str(status.st_mtime_ns)


def remote_state(info: Mapping[str, Any]) -> tuple[int | None, str]:
    """Return the size and the version of a remote file from fsspec's information about it.

    Example:
        >>> remote_state({"name": "bucket/a", "size": 7, "ETag": '"5d41"'})
        (7, '"5d41"')
    """
    # The first available key: a listing and a request for one object may round times differently.
    versions = (_text(info[key]) for key in _VERSION_KEYS if info.get(key))
    return info.get("size"), next(versions, "")


def _text(version: Any) -> str:
    return str(version.timestamp() if isinstance(version, dt.datetime) else version)


def open_each(uris: Sequence[str], open_one: Callable[[str], Opened]) -> list[Opened]:
    """Return `open_one(uri)` for each URI, remote ones several at a time.

    Args:
        uris: URIs or paths.
        open_one: Function (URI) -> the opened file; called from several threads.

    Raises:
        Exception: The first error of `open_one`, in the order of the URIs.
    """
    if all(local_path(uri) is not None for uri in uris):
        return [open_one(uri) for uri in uris]
    with ThreadPoolExecutor(max_workers=_PARALLEL_OPENS) as threads:
        return list(threads.map(open_one, uris))


def _read_local(path: str, start: int, stop: int) -> bytes:
    """Return bytes `start` to `stop` of a local file, fewer at its end."""
    pieces = []
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # One call returns at most 2 GiB.
        while start < stop and (piece := os.pread(descriptor, stop - start, start)):
            pieces.append(piece)
            start += len(piece)
    finally:
        os.close(descriptor)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _read_local_into(path: str, memory: memoryview, start: int) -> int:
    """Fill memory with the bytes of a local file.

    Args:
        path: Path of the file.
        memory: The memory to fill.
        start: Where to start in the file.

    Returns:
        The number of bytes read, less than the size of the memory if the file ends earlier.
    """
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
    """Return the error for a file that cannot be read: a `NoDataError` if it does not exist."""
    if isinstance(error, FileNotFoundError):
        return NoDataError(f"{uri} cannot be read: there is no such file.")
    return DataError(f"{uri} cannot be read: {why(error)}.")

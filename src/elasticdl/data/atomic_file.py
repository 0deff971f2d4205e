"""Atomic output files: a file appears completely or not at all.

    hidden file --publish--> target file, replaced if it existed
         |
         +------discard----> deleted; an existing target is unchanged

On a disk: a hidden file beside the target is synced and renamed over it, and the folder is synced.
In an object store: an upload is completed at the end, because an object appears only once it is
complete. On other remote file systems: a hidden file beside the target is moved. A process that is
killed leaves at most the hidden file (`.NAME.*.tmp`), which is never read as data.
The content of the file is not interpreted here.

Callers: the writers in this folder.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl import durable
from elasticdl.data.stored_file import filesystem, local_path, why
from elasticdl.errors import ElasticDLError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Without a buffer, records of a few bytes would cost a system call each.
_BUFFER_BYTES = 1 << 20
_OBJECT_STORES = ("s3://", "s3a://", "gs://", "gcs://")


class AtomicFile:
    """Output file that appears under its name when it is published.

    Args:
        uri: Target; an existing file is replaced by `publish`.

    Raises:
        OutputError: The target cannot be written to.
        MissingExtraError: The package for this protocol is not installed.
        UsageError: fsspec does not support the protocol.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._state = "open"
        with self._output_errors():
            self._aside = _aside(uri)

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            OutputError: The bytes cannot be written (the file is then discarded), or the file is
                already closed.
        """
        self._check_open()
        with self._discarded_on_error():
            self._aside.write(data)

    def publish(self) -> None:
        """Make the complete file appear under its name; may be called only once.

        Raises:
            OutputError: It cannot be completed; the previous file is kept.
        """
        self._check_open()
        with self._discarded_on_error():
            self._aside.publish()
        self._state = "published"

    def discard(self) -> None:
        """Delete the unpublished file; does nothing after `publish` or `discard`."""
        if self._state != "open":
            return
        self._state = "discarded"
        # Another error has happened already, and that one must be reported.
        with contextlib.suppress(Exception):
            self._aside.discard()

    def _check_open(self) -> None:
        if self._state != "open":
            raise OutputError(
                f"{self.uri} cannot be written to: it was {self._state} already. Write it again "
                "from the first record."
            )

    @contextlib.contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        try:
            with self._output_errors():
                yield
        except BaseException:
            self.discard()
            raise

    @contextlib.contextmanager
    def _output_errors(self) -> Iterator[None]:
        try:
            yield
        except ElasticDLError:
            raise
        except Exception as error:  # each store has its own errors
            raise OutputError(
                f"{self.uri} cannot be written: {why(error)}. Nothing was published."
            ) from error


class _Staging(Protocol):
    """A file being written that is not visible under its name yet.

    `publish` makes it visible, `discard` deletes it. The methods raise the errors of the storage,
    such as `OSError`.
    """

    def write(self, data: bytes) -> object: ...

    def publish(self) -> None: ...

    def discard(self) -> None: ...


def _aside(uri: str) -> _Staging:
    """Create an unpublished file for a URI.

    On a local disk it is a hidden file, in an object store an unfinished upload, and on any other
    remote file system a hidden remote file.
    """
    path = local_path(uri)
    if path is not None:
        return _HiddenFile(path)
    if uri.startswith(_OBJECT_STORES):
        return _Upload(*filesystem(uri))
    return _HiddenRemoteFile(*filesystem(uri))


def _hidden(name: str) -> str:
    # Two writers of one target must not write into one file.
    return f".{name}.{secrets.token_hex(4)}.tmp"


class _HiddenFile:
    """A hidden file on a local disk, renamed to its target by `publish`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._hidden = self._path.with_name(_hidden(self._path.name))
        # No `with` statement: the file stays open until `publish` or `discard`.
        self._file = self._hidden.open("xb", buffering=_BUFFER_BYTES)
        self.write = self._file.write

    def publish(self) -> None:
        self._file.close()
        durable.replace(self._hidden, self._path)

    def discard(self) -> None:
        try:
            # Closing writes the buffer, which fails again on a full disk.
            self._file.close()
        finally:
            self._hidden.unlink()


class _Upload:
    """A file in an object store, which becomes visible when its upload is complete."""

    def __init__(self, system: Any, path: str) -> None:
        self._file = system.open(path, "wb")
        self.write = self._file.write

    def publish(self) -> None:
        self._file.close()

    def discard(self) -> None:
        self._file.discard()
        # Otherwise the upload would be completed when the file object is collected.
        self._file.closed = True


class _HiddenRemoteFile:
    """A hidden file on a remote file system, renamed to its target by `publish`."""

    def __init__(self, system: Any, path: str) -> None:
        folder, name = posixpath.split(path)
        self._system = system
        self._path = path
        self._hidden = posixpath.join(folder, _hidden(name))
        self._file = system.open(self._hidden, "wb")
        self.write = self._file.write

    def publish(self) -> None:
        self._file.close()
        self._system.mv(self._hidden, self._path)

    def discard(self) -> None:
        try:
            self._file.close()
        finally:
            self._system.rm_file(self._hidden)

"""A file that is there completely or not at all.

    written aside --publish--> there, under its name
         |
         +--------discard----> gone, and what was there before is still there

On a disk: a hidden file beside the target, synced, then renamed over it, and the folder synced.
In an object store: an upload that is completed at the end, because an object appears when it is
complete. On other remote file systems: a hidden file beside the target, then moved. A process
that is killed leaves at most the hidden file (`.NAME.*.tmp`), whose name ends as no data file's
does.
What is written is not known here.

Callers: the writers of this folder.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.data.stored_file import filesystem, local_path, why
from elasticdl.errors import ElasticDLError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

# Records of a few bytes must not cost a system call each.
_BUFFER_BYTES = 1 << 20
_OBJECT_STORES = ("s3://", "s3a://", "gs://", "gcs://")


class AtomicFile:
    """A file being written; it appears when it is published.

    Args:
        uri: Where it is published; a file that is there already is replaced then.

    Raises:
        OutputError: The place cannot be written to.
        MissingExtraError: The package for this protocol is not installed.
        UsageError: fsspec knows no such protocol.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._state = "open"
        with self._output_errors():
            self._aside = _aside(uri)

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            OutputError: They cannot be written, and the file is discarded; or it was before.
        """
        self._check_open()
        with self._discarded_on_error():
            self._aside.write(data)

    def publish(self) -> None:
        """Make the file appear under its name, complete; only once.

        Raises:
            OutputError: It cannot be completed: what was there before is still there.
        """
        self._check_open()
        with self._discarded_on_error():
            self._aside.publish()
        self._state = "published"

    def discard(self) -> None:
        """Leave no trace; does nothing to a file that is published or discarded."""
        if self._state != "open":
            return
        self._state = "discarded"
        # Something has gone wrong already, and that is what must be reported.
        with contextlib.suppress(Exception):
            self._aside.discard()

    def _check_open(self) -> None:
        if self._state != "open":
            raise OutputError(
                f"{self.uri} cannot be written to: it was {self._state} before. "
                "Write it anew from the first record."
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
        except Exception as error:  # each store has errors of its own
            raise OutputError(
                f"{self.uri} cannot be written: {why(error)}. Nothing of it was published."
            ) from error


class _Aside(Protocol):
    """What is written until it is published or discarded; raises what its storage raises."""

    def write(self, data: bytes) -> object: ...

    def publish(self) -> None: ...

    def discard(self) -> None: ...


def _aside(uri: str) -> _Aside:
    """Return what fits the place a URI names."""
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
    """A file beside its target, on a disk."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._hidden = self._path.with_name(_hidden(self._path.name))
        # Open until it is published or discarded, which is not a block of code.
        self._file = self._hidden.open("xb", buffering=_BUFFER_BYTES)
        self.write = self._file.write

    def publish(self) -> None:
        self._file.flush()
        # Without it, a power cut after the rename could leave an empty file.
        os.fsync(self._file.fileno())
        self._file.close()
        self._hidden.replace(self._path)
        # The name is the folder's: without it, a power cut could bring back the file before.
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        try:
            # Closing writes what is buffered, which fails once more on a full disk.
            self._file.close()
        finally:
            self._hidden.unlink()


class _Upload:
    """An object that appears when its upload is complete."""

    def __init__(self, system: Any, path: str) -> None:
        self._file = system.open(path, "wb")
        self.write = self._file.write

    def publish(self) -> None:
        self._file.close()

    def discard(self) -> None:
        self._file.discard()
        # Or it would be completed when the file object is collected.
        self._file.closed = True


class _HiddenRemoteFile:
    """A file beside its target, on any other file system."""

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

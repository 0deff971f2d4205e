"""Output of a job: one folder, on this machine or on an object store.

Everything a run leaves behind is written through an `OutputFolder`, which guarantees three things
for every kind of storage: it rejects names outside the folder, such as `../x`; it writes a file or
folder completely or not at all; and it raises an `OutputError` that names the path and the remedy
when reading or writing fails. It does not interpret what is written; `claim.py` decides which
process may write.

    OUTPUT/
      job.json        the job's identity (`claim.py`)  .lock        the process that works on it
      checkpoints/    `checkpoint_store.py`            .generation  how often it was started
      trained_model.pb, params.safetensors, zoo/ ...   `trained_model.py`
      events.jsonl    `event_log.py`                   tracking.json, logs/    `tracking/`

Callers: the engines; `evaluation/` and `prediction/` read trained models through it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from elasticdl.artifacts.local_storage import LocalStorage, output_errors
from elasticdl.artifacts.remote_storage import RemoteStorage
from elasticdl.artifacts.versioned_file import LocalFile
from elasticdl.data.stored_file import local_path
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elasticdl.artifacts.fence import Fence
    from elasticdl.artifacts.versioned_file import VersionedFile


class OutputFolder:
    """The output folder of a job, local or remote, in which files are written atomically.

    Creating an instance reads and writes nothing; the first write creates the folder. Names are
    relative, with `/` between their parts; the empty name is the folder itself.

    Attributes:
        uri: The address of the folder, as it was passed.
        is_local: Whether it is on this machine.

    Raises:
        MissingExtraError: A package is needed to reach such an address.
        UsageError: The kind of address is unknown.

    Example:
        >>> folder = OutputFolder("memory://doc-folder")
        >>> folder.write_bytes("reports/first.txt", b"well")
        >>> folder.list("reports")
        ['first.txt']
        >>> folder.read_bytes("reports/first.txt")
        b'well'
    """

    def __init__(self, uri: str | os.PathLike[str]) -> None:
        self.uri = os.fspath(uri)
        path = local_path_of(self.uri)
        self.is_local = path is not None
        self._storage = RemoteStorage(self.uri) if path is None else LocalStorage(path)

    def __repr__(self) -> str:
        return f"OutputFolder({self.uri!r})"

    def where(self, name: str = "") -> str:
        """Return the path or URI of a name, for messages."""
        return self._storage.where(_checked(name, self.uri))

    def local_path(self, name: str = "") -> Path | None:
        """Return the local path of a file or folder; None if the output is not on this machine."""
        storage = self._storage
        return storage.path(_checked(name, self.uri)) if isinstance(storage, LocalStorage) else None

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            OutputError: The file does not exist, or cannot be read.
        """
        return self._storage.read_bytes(_checked(name, self.uri))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a whole file in one step; on an object store, with one put.

        Raises:
            OutputError: The file cannot be written; the previous content is kept.
        """
        self._storage.write_bytes(_checked(name, self.uri), data)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Context manager: create an empty temporary folder and remove it when the block ends.

        If the output is on this machine, the temporary folder is on the same disk.

        Raises:
            OutputError: The folder cannot be created.
        """
        path = self._storage.new_staging("scratch")
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def staging(self, name: str) -> Iterator[Path]:
        """Context manager: create an empty folder to be filled, and publish it when the block ends.

        The folder is on this machine; it is published in the output as `name`. If the block raises,
        the folder is deleted and nothing is published.

        Raises:
            OutputError: The folder cannot be created or published; the previous content is kept.
        """
        name = _checked(name, self.uri)
        path = self._storage.new_staging(name)
        try:
            yield path
            self._storage.publish(path, name)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def publish(self, local_folder: Path, name: str) -> None:
        """Publish a folder (or file) of this machine under a name, replacing the existing one.

        On this machine it appears in one step. On an object store its `manifest.json` is uploaded
        last; a folder whose manifest is missing counts as absent.

        Args:
            local_folder: The folder or file; it is moved, so it no longer exists afterwards.
            name: The name to give it in the output.

        Raises:
            OutputError: The folder cannot be published; a local target keeps its previous content.
        """
        self._storage.publish(local_folder, _checked(name, self.uri))

    def list(self, name: str = "") -> Sequence[str]:
        """Return the names in a folder, sorted; empty if there is no such folder."""
        return self._storage.names(_checked(name, self.uri))

    def exists(self, name: str = "") -> bool:
        """Return whether there is a file or a folder of this name."""
        return self._storage.exists(_checked(name, self.uri))

    def delete(self, name: str) -> None:
        """Remove a file or a folder, if it exists.

        Raises:
            OutputError: The file or folder cannot be removed.
        """
        self._storage.delete(_checked(name, self.uri))

    def fetch(self, name: str, destination: Path) -> None:
        """Copy a file or folder to a new path on this machine.

        Raises:
            OutputError: The source does not exist, or a file cannot be read or written.
        """
        if not self.exists(name):
            raise OutputError(f"{self.where(name)}: there is no such file or folder.")
        self._storage.fetch(_checked(name, self.uri), destination)

    def fence(self, fence: Fence | None) -> None:
        """Set the lock that is checked before each write.

        Args:
            fence: The lock; see `fence.Fence`. None: check no lock.
        """
        self._storage.fence = fence

    def versioned(self, name: str) -> VersionedFile:
        """Return an object for conditional writes of one file of the folder, such as a lease.

        A write succeeds only if the file still has the version that the writer has read. The
        object's methods raise the store's own exceptions instead of `OutputError`.
        """
        name, storage = _checked(name, self.uri), self._storage
        if isinstance(storage, LocalStorage):
            return LocalFile(storage.path(name))
        return storage.versioned(name)

    def errors(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Context manager: exceptions in the block become an `OutputError` about writing `name`."""
        storage = self._storage
        if isinstance(storage, LocalStorage):
            return output_errors(storage.path(name))
        return storage.errors(name, "written")

    def move(self, name: str, to: str) -> None:
        """Rename a file within the folder, replacing any file of the new name.

        Raises:
            OutputError: The file cannot be moved.
        """
        self._storage.move(_checked(name, self.uri), _checked(to, self.uri))

    def remove_stale(self, of: str | None = None) -> None:
        """Remove half-written files of dead processes; only the lock's holder may call this.

        Args:
            of: File or folder name whose half-written versions are removed; None means all names.

        Raises:
            OutputError: The file or folder cannot be removed.
        """
        self._storage.remove_stale(of)


def local_path_of(uri: str) -> Path | None:
    """Return the absolute path that a path or `file://` URI names; None for other URIs.

    Example:
        >>> local_path_of("file:///data/out").as_posix()
        '/data/out'
        >>> local_path_of("s3://bucket/out") is None
        True
    """
    path = local_path(uri)
    return None if path is None else Path(path).expanduser().absolute()


def _checked(name: str, uri: str) -> str:
    """Validate a name within the folder; return it in normalized form.

    Raises:
        OutputError: The name leads out of the folder.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise OutputError(
            f"{name!r} is not a valid name inside {uri}: it must be relative, with / between its "
            "parts and without '..'."
        )
    return "" if path == PurePosixPath() else str(path)

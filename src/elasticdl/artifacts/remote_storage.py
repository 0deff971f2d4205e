"""Folder on an object store, accessed through fsspec: `s3://`, `gs://`, `memory://`, ...

An object store has no rename, so a folder cannot appear in one step. One object can: it
exists when its upload is complete. A folder is therefore uploaded with its manifest last and
removed with its manifest first, and readers treat a folder without a manifest as absent.
A folder replaces another at the moment its manifest is uploaded; this requires that files with
different content have different names (a checkpoint's names contain their hash).
File systems that are not object stores (`sftp://`, `hdfs://`) are written the same way; on
those, a file can be seen while it is being uploaded.

Callers: `folder.py`.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from elasticdl import scratch
from elasticdl.artifacts.local_storage import is_temporary, missing
from elasticdl.artifacts.versioned_file import versioned_file
from elasticdl.data.stored_file import filesystem
from elasticdl.errors import ElasticDLError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.artifacts.fence import Fence
    from elasticdl.artifacts.versioned_file import VersionedFile

MANIFEST = "manifest.json"
"""The file that makes a folder complete: uploaded last, removed first."""

_MAX_ATTEMPTS = 10


class RemoteStorage:
    """Storage for a folder on an object store; `LocalStorage` has the same methods.

    Attributes:
        fence: A lock that is checked before each write; None if any process may write.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/")
        self._fs, root = filesystem(self.uri)
        self._root = root.rstrip("/")
        self.fence: Fence | None = None

    def where(self, name: str) -> str:
        """Return the URI of a name, for messages."""
        return f"{self.uri}/{name}" if name else self.uri

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    def versioned(self, name: str) -> VersionedFile:
        """Return an object that writes a file only if it still has the version that was read."""
        return versioned_file(self._fs, self._path(name))

    @contextlib.contextmanager
    def errors(self, name: str, doing: str) -> Iterator[None]:
        """Context manager that converts the exceptions of a store's library to an `OutputError`.

        Args:
            name: The file or folder that the error names.
            doing: Past participle for the message "cannot be ...", such as `written`.
        """
        try:
            yield
        except ElasticDLError:
            raise
        except Exception as error:
            # Every store raises its own classes, which are not worth importing here.
            raise OutputError(
                f"{self.where(name)}: cannot be {doing}: {type(error).__name__}: {error}. Check "
                "the address and your credentials, or use another --output."
            ) from error

    def read_bytes(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            OutputError: The file does not exist, or cannot be read.
        """
        with self.errors(name, "read"):
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError as error:
                raise missing(self.where(name)) from error

    def write_bytes(self, name: str, data: bytes) -> None:
        """Upload a whole file with one put."""
        with self.errors(name, "written"):
            self._put(self._path(name), data)

    def _check(self) -> None:
        """Raise `OutputLostError` if this process has lost its lock on the folder."""
        if self.fence is not None:
            self.fence.check()

    @property
    def _is_conditional(self) -> bool:
        return self.fence is not None and self.fence.checks_conditions

    def _put(self, path: str, data: bytes) -> None:
        if not self._is_conditional:
            self._check()
            self._fs.pipe_file(path, data)
            return
        # A process that is suspended after the check must not overwrite the next holder's file.
        file = versioned_file(self._fs, path)
        for _ in range(_MAX_ATTEMPTS):
            before = file.version()
            self._check()
            if file.write(data, before) is not None:
                return
        raise OSError(f"another process has changed it {_MAX_ATTEMPTS} times")

    def new_staging(self, name: str) -> Path:
        """Return a new empty folder on this machine, to be uploaded by `publish`."""
        made = tempfile.mkdtemp(prefix=f"{PurePosixPath(name).name}-", dir=scratch.folder())
        return Path(made)

    def publish(self, aside: Path, name: str) -> None:
        """Upload a file or folder, the manifest last; `aside` is gone afterwards."""
        with self.errors(name, "written"):
            if aside.is_dir():
                self._upload_folder(aside, name)
                shutil.rmtree(aside)
            else:
                self._check()
                self._fs.put_file(str(aside), self._path(name))
                aside.unlink()

    def _upload_folder(self, aside: Path, name: str) -> None:
        root = self._path(name)
        before = set(self._fs.find(root)) if self._fs.exists(root) else set()
        files = [path for path in aside.rglob("*") if path.is_file()]
        for path in sorted(files, key=lambda path: (path == aside / MANIFEST, path)):
            target = f"{root}/{path.relative_to(aside).as_posix()}"
            if path == aside / MANIFEST and self._is_conditional:
                self._put(target, path.read_bytes())
            else:
                self._check()
                self._fs.put_file(str(path), target)
            before.discard(target)
        # Only now: until the manifest was uploaded, the old files were still valid.
        self._check()
        for path in sorted(before):
            self._fs.rm_file(path)

    def names(self, name: str) -> list[str]:
        """Return the names in a folder, sorted; empty if there is no such folder."""
        path = self._path(name)
        with self.errors(name, "listed"):
            # A cached listing would hide files that another process wrote.
            self._fs.invalidate_cache()
            try:
                found = self._fs.ls(path, detail=False)
            except FileNotFoundError:
                return []
        # Some stores list a folder's own marker object among its entries.
        parent = PurePosixPath("/", path)
        children = [PurePosixPath("/", entry) for entry in found]
        return sorted({child.name for child in children if child.parent == parent})

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a folder of this name."""
        with self.errors(name, "read"):
            self._fs.invalidate_cache()
            return bool(self._fs.exists(self._path(name)))

    def delete(self, name: str) -> None:
        """Remove a file or folder, if it exists; a folder's manifest is removed first."""
        with self.errors(name, "deleted"):
            self._check()
            for path in (f"{self._path(name)}/{MANIFEST}", self._path(name)):
                if self._fs.exists(path):
                    self._fs.rm(path, recursive=True)

    def fetch(self, name: str, destination: Path) -> None:
        """Download a file or folder to a new path on this machine."""
        with self.errors(name, "read"):
            if self._fs.isfile(self._path(name)):
                self._fs.get_file(self._path(name), str(destination))
                return
            root = PurePosixPath("/", self._path(name))
            for path in self._fs.find(self._path(name)):
                target = destination / PurePosixPath("/", path).relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                self._fs.get_file(path, str(target))

    def move(self, name: str, to: str) -> None:
        """Rename a file: a copy within the store, then a removal."""
        with self.errors(to, "written"):
            self._check()
            self._fs.mv(self._path(name), self._path(to))

    def remove_stale(self, of: str | None) -> None:
        """Remove the temporary files of dead processes that were writing the file `of`.

        If `of` is None, which means all files of an output, does nothing: a folder whose upload was
        interrupted has no manifest, counts as absent, and is replaced later.
        """
        if of is not None:
            for name in self.names(""):
                if is_temporary(name, of):
                    self.delete(name)

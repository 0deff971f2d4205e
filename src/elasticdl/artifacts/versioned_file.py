"""Small files with conditional writes: compare-and-swap on any store.

    read()                     -> content, version A
    write(data, replaces=A)    -> version B
    write(data, replaces=A)    -> None, and nothing is written: the version is B by now

S3 checks the condition and writes in one step (`If-None-Match: *`, `If-Match: ETAG`;
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html). On other stores, and
on disks without `flock`, the file is read before the write, so two writers at the same moment may
both succeed; the later write wins. The content of the file is not interpreted here.

Callers: `output_lease.py`; `remote_storage.py` for files that a process must not overwrite after it
has lost its lease.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from elasticdl.artifacts.local_storage import write_atomically

_S3_PROTOCOLS = frozenset({"s3", "s3a"})
_CHANGED = frozenset({404, 409, 412})
_MAX_READS = 100
_SETTLE_S = 1.0


class Content(NamedTuple):
    """The content of a file and its version, to be passed to `write` as `replaces`."""

    data: bytes
    version: str


class VersionedFile(Protocol):
    """A file that is replaced only if the writer passes its current version.

    Attributes:
        settle_s: Seconds after which a writer should read the file again, to see whether another
            writer has overwritten it; 0 if the store itself rejects such a write, or if all writers
            are in this process.
    """

    settle_s: float

    def version(self) -> str | None:
        """Return the current version; None if there is no file."""
        ...

    def read(self) -> Content | None:
        """Return the content with its version; None if there is no file."""
        ...

    def write(self, data: bytes, replaces: str | None) -> str | None:
        """Write the whole file if it still has the given version.

        Args:
            data: The new content.
            replaces: The version to replace; None if there must be no file yet.

        Returns:
            The new version; None if the file has another version and was not written.
        """
        ...

    def delete(self) -> None:
        """Remove the file, regardless of its version."""
        ...


def versioned_file(system: Any, path: str) -> VersionedFile:
    """Return the `VersionedFile` whose conditional writes are the most reliable on a store.

    Args:
        system: An fsspec file system.
        path: Path of the file in it.
    """
    protocols = {system.protocol} if isinstance(system.protocol, str) else {*system.protocol}
    if protocols & _S3_PROTOCOLS:
        return S3File(system, path)
    return PlainFile(system, path, settle_s=0.0 if "memory" in protocols else _SETTLE_S)


class S3File:
    """A file on S3, or on another store with S3's API; its version is its ETag."""

    settle_s = 0.0

    def __init__(self, system: Any, path: str) -> None:
        self._fs = system
        self._path = path
        self._bucket, self._key, _ = system.split_path(path)

    def version(self) -> str | None:
        """Return the ETag as the current version; None if there is no file."""
        try:
            return str(self._fs.info(self._path, refresh=True)["ETag"])
        except FileNotFoundError:
            return None

    def read(self) -> Content | None:
        """Return the content with the ETag; None if there is no file."""
        for _ in range(_MAX_READS):
            version = self.version()
            if version is None:
                return None
            try:
                data = bytes(self._fs.cat_file(self._path))
            except FileNotFoundError:
                continue
            if self.version() == version:
                return Content(data, version)
        raise OSError(f"it changed {_MAX_READS} times while it was read")

    def write(self, data: bytes, replaces: str | None) -> str | None:
        """Write the file only if its version is still `replaces` (None: it must not exist).

        Returns:
            The new version, or None if nothing was written.
        """
        condition = {"IfNoneMatch": "*"} if replaces is None else {"IfMatch": replaces}
        try:
            answer = self._fs.call_s3(
                "put_object", Bucket=self._bucket, Key=self._key, Body=data, **condition
            )
        except OSError as error:
            if _is_changed(error):
                return None
            raise
        self._fs.invalidate_cache(self._path)
        return str(answer["ETag"])

    def without_conditions(self) -> PlainFile:
        """Return a `PlainFile` for the same file, for stores that ignore the conditions of a write.

        It reads the version before each write.
        """
        return PlainFile(self._fs, self._path, settle_s=_SETTLE_S)

    def delete(self) -> None:
        """Remove the file, regardless of its version."""
        self._fs.rm_file(self._path)

    def checks_conditions(self, data: bytes, version: str) -> bool:
        """Test whether the store rejects writes whose condition (`If-Match`) does not hold.

        Some stores with S3's API ignore `If-Match`, `If-None-Match` or both; the caller then uses
        `without_conditions` instead.

        Args:
            data: The current content of the file; the test never writes anything else.
            version: The current version of the file.
        """
        # It has the form of an ETag, but differs from the file's.
        another = f'"{_digest(version.encode())[:32]}"'
        for replaces in (None, another):
            try:
                if self.write(data, replaces) is not None:
                    return False
            except OSError:
                # A store that recognises conditions but does not support them answers 501.
                return False
        return True


def _is_changed(error: BaseException) -> bool:
    """Return whether S3 rejected a write because its condition did not hold."""
    # s3fs translates botocore's error into the OSError that fits its code.
    response = getattr(error.__cause__, "response", None) or {}
    if response.get("Error", {}).get("Code") == "NoSuchBucket":
        return False
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") in _CHANGED


class LocalFile:
    """A file on a disk without `flock`: its version is checked, then the file is replaced."""

    settle_s = _SETTLE_S

    def __init__(self, path: Path) -> None:
        self._path = path

    def version(self) -> str | None:
        """Return a hash of the content as the current version; None if there is no file."""
        there = self.read()
        return None if there is None else there.version

    def read(self) -> Content | None:
        """Return the content with its hash as the version; None if there is no file."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        return Content(data, _digest(data))

    def write(self, data: bytes, replaces: str | None) -> str | None:
        """Write the whole file if its version is `replaces`; return the new version, or None."""
        if self.version() != replaces:
            return None
        write_atomically(self._path, data)
        return _digest(data)

    def delete(self) -> None:
        """Remove the file, regardless of its version."""
        self._path.unlink(missing_ok=True)


class PlainFile:
    """A file on a store without conditional writes: its version is checked before each write.

    Args:
        system: An fsspec file system.
        path: Path of the file in it.
        settle_s: Seconds after which a writer should read the file again; see `VersionedFile`.
    """

    def __init__(self, system: Any, path: str, *, settle_s: float) -> None:
        self._fs = system
        self._path = path
        self.settle_s = settle_s

    def version(self) -> str | None:
        """Return a hash of the content as the current version; None if there is no file."""
        there = self.read()
        return None if there is None else there.version

    def read(self) -> Content | None:
        """Return the content with its hash as the version; None if there is no file."""
        self._fs.invalidate_cache()
        try:
            data = bytes(self._fs.cat_file(self._path))
        except FileNotFoundError:
            return None
        return Content(data, _digest(data))

    def write(self, data: bytes, replaces: str | None) -> str | None:
        """Write the whole file if its version is `replaces`; return the new version, or None."""
        if self.version() != replaces:
            return None
        self._fs.pipe_file(self._path, data)
        return _digest(data)

    def delete(self) -> None:
        """Remove the file, regardless of its version."""
        self._fs.rm_file(self._path)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()

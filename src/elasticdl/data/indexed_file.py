"""File that is read with an existing index, which another process or machine may have built.

An index is valid only while the file is unchanged. A change is detected when the file is read, so
that records are never mixed up.

Callers: the readers of this folder.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elasticdl.data.stored_file import StoredFile, local_path, local_state, open_stored
from elasticdl.errors import DataError, NoDataError

if TYPE_CHECKING:
    import mmap


@dataclass(frozen=True)
class IndexedFile(StoredFile):
    """A file with the size and the version in its index entry, to detect that it has changed.

    A local file is checked after each read, a remote one once per process.
    """

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` (exclusive), fewer at the end of the file.

        Raises:
            DataError: The file has changed since it was indexed, or cannot be read.
        """
        try:
            data = super().read(start, stop)
        except NoDataError as error:
            raise self._gone() from error
        # Check after reading: the bytes read then belong to the checked file or an earlier version.
        self.check()
        return data

    def read_into(self, memory: mmap.mmap, start: int, size_bytes: int) -> int:
        """Read bytes into memory without checking whether the file has changed.

        It is for callers that compare checksums with those in the index: this is more reliable, and
        accepts a copy of the file with another modification time. Arguments and result are those of
        `StoredFile.read_into`.

        Raises:
            DataError: The file cannot be read.
        """
        try:
            return super().read_into(memory, start, size_bytes)
        except NoDataError as error:
            raise self._gone() from error

    def require_unchanged(self) -> None:
        """Check that the file has not changed since it was indexed, even if it was checked before.

        The storage is queried each time.

        Raises:
            DataError: The file has changed, or cannot be checked.
        """
        try:
            now = open_stored(self.uri, fresh=True)
        except NoDataError as error:
            raise self._gone() from error
        if (now.size_bytes, now.version) != (self.size_bytes, self.version):
            raise self._changed(now)

    def differs(self, expected: str, found: str) -> DataError:
        """Return the error for content that contradicts the index though size and version match.

        Args:
            expected: The value in the index.
            found: The value in the file.
        """
        folder = self.uri.rpartition("/")[0] or "."
        return DataError(
            f"{self.uri} has changed since its records were counted, though its size and time are "
            f"the same: expected {expected}, found {found}. If {folder} has an index, rebuild it: "
            f"elasticdl data index {folder}. Then run the command again."
        )

    def is_checked(self) -> bool:
        """Return whether a reader in this process has compared the content with the index entry."""
        return hasattr(self, "_checked")

    def set_checked(self) -> None:
        """Note that a reader has compared the file's content with its index entry.

        `is_checked` then returns True in this process, so that readers can skip the comparison.
        """
        object.__setattr__(self, "_checked", True)

    def check(self) -> None:
        """Check that the file has not changed: a local one always, a remote one once per process.

        Raises:
            DataError: The file has changed, or cannot be checked.
        """
        path = local_path(self.uri)
        if path is None:
            if not hasattr(self, "_seen"):
                self.require_unchanged()
                # State of this process, not part of the file's identity.
                object.__setattr__(self, "_seen", True)
            return
        try:
            state = local_state(os.stat(path))  # noqa: PTH116 - it costs more than reading
        except FileNotFoundError as error:
            raise self._gone() from error
        if state != (self.size_bytes, self.version):
            raise self._changed(StoredFile(self.uri, state[0], version=state[1]))

    def _changed(self, now: StoredFile) -> DataError:
        how = f"it had {self.size_bytes:,} bytes and now has {now.size_bytes:,}"
        if now.size_bytes == self.size_bytes:
            how = f"its version was {self.version or 'unknown'} and is now {now.version}"
        return DataError(
            f"{self.uri} has changed since its records were counted: on {socket.gethostname()} "
            f"{how}. Do not change data while it is being read; run the command again when the "
            "data is complete. A copy on another machine needs the same modification time (cp -p, "
            "rsync -t)."
        )

    def _gone(self) -> NoDataError:
        return NoDataError(
            f"{self.uri} cannot be read: the file does not exist on {socket.gethostname()}, though "
            "it existed where its records were counted. Put the data where all machines find the "
            "same files: on a shared disk or an object store."
        )

    def __getstate__(self) -> dict[str, object]:
        of_this_process = ("_seen", "_checked")
        return {name: value for name, value in vars(self).items() if name not in of_this_process}

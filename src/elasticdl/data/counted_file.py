"""A file that is read by an index made earlier, perhaps by another process on another machine.

What the index says of it is true as long as the file is the same. So that no record is ever taken
for another one, a file that has changed is found when it is read.

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
class CountedFile(StoredFile):
    """A file with the size and the version that an index says.

    A local file is looked at after each read, a remote one once in each process.
    """

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes `start` to `stop` (exclusive), fewer where the file ends before.

        Raises:
            DataError: It is another file than the one that was counted, or cannot be read.
        """
        try:
            data = super().read(start, stop)
        except NoDataError as error:
            raise self._gone() from error
        # Not before: whatever was read is then of the file that is looked at, or of one before it.
        self.look()
        return data

    def read_into(self, memory: mmap.mmap, start: int, size_bytes: int) -> int:
        """Read into memory without looking whether the file has changed.

        For callers that compare checksums with those in the index: these tell more, and a copy
        of a file may be of another time.

        Raises:
            DataError: It cannot be read.
        """
        try:
            return super().read_into(memory, start, size_bytes)
        except NoDataError as error:
            raise self._gone() from error

    def require_unchanged(self) -> None:
        """Ask the storage whether it is still the file that was counted.

        Raises:
            DataError: It is another one, or cannot be looked at.
        """
        try:
            now = open_stored(self.uri, fresh=True)
        except NoDataError as error:
            raise self._gone() from error
        if (now.size_bytes, now.version) != (self.size_bytes, self.version):
            raise self._changed(now)

    def look(self) -> None:
        """Look whether it is still the file that was counted, where that costs next to nothing.

        Raises:
            DataError: It is another one, or cannot be looked at.
        """
        path = local_path(self.uri)
        if path is None:
            if not hasattr(self, "_seen"):
                self.require_unchanged()
                # Of this process, and no part of what the file is.
                object.__setattr__(self, "_seen", True)
            return
        try:
            state = local_state(os.stat(path))  # noqa: PTH116 - it costs more than reading
        except FileNotFoundError as error:
            raise self._gone() from error
        if state != (self.size_bytes, self.version):
            raise self._changed(StoredFile(self.uri, state[0], version=state[1]))

    def _changed(self, now: StoredFile) -> DataError:
        how = f"it had {self.size_bytes:,} bytes, and has {now.size_bytes:,} now"
        if now.size_bytes == self.size_bytes:
            how = f"its version was {self.version or 'unknown'}, and is {now.version} now"
        return DataError(
            f"{self.uri} is not the file any more whose records were counted: on "
            f"{socket.gethostname()} {how}. Leave data as they are while they are read, and give "
            "the command again when they are complete; a copy on another machine needs the same "
            "time of change (cp -p, rsync -t)."
        )

    def _gone(self) -> NoDataError:
        return NoDataError(
            f"{self.uri} cannot be read: on {socket.gethostname()} there is no such file; there "
            "was one where its records were counted. Put the data where all machines find the "
            "same: on a shared disk or an object store."
        )

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_seen"}

"""Fence: a check before each write, which fails once this process has lost its lock.

Callers: `local_storage.py` and `remote_storage.py` check it. The locks of `lock.py` implement it.
"""

from __future__ import annotations

from typing import Protocol


class Fence(Protocol):
    """Interface of the lock on an output: the part that code calls before it writes to the output.

    Attributes:
        checks_conditions: Whether the store itself rejects a write that would replace another
            version of a file than the writer expects (`versioned_file.py`). A process that is
            suspended between `check` and its write can then not overwrite files of the next holder.
    """

    @property
    def checks_conditions(self) -> bool:
        """Return whether the store itself rejects a write that would replace another version."""
        ...

    def check(self) -> None:
        """Check that this process still holds the lock and so may write.

        Raises:
            OutputLostError: Another process now holds the lock.
        """
        ...

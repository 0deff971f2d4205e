"""Fence: checked by a storage before each write, so that a process without the lock cannot write.

Callers: `local_storage.py` and `remote_storage.py` check it; each `lock.Lock` is one.
"""

from __future__ import annotations

from typing import Protocol


class Fence(Protocol):
    """Tells whether this process may still write: not once another process holds the lock.

    Attributes:
        checks_conditions: Whether the store rejects a write whose condition does not hold.
    """

    @property
    def checks_conditions(self) -> bool:
        """See the class."""
        ...

    def check(self) -> None:
        """Check that this process may still write.

        Raises:
            OutputLostError: Another process now holds the lock.
        """
        ...

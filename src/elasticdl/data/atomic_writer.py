"""Base class of writers whose result is published at the end of a `with` block, or not at all.

Callers: everything that writes rows or records, here and in `evaluation/` and `prediction/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class AtomicWriter(ABC):
    """Base class of writers that are used in a `with` block.

    The result is published at the end of the block. If the block raises, nothing is published.
    """

    @abstractmethod
    def close(self) -> None:
        """Publish the result; closing twice is harmless."""

    @abstractmethod
    def discard(self) -> None:
        """Close without publishing; does nothing if it is closed."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

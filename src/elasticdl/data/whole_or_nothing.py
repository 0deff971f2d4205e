"""What is written in a `with` block: there as a whole if the block ended well, else not at all.

Callers: everything that writes rows or records, here and in `evaluation/` and `prediction/`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class WholeOrNothing(ABC):
    """Is closed at the end of its `with` block, or discarded if that raised."""

    @abstractmethod
    def close(self) -> None:
        """Publish it; does nothing the second time."""

    @abstractmethod
    def discard(self) -> None:
        """Leave nothing; does nothing to what is closed."""

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

"""Warnings of workers, repeated where a person sees them.

    worker: a warning is logged -> WarningLog -> Report -> controller: logged there, once

A worker's own output ends in Ray's files. Callers: `worker_process.py`, `worker.py`,
`controller.py`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Self

_log = logging.getLogger("elasticdl")

_MOST_KEPT = 100


class WarningLog(logging.Filter):
    """Remembers what ElasticDL warns of in this process, and lets each pass once, and at most 100.

    A filter, because a handler would keep Python from printing warnings where a program has not
    configured its logging.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, None] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        if text in self._texts or len(self._texts) == _MOST_KEPT:
            return False
        self._texts[text] = None
        return True

    @property
    def texts(self) -> tuple[str, ...]:
        """The different warnings so far."""
        return tuple(self._texts)

    def attach(self) -> None:
        """Listen as long as this process lives."""
        _log.addFilter(self)

    @contextlib.contextmanager
    def attached(self) -> Iterator[Self]:
        """Listen meanwhile."""
        _log.addFilter(self)
        try:
            yield self
        finally:
            _log.removeFilter(self)


def repeat(texts: Collection[str]) -> None:
    """Log the warnings of another process; an attached log leaves out those that are known."""
    for text in texts:
        _log.warning("%s", text)

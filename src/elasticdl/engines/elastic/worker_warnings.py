"""Forwarding of workers' warnings to the driver, where the user sees them.

    worker: a warning is logged -> WarningLog -> WorkerReport -> controller: logged there, once

A worker's own output goes to Ray's log files. Callers: `worker_process.py`, `worker.py`,
`controller.py`, `inference.py`, `inference_worker.py`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Self

_log = logging.getLogger("elasticdl")

_MAX_KEPT = 100


class WarningLog(logging.Filter):
    """Collector of the first 100 distinct warnings that ElasticDL logs here; drops the rest.

    It is attached to the logger as a filter. As a handler it would keep Python from printing
    warnings in a program that has not configured its logging.
    """

    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, None] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Collect a new warning; return False to drop one that is repeated or over the limit."""
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        if text in self._texts or len(self._texts) == _MAX_KEPT:
            return False
        self._texts[text] = None
        return True

    @property
    def texts(self) -> tuple[str, ...]:
        """The distinct warnings collected so far, for a report to the driver."""
        return tuple(self._texts)

    def attach(self) -> None:
        """Collect warnings for the lifetime of this process."""
        _log.addFilter(self)

    @contextlib.contextmanager
    def attached(self) -> Iterator[Self]:
        """Context manager that collects the warnings that ElasticDL logs during its block."""
        _log.addFilter(self)
        try:
            yield self
        finally:
            _log.removeFilter(self)


def repeat(texts: Collection[str]) -> None:
    """Log the warnings of another process; an attached `WarningLog` drops repeated ones."""
    for text in texts:
        _log.warning("%s", text)

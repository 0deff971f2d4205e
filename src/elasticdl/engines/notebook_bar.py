"""Progress bar in a notebook.

Callers: `progress_bar.py`, in a notebook's kernel only.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Mapping
from typing import Any

from IPython.display import display

from elasticdl.engines.progress_bar import Phase

_INTERVAL_S = 0.2


class NotebookBar:
    """Draws a progress bar in the output of a notebook's cell; see `engine.Reporter`."""

    def __init__(self) -> None:
        self._phase: Phase | None = None
        self._handle: Any = None
        self._drawn_s = 0.0

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Draw the bar."""
        self.ended()
        self._phase = Phase(title, total, unit, done)
        self._handle = display(self._drawing(), raw=True, display_id=True)

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Update the bar, at most five times a second."""
        if self._phase is None:
            return
        self._phase.advance(done, facts)
        if time.monotonic() - self._drawn_s >= _INTERVAL_S:
            self._draw()

    def note(self, message: str) -> None:
        """Print a line to standard output; notebooks highlight standard error as a failure."""
        sys.stdout.write(f"{message}\n")

    def ended(self) -> None:
        """Draw the final state and leave it in the output."""
        if self._phase is not None:
            self._draw(has_ended=True)
            self._phase = None

    def _draw(self, *, has_ended: bool = False) -> None:
        self._handle.update(self._drawing(has_ended=has_ended), raw=True)
        self._drawn_s = time.monotonic()

    def _drawing(self, *, has_ended: bool = False) -> dict[str, str]:
        assert self._phase is not None  # noqa: S101 - between started and ended
        line = self._phase.line(has_ended=has_ended)
        share = (
            f' value="{self._phase.done}" max="{self._phase.total}"' if self._phase.total else ""
        )
        bar = f'<progress{share} style="vertical-align: middle"></progress>'
        text = f'<span style="font-family: monospace">{html.escape(line)}</span>'
        return {"text/plain": line, "text/html": f"<div>{bar} {text}</div>"}

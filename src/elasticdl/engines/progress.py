"""Progress reporters: a progress bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

_LINE_INTERVAL_S = 10.0


class Silent:
    """Reports nothing; see `engine.Reporter`."""

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Do nothing."""

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Do nothing."""

    def note(self, message: str) -> None:
        """Do nothing."""

    def ended(self) -> None:
        """Do nothing."""


class Lines:
    """Writes a line from time to time, for log files and pipes; see `engine.Reporter`."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._title, self._total, self._unit = "", 0, ""
        self._begun_s = self._last_s = time.monotonic()
        self._first = self._done = 0
        self._facts: Mapping[str, str] = {}
        self._written = True

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Store the title, total and unit for the lines to come."""
        self._title, self._total, self._unit = title, total, unit
        self._begun_s, self._first, self._done = time.monotonic(), done, done
        # The first line comes soon, so that the user sees that it works.
        self._last_s = self._begun_s - _LINE_INTERVAL_S + 1
        self._written = True

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Write a line if enough time has passed since the last one."""
        self._done, self._facts, self._written = done, facts, False
        if time.monotonic() - self._last_s >= _LINE_INTERVAL_S:
            self._write()

    def note(self, message: str) -> None:
        """Write the message."""
        print(message, file=self._stream, flush=True)

    def ended(self) -> None:
        """Write a last line, so that the final state is shown."""
        if not self._written:
            self._write()

    def _write(self) -> None:
        now = time.monotonic()
        speed = (self._done - self._first) / max(now - self._begun_s, 1e-9)
        parts = [f"{self._title}: {self._done:,}"]
        if self._total:
            parts[0] += f"/{self._total:,} {self._unit}"
        parts += [f"{name} {value}" for name, value in self._facts.items()]
        parts.append(_shown_speed(speed, self._unit))
        if self._total and speed > 0 and self._done < self._total:
            parts.append(f"{_duration((self._total - self._done) / speed)} left")
        print("  ".join(parts), file=self._stream, flush=True)
        self._last_s, self._written = now, True


class Bar:
    """Draws a progress bar with speed and time left; see `engine.Reporter`."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - not needed for --help

        self._console = Console(stderr=True)
        self._progress: object | None = None

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Draw the bar."""
        from rich import progress, table  # noqa: PLC0415

        self.ended()
        self._unit, self._first, self._begun_s = unit, done, time.monotonic()

        def wide(text: str) -> table.Column:
            return table.Column(no_wrap=True, min_width=len(text))

        count = wide(f"{total:,}/{total:,}")
        self._bar = progress.Progress(
            progress.TextColumn("[bold]{task.description}", table_column=wide(title)),
            progress.BarColumn(bar_width=None, table_column=table.Column(ratio=1)),
            progress.TextColumn("{task.completed:,.0f}/{task.total:,.0f}", table_column=count),
            progress.TimeRemainingColumn(table_column=wide("0:00:00")),
            # Last, because a narrow terminal cuts off the right end.
            progress.TextColumn("{task.fields[facts]}"),
            console=self._console,
            refresh_per_second=5,
            expand=True,
        )
        self._progress = self._bar
        self._task = self._bar.add_task(title, total=total, completed=done, facts="")
        self._bar.start()

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Move the bar."""
        speed = (done - self._first) / max(time.monotonic() - self._begun_s, 1e-9)
        words = "  ".join(f"{name} {value}" for name, value in facts.items())
        words = f"{words}  {_shown_speed(speed, self._unit)}"
        self._bar.update(self._task, completed=done, facts=words)

    def note(self, message: str) -> None:
        """Write a line above the bar."""
        self._console.print(message, highlight=False, markup=False)

    def ended(self) -> None:
        """Stop the bar and leave it on the screen."""
        if self._progress is not None:
            self._bar.stop()
            self._progress = None


def for_stream() -> Bar | Lines:
    """Return a `Bar` if standard error is a terminal, otherwise `Lines`."""
    return Bar() if sys.stderr.isatty() else Lines()


def metrics_in_words(metrics: Mapping[str, Any], prefix: str = "") -> str:
    """Format the metrics that are single numbers for a line of text."""
    return ", ".join(
        f"{prefix}{name} {value:.4g}"
        for name, value in metrics.items()
        if isinstance(value, (int, float))
    )


def _shown_speed(speed: float, unit: str) -> str:
    if 0 < speed < 1:
        return f"{1 / speed:,.1f} s/{unit.removesuffix('s')}"
    return f"{speed:,.0f} {unit}/s"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"

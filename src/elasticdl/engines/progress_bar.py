"""Progress reporters: a bar on a terminal or in a notebook, occasional lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from elasticdl.errors import as_keywords

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter

_LINE_INTERVAL_S = 10.0

# The first epoch compiles the steps, its short last minibatch and the first evaluation.
_EPOCHS_THAT_COMPILE = 1
# Reports closer together than this count as one sample of the speed.
_SAMPLE_S = 0.5
_WINDOW_S = 300.0
_SHORTEST_S = 0.2

_SHORTEST_BAR = 8
# Facts that a narrow terminal can do without.
_DROPPED_FIRST = ("step", "speed")
# Values of a metric in a line.
_MAX_SHOWN_VALUES = 10


class Silent:
    """Reporter that shows nothing; see `engine.Reporter`."""

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Do nothing."""

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Do nothing."""

    def note(self, message: str) -> None:
        """Do nothing."""

    def ended(self) -> None:
        """Do nothing."""


class NamingKeywords:
    """Reporter for a caller of the Python API; see `engine.Reporter`.

    In notes it replaces command-line options by keywords of the function: `--seed=1` by `seed=1`.

    Args:
        reporter: The wrapped reporter.
        names: The keywords of the function that the user called.
    """

    def __init__(self, reporter: Reporter, names: Collection[str]) -> None:
        self._reporter, self._names = reporter, names

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Forward to the wrapped reporter."""
        self._reporter.started(title, total, unit, done)

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Forward to the wrapped reporter."""
        self._reporter.advanced(done, facts)

    def note(self, message: str) -> None:
        """Forward to the wrapped reporter, with keywords in place of command-line options."""
        self._reporter.note(as_keywords(message, self._names))

    def ended(self) -> None:
        """Forward to the wrapped reporter."""
        self._reporter.ended()


class Lines:
    """Reporter that writes a line from time to time, for log files and pipes."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._last_s = time.monotonic()
        self._phase = Phase("", 0, "")
        self._written = True

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Store the title, total and unit for later lines; write nothing yet."""
        self._phase = Phase(title, total, unit, done)
        # The first line follows soon, so that the user sees that the job is running.
        self._last_s = time.monotonic() - _LINE_INTERVAL_S + 1
        self._written = True

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Write a line if enough time has passed since the last one."""
        self._phase.advance(done, facts)
        self._written = False
        if time.monotonic() - self._last_s >= _LINE_INTERVAL_S:
            self._write()

    def note(self, message: str) -> None:
        """Write the message."""
        print(message, file=self._stream, flush=True)

    def ended(self) -> None:
        """Write a last line, so that the final state is shown."""
        # No time is left, even if a callback has ended the phase early.
        if not self._written:
            self._write(self._phase.line(has_ended=True))

    def _write(self, line: str = "") -> None:
        print(line or self._phase.line(), file=self._stream, flush=True)
        self._last_s, self._written = time.monotonic(), True


class Bar:
    """Progress bar on a terminal, with the time left and as many facts as fit."""

    def __init__(self) -> None:
        from rich.console import Console  # noqa: PLC0415 - not needed for --help

        self._console = Console(stderr=True)
        self._progress: object | None = None

    def started(self, title: str, total: int, unit: str, done: int = 0) -> None:
        """Draw the bar."""
        from rich import progress, table  # noqa: PLC0415

        self.ended()
        self._phase = Phase(title, total, unit, done)

        def wide(text: str) -> table.Column:
            return table.Column(no_wrap=True, min_width=len(text))

        count, left = f"{total:,}/{total:,}", "0:00:00 left"
        done_of_total = "{task.completed:,.0f}/{task.total:,.0f}"
        self._bar = progress.Progress(
            progress.TextColumn("[bold]{task.description}", table_column=wide(title)),
            progress.BarColumn(bar_width=None, table_column=table.Column(ratio=1)),
            progress.TextColumn(
                done_of_total if total else f"{{task.completed:,.0f}} {unit}",
                table_column=wide(count),
            ),
            progress.TextColumn("{task.fields[left]}", table_column=wide(left)),
            progress.TextColumn("{task.fields[facts]}"),
            console=self._console,
            refresh_per_second=5,
            expand=True,
        )
        self._reserved = len(title) + _SHORTEST_BAR + len(count) + len(left) + 4
        self._progress = self._bar
        left = "-:--:-- left"
        self._task = self._bar.add_task(title, total=total, completed=done, left=left, facts="")
        self._bar.start()

    def advanced(self, done: int, facts: Mapping[str, str]) -> None:
        """Move the bar."""
        self._phase.advance(done, facts)
        room = self._console.width - self._reserved
        self._bar.update(
            self._task, completed=done, left=self._phase.clock(), facts=self._phase.facts_in(room)
        )

    def note(self, message: str) -> None:
        """Write a line above the bar."""
        self._console.print(message, highlight=False, markup=False)

    def ended(self) -> None:
        """Stop the bar and leave it on the screen."""
        if self._progress is not None:
            if self._phase.done < self._phase.total:
                self._bar.update(self._task, left="")
            self._bar.stop()
            self._progress = None


class Phase:
    """Progress of a phase of a job: the amount done, the speed, and the estimated time left.

    The speed is the average over the last minutes. To exclude compilation, measuring begins with
    the first report, and begins again with the second epoch, and when steps are repeated.

    Args:
        title: Name of the phase, such as "Evaluating".
        total: Its size in `unit`; 0 if unknown.
        unit: The unit, in the plural.
        done: The amount already done when the phase starts.
        clock: Function () -> time in seconds.

    Attributes:
        title: Name of the phase.
        total: Its size in `unit`.
        done: The amount done so far.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str,
        done: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.total, self.done = title, total, done
        self._unit, self._clock = unit, clock
        self._facts: Mapping[str, str] = {}
        # (seconds, done) of some reports, the latest last.
        self._reports: deque[tuple[float, int]] = deque()
        self._num_epochs_seen = 0

    def advance(self, done: int, facts: Mapping[str, str]) -> None:
        """Record the amount done so far, and the facts to show with it.

        Args:
            done: The amount done, including that of earlier attempts at the job.
            facts: Name -> text, such as `epoch`, `step` and `loss`.
        """
        now = self._clock()
        epoch = facts.get("epoch")
        if epoch != self._facts.get("epoch") and self._num_epochs_seen < _EPOCHS_THAT_COMPILE + 1:
            self._num_epochs_seen += 1
            if self._num_epochs_seen == _EPOCHS_THAT_COMPILE + 1:
                self._reports.clear()
        if done < self.done:
            # All workers were lost. The pause until others took over must not lower the speed.
            self._reports.clear()
        self.done, self._facts = done, facts
        if len(self._reports) < 2 or now - self._reports[-2][0] >= _SAMPLE_S:  # noqa: PLR2004
            self._reports.append((now, done))
        else:
            self._reports[-1] = (now, done)
        while len(self._reports) > 2 and now - self._reports[1][0] > _WINDOW_S:  # noqa: PLR2004
            self._reports.popleft()

    @property
    def speed(self) -> float | None:
        """Speed in units per second, such as records per second; None if not known yet."""
        if len(self._reports) < 2:  # noqa: PLR2004
            return None
        (first_s, first), (last_s, last) = self._reports[0], self._reports[-1]
        if last_s - first_s < _SHORTEST_S or last <= first:
            return None
        return (last - first) / (last_s - first_s)

    @property
    def left_s(self) -> float | None:
        """Estimated seconds left; None if not known yet."""
        speed = self.speed
        if not self.total or speed is None:
            return None
        return max(0, self.total - self.done) / speed

    def clock(self) -> str:
        """Format the time left as hours:minutes:seconds, or as dashes if it is not known yet."""
        left_s = 0.0 if self.total and self.done >= self.total else self.left_s
        if left_s is None:
            return "-:--:-- left"
        minutes, seconds = divmod(round(left_s), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours}:{minutes:02d}:{seconds:02d} left"

    def facts_in(self, width: int) -> str:
        """Format the values shown beside the bar (loss, workers, speed).

        The least important are omitted to fit into `width` characters.
        """
        parts = {name: f"{name} {value}" for name, value in self._facts.items()}
        if self.speed is not None:
            parts["speed"] = _shown_speed(self.speed, self._unit)
        for name in (*_DROPPED_FIRST, *reversed([*parts])):
            if len("  ".join(parts.values())) <= width:
                break
            parts.pop(name, None)
        return "  ".join(parts.values())

    def line(self, *, has_ended: bool = False) -> str:
        """Format the title, the amount done, the facts, the speed and the time left as one line.

        Args:
            has_ended: Whether the phase is over, so that there is no time left.
        """
        parts = [f"{self.title}: {self.done:,}"]
        parts[0] += f"/{self.total:,} {self._unit}" if self.total else f" {self._unit}"
        parts += [f"{name} {value}" for name, value in self._facts.items()]
        if self.speed is not None:
            parts.append(_shown_speed(self.speed, self._unit))
        if not has_ended and self.left_s is not None and self.done < self.total:
            parts.append(f"{_duration(self.left_s)} left")
        return "  ".join(parts)


def for_stream() -> Reporter:
    """Return a `NotebookBar` in a notebook, a `Bar` on a terminal, otherwise `Lines`."""
    if _is_notebook():
        from elasticdl.engines.notebook_bar import NotebookBar  # noqa: PLC0415 - imports IPython

        return NotebookBar()
    return Bar() if sys.stderr.isatty() else Lines()


def _is_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def metrics_in_words(metrics: Mapping[str, Any], prefix: str = "") -> str:
    """Format metrics as one line, `loss 0.25, f1 [0.9, 0.8]`; leave out tables and long lists.

    Args:
        metrics: Name -> value.
        prefix: Text in front of each name, such as `val_`.
    """
    return ", ".join(
        f"{prefix}{name} {metric_in_words(value, 4)}"
        for name, value in metrics.items()
        if isinstance(value, (int, float)) or _is_short(value)
    )


def metric_in_words(value: Any, num_digits: int) -> str:
    """Format the value of a metric, or its list of values, with some significant digits.

    Example:
        >>> metric_in_words([1 / 3, 0.5], 4)
        '[0.3333, 0.5]'
    """
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(metric_in_words(each, num_digits) for each in value)}]"
    return f"{value:.{num_digits}g}" if isinstance(value, (int, float)) else str(value)


def _is_short(value: Any) -> bool:
    """Return whether a metric is a list of few numbers, such as one for each class."""
    is_list = isinstance(value, (list, tuple)) and len(value) <= _MAX_SHOWN_VALUES
    return is_list and all(isinstance(each, (int, float)) for each in value)


def epoch_in_words(
    epoch: int, num_epochs: int, metrics: Mapping[str, Any], *, is_evaluated: bool
) -> str:
    """Return the line for the end of an epoch.

    Args:
        epoch: The epoch, counted from 0.
        num_epochs: Number of epochs of the job.
        metrics: The latest metrics; those of the validation data as `val_...`.
        is_evaluated: Whether the validation metrics were computed at the end of this epoch.
    """
    shown = {
        name: value
        for name, value in metrics.items()
        if is_evaluated or not name.startswith("val_")
    }
    return f"epoch {epoch + 1}/{num_epochs}: {metrics_in_words(shown)}"


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

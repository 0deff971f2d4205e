"""Prints a list of jobs: one line per job, or one paragraph if lines exceed the terminal's width.

Names and other strings that a user may need to type again are never cut or broken.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from elasticdl.cli.console import TableConsole
from elasticdl.cli.printable import echo

_GAP = "  "


@dataclass(frozen=True)
class JobRow:
    """One job of a list, as printable strings.

    Attributes:
        name: Name of the job.
        state: Current activity, as a sentence.
        facts: Title -> value; the same titles for all jobs of a list.
    """

    name: str
    state: str
    facts: Mapping[str, str]


def print_jobs(rows: Sequence[JobRow]) -> None:
    """Print one line per job, or a paragraph per job if a line would be wider than the terminal."""
    width = TableConsole().width
    lines = _table(rows)
    if any(cell_len(line) > width for line in lines):
        lines = [line for row in rows for line in _paragraph(row, width)]
    for line in lines:
        echo(line)


def _table(rows: Sequence[JobRow]) -> list[str]:
    titles = [*rows[0].facts] if rows else []
    cells = [["job", *titles, "state"]]
    cells += [[row.name, *(row.facts[title] for title in titles), row.state] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    return [
        _GAP.join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in cells
    ]


def _paragraph(row: JobRow, width: int) -> list[str]:
    facts = "; ".join(f"{title} {value}" for title, value in row.facts.items() if value)
    lines = [row.name]
    for text in (row.state, facts):
        lines += textwrap.wrap(
            text, max(width, 20), initial_indent=_GAP, subsequent_indent=_GAP * 2,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
    return lines

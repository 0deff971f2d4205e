"""Prints the results of statements: rows, generated programs, and a bar chart for an EXPLAIN.

Used by the shell and by `cli/sql.py`.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, TextIO

import pyarrow as pa

from elasticdl.sql.database_interface import RowSource
from elasticdl.sql.rendering import bars, write_rows
from elasticdl.sql.statements import Explain

if TYPE_CHECKING:
    from elasticdl.sql.execute import Result


def show(result: Result, form: str = "table", stream: TextIO | None = None) -> None:
    """Print the result of a statement.

    Args:
        result: The result; all its rows are read.
        form: One of `rendering.FORMATS`.
        stream: Output stream; None means standard output. A table is cut to the width of a
            terminal.
    """
    out = sys.stdout if stream is None else stream
    if result.program is not None:
        out.write(result.program + "\n")
    if result.rows is None:
        out.flush()
        return
    width = shutil.get_terminal_size().columns if out.isatty() else None
    rows = result.rows
    if isinstance(result.statement, Explain) and form == "table":
        table = pa.Table.from_batches(rows.batches, rows.schema)
        write_rows(RowSource(table.schema, table.to_batches()), out, form, width)
        out.write(importance_bars(table, width) + "\n")
    else:
        write_rows(rows, out, form, width)
    out.flush()


def importance_bars(table: pa.Table, width: int | None = None) -> str:
    """Draw the result of an EXPLAIN statement as a bar chart in text."""
    return bars(table["column"].to_pylist(), table["importance"].to_pylist(), width)

"""Writes an evaluation report as CSV files, for spreadsheets.

    eval_report.csv            ,<function> ...,label,prediction,confidence,source
                               and label_name,prediction_name if the classes have names
    eval_report_summary.csv    ,<function> ...   count mean std min 25% 50% 75% max

The first column is the id and has no name, followed by one column per function under its given
name: the format that the sessions' documentation promises, byte for byte what pandas would write.
The files are derived from the Parquet file and appear when they are complete.

Writing a million rows as CSV takes longer than the rest of a report. So if there are more than
`DEFAULT_MAX_ROWS`, the first file is written only on request (`max_rows`), and a note says so.

Callers: sessions and `elasticdl evaluate --report`.
"""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.evaluation.report_tables import Report
from elasticdl.evaluation.report_writer import METRIC

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

DEFAULT_MAX_ROWS = 200_000
_BESIDE = ("label", "prediction", "confidence", "source")
_NAMED = ("label", "prediction")
_NEEDS_QUOTES = '[,"\r\n]'
# Within these bounds, unless it is a whole number, Arrow formats a float as Python does.
_PLAIN_FROM = 1e-3
_PLAIN_TO = {"float32": 1e5, "float64": 1e9}


@dataclass(frozen=True)
class CsvFiles:
    """Paths of the CSV files of a report.

    Attributes:
        rows: The file with one row per example; None if it was not written, because the report has
            too many rows.
        summary: The file with one row per function: count, mean, std, min, quartiles and max.
        notes: Notes for the user.
    """

    rows: str | None
    summary: str
    notes: tuple[str, ...]


def write_views(
    report: Report | str | os.PathLike[str],
    folder: OutputFolder | str | os.PathLike[str],
    *,
    name: str = "eval_report",
    class_names: Sequence[str] = (),
    max_rows: int = DEFAULT_MAX_ROWS,
) -> CsvFiles:
    """Write a report as CSV files, `<name>.csv` and `<name>_summary.csv`, and return their paths.

    Args:
        report: A report, or its path.
        folder: Folder of the files.
        name: Prefix of the files' names.
        class_names: Names of the classes, by number; empty if they are unknown.
        max_rows: `<name>.csv` is not written if there are more rows than this.

    Raises:
        OutputError: The files cannot be written.
        NoDataError: There is no such report.
        CorruptDataError: The file is not a report.
    """
    report = report if isinstance(report, Report) else Report(report)
    folder = folder if isinstance(folder, OutputFolder) else OutputFolder(folder)
    folder.write_bytes(f"{name}_summary.csv", _summary(report))
    where = None
    notes: tuple[str, ...] = ()
    if report.num_rows > max_rows:
        many = f"{report.num_rows:,} rows are more than {max_rows:,}"
        notes = (f"{name}.csv was not written: {many}. All of them are in {report.path}.",)
        # A file from an earlier report would be mistaken for part of this one.
        folder.delete(f"{name}.csv")
    else:
        where = folder.where(f"{name}.csv")
        with folder.scratch() as scratch, output_errors(where):
            path = scratch / "rows.csv"
            _write_rows(report, path, class_names)
            folder.publish(path, f"{name}.csv")
    return CsvFiles(where, folder.where(f"{name}_summary.csv"), notes)


def _write_rows(report: Report, path: Any, class_names: Sequence[str]) -> None:
    beside = [name if name not in report.metrics else f"{name} (report)" for name in _BESIDE]
    names = ["data_id", *(f"{METRIC}{name}" for name in report.metrics), *_BESIDE]
    types = report.facts["value_types"]
    named = _NAMED if class_names and report.facts["num_classes"] else ()
    added = [f"{name}_name" for name in named]
    added = [name if name not in report.metrics else f"{name} (report)" for name in added]
    with path.open("wb") as file:
        file.write(_line(["", *report.metrics, *beside, *added]))
        for table in report.batches(*names):
            columns = [
                _texts(table[name].combine_chunks(), types.get(name.removeprefix(METRIC), ""))
                for name in names
            ]
            columns += [
                _texts(_names_of(table[name].combine_chunks(), class_names), "") for name in named
            ]
            rows = pc.binary_join_element_wise(*columns, ",")
            lines = pc.binary_join_element_wise(rows, "", "\n")
            # The strings of an Arrow array are contiguous.
            start, stop = lines.offset, lines.offset + len(lines)
            offsets = np.frombuffer(lines.buffers()[1], np.int32)
            file.write(memoryview(lines.buffers()[2])[offsets[start] : offsets[stop]])


def _names_of(numbers: Any, class_names: Sequence[str]) -> Any:
    """Return the name of each class number; null for null, and for classes without a name."""
    known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(class_names)))
    return pa.array(class_names, pa.string()).take(pc.if_else(known, numbers, None))


def _texts(column: Any, value_type: str) -> Any:
    """Return a column as CSV cells, formatted and quoted as pandas writes them; null is empty.

    Args:
        column: The column.
        value_type: NumPy dtype in which its numbers were computed, so that a float32 is written as
            0.1, not as 0.10000000149011612; empty for float64.
    """
    if pa.types.is_floating(column.type):
        return _of_floats(column, np.dtype(value_type or "float64"))
    if not pa.types.is_string(column.type):
        return pc.fill_null(pc.cast(column, pa.string()), "")
    texts = pc.fill_null(column, "")
    special = pc.match_substring_regex(texts, _NEEDS_QUOTES)
    if not pc.any(special).as_py():
        return texts
    quoted = pc.binary_join_element_wise("", pc.replace_substring(texts, '"', '""'), "", '"')
    return pc.if_else(special, quoted, texts)


def _of_floats(column: Any, dtype: np.dtype[Any]) -> Any:
    # Values of a function that returned float32 are shown as 0.1, not as 0.10000000149011612.
    values = column.to_numpy(zero_copy_only=False).astype(dtype)
    size = np.abs(values)
    with np.errstate(invalid="ignore"):
        is_plain = (
            (size >= _PLAIN_FROM) & (size < _PLAIN_TO[dtype.name]) & (values != np.floor(values))
        )
    texts = pc.cast(pa.array(values), pa.string())
    others = np.flatnonzero(~is_plain)
    if len(others):
        # A few distinct values occur often: 0.0 and 1.0. Compared by their bits, because 0.0 equals
        # -0.0.
        bits = values.view(f"i{dtype.itemsize}")[others]
        unique, places = np.unique(bits, return_inverse=True)
        shown = pa.array(
            ["" if np.isnan(value) else str(value) for value in unique.view(dtype)], pa.string()
        )
        texts = pc.replace_with_mask(texts, pa.array(~is_plain), shown.take(pa.array(places)))
    return texts


def _summary(report: Report) -> bytes:
    found = [report.summary(name) for name in report.metrics]
    rows = {
        "count": [float(s.count) for s in found],
        "mean": [s.mean for s in found],
        "std": [s.std for s in found],
        "min": [s.min for s in found],
        "25%": [s.quartiles[0] for s in found],
        "50%": [s.quartiles[1] for s in found],
        "75%": [s.quartiles[2] for s in found],
        "max": [s.max for s in found],
    }
    lines = [_line(["", *report.metrics])]
    for name, values in rows.items():
        lines.append(_line([name, *("" if np.isnan(v) else repr(v) for v in values)]))
    return b"".join(lines)


def _line(values: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()

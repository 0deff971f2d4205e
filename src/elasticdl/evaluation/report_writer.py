"""Writes an evaluation report as a Parquet file: one row per example of a split (`validation`).

    data_id  split  source | label  prediction  confidence  correct | weight | metric.<function> ...

All other forms are derived from this file: CSV files, tables and the page (`report_views.py`,
`report_tables.py`, `report_page.py`). There is one row per example, in the given order; if two
examples have the same id, a note says so. The file appears only once it is complete.

Callers: sessions and `elasticdl evaluate --report`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.data.atomic_writer import AtomicWriter
from elasticdl.data.batch import arrays_bytes, leaves
from elasticdl.errors import DefinitionError
from elasticdl.evaluation.functions import EvalFunctions, signature
from elasticdl.evaluation.outcomes import OutcomeReading, outcomes, read

if TYPE_CHECKING:
    import os

    from elasticdl.data.batch import Arrays
    from elasticdl.evaluation.outcomes import Outcomes

METRIC = "metric."
METADATA = b"elasticdl.report"
FORMAT_VERSION = 1

# Functions are called on blocks of this many rows, or of this many bytes if rows are large.
_BLOCK_ROWS = 4096
_BLOCK_BYTES = 32 << 20
# Row group size: a reader of a few columns reads whole groups.
_GROUP_ROWS = 1 << 17
_SHOWN_IDS = 10


@dataclass(frozen=True)
class ReportResult:
    """Summary of a report.

    Attributes:
        path: Path or URI of the Parquet file.
        split: The evaluated split.
        num_rows: Number of examples.
        reading: How outputs were interpreted, as a sentence.
        means: Function -> mean over the examples that have a value; NaN if none has.
        weighted_means: The same as `means`, with each example weighted; empty without weights.
        num_missing: Function -> number of examples without a value (None or NaN).
        num_duplicated: Number of ids that occur in more than one row.
        duplicated: Some of these ids.
        notes: Notes for the user.
    """

    path: str
    split: str
    num_rows: int
    reading: str
    means: Mapping[str, float]
    weighted_means: Mapping[str, float]
    num_missing: Mapping[str, int]
    num_duplicated: int
    duplicated: Sequence[str]
    notes: Sequence[str]


@dataclass
class _Mean:
    """Running mean of one column, without and with the examples' weights."""

    total: float = 0.0
    count: int = 0
    weighted: float = 0.0
    weight: float = 0.0
    missing: int = 0

    def add(self, values: np.ndarray[Any, Any], weights: np.ndarray[Any, Any] | None) -> None:
        known = ~np.isnan(values)
        here = values[known]
        with np.errstate(invalid="ignore", over="ignore"):
            self.total += float(here.sum())
        self.count += len(here)
        self.missing += len(values) - len(here)
        if weights is not None:
            self.weighted += float((here * weights[known]).sum())
            self.weight += float(weights[known].sum())


@dataclass(eq=False)
class _Block:
    """Collected rows of equal shapes, whose metrics are computed together."""

    ids: list[str] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    metrics: list[dict[str, np.ndarray[Any, Any]]] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    num_bytes: int = 0
    signature: str = ""


class ReportWriter(AtomicWriter):
    """Writes a report row by row, and publishes it when it is closed.

    Used in a `with` statement: if its body raises, nothing is published, and an earlier report
    is kept.

    Args:
        folder: Where the report goes: a path, a URI, or an output folder.
        name: The file is named `<name>.parquet`.
        split: The evaluated split, such as `validation`.
        functions: Functions whose values are computed for each example and written as columns, in
            addition to the metrics passed to `add`.

    Attributes:
        result: The summary; available once the writer is closed.

    Raises:
        OutputError: The folder is not writable.
    """

    result: ReportResult

    def __init__(
        self,
        folder: OutputFolder | str | os.PathLike[str],
        *,
        name: str = "report",
        split: str = "test",
        functions: EvalFunctions | None = None,
    ) -> None:
        self._folder = folder if isinstance(folder, OutputFolder) else OutputFolder(folder)
        self._name = f"{name}.parquet"
        self._where = self._folder.where(self._name)
        self._split = split
        self._functions = EvalFunctions() if functions is None else functions
        self._block = _Block()
        self._reading: OutcomeReading | None = None
        self._means: dict[str, _Mean] = {}
        self._has_weights = False
        self._num_rows = 0
        self._tables: list[Any] = []
        # Some tens of bytes per row, kept to the end, when duplicates are determined.
        self._ids: list[Any] = []
        self._writer: Any = None
        self._stack = ExitStack()
        self._path = self._stack.enter_context(self._folder.scratch()) / self._name
        self._closed = False

    def add(
        self,
        *,
        ids: Sequence[Any],
        labels: Arrays,
        outputs: Arrays,
        weights: Any = None,
        sources: Sequence[str | None] | None = None,
        metrics: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        """Append examples.

        Args:
            ids: One per example: strings, bytes (decoded) or numbers.
            labels: An array or a nesting of arrays, one row per example; None if there are none.
            outputs: The model's outputs, in the same form.
            weights: One number per example; weights of parts of an example (of pixels) are not
                reported.
            sources: The source of each example: a path, or None.
            metrics: Further columns that are already computed: name -> one number per example; the
                same names in each call.

        Raises:
            UserCodeError: A function raised.
            DefinitionError: A function returned something other than one number, or a metric has
                the name of one of the functions.
            OutputError: The rows cannot be written.
            ValueError: An argument does not have one row per id, or the writer is closed.
        """
        if self._closed:
            raise ValueError(f"{self._where} is closed")
        block, num_rows = self._block, len(ids)
        given = {name: np.asarray(a, np.float64) for name, a in (metrics or {}).items()}
        both = sorted(set(given) & set(self._functions.names))
        if both:
            raise DefinitionError(
                f"{both[0]!r} is the name of an evaluation function and of a built-in metric of "
                "the report. Rename the function."
            )
        weight = _weight_of_each(weights, num_rows)
        labels, outputs = as_arrays(labels), as_arrays(outputs)
        beside = [] if sources is None else [sources]
        for what in (*beside, *given.values(), *leaves(labels), *leaves(outputs)):
            if len(what) != num_rows:
                raise ValueError(f"{len(what)} rows beside {num_rows} ids")
        if num_rows == 0:
            return
        described = signature(labels, outputs)
        if block.ids and described != block.signature:
            # Pictures of another size, for example, cannot be stacked in one array.
            self._compute()
            block = self._block
        block.signature = described
        block.ids += as_texts(ids)
        block.labels.append(labels)
        block.outputs.append(outputs)
        block.metrics.append(given)
        block.weights.append(np.full(num_rows, np.nan) if weight is None else weight)
        self._has_weights |= weight is not None
        block.sources += [None] * num_rows if sources is None else as_texts(sources)
        block.num_bytes += arrays_bytes(outputs) + arrays_bytes(labels)
        if len(block.ids) >= _BLOCK_ROWS or block.num_bytes >= _BLOCK_BYTES:
            self._compute()

    def _compute(self) -> None:
        """Compute the metrics of the collected rows; write the Parquet row groups that are full."""
        block, self._block = self._block, _Block()
        if not block.ids:
            return
        labels, outputs = _joined(block.labels), _joined(block.outputs)
        if self._reading is None:
            self._reading = read(labels, outputs)
        weights = np.concatenate(block.weights)
        metrics = {name: np.concatenate([m[name] for m in block.metrics]) for name in _names(block)}
        metrics |= self._functions.columns(block.ids, labels, outputs)
        for name, values in metrics.items():
            self._means.setdefault(name, _Mean()).add(
                values, weights if self._has_weights else None
            )
        self._num_rows += len(block.ids)
        found = outcomes(self._reading, labels, outputs, len(block.ids))
        table = _table(block, self._split, found, weights, metrics)
        self._ids += table["data_id"].chunks
        self._tables.append(table)
        if sum(table.num_rows for table in self._tables) >= _GROUP_ROWS:
            self._write_group()

    def _write_group(self) -> None:
        if not self._tables:
            return
        table = pa.concat_tables(self._tables)
        self._tables = []
        with output_errors(self._where):
            if self._writer is None:
                self._writer = pq.ParquetWriter(
                    str(self._path),
                    table.schema,
                    compression="zstd",
                    # Numbers are hardly ever repeated; trying to find repeats costs as much as
                    # writing them.
                    use_dictionary=["split", "source"],
                )
            self._writer.write_table(table, row_group_size=_GROUP_ROWS)

    def close(self) -> None:
        """Complete the report and publish it.

        Raises:
            ElasticDLError: A metric function raised, or the report cannot be written; an earlier
                report is kept.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._compute()
            if self._num_rows == 0:
                self._tables.append(self._empty())
            self._write_group()
            result = self._summed_up()
            with output_errors(self._where):
                self._writer.add_key_value_metadata({METADATA: self._metadata(result)})
                self._writer.close()
            self._folder.publish(self._path, self._name)
            self.result = result
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the writer without publishing the report, and remove its temporary files."""
        self._closed = True
        if self._writer is not None:
            self._writer.close()
        self._stack.close()

    def _empty(self) -> Any:
        nothing: np.ndarray[Any, Any] = np.zeros(0)
        metrics = dict.fromkeys(self._functions.names, nothing)
        found = outcomes(OutcomeReading("other", "values"), None, None, 0)
        return _table(_Block(), self._split, found, nothing, metrics)

    def _summed_up(self) -> ReportResult:
        num_duplicated, duplicated = _duplicated(self._ids)
        notes = self._functions.notes
        if num_duplicated:
            notes.append(
                f"{num_duplicated:,} ids occur in more than one row: "
                f"{', '.join(duplicated)}{', ...' if num_duplicated > len(duplicated) else ''}. "
                "Every row is in the report; a lookup by id returns all of them."
            )
        reading = self._reading or OutcomeReading("other", "values")
        return ReportResult(
            path=self._where,
            split=self._split,
            num_rows=self._num_rows,
            reading=str(reading),
            means={name: _ratio(m.total, m.count) for name, m in self._means.items()},
            weighted_means={name: _ratio(m.weighted, m.weight) for name, m in self._means.items()}
            if self._has_weights
            else {},
            num_missing={name: m.missing for name, m in self._means.items()},
            num_duplicated=num_duplicated,
            duplicated=duplicated,
            notes=notes,
        )

    def _metadata(self, result: ReportResult) -> str:
        reading = self._reading or OutcomeReading("other", "values")
        return json.dumps(
            {
                "format_version": FORMAT_VERSION,
                "split": self._split,
                "task": reading.task,
                "scores": reading.scores,
                "num_classes": reading.num_classes,
                "reading": result.reading,
                "value_types": self._functions.value_types,
                "notes": list(result.notes),
            }
        )


def _weight_of_each(weights: Any, num_rows: int) -> np.ndarray[Any, Any] | None:
    """Return one weight per example; None if there are none, or several per example."""
    if weights is None:
        return None
    weight = np.asarray(weights, np.float64)
    return weight.reshape(num_rows) if weight.size == num_rows else None


def as_arrays(tree: Any) -> Arrays:
    """Return labels or outputs as a nesting of arrays; a list of numbers becomes an array.

    Example:
        >>> as_arrays({"a": [1, 2], "b": np.zeros(2)})
        {'a': array([1, 2]), 'b': array([0., 0.])}
    """
    if tree is None or isinstance(tree, np.ndarray):
        return tree
    if isinstance(tree, Mapping):
        return {name: as_arrays(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)) and tree and np.ndim(tree[0]):
        return [as_arrays(value) for value in tree]
    return np.asarray(tree)


def as_texts(ids: Any) -> list[Any]:
    """Return ids as strings: bytes decoded, numbers as written, None unchanged.

    Example:
        >>> as_texts(["a", b"b.jpg", 3, np.int64(4), np.bytes_(b"c")])
        ['a', 'b.jpg', '3', '4', 'c']
    """
    values = ids.tolist() if isinstance(ids, np.ndarray) else ids
    # Nearly always they are strings already, and converting a million of them takes time.
    return list(values) if set(map(type, values)) == {str} else [_as_text(v) for v in values]


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.reshape(()).item()
    if isinstance(value, bytes):
        # Bytes that are not UTF-8 must still differ from every other id.
        return value.decode(errors="backslashreplace")
    return str(value)


def _joined(trees: Sequence[Any]) -> Any:
    """Concatenate the rows of several nested structures of arrays."""
    first = trees[0]
    if len(trees) == 1:
        return first
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {name: _joined([tree[name] for tree in trees]) for name in first}
    if isinstance(first, (list, tuple)):
        return type(first)(_joined([tree[i] for tree in trees]) for i in range(len(first)))
    return np.concatenate(trees)


def _names(block: _Block) -> list[str]:
    names = list(block.metrics[0])
    for metrics in block.metrics:
        if list(metrics) != names:
            raise ValueError(f"metrics {list(metrics)} after {names}")
    return names


def _table(
    block: _Block,
    split: str,
    found: Outcomes,
    weights: np.ndarray[Any, Any],
    metrics: Mapping[str, np.ndarray[Any, Any]],
) -> Any:
    num_rows = len(block.ids)
    columns = {
        "data_id": pa.array(block.ids, pa.string()),
        "split": pa.repeat(pa.scalar(split, pa.string()), num_rows),
        "source": pa.array(block.sources, pa.string()),
        "label": _as_column(found.labels),
        "prediction": _as_column(found.predictions),
        "confidence": _as_column(found.confidences),
        "correct": _as_column(found.correct),
        "weight": pa.array(weights, pa.float64(), mask=np.isnan(weights)),
        # A function's NaN stays NaN, because the function returned it.
        **{f"{METRIC}{name}": pa.array(values, pa.float64()) for name, values in metrics.items()},
    }
    return pa.table(columns)


def _as_column(values: np.ma.MaskedArray[Any, Any]) -> Any:
    data = values.data.astype(np.float64) if values.dtype.kind == "f" else values.data
    return pa.array(data, mask=np.ma.getmaskarray(values))


def _duplicated(ids: Sequence[Any]) -> tuple[int, list[str]]:
    every = pa.chunked_array(ids, pa.string())
    if pc.count_distinct(every, "all").as_py() == len(every):
        return 0, []
    counted = every.value_counts()
    twice = counted.filter(pc.greater(counted.field("counts"), 1)).field("values")
    return len(twice), [str(value) for value in twice.slice(0, _SHOWN_IDS).to_pylist()]


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan

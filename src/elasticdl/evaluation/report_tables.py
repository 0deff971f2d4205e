"""Reads an evaluation report: worst examples, confusion matrix, results per class, distributions.

Each function reads only the columns it needs, so that finding the worst hundred of a million
examples takes a few hundredths of a second. This module decides which examples are the worst, but
not how they are shown.

Callers: `report_views.py`, `report_page.py`, users.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from elasticdl.artifacts.folder import local_path_of
from elasticdl.data.stored_file import filesystem
from elasticdl.errors import CorruptDataError, NoDataError
from elasticdl.evaluation.report_writer import METADATA, METRIC

# Normal distribution: 95 % lie within this many standard deviations.
_Z95 = 1.959963984540054
_QUANTILES = (0.25, 0.5, 0.75)
# Parts of the names of metrics for which larger values are better.
_BETTER_WHEN_MORE = (
    "acc", "dice", "iou", "jaccard", "f1", "precision", "recall", "auc", "score", "similarity",
    "ssim", "psnr", "confidence", "correct", "likelihood",
)  # fmt: skip


@dataclass(frozen=True)
class ClassRow:
    """Results of a model on one class.

    Attributes:
        name: The class, as its number in the labels.
        support: Number of examples that have this label.
        predicted: Number of examples predicted as this class.
        correct: Number of examples that have this label and are predicted as this class.
    """

    name: int
    support: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Fraction of the predictions of the class that are correct; NaN if there are none."""
        return self.correct / self.predicted if self.predicted else math.nan

    @property
    def recall(self) -> float:
        """Fraction of the class's examples that are predicted as it; NaN if it has no examples."""
        return self.correct / self.support if self.support else math.nan

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; NaN if no label or prediction is this class."""
        total = self.support + self.predicted
        return 2 * self.correct / total if total else math.nan

    @property
    def recall_interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the recall (Wilson)."""
        return wilson(self.correct, self.support)


@dataclass(frozen=True)
class ReportSummary:
    """Distribution of a metric over all examples that have a value for it.

    Quartiles are interpolated. If no example has a value, all attributes but `count` are NaN.

    Attributes:
        count: Number of examples that have a value.
        mean: Mean of the values.
        std: Sample standard deviation (divided by count - 1).
        min: Smallest value.
        quartiles: 25 %, 50 %, 75 %.
        max: Largest value.
    """

    count: int
    mean: float
    std: float
    min: float
    quartiles: tuple[float, float, float]
    max: float


class Report:
    """Reads a report from its Parquet file.

    Args:
        path: Path or URI of the Parquet file.

    Raises:
        NoDataError: There is no such file.
        CorruptDataError: The file is not a report.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._file = _open(self.path)
        except FileNotFoundError as error:
            raise NoDataError(f"{self.path}: there is no such report.") from error
        except pa.ArrowInvalid as error:
            raise CorruptDataError(self.path, 0, "a Parquet file", str(error)) from error
        metadata = (self._file.schema_arrow.metadata or {}) | (self._file.metadata.metadata or {})
        if METADATA not in metadata:
            raise CorruptDataError(self.path, 0, "a report of ElasticDL", "another Parquet file")
        self.facts: Mapping[str, Any] = json.loads(metadata[METADATA])
        self.num_rows: int = self._file.metadata.num_rows
        self._names: list[str] = self._file.schema_arrow.names
        self.metrics = [n.removeprefix(METRIC) for n in self._names if n.startswith(METRIC)]

    def columns(self, *names: str) -> Any:
        """Read some columns as a pyarrow table."""
        # By position, because pyarrow reads a dot in a name as a nested column.
        table = self._file.reader.read_all(
            column_indices=[self._names.index(name) for name in names]
        )
        return table.select(list(names))

    def batches(self, *names: str, num_rows: int = 1 << 16) -> Any:
        """Yield tables of some columns, of at most `num_rows` rows each."""
        for group in range(self._file.num_row_groups):
            table = self._file.reader.read_row_group(
                group, column_indices=[self._names.index(name) for name in names]
            ).select(list(names))
            for start in range(0, table.num_rows, num_rows):
                yield table.slice(start, num_rows)

    def metric(self, name: str) -> np.ndarray[Any, Any]:
        """Return a metric's values as float64; NaN if an example has no value.

        Raises:
            KeyError: There is no such metric.
        """
        if name not in self.metrics:
            raise KeyError(f"{self.path} has no metric {name!r}; have: {', '.join(self.metrics)}")
        values: np.ndarray[Any, Any] = self.columns(METRIC + name).column(0).to_numpy()
        return values

    def summary(self, metric: str) -> ReportSummary:
        """Return mean, standard deviation and quartiles of a metric over all examples.

        The values are those of pandas' `describe`; NaN is left out.
        """
        values = self.metric(metric)
        values = values[~np.isnan(values)]
        if not len(values):
            nothing = math.nan
            return ReportSummary(0, nothing, nothing, nothing, (nothing,) * 3, nothing)
        # Infinite values have no spread, and the result shows it.
        with np.errstate(invalid="ignore", over="ignore"):
            low, median, high = (float(q) for q in np.quantile(values, _QUANTILES))
            std = float(values.std(ddof=1)) if len(values) > 1 else math.nan
            mean, least, most = float(values.mean()), float(values.min()), float(values.max())
        return ReportSummary(len(values), mean, std, least, (low, median, high), most)

    def worst(self, metric: str, k: int = 100, *, largest: bool | None = None) -> list[int]:
        """Return the row numbers of the worst examples, worst first.

        Args:
            metric: Name of the metric.
            k: Largest number of examples; those without a value are never included.
            largest: Whether large values are bad. None: decide as `is_worse_when_larger` does.
        """
        values = self.metric(metric)
        if largest is None:
            largest = self.is_worse_when_larger(metric)
        found = np.flatnonzero(~np.isnan(values))
        order = -values if largest else values
        if 0 < k < len(found):
            last = np.partition(order[found], k - 1)[k - 1]
            found = found[order[found] <= last]
        # Ties are broken by row number, so that a page is the same each time.
        return [int(row) for row in found[np.lexsort((found, order[found]))][:k]]

    def is_worse_when_larger(self, metric: str) -> bool:
        """Return whether large values of a metric are bad.

        If the report says which examples the model got right, the median of the metric over the
        wrong examples is compared with that over the right ones: the larger one shows whether large
        values are bad. Otherwise, or if they are equal, the metric's name decides: a score or a
        measure of agreement is good when it is large; any other metric is taken for an error.
        """
        values, right = self.metric(metric), self._correct
        known = ~np.isnan(values) & (right >= 0)
        wrong_ones, right_ones = values[known & (right == 0)], values[known & (right == 1)]
        if len(wrong_ones) and len(right_ones):
            wrong, good = float(np.median(wrong_ones)), float(np.median(right_ones))
            if wrong != good:
                return wrong > good
        name = metric.lower()
        return not any(word in name for word in _BETTER_WHEN_MORE)

    def rows(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """Read some rows, each as a dict of column -> value, in the requested order.

        Reads only the row groups of the Parquet file that contain them.

        Args:
            numbers: Row numbers, from 0.
        """
        wanted: dict[int, list[int]] = {}
        starts = np.cumsum(
            [0, *(self._file.metadata.row_group(i).num_rows for i in range(self._num_groups))]
        )
        for number in numbers:
            wanted.setdefault(int(np.searchsorted(starts, number, "right")) - 1, []).append(number)
        found: dict[int, dict[str, Any]] = {}
        for group, members in wanted.items():
            table = self._file.read_row_group(group)
            picked = table.take(pa.array([number - int(starts[group]) for number in members]))
            found |= dict(zip(members, picked.to_pylist(), strict=True))
        return [found[number] for number in numbers]

    def confusion(self) -> dict[tuple[int, int], int]:
        """Return (label, prediction) -> number of examples; pairs without any are left out."""
        if self.facts["num_classes"] == 0:
            return {}
        known = self.columns("label", "prediction").drop_null()
        counted = known.group_by(["label", "prediction"]).aggregate([([], "count_all")])
        return {(r["label"], r["prediction"]): r["count_all"] for r in counted.to_pylist()}

    def fitting_names(self, names: Sequence[str]) -> list[str]:
        """Return the class names; empty if there are more names than classes in the outputs.

        Args:
            names: The names that the model has, by number.
        """
        return [str(name) for name in names] if len(names) <= self.facts["num_classes"] else []

    def classes(self) -> list[ClassRow]:
        """Return the results for each class that occurs, ordered by its number.

        Returns none if the model predicts no classes, as in a regression.
        An example without a valid model output has no prediction, which lowers the recall.
        """
        if self.facts["num_classes"] == 0:
            return []
        labels = self.columns("label").column(0)
        support = _counts(labels.value_counts())
        predicted: dict[int, int] = {}
        correct: dict[int, int] = {}
        for (label, prediction), count in self.confusion().items():
            predicted[prediction] = predicted.get(prediction, 0) + count
            if label == prediction:
                correct[label] = count
        return [
            ClassRow(c, support.get(c, 0), predicted.get(c, 0), correct.get(c, 0))
            for c in sorted({*support, *predicted})
        ]

    @property
    def accuracy(self) -> tuple[int, int]:
        """Return (number of correct examples, number for which correctness is known)."""
        right = self._correct
        return int((right == 1).sum()), int((right >= 0).sum())

    @cached_property
    def _correct(self) -> np.ndarray[Any, Any]:
        """Per example: 1 if the model is right, 0 if it is wrong, -1 if that is unknown."""
        column = self.columns("correct").column(0)
        values: np.ndarray[Any, Any] = pc.fill_null(pc.cast(column, pa.int8()), -1).to_numpy()
        return values

    @property
    def _num_groups(self) -> int:
        number: int = self._file.num_row_groups
        return number


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of a proportion (Wilson, 1927, with z = 1.96).

    Unlike the textbook interval, it stays within 0 and 1, and is accurate even if all trials, or
    none, are successes.

    Example:
        >>> [round(bound, 3) for bound in wilson(9, 10)]
        [0.596, 0.982]
    """
    if trials == 0:
        return (math.nan, math.nan)
    share, z2 = successes / trials, _Z95**2
    center = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    spread = math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    half = _Z95 * spread / (1 + z2 / trials)
    return (max(0.0, center - half), min(1.0, center + half))


def _counts(counted: Any) -> dict[int, int]:
    pairs = zip(
        counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True
    )
    return {value: count for value, count in pairs if value is not None}


def _open(path: str) -> Any:
    local = local_path_of(path)
    if local is not None:
        return pq.ParquetFile(str(local))
    system, inside = filesystem(path)
    return pq.ParquetFile(system.open(inside, "rb"))

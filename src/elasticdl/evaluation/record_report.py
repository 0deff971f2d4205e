"""Evaluates a model and writes a report with the metrics of each record, by the record's key.

The keys are those of predictions, so that a report and a prediction on the same records can be
joined. The model runs over the records once.

Callers: `engines/inference.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.data.split_source import runs_in_whole, whole
from elasticdl.errors import DataError, UsageError
from elasticdl.evaluation.metrics import add_states
from elasticdl.evaluation.png import as_picture
from elasticdl.evaluation.report_page import write_page
from elasticdl.evaluation.report_tables import Report
from elasticdl.evaluation.report_views import write_views
from elasticdl.evaluation.report_writer import ReportWriter
from elasticdl.prediction.rows import RecordKeys, named_outputs, outputs_without_axes
from elasticdl.training.trainer import PerExampleEvaluator

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema
    from elasticdl.definition import ModelDefinition
    from elasticdl.evaluation.report_writer import ReportResult
    from elasticdl.training.trainer import MetricStates, Trainer

# Above this, more than rounding: the loss of a batch is not the mean of its examples' losses.
_LOSS_TOLERANCE = 1e-4
_MIN_SIDE = 8


class RecordReport:
    """Evaluates a model and writes a report with the metrics of each record.

    Args:
        folder: Folder of the report.
        trainer: Trainer that holds the model.
        definition: The model's definition.
        source: The records.
        names_files: Whether the report has the file of each record. Those of data in memory are
            temporary.

    Attributes:
        writer: Writes the rows of the report; use it in a `with` block around `running_states`.

    Raises:
        UsageError: The model's framework cannot evaluate examples separately.
        OutputError: The folder is not writable.
    """

    def __init__(
        self,
        folder: str,
        trainer: Trainer,
        definition: ModelDefinition,
        source: RecordSource,
        *,
        names_files: bool = True,
    ) -> None:
        if not isinstance(trainer, PerExampleEvaluator):
            raise UsageError(
                f"--report: models of {definition.framework} can only be evaluated as a whole. "
                "Leave --report out."
            )
        self._folder, self._trainer, self._source = folder, trainer, source
        self._definition, self._names_files = definition, names_files
        self._loss_is_a_mean = True
        self.writer = ReportWriter(folder, name="report", split="test")

    def running_states(
        self, batches: Iterable[tuple[int, Batch]]
    ) -> Iterator[tuple[int, MetricStates]]:
        """Evaluate batches one by one, and add their examples to the report.

        Args:
            batches: Pairs of the number of a batch's first record and the batch, in the records'
                order.

        Yields:
            The number of examples so far, and the metric states over these examples.

        Raises:
            DataError: The number of examples differs from the number of records.
            OutputError: The report cannot be written.
        """
        keys = RecordKeys(whole(self._source).files)
        total: MetricStates = {}
        done = 0
        for first, batch in batches:
            self._check_complete(first, done)
            examined = self._trainer.evaluate_per_example(batch, total)
            ordered = self._trainer.evaluation_metrics.ordered
            total = add_states([total, examined.states], ordered)
            done = first + batch.num_examples
            runs = runs_in_whole(self._source, first, done)
            self.writer.add(
                ids=[key for run in runs for key in keys.between(*run)],
                labels=batch.labels,
                outputs=_of_each_example(examined.outputs, batch.num_examples),
                sources=[file for run in runs for file in keys.files_between(*run)]
                if self._names_files
                else None,
                metrics=examined.values,
            )
            self._compare(examined.states, examined.values)
            yield done, total
        self._check_complete(self._source.num_records, done)

    def finish(self, title: str) -> tuple[ReportResult, list[str]]:
        """Write the CSV files and the HTML page of the report; call it after `writer` is closed.

        Args:
            title: The page's heading.

        Returns:
            The result of the report, and notes for the user.

        Raises:
            OutputError: The files cannot be written.
        """
        result = self.writer.result
        report = Report(result.path)
        names = report.fitting_names(self._definition.classes)
        views = write_views(report, self._folder, class_names=names)
        schema = getattr(self._definition.input, "schema", None)
        write_page(
            report,
            self._folder,
            title=title,
            picture_of=pictures_of(self._source, schema),
            class_names=names,
        )
        notes = [*result.notes, *views.notes]
        if not self._loss_is_a_mean:
            notes.append(
                "The loss of a batch is not the mean of the losses of its single examples: use "
                "the report's loss column to compare examples, not to compute a total."
            )
        return result, notes

    def _compare(self, states: MetricStates, values: Any) -> None:
        if "loss" not in values or "loss" not in states:
            return
        total, count = (float(state) for state in states["loss"])
        mean = float(np.mean(values["loss"]))
        if not np.isclose(mean, total / count, rtol=_LOSS_TOLERANCE, atol=1e-6, equal_nan=True):
            self._loss_is_a_mean = False

    def _check_complete(self, expected: int, done: int) -> None:
        if done != expected:
            raise DataError(
                f"{self._source.files[0].uri}: the input function of {self._definition.origin} "
                f"made {done} examples of the first {expected} records, so a report cannot match "
                "examples with records. Do not drop or add examples in evaluation mode, or "
                "evaluate without --report."
            )


def _of_each_example(outputs: Arrays, num_examples: int) -> Arrays:
    """Return a model's outputs for a batch with one row per example.

    If every output is one number for the whole batch, such as a penalty, it is repeated for each
    example.

    Raises:
        DefinitionError: An output has an axis of examples, but not one row per example.
    """

    def repeated(output: Any) -> Any:
        return np.full(num_examples, output) if np.ndim(output) == 0 else output

    rows = map_arrays(repeated, outputs) if outputs_without_axes(outputs) else outputs
    if any(np.shape(output)[:1] != (num_examples,) for output in leaves(rows)):
        # It names the output.
        named_outputs(rows, num_examples)
    return rows


def pictures_of(source: RecordSource, schema: Schema | None) -> Callable[[int, str], Any]:
    """Return the function by which the report's page gets the picture of an example.

    The function takes the number of the record and its id, and returns the record's picture. It
    returns None if the record has none, or if several of its fields may be pictures, because it is
    unknown which of them the model uses.

    Args:
        source: The records.
        schema: The schema of the model's input, if it has one.
    """

    def picture_of(row: int, data_id: str) -> Any:
        del data_id
        record = source.read_records(row, row + 1, schema)[0]
        found = [array for array in record.values() if _may_be_picture(array)]
        return found[0] if len(found) == 1 else None

    return picture_of


def _may_be_picture(array: Any) -> bool:
    is_large = np.ndim(array) > 1 and min(np.shape(array)[:2]) >= _MIN_SIDE
    return is_large and as_picture(array) is not None

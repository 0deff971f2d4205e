"""A report on records: what `evaluate` sums up, kept for each of them under its key.

The keys are those that predictions have, so that a report and a prediction of the same records
can be joined. The model goes over the records once.

Callers: `engines/trained.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.file_ranges import split_range
from elasticdl.errors import DataError, UsageError
from elasticdl.evaluation.metrics import add_states
from elasticdl.evaluation.png import as_picture
from elasticdl.evaluation.report import ReportWriter
from elasticdl.evaluation.report_page import write_page
from elasticdl.evaluation.report_tables import Report
from elasticdl.evaluation.report_views import write_views
from elasticdl.prediction.rows import record_keys
from elasticdl.training.trainer import Examiner

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema
    from elasticdl.definition import ModelDefinition
    from elasticdl.evaluation.report import ReportResult
    from elasticdl.training.trainer import MetricStates, Trainer

# Beyond rounding: the mean of the examples' losses is then not what the loss of a batch is.
_LOSS_TOLERANCE = 1e-4
_LEAST_SIDE = 8


class RecordReport:
    """A report in the making; used in a `with` statement, as a `ReportWriter` is.

    Args:
        folder: Where the report goes.
        trainer: The model.
        definition: What it is.
        source: The records.

    Attributes:
        writer: What the report is written with.

    Raises:
        UsageError: The model's framework cannot tell examples apart.
        OutputError: The place cannot be written to.
    """

    def __init__(
        self, folder: str, trainer: Trainer, definition: ModelDefinition, source: RecordSource
    ) -> None:
        if not isinstance(trainer, Examiner):
            raise UsageError(
                f"--report: models of {definition.framework} are evaluated as a whole only. "
                "Leave --report out."
            )
        self._folder, self._trainer, self._source = folder, trainer, source
        self._definition = definition
        self._loss_is_a_mean = True
        self.writer = ReportWriter(folder, name="report", split="test")

    def running_states(
        self, batches: Iterable[tuple[int, Batch]]
    ) -> Iterator[tuple[int, MetricStates]]:
        """Yield (examples done, metric states of them) after each batch, as `phase` does.

        Args:
            batches: First record and batch, in the records' order.

        Raises:
            DataError: There are not as many examples as records.
            OutputError: The report cannot be written.
        """
        total: MetricStates = {}
        done = 0
        for first, batch in batches:
            self._check_complete(first, done)
            examined = self._trainer.examine(batch, total)
            ordered = self._trainer.evaluation_metrics.ordered
            total = add_states([total, examined.states], ordered)
            done = first + batch.num_examples
            files = self._source.files
            self.writer.add(
                ids=record_keys(files, first, done),
                labels=batch.labels,
                outputs=examined.outputs,
                sources=[
                    files[part.file_index].uri
                    for part in split_range(files, first, done)
                    for _ in range(part.start, part.stop)
                ],
                metrics=examined.values,
            )
            self._compare(examined.states, examined.values)
            yield done, total
        self._check_complete(self._source.num_records, done)

    def finish(self, title: str) -> tuple[ReportResult, list[str]]:
        """Write what is read from the report, once its writer is closed.

        Args:
            title: The page's heading.

        Returns:
            What the report came to, and what a person should be told.

        Raises:
            OutputError: It cannot be written.
        """
        result = self.writer.result
        report = Report(result.path)
        views = write_views(report, self._folder)
        schema = getattr(self._definition.input, "schema", None)
        write_page(report, self._folder, title=title, picture_of=pictures_of(self._source, schema))
        notes = [*result.notes, *views.notes]
        if not self._loss_is_a_mean:
            notes.append(
                "The loss of a batch is not the mean of its examples' losses, each computed alone: "
                "the report's loss column says how examples compare, not what they add up to."
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
                f"makes examples up to number {done} of the records up to number {expected}, so "
                "a report cannot say which record an example is. Do not leave out or add any in "
                "evaluation mode, or evaluate without --report."
            )


def pictures_of(source: RecordSource, schema: Schema | None) -> Callable[[int, str], Any]:
    """Return what finds the picture in a record: its only field that may be one.

    Two fields that may be pictures are none: which one the model looks at is not known here.
    """

    def picture_of(row: int, data_id: str) -> Any:
        del data_id
        record = source.read_records(row, row + 1, schema)[0]
        found = [array for array in record.values() if _may_be_picture(array)]
        return found[0] if len(found) == 1 else None

    return picture_of


def _may_be_picture(array: Any) -> bool:
    is_large = np.ndim(array) > 1 and min(np.shape(array)[:2]) >= _LEAST_SIDE
    return is_large and as_picture(array) is not None

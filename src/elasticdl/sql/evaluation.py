"""Evaluation and explanation of a trained model on the rows of a query.

    EVALUATE  metrics on the rows
    EXPLAIN   permutation importance: how much the loss grows when the values of one column are
              shuffled among the rows, which removes their information (Breiman, 2001,
              https://doi.org/10.1023/A:1010933404324, section 10)

Both skip rows without a label. INTO stores the result together with the model's name, its version
and the time, so that one table can hold the results of many runs.

Used by the programs of `submitter.py`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl import api, job_options
from elasticdl.data.snapshot import write_snapshot
from elasticdl.data.wording import did_you_mean, listed
from elasticdl.definition import Mode
from elasticdl.engines import inference, progress
from elasticdl.engines.record_data import open_records
from elasticdl.errors import UsageError
from elasticdl.evaluation.phase import running_states
from elasticdl.scratch import TemporaryFolder
from elasticdl.sql.column_types import note_on_times
from elasticdl.sql.database import RowSource
from elasticdl.sql.error_locations import check_distinct
from elasticdl.sql.label_filter import Labelled
from elasticdl.sql.names import matching, written_like
from elasticdl.sql.settings import for_rows
from elasticdl.sql.target_checks import check_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from elasticdl.data.snapshot import FileSnapshot
    from elasticdl.engines.engine import Reporter
    from elasticdl.sql.database import Database
    from elasticdl.sql.models import ModelRecord, Models, ModelVersion
    from elasticdl.sql.names import Name

MAX_EXPLAINED_ROWS = 10_000
REPEATS = 5
_SEED = 0
# Result columns of EVALUATE and EXPLAIN, and the columns that INTO adds to them.
METRICS = ("metric", "value")
IMPORTANCES = ("column", "importance", "deviation")
_RUN = ("model", "version", "time")


@dataclass(frozen=True)
class EvaluateRequest:
    """An EVALUATE statement that has passed all checks; the arguments of `evaluate`.

    Attributes:
        select: The query.
        model: Name of the trained model.
        label: The column with the true values; None uses the column that the model was trained on.
        into: The table for the metrics; None only displays them.
        options: Options of `job_options.evaluation_job`.
        statement: The statement's text, for errors.
        begins_at: Line and column of the statement in its program.
    """

    select: str
    model: str
    label: str | None = None
    into: Name | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    statement: str = ""
    begins_at: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class ExplainRequest:
    """An EXPLAIN statement that has passed all checks; the arguments of `explain`.

    Attributes:
        select: The query; at most `num_rows` of its rows are used.
        model: Name of the trained model.
        into: The table for the importances; None only displays them.
        num_rows: Maximum number of rows, taken from the start of the result.
        repeats: How many times each column is shuffled.
        statement: The statement's text, for errors.
        begins_at: Line and column of the statement in its program.
    """

    select: str
    model: str
    into: Name | None = None
    num_rows: int = MAX_EXPLAINED_ROWS
    repeats: int = REPEATS
    statement: str = ""
    begins_at: tuple[int, int] = (1, 1)


def evaluate(
    request: EvaluateRequest,
    database: Database,
    models: Models,
    reporter: Reporter | None = None,
) -> pa.Table:
    """Evaluate a model on the rows of a query; return its metrics.

    The table has the columns `metric` and `value`.

    Raises:
        ElasticDLError: The evaluation failed, for any reason.
    """
    reporter = progress.for_stream() if reporter is None else reporter
    version = models.current(request.model)
    kept = check_into(request.into, METRICS, database)
    with TemporaryFolder() as folder:
        stored = _read(request, database, folder, version.record, request.label, note=reporter.note)
        outcome = api.evaluate(
            trained_model=version.uri,
            data=stored.training,
            output=str(folder / "evaluation.json"),
            reporter=reporter,
            **for_rows(request.options, stored.num_training),
        )
    table = metrics_table(outcome.metrics)
    _store(table, request.into, kept, version, database)
    return table


def explain(
    request: ExplainRequest,
    database: Database,
    models: Models,
    reporter: Reporter | None = None,
) -> pa.Table:
    """Compute the permutation importance of each column for a model's loss.

    The table has the columns `column`, `importance` and `deviation`. The importance is the mean
    increase of the loss over all repeats, the deviation its standard deviation. The most important
    column comes first.

    Raises:
        ElasticDLError: The explanation failed, for any reason.
    """
    reporter = progress.for_stream() if reporter is None else reporter
    version = models.current(request.model)
    label = version.record.label
    kept = check_into(request.into, IMPORTANCES, database)
    with TemporaryFolder() as folder:
        stored = _read(
            request,
            database,
            folder,
            version.record,
            None,
            request.num_rows,
            note=reporter.note,
        )
        data = stored.training
        table = pq.read_table(data)
        options = for_rows({}, stored.num_training)
        losses = _Losses(
            job_options.evaluation_job(trained_model=version.uri, data=data, **options)
        )
        columns = [name for name in table.column_names if name != label]
        columns = losses.used(columns)
        plain = losses.of(data)
        random = np.random.default_rng(_SEED)
        found: list[tuple[str, float, float]] = []
        reporter.started("Explaining", len(columns), "columns")
        try:
            for done, name in enumerate(columns, 1):
                changes = []
                for _ in range(request.repeats):
                    shuffled = table.column(name).take(random.permutation(table.num_rows))
                    at = table.column_names.index(name)
                    path = str(folder / "shuffled.parquet")
                    pq.write_table(table.set_column(at, table.schema.field(at), shuffled), path)
                    changes.append(losses.of(path) - plain)
                found.append((name, float(np.mean(changes)), float(np.std(changes))))
                reporter.advanced(done, {})
        finally:
            reporter.ended()
    found.sort(key=lambda each: -each[1])
    names, importances, deviations = zip(*found, strict=True)
    result = pa.table(
        {
            "column": pa.array(names, pa.string()),
            "importance": pa.array(importances, pa.float64()),
            "deviation": pa.array(deviations, pa.float64()),
        }
    )
    _store(result, request.into, kept, version, database)
    return result


def check_into(into: Name | None, found: Sequence[str], database: Database) -> list[str]:
    """Check the table of an INTO clause, and return the columns to write to it.

    A new table gets all of them. An existing table must have the columns of the result; of the
    others (model, version, time), the ones it has are written.

    Args:
        into: The table; None if there is none.
        found: Columns of the result.
        database: Where the table is.

    Raises:
        UsageError: The table exists but does not fit such rows.
    """
    columns = [*found, *_RUN]
    table = None if into is None else database.table(into)
    if into is None or table is None:
        return columns
    kept = [name for name in columns if name in found or matching(name, table.columns) is not None]
    check_columns(table, into, kept)
    return kept


def _store(
    result: pa.Table,
    into: Name | None,
    kept: Sequence[str],
    version: ModelVersion,
    database: Database,
) -> None:
    """Append a result, with the model's version and the time, to the INTO table, if there is one.

    Args:
        result: The rows.
        into: The table; None stores nothing.
        kept: Columns to write, from `check_into`.
        version: The model version that was used.
        database: Database of the table.
    """
    if into is None:
        return
    time = pa.timestamp("us", tz="UTC")
    run = {
        "model": pa.array([version.name] * len(result), pa.string()),
        "version": pa.array([version.number] * len(result), pa.int64()),
        "time": pa.array([dt.datetime.now(dt.UTC)] * len(result), time),
    }
    for name, values in run.items():
        result = result.append_column(name, values)
    rows = result.select(list(kept))
    database.append(into, RowSource(rows.schema, rows.to_batches()))


def metrics_table(metrics: Mapping[str, Any]) -> pa.Table:
    """Convert metrics to rows of `metric` and `value`; skips metrics that are not one number."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    return pa.table(
        {
            "metric": pa.array(list(numbers), pa.string()),
            "value": pa.array([float(value) for value in numbers.values()], pa.float64()),
        }
    )


def _read(  # noqa: PLR0917 - a query, and how to store its rows
    request: EvaluateRequest | ExplainRequest,
    database: Database,
    folder: Path,
    record: ModelRecord,
    called: str | None,
    most: int | None = None,
    *,
    note: Callable[[str], None],
) -> FileSnapshot:
    """Read the rows of a query that have a label, and store them in files.

    Args:
        request: The request.
        database: Database to read from.
        folder: Folder for the rows.
        record: How the model was trained.
        called: The label's name in the query; None means the same name as in training.
        most: Maximum number of rows; None takes all.
        note: Called with messages for the user.

    Raises:
        UsageError: The query has no label column.
        DataError: There is no row with a label, or two columns share a name.
    """
    label = record.label
    called = called or label
    with database.read(request.select) as rows:
        trained = record.details.get("columns", [])
        names = written_like(rows.schema.names, trained, database.dialect)
        check_distinct(names, request.statement, request.begins_at)
        if called not in names:
            raise UsageError(
                f"The SELECT has no column {called!r} with the true values; it has "
                f"{listed(names)}{did_you_mean(called, names)} Specify it with LABEL."
            )
        at = names.index(called)
        # If the label has another name here, the column with its training name is not used.
        kept = [i for i, name in enumerate(names) if i == at or name != label]
        names[at] = label
        names = [names[i] for i in kept]
        schema = pa.schema(
            [rows.schema.field(i).with_name(name) for i, name in zip(kept, names, strict=True)]
        )
        if times := note_on_times(schema, record.details.get("types", {}), request.model):
            note(times)
        batches = (batch.select(kept).rename_columns(names) for batch in rows.batches)
        labelled = Labelled(RowSource(schema, batches), label)
        stored = write_snapshot(
            schema, _first(labelled, most), str(folder / "rows"), purpose="evaluate on"
        )
        # With a row limit, the iterator may stop before its own check at the end.
        labelled.check_finite()
    if labelled.note:
        note(labelled.note)
    return stored


def _first(batches: Iterable[pa.RecordBatch], most: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the first `most` rows; None means all."""
    left = most
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return


class _Losses:
    """Computes the loss of a trained model on several sets of rows, loading the model once.

    Args:
        job: An evaluation job, whose model and options are used for all sets of rows.
    """

    def __init__(self, job: Any) -> None:
        self._opened = inference.open_trained(job, Mode.EVALUATION)
        with self._opened.feed() as feed:
            first = feed.peek()
            if first is None:
                raise self._opened.no_example()
            self._trainer = self._opened.restored_trainer(first[1])

    def used(self, names: list[str]) -> list[str]:
        """Return the columns among `names` that the model reads."""
        schema = getattr(self._opened.definition.input, "schema", None)
        return names if schema is None else [name for name in names if name in schema.names]

    def of(self, data: str) -> float:
        """Return the mean loss of the model on the rows stored at a location."""
        source = open_records(self._opened.definition, data)
        opened = dataclasses.replace(self._opened, source=source)
        states: Any = {}
        with opened.feed() as feed:
            for _, states in running_states(self._trainer, inference.drain(feed)):  # noqa: B007
                pass
        loss: Any = self._trainer.evaluation_metrics.results(states)["loss"]
        return float(loss)

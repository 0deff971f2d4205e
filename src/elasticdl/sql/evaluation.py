"""EVALUATE: metrics of a trained model on the rows of a query.

Rows without a label are skipped. INTO stores the result together with the model's name, its version
and the time, so that one table can hold the results of many evaluations.

Used by the programs that `submitter.py` generates, and by `explanation.py` to read rows and store
results.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from elasticdl import api
from elasticdl.data.snapshot import write_snapshot
from elasticdl.data.wording import listed
from elasticdl.did_you_mean import did_you_mean
from elasticdl.engines import progress_bar
from elasticdl.errors import UsageError
from elasticdl.scratch import TemporaryFolder
from elasticdl.sql.column_types import note_on_times
from elasticdl.sql.database_interface import RowSource
from elasticdl.sql.error_locations import check_distinct
from elasticdl.sql.label_filter import Labelled
from elasticdl.sql.names import matching, written_like
from elasticdl.sql.settings import for_rows
from elasticdl.sql.target_checks import check_columns, check_schema
from elasticdl.sql.trained_types import check_column_types

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from elasticdl.data.snapshot import FileSnapshot
    from elasticdl.engines.engine import Reporter
    from elasticdl.sql.database_interface import Database
    from elasticdl.sql.explanation import ExplainRequest
    from elasticdl.sql.models import ModelRecord, Models, ModelVersion
    from elasticdl.sql.names import Name

# Result columns of EVALUATE, and the columns that INTO adds to a result.
METRICS = ("metric", "value")
_RUN = ("model", "version", "time")


@dataclass(frozen=True)
class EvaluateRequest:
    """An EVALUATE statement that has passed all checks; the arguments of `evaluate`.

    Attributes:
        select: The query.
        model: Name of the trained model.
        label: The column with the true values. None: the column that the model was trained to
            predict.
        into: The table for the metrics. None: only display them.
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


def evaluate(
    request: EvaluateRequest,
    database: Database,
    models: Models,
    reporter: Reporter | None = None,
) -> pa.Table:
    """Evaluate a model on the rows of a query; return its metrics.

    The metrics are also appended to the table of the INTO clause, if there is one.

    Args:
        request: The request.
        database: Database of the rows and of the INTO table.
        models: The trained models.
        reporter: Receives the progress. None: write it to standard error.

    Returns:
        A table with the columns `metric` and `value`.

    Raises:
        ElasticDLError: The evaluation failed, for any reason.
    """
    reporter = progress_bar.for_stream() if reporter is None else reporter
    version = models.current(request.model)
    kept = check_into(request.into, METRICS, database)
    with TemporaryFolder() as folder:
        stored = read_rows(
            request, database, folder, version.record, request.label, note=reporter.note
        )
        outcome = api.evaluate(
            trained_model=version.uri,
            data=stored.training,
            output=str(folder / "evaluation.json"),
            reporter=reporter,
            **for_rows(request.options, stored.num_training),
        )
    table = metrics_table(outcome.metrics)
    store_result(table, request.into, kept, version, database)
    return table


def check_into(into: Name | None, found: Sequence[str], database: Database) -> list[str]:
    """Check the table of an INTO clause, and return the columns to write to it.

    The columns are those of the result, then model, version and time. A new table gets all of them.
    An existing table must have the columns of the result; the other three are written if it has
    them.

    Args:
        into: The table; None if there is none.
        found: Columns of the result, such as `metric` and `value`.
        database: Where the table is.

    Raises:
        UsageError: The table exists but does not fit such rows, or its schema does not exist.
    """
    columns = [*found, *_RUN]
    if into is None:
        return columns
    table = database.table(into)
    if table is None:
        check_schema(into, database)
        return columns
    kept = [name for name in columns if name in found or matching(name, table.columns) is not None]
    check_columns(table, into, kept)
    return kept


def store_result(
    result: pa.Table,
    into: Name | None,
    kept: Sequence[str],
    version: ModelVersion,
    database: Database,
) -> None:
    """Append a result, with the model's version and the time, to the INTO table, if there is one.

    Args:
        result: The rows: metrics, or the importances of an EXPLAIN statement.
        into: The table to append to. None: store nothing.
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


def read_rows(  # noqa: PLR0917 - a query, and how to store its rows
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
        most: Maximum number of rows. None: all rows.
        note: Called with messages for the user.

    Raises:
        UsageError: The query has no label column, or a column has another type than in training.
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
                f"{listed(names)}{did_you_mean(called, names, is_label=True)} "
                "Specify it with LABEL."
            )
        at = names.index(called)
        # If the label has another name here, the column with its training name is not used.
        kept = [i for i, name in enumerate(names) if i == at or name != label]
        names[at] = label
        names = [names[i] for i in kept]
        schema = pa.schema(
            [rows.schema.field(i).with_name(name) for i, name in zip(kept, names, strict=True)]
        )
        check_column_types(
            schema, record, request.model, request.statement, request.begins_at, called
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
    """Yield the first `most` rows of batches; all rows if `most` is None."""
    left = most
    for batch in batches:
        yield batch if left is None else batch.slice(0, left)
        if left is not None:
            left -= batch.num_rows
            if left <= 0:
                return

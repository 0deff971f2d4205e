"""Prediction in SQL: runs a model on a query's rows and writes the results to a table.

    SELECT + key --database--> rows --api.predict--> predictions --with the key--> one transaction

If the target is the table in the SELECT, its column is filled, with rows matched by a key. Any
other target gets the selected columns and the prediction as new rows. The source table is never
changed except for the named column, and nothing is dropped.

Used by the programs that `submitter.py` generates.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl import api
from elasticdl.data.snapshot import NoRowError, write_snapshot
from elasticdl.data.wording import counted, listed
from elasticdl.engines import progress_bar
from elasticdl.errors import DataError, UsageError
from elasticdl.scratch import TemporaryFolder
from elasticdl.sql.column_types import kind_of_values, note_on_times, why_generated, why_unfit
from elasticdl.sql.database_interface import DatabaseError, RowSource
from elasticdl.sql.error_locations import check_distinct
from elasticdl.sql.names import matching, parts, shown, written_like
from elasticdl.sql.rewrite import KEY_PREFIX, with_key
from elasticdl.sql.settings import for_rows
from elasticdl.sql.target_checks import check_appended, is_read, view_of
from elasticdl.sql.trained_types import check_column_types
from elasticdl.zoo.prebuilt.label import as_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elasticdl.data.snapshot import FileSnapshot
    from elasticdl.engines.engine import Reporter
    from elasticdl.sql.database_interface import Database, TableInfo
    from elasticdl.sql.models import ModelRecord, Models
    from elasticdl.sql.names import Name

_BATCH_ROWS = 1 << 15
_PREDICTION, _PROBABILITY, _OUTPUT = "prediction", "probability", "output"


@dataclass(frozen=True)
class PredictRequest:
    """A PREDICT statement that has passed all checks; the arguments of `predict`.

    Attributes:
        select: The query.
        table: The table to write to; see `names.py`.
        column: The column of that table for the predictions.
        using: Name of the trained model.
        options: Options of `job_options.prediction_job`.
        probability: Column for the probability of the predicted class. None: write no probability.
        output: Name of the model output to write; None means `prediction`, or the first output if
            the model has none of that name.
        statement: The statement's text, for errors.
        begins_at: Line and column of the statement in its program.
    """

    select: str
    table: Name
    column: str
    using: str
    options: Mapping[str, Any] = field(default_factory=dict)
    probability: str | None = None
    output: str | None = None
    statement: str = ""
    begins_at: tuple[int, int] = (1, 1)

    @property
    def columns(self) -> list[str]:
        """Columns to write: for the predictions and, if requested, for their probability."""
        return [self.column, *([self.probability] if self.probability else [])]


@dataclass(frozen=True)
class Plan:
    """How predictions are written: into a column of existing rows, or as new rows.

    Attributes:
        select: The query; if a column is filled, it also selects the table's key.
        key: Columns of the target table that identify a row; empty if rows are appended.
        note: Message for the user before the prediction; may be empty.
    """

    select: str
    key: Sequence[str] = ()
    note: str = ""


def predict(
    request: PredictRequest,
    database: Database,
    models: Models,
    reporter: Reporter | None = None,
) -> pa.Table:
    """Predict the rows of a query and write the predictions to a table.

    Args:
        request: The request.
        database: Database of the rows and of the table.
        models: The trained models.
        reporter: Receives the progress. None: write it to standard error.

    Returns:
        One row per written column: `table`, `column`, `rows` (number of changed or appended
        rows).

    Raises:
        ElasticDLError: The prediction failed, for any reason; the tables are unchanged.
    """
    reporter = progress_bar.for_stream() if reporter is None else reporter
    version = models.current(request.using)
    how = plan(request, database, version.record)
    if how.note:
        reporter.note(how.note)
    where, columns = shown(request.table), request.columns
    with TemporaryFolder() as folder:
        predicted = str(folder / "predicted")
        snapshot = _read(request, how, database, version.record, folder, reporter)
        if isinstance(snapshot, pa.Schema):
            made = "" if how.key else _made_empty(request, database, snapshot, version.record)
            reporter.note(
                f"The SELECT returned no rows to predict: {made or f'{where} is unchanged'}."
            )
            return _result(where, columns, 0)
        api.predict(
            trained_model=version.uri,
            data=snapshot.training,
            output=predicted,
            format="parquet",
            reporter=reporter,
            **for_rows(request.options, snapshot.num_training),
        )
        beside = str(folder / "keys.parquet") if how.key else snapshot.training
        given = _with_predictions(request, beside, Path(predicted))
        if how.key:
            changed = database.fill(request.table, how.key, given)
        else:
            changed = database.append(request.table, given)
    verb = "filled" if how.key else "appended"
    gone = snapshot.num_training - changed
    reporter.note(
        f"{shown((*parts(request.table), request.column))}"
        + (f" and {request.probability}" if request.probability else "")
        + f": {counted(changed, 'row')} {verb}"
        + (f"; {counted(gone, 'row')} of the SELECT deleted in the meantime." if gone > 0 else ".")
    )
    if database.is_in_memory:
        reporter.note(
            f"The database is in memory and ends with this session, {where} with it; "
            "--database=duckdb:///FILE keeps it."
        )
    return _result(where, columns, changed)


def _result(table: str, columns: Sequence[str], num_rows: int) -> pa.Table:
    count = len(columns)
    return pa.table({"table": [table] * count, "column": columns, "rows": [num_rows] * count})


def _read(  # noqa: PLR0917 - a query, and how to store its rows
    request: PredictRequest,
    how: Plan,
    database: Database,
    record: ModelRecord,
    folder: Path,
    reporter: Reporter,
) -> FileSnapshot | pa.Schema:
    """Read the rows to predict and store them in files.

    Args:
        request: The request.
        how: How predictions are written; has the query to run, which may also select the key.
        database: Database to read from.
        record: How the model was trained.
        folder: Folder for the files: `rows`, and `keys.parquet` with the key columns.
        reporter: Reports progress to the user.

    Returns:
        The stored rows, without the key; if the query has no rows, their schema.
    """
    reporter.started("Reading rows", 0, "rows")
    try:
        with (
            database.read(how.select) as read,
            _Keys(
                _as_trained(read, request, record, database, reporter), folder / "keys.parquet"
            ) as rows,
        ):
            try:
                return write_snapshot(
                    rows.schema,
                    rows,
                    str(folder / "rows"),
                    on_rows=lambda count: reporter.advanced(count, {}),
                    purpose="predict",
                )
            except NoRowError:
                return rows.schema
    finally:
        reporter.ended()


def _as_trained(
    rows: RowSource,
    request: PredictRequest,
    record: ModelRecord,
    database: Database,
    reporter: Reporter,
) -> RowSource:
    """Rename columns to the names that the model was trained with, and check their types.

    Reports a note if a column has dates where training had timestamps, or vice versa.

    Raises:
        DataError: Two columns share a name.
        UsageError: A column has another type than in training.
    """
    trained = record.details.get("columns", [])
    names = written_like(rows.schema.names, trained, database.dialect)
    check_distinct(names, request.statement, request.begins_at)
    schema = rows.schema.empty_table().rename_columns(names).schema
    check_column_types(schema, record, request.using, request.statement, request.begins_at)
    if note := note_on_times(schema, record.details.get("types", {}), request.using):
        reporter.note(note)
    return RowSource(schema, (batch.rename_columns(names) for batch in rows.batches))


def _made_empty(
    request: PredictRequest, database: Database, schema: pa.Schema, record: ModelRecord
) -> str:
    """Create an empty target table when there are no rows to predict.

    Other programs may expect the table. However, it is not created if the types of the model's
    outputs are unknown until the model predicts.

    Args:
        request: The request.
        database: Database of the table.
        schema: The selected columns, which the table gets in addition to the predictions.
        record: How the model was trained, which determines the type of its predictions.

    Returns:
        A note on what was done, such as "t was created without rows" or "t was not created"; empty
        if the table exists already.
    """
    if database.table(request.table) is not None:
        return ""
    params = record.details.get("params", {})
    if request.output not in {None, _PREDICTION} or not {"classes", "label_mean"} & params.keys():
        return f"{shown(request.table)} was not created"
    fields = [*schema, pa.field(request.column, _class_type(params) or pa.float64())]
    if request.probability:
        fields.append(pa.field(request.probability, pa.float64()))
    database.append(request.table, RowSource(pa.schema(fields), []))
    return f"{shown(request.table)} was created without rows"


def plan(request: PredictRequest, database: Database, record: ModelRecord | None = None) -> Plan:
    """Choose how the predictions are written to their table.

    Args:
        request: The request.
        database: The database.
        record: How the model was trained, which determines the kind of its predictions; None if
            it is unknown.

    Raises:
        UsageError: The predictions cannot be matched with the rows of the table, or do not fit
            its column.
    """
    table = database.table(request.table)
    if request.probability and matching(request.probability, [request.column]):
        raise UsageError(
            "The prediction and its probability cannot both be written to the column "
            f"{request.column}. Give predict.probability another name."
        )
    if not is_read(request.table, table, request.select, database):
        view = view_of(table, request.select, database) if table is not None else ""
        if view:
            why_not = f"the SELECT reads them through the view {view}. Select FROM the table itself"
            raise _unmatched(request, why_not)
        selected = database.schema(request.select).names
        check_appended(table, request.table, selected, request.columns, database)
        note = "" if table is None else _checked_columns(request, table, record)
        return Plan(request.select, note=note)
    if table is None:
        raise DatabaseError(f"{database.name}: there is no table {shown(request.table)!r}.")
    select, why_not = "", table.why_no_key
    if table.key:
        select, why_not = with_key(
            request.select,
            database.dialect,
            request.table,
            table.key,
            database.quote,
            casts=table.casts,
        )
    if not select:
        raise _unmatched(request, why_not)
    note = _checked_columns(request, table, record)
    names = [f"{KEY_PREFIX}{i}" for i in range(len(table.key))]
    if list(database.schema(select).names)[-len(names) :] != names:
        raise UsageError(
            f"The key of {shown(request.table)} cannot be added to this SELECT: the end of its "
            "column list could not be parsed. Write SELECT columns FROM table."
        )
    return Plan(select, table.key, note)


def _unmatched(request: PredictRequest, why_not: str) -> UsageError:
    *schema, table = parts(request.table)
    target = shown((*schema, table, request.column))
    other = shown((*schema, f"{table}_predictions", request.column))
    return UsageError(
        f"{target} cannot be filled, because predictions cannot be matched with its rows: "
        f"{why_not}. Choose another table, such as PREDICT {other}; it is created if it does not "
        "exist."
    )


def _checked_columns(request: PredictRequest, table: TableInfo, record: ModelRecord | None) -> str:
    """Check that the predictions fit the existing target columns.

    Returns:
        A note for the user if the database will round the predictions; else empty.

    Raises:
        UsageError: The predictions do not fit a column, or it cannot be written to.
    """
    kinds = {request.column: _predicted_kind(request, record)}
    if request.probability:
        kinds[request.probability] = "number"
    note = ""
    for name, kind in kinds.items():
        column = matching(name, table.columns)
        if column is None:
            continue
        type_ = table.columns[column]
        why_not = why_unfit(column, type_, kind) if kind else ""
        if column in table.key:
            why_not = f"the column {column} is part of its key."
        if column in table.generated:
            why_not = why_generated(column)
        if why_not:
            raise UsageError(f"{shown(request.table)} cannot store the predictions: {why_not}")
        if kind == "number" and (digits := re.search(r"(?i)(dec|num)\w*\(.*\)", type_)):
            filled = shown((*parts(request.table), column))
            note = f"{filled} is {digits[0]}: the database rounds the predictions."
    return note


def _predicted_kind(request: PredictRequest, record: ModelRecord | None) -> str:
    """Return the kind of the predicted values, such as "number" or "text"; empty if unknown.

    The kind decides whether the target column can hold the predictions.
    """
    if request.output not in {None, _PREDICTION}:
        return ""
    params = record.details.get("params", {}) if record is not None else {}
    class_type = _class_type(params)
    if class_type is not None:
        return kind_of_values(class_type)
    return "number" if "label_mean" in params else ""


def _class_type(params: Mapping[str, Any]) -> pa.DataType | None:
    """Return the Arrow type of a classifier's predictions; None for other models."""
    classes = params.get("classes")
    # A user's own model file may use the name `classes` for something else.
    return pa.array(as_array(classes)).type if classes and isinstance(classes, list) else None


class _Keys:
    """Iterable of the batches of a query without the key columns, which are stored in a file.

    A model may use every column as a feature, so it must not get the key columns. Iterate within a
    `with` block, whose end closes the file.

    Args:
        rows: The rows; they have key columns if existing rows are to be filled.
        path: Parquet file to write the key columns to; not created if there are none.

    Attributes:
        schema: The columns without the key.
    """

    def __init__(self, rows: RowSource, path: Path) -> None:
        self._rows, self._path = rows, path
        self._names = [name for name in rows.schema.names if not name.startswith(KEY_PREFIX)]
        self._keys = [name for name in rows.schema.names if name.startswith(KEY_PREFIX)]
        self.schema = pa.schema([rows.schema.field(name) for name in self._names])

    def __enter__(self) -> Self:
        keys = pa.schema([self._rows.schema.field(name) for name in self._keys])
        self._writer = pq.ParquetWriter(self._path, keys) if self._keys else None
        return self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._rows.batches:
            if self._writer is not None:
                self._writer.write_batch(batch.select(self._keys))
            yield batch.select(self._names)

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


def _with_predictions(request: PredictRequest, beside: str, predicted: Path) -> RowSource:
    """Return the rows to write: the key or the selected columns, and the predictions.

    Args:
        request: The request.
        beside: Parquet file with the columns that identify or accompany each prediction: the key if
            a column is filled, the selected columns if rows are appended.
        predicted: Folder with the predictions, in the order of the rows of `beside`.
    """
    source = pq.ParquetFile(beside)
    parts = [pq.ParquetFile(path) for path in sorted(predicted.glob("*.parquet"))]
    names = list(source.schema_arrow.names)
    wanted = _wanted(request, parts[0].schema_arrow)
    fields = [source.schema_arrow.field(name) for name in names]
    outputs = [
        pa.field(column, _plain_type(parts[0].schema_arrow.field(output).type, request))
        for column, output in wanted.items()
    ]
    schema = pa.schema([*fields, *outputs])
    return RowSource(schema, _joined(schema, source, names, parts, list(wanted.values())))


def _joined(
    schema: pa.Schema,
    source: pq.ParquetFile,
    names: list[str],
    parts: list[pq.ParquetFile],
    outputs: list[str],
) -> Iterator[pa.RecordBatch]:
    left = source.iter_batches(_BATCH_ROWS, columns=names)
    right = (batch for part in parts for batch in part.iter_batches(_BATCH_ROWS, columns=outputs))
    rest: pa.RecordBatch | None = None
    for predictions in right:
        done = 0
        while done < predictions.num_rows:
            if rest is None or not rest.num_rows:
                rest = next(left)
            count = min(rest.num_rows, predictions.num_rows - done)
            columns = [rest.column(name).slice(0, count) for name in names]
            for name, field_ in zip(outputs, list(schema)[len(names) :], strict=True):
                column = predictions.column(name).slice(done, count)
                columns.append(column.cast(field_.type))
            yield pa.record_batch(columns, schema=schema)
            rest = rest.slice(count)
            done += count


def _wanted(request: PredictRequest, schema: pa.Schema) -> dict[str, str]:
    """Choose the output of the model to write to each column.

    Args:
        request: The request, with the names of the columns.
        schema: Columns of the predictions: the model's outputs, and `key`.

    Returns:
        Column to write -> output of the model.

    Raises:
        UsageError: The model has no such output.
    """
    names = [name for name in schema.names if name != "key"]
    output = request.output or (_PREDICTION if _PREDICTION in names else names[0])
    for name in (output, *([_PROBABILITY] if request.probability else [])):
        if name not in names:
            raise UsageError(
                f"The model {request.using} has no output {name!r}; it has {listed(names)}."
            )
    wanted = {request.column: output}
    if request.probability:
        wanted[request.probability] = _PROBABILITY
    return wanted


def _plain_type(arrow_type: pa.DataType, request: PredictRequest) -> pa.DataType:
    if pa.types.is_fixed_size_list(arrow_type):
        raise DataError(
            f"The model {request.using} predicts several numbers for each row, but a column holds "
            "one. Choose an output with one value: WITH predict.output=NAME."
        )
    if pa.types.is_binary(arrow_type):
        return pa.string()
    return pa.float64() if pa.types.is_floating(arrow_type) else arrow_type

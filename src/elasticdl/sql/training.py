r"""Training of a model on the rows of a query.

    SELECT --database--> rows --snapshot--> record files --api.train--> TrainedModel
                              \-- summary of each column --> features, classes, scale

The rows are stored once (`data/snapshot.py`); an ordinary training job then reads them. If a
statement was killed, the same statement resumes from the stored rows and its last checkpoint.

Used by the programs that `submitter.py` generates.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticdl import api, zoo
from elasticdl.data.column_summary import kind_of
from elasticdl.data.snapshot import FileSnapshot, NoRowError, read_snapshot, write_snapshot
from elasticdl.data.wording import counted, listed
from elasticdl.engines import progress_bar
from elasticdl.errors import DataError, ElasticDLError, UsageError
from elasticdl.job import ModelReference
from elasticdl.sql.database_interface import RowSource
from elasticdl.sql.error_locations import check_distinct, location_of, pointed_in
from elasticdl.sql.evaluation import metrics_table
from elasticdl.sql.features import resolve
from elasticdl.sql.label_filter import LabelError, Labelled
from elasticdl.sql.names import written_like
from elasticdl.sql.settings import DEFAULT_FRACTION
from elasticdl.sql.statements import Span
from elasticdl.zoo.prebuilt.derived import derive
from elasticdl.zoo.prebuilt.label_params import (
    MANY_CLASSES,
    Advice,
    check_class_type,
    check_label,
    check_number_type,
    classes_of,
    scale_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from elasticdl.data.column_summary import ColumnSummary
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.sql.database_interface import Database
    from elasticdl.sql.models import ModelRecord, Models, ModelVersion

_MIN_UPDATES = 1000
# Maximum number of rows -> minibatch size and minimum number of epochs.
_SIZES = ((100_000, 64, 10), (1_000_000, 256, 3), (math.inf, 1024, 1))
_MAX_EVALUATIONS = 50
_FEW_ROWS = 10
_ADVICE = Advice(
    "LABEL with another column",
    as_text=lambda name: f"select CAST({name} AS VARCHAR) AS {name}",
    shifted=lambda name: f"select {name} - the_smallest_value AS {name}",
)

_CLASSES = {"classes", "num_classes"}
_SCALE = {"label_mean", "label_scale"}


@dataclass(frozen=True)
class TrainRequest:
    """A TRAIN statement that has passed all checks; the arguments of `train`.

    Attributes:
        statement: Text of the statement. If a run of the same text was interrupted, it is resumed.
        select: The query.
        model: Name of the model in the zoo.
        into: Name of the trained model.
        label: The column to predict.
        params: Parameters of the model.
        options: Options of `job_options.training_job`.
        columns: Features of the COLUMN clause. None: derive them from the table.
        model_params: Names of all parameters that the model has. Some of them, such as `classes`,
            are derived from the rows if the user has not set them.
        model_zoo: Folder of the model file; None is the prebuilt zoo.
        validation_select: Query for the validation rows. None: hold out some training rows.
        validation_fraction: Fraction of the rows to hold out.
        begins_at: Line and column of the statement in its program.
        label_at: Position of the label in the statement: offset of its first character, and one
            past its last.
        label_is_last: Whether the statement has no LABEL, so that the last column is the label.
    """

    statement: str
    select: str
    model: str
    into: str
    label: str
    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    columns: Sequence[Mapping[str, Any]] | None = None
    model_params: Collection[str] = ()
    model_zoo: str | None = None
    validation_select: str | None = None
    validation_fraction: float = DEFAULT_FRACTION
    begins_at: tuple[int, int] = (1, 1)
    label_at: tuple[int, int] | None = None
    label_is_last: bool = False


def train(
    request: TrainRequest,
    database: Database,
    models: Models,
    reporter: Reporter | None = None,
) -> pa.Table:
    """Train a model on the rows of a query and store it under a name.

    Args:
        request: The request.
        database: Database of the rows; closed once they are stored, unless it is in memory.
        models: Store for the trained model.
        reporter: Receives the progress. None: write it to standard error.

    Returns:
        The metrics: a table with the columns `metric` and `value`.

    Raises:
        ElasticDLError: Training failed, for any reason; an earlier model of this name is unchanged.
    """
    reporter = progress_bar.for_stream() if reporter is None else reporter
    _check_params(request)
    with models.training(request.into, request.statement, database.name, reporter.note) as version:
        outcome = _trained(request, database, models, version, reporter)
    return metrics_table(outcome.metrics)


def _trained(
    request: TrainRequest,
    database: Database,
    models: Models,
    version: ModelVersion,
    reporter: Reporter,
) -> Outcome:
    stored = read_snapshot(version.rows) if version.is_resumed else None
    try:
        snapshot, params = _prepared(request, stored, database, version, reporter)
    except ElasticDLError as error:
        # The user may now fix the table or the statement, so neither rows nor number are kept.
        if not version.is_resumed:
            models.discard(version)
        elif isinstance(error, DataError):
            models.forget_rows(version)
        raise
    outcome = api.train(
        model_def=request.model,
        model_zoo=request.model_zoo,
        params=params,
        data=snapshot.training,
        validation_data=snapshot.validation,
        output=version.uri,
        reporter=reporter,
        **_options(request, snapshot),
    )
    if not outcome.stopped:
        models.complete(version, _record(request, version, snapshot, params, outcome))
        reporter.note(f"{request.into}, version {version.number}: {version.uri}")
    return outcome


def _prepared(
    request: TrainRequest,
    stored: FileSnapshot | None,
    database: Database,
    version: ModelVersion,
    reporter: Reporter,
) -> tuple[FileSnapshot, dict[str, Any]]:
    """Store the training rows, if they are not stored yet, and complete the model's parameters.

    Returns the stored rows and the parameters.

    Args:
        request: The request.
        stored: Rows that an interrupted run has stored. None: read them from the database.
        database: Database of the rows; closed after reading, unless it is in memory.
        version: The model version to train.
        reporter: Reports progress to the user.
    """
    snapshot = stored
    if snapshot is None:
        snapshot = _snapshot(request, database, version, reporter)
        if not database.is_in_memory:
            # Its cache uses memory, and a DuckDB file stays locked while it is open.
            database.close()
    else:
        reporter.note(
            f"Resuming version {version.number} of {request.into} on the "
            f"{counted(snapshot.num_training, 'row')} read before."
        )
    return snapshot, _params(request, snapshot, reporter)


def _check_params(request: TrainRequest) -> None:
    """Raise an `ElasticDLError` if the model's parameters are invalid, before any row is read."""
    params = dict(request.params)
    if "label" in request.model_params:
        params.setdefault("label", request.label)
    if not _CLASSES & params.keys():
        # The number of classes is known only once the rows are read.
        params.pop("class_counts", None)
    zoo.define(ModelReference(request.model_zoo, request.model, params=params))


def _snapshot(
    request: TrainRequest, database: Database, version: ModelVersion, reporter: Reporter
) -> FileSnapshot:
    if request.label_is_last:
        reporter.note(f"Label: {request.label}, the last selected column. LABEL selects another.")
    reporter.started("Reading rows", 0, "rows")
    try:
        with database.read(request.select) as rows:
            check_distinct(rows.schema.names, request.statement, request.begins_at)
            _check_label_type(request, rows.schema)
            labelled = Labelled(rows, request.label)
            held_out, validation = request.validation_fraction, None
            if request.validation_select is not None:
                held_out = 0.0
                names = rows.schema.names
                validation = _read_validation_rows(request, names, database)
            snapshot = write_snapshot(
                rows.schema,
                labelled,
                version.rows,
                held_out=held_out,
                validation=validation,
                on_rows=lambda count: reporter.advanced(count, {}),
                held_column=request.label,
            )
    except LabelError:
        with _at_label(request):
            raise
    except NoRowError as error:
        with _at_label(request):
            raise _no_row(request, error) from error
    finally:
        reporter.ended()
    if labelled.note:
        reporter.note(labelled.note)
    if request.validation_select is None and snapshot.num_validation:
        reporter.note(
            f"Training on {counted(snapshot.num_training, 'row')}; "
            f"{counted(snapshot.num_validation, 'row')} held out for validation, by a hash of the "
            "row (validation.fraction)."
        )
    elif request.validation_select is None and request.validation_fraction:
        reporter.note(
            "No row is held out for validation: there are too few distinct rows for "
            f"validation.fraction={request.validation_fraction:g}."
        )
    return snapshot


def _check_label_type(request: TrainRequest, schema: pa.Schema) -> None:
    """Raise an error if the model cannot predict the label's type, before any row is read."""
    at = schema.get_field_index(request.label)
    if at < 0:
        return
    type_ = schema.field(at).type
    kind = kind_of(type_)
    with _at_label(request):
        if _derives_classes(request):
            check_class_type(request.label, type_, kind, _ADVICE)
        # A column that is always NULL is reported with its rows.
        if _derives_scale(request) and kind != "empty":
            check_number_type(request.label, type_, kind, request.model, _ADVICE)


def _derives_classes(request: TrainRequest) -> bool:
    return "classes" in request.model_params and not _CLASSES & request.params.keys()


def _derives_scale(request: TrainRequest) -> bool:
    return set(request.model_params) >= _SCALE and not _SCALE & request.params.keys()


def _no_row(request: TrainRequest, error: NoRowError) -> DataError:
    """Return the error for the user if a query has no training row.

    This is `error` itself, unless all rows were held out for validation, which needs other advice.
    """
    if error.num_held_out and request.validation_select is None:
        return DataError(
            f"All {counted(error.num_held_out, 'row')} are held out for validation "
            f"(validation.fraction={request.validation_fraction}), so none is left to train on. "
            "Lower it, or select more distinct rows: equal rows are held out together."
        )
    return error


def _read_validation_rows(
    request: TrainRequest, columns: Collection[str], database: Database
) -> Iterator[pa.RecordBatch]:
    """Run the query `validation.select`; yield those of its rows that have a label.

    Args:
        request: The request.
        columns: Columns of the training rows; the validation columns are spelled like them.
        database: Database of the rows.

    Raises:
        DataError: Two columns share a name, or no row has a label.
        UsageError: The label's column is missing.
    """
    with database.read(str(request.validation_select)) as rows:
        names = written_like(rows.schema.names, columns, database.dialect)
        check_distinct(names, request.statement, request.begins_at, at="validation.select")
        schema = rows.schema.empty_table().rename_columns(names).schema
        batches = (batch.rename_columns(names) for batch in rows.batches)
        yield from Labelled(RowSource(schema, batches), request.label)


def _params(request: TrainRequest, snapshot: FileSnapshot, reporter: Reporter) -> dict[str, Any]:
    """Complete the model's parameters from the rows: features, classes, scale of the label.

    Parameters set by the user are not changed. Reports notes, for example about rare classes.

    Raises:
        DataError: The label cannot be predicted, or no column is left to predict it from.
        UsageError: `class_counts` does not fit the label's values.
    """
    takes = set(request.model_params)
    params = dict(request.params)
    with _at_label(request):
        label = snapshot.column(request.label)
        check_label(label, _ADVICE)
        if _derives_classes(request):
            params["classes"], note = classes_of(label, request.model, _ADVICE)
            if note:
                reporter.note(note)
            _check_counts(params, request)
            _note_rare(label, snapshot, request, reporter)
        if _derives_scale(request):
            params |= scale_of(label, request.model, _ADVICE)
    if "label" in takes:
        params.setdefault("label", request.label)
    if "columns" in takes and "columns" not in params and "ignore" not in params:
        if request.columns is not None:
            columns = [resolve(column, snapshot.columns) for column in request.columns]
        else:
            derived = derive(snapshot.columns, request.label)
            for note in derived.notes():
                reporter.note(note)
            columns = list(derived.columns)
        if not columns:
            raise DataError(
                f"No column is left to predict {request.label!r} from. Select more columns."
            )
        params["columns"] = columns
        for name in _rounded_columns(columns, snapshot):
            reporter.note(
                f"Column {name!r} has whole numbers beyond 2^53; as a numeric feature they are "
                "rounded to about 7 digits. If they are identifiers, leave the column out, or "
                f"write COLUMN CATEGORY_HASH({name}, 1000)."
            )
    return params


def _check_counts(params: Mapping[str, Any], request: TrainRequest) -> None:
    """Raise a `UsageError` if `class_counts` does not have one number per value of the label.

    Args:
        params: Parameters of the model, with the `classes` found in the rows.
        request: The request; the error points at `class_counts` in its statement.
    """
    classes, counts = params["classes"], params.get("class_counts")
    if counts is None or len(counts) == len(classes):
        return
    named = listed([str(value) for value in classes[:MANY_CLASSES]])
    problem = (
        f"class_counts={list(counts)!r} has {counted(len(counts), 'number')}, and "
        f"{request.label!r} has {len(classes):,} different values: {named}. Expected the number of "
        "rows of each value, in this order."
    )
    place = location_of("class_counts", request.statement, Span(0, len(request.statement)))
    raise UsageError(pointed_in(problem, request.statement, request.begins_at, place))


def _rounded_columns(features: Sequence[Mapping[str, Any]], snapshot: FileSnapshot) -> list[str]:
    """Return the numeric feature columns with integers above 2^53, which lose digits as floats."""
    sources = [each.get("of", each) if each["kind"] == "bucket" else each for each in features]
    names = [source["column"] for source in sources if source["kind"] == "number"]
    return [column.name for column in snapshot.columns if column.name in names and column.is_wide]


@contextlib.contextmanager
def _at_label(request: TrainRequest) -> Iterator[None]:
    """Context manager that adds the label's position in the program to errors about it."""
    try:
        yield
    except DataError as error:
        if request.label_at is None:
            raise
        raise type(error)(
            pointed_in(str(error), request.statement, request.begins_at, Span(*request.label_at))
        ) from error


def _note_rare(
    label: ColumnSummary, snapshot: FileSnapshot, request: TrainRequest, reporter: Reporter
) -> None:
    """Report a note about classes with few training rows or without any validation row.

    Metrics say little about such classes. If the model has a parameter `class_counts` that is not
    set, the note suggests a value for it.
    """
    counts = dict(label.values or ())
    if len(counts) > MANY_CLASSES:
        return
    few = {value: count for value, count in counts.items() if count < _FEW_ROWS}
    held = dict(
        (snapshot.held_out_summary.values if snapshot.held_out_summary is not None else None) or ()
    )
    missing = [value for value in counts if value not in held] if snapshot.num_validation else []
    if few:
        named = ", ".join(f"{value} ({count:,})" for value, count in few.items())
        reporter.note(f"Classes of {label.name} with fewer than {_FEW_ROWS} rows: {named}.")
    if missing:
        reporter.note(
            f"Classes of {label.name} missing from the validation rows, so that val_ metrics do "
            f"not cover them: {', '.join(map(str, missing))}."
        )
    if (few or missing) and "class_counts" in set(request.model_params) - request.params.keys():
        in_order = [counts[value] for value in sorted(counts)]
        reporter.note(f"WITH class_counts={in_order} makes rare classes count as much as others.")


def _options(request: TrainRequest, snapshot: FileSnapshot) -> dict[str, Any]:
    """Return the training options of a request, completed with defaults.

    The defaults, such as the minibatch size and the number of epochs, depend on the number of rows.
    """
    options = dict(request.options)
    rows = snapshot.num_training
    size, least_epochs = next((size, epochs) for most, size, epochs in _SIZES if rows <= most)
    size = int(options.setdefault("minibatch_size", size))
    steps = -(-rows // size)
    if "num_epochs" not in options and not options.get("max_steps"):
        options["num_epochs"] = max(least_epochs, -(-_MIN_UPDATES // steps))
    if snapshot.num_validation:
        options.setdefault("restore_best_weights", True)
        total = steps * int(options.get("num_epochs", 1))
        options.setdefault("evaluation_steps", max(steps, -(-total // _MAX_EVALUATIONS)))
    return options


def _record(
    request: TrainRequest,
    version: ModelVersion,
    snapshot: FileSnapshot,
    params: Mapping[str, Any],
    outcome: Outcome,
) -> ModelRecord:
    return dataclasses.replace(
        version.record,
        label=request.label,
        details={
            "model": request.model,
            "params": dict(params),
            "num_training": snapshot.num_training,
            "num_validation": snapshot.num_validation,
            "columns": [column.name for column in snapshot.columns],
            "types": {column.name: column.type for column in snapshot.columns},
            "steps": outcome.step,
            "metrics": dict(outcome.metrics),
        },
    )

"""Statement checks: convert a parsed statement into a request, or report the mistake in it.

    statement --check--> request, the arguments of the function that runs it (`TrainRequest`, ...)

Checks against the zoo, the trained models and the database. Every mistake that can be found
without reading a row is reported here, with its position in the program: unknown models,
parameters, options, columns and tables.

Used by `execute.py`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from elasticdl.data.wording import listed
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import UsageError
from elasticdl.sql.columns import features_of
from elasticdl.sql.error_locations import location_of
from elasticdl.sql.evaluation import METRICS, EvaluateRequest, check_into
from elasticdl.sql.explanation import IMPORTANCES, ExplainRequest
from elasticdl.sql.names import matching, written_like
from elasticdl.sql.prediction import PredictRequest, plan
from elasticdl.sql.settings import (
    evaluate_options,
    explain_options,
    predict_settings,
    train_settings,
)
from elasticdl.sql.statements import Span, StatementError
from elasticdl.sql.trained_types import feature_columns, unlike_trained
from elasticdl.sql.training import TrainRequest
from elasticdl.syntax import literal_eval
from elasticdl.zoo.catalogue import entries
from elasticdl.zoo.folder import PREBUILT
from elasticdl.zoo.prebuilt.label import Classes
from elasticdl.zoo.prebuilt.limits import problem_with

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from elasticdl.sql.database_interface import Database
    from elasticdl.sql.models import ModelRecord, Models
    from elasticdl.sql.statements import Evaluate, Explain, Predict, Train, Word
    from elasticdl.zoo.catalogue import CatalogueEntry

_TRUE_VALUES = " with the true values"


def train_request(
    statement: Train,
    program: str,
    database: Database,
    zoo: Path | None = None,
) -> TrainRequest:
    """Check a TRAIN statement and convert it to a request.

    Args:
        statement: The statement.
        program: The whole program, for errors.
        database: Queried for the columns of the SELECT.
        zoo: A folder of model files; None means the prebuilt zoo.

    Raises:
        StatementError: A name or a value is wrong.
        DatabaseError: The database rejects the SELECT.
    """
    params = {param.name for param in _entry(statement.model, program, zoo).params}
    settings = train_settings(statement.attributes, params, program)
    if statement.using is not None:
        raise StatementError(
            "USING in a TRAIN statement is not supported yet: training always starts from newly "
            "initialized weights.",
            program,
            statement.using.span,
        )
    _check_values(statement, program, zoo)
    names = list(database.schema(statement.select).names)
    label = names[-1]
    label_span = location_of(label, program, statement.span)
    if statement.label is not None:
        label_span = statement.label.span
        label = _found(statement.label.text, names, "", program, statement.label.span)
    if settings.validation_select is not None:
        span = next(n.span for n in statement.attributes if n.text == "validation.select")
        held = database.schema(settings.validation_select).names
        held = written_like(held, names, database.dialect)
        if label not in held:
            raise _missing(label, held, " for the validation rows", program, span)
    columns = None
    if statement.columns:
        columns = features_of(statement.columns, names, program, label)
        if "columns" not in params:
            raise StatementError(
                f"The model {statement.model.text} does not accept a COLUMN clause: it processes "
                "the columns itself.",
                program,
                statement.model.span,
            )
    return TrainRequest(
        statement=statement.text,
        select=statement.select,
        model=statement.model.text,
        into=statement.into.text,
        label=label,
        params=settings.params,
        options=settings.options,
        columns=columns,
        model_params=sorted(params),
        model_zoo=None if zoo is None else str(zoo),
        validation_select=settings.validation_select,
        validation_fraction=settings.validation_fraction,
        begins_at=_line_and_column(program, statement.span.start),
        label_at=(
            label_span.start - statement.span.start,
            label_span.stop - statement.span.start,
        ),
        label_is_last=statement.label is None,
    )


def _line_and_column(program: str, offset: int) -> tuple[int, int]:
    line = program.count("\n", 0, offset) + 1
    return line, offset - program.rfind("\n", 0, offset)


def predict_request(
    statement: Predict, program: str, database: Database, models: Models
) -> PredictRequest:
    """Check a PREDICT statement and convert it to a request.

    `models` holds the trained models; other arguments and errors are as in `train_request`.
    """
    settings = predict_settings(statement.attributes, program)
    check_trained(statement.using, program, models)
    record = models.current(statement.using.text).record
    # Only the database knows whether it can run the SELECT.
    schema = _as_trained(database.schema(statement.select), record, database)
    _check_features(schema, record, statement.using, program)
    if settings.probability is not None and "label_mean" in record.details.get("params", {}):
        name = next(n for n in statement.attributes if n.text == "predict.probability")
        raise StatementError(
            f"{statement.using.text} predicts a number, {record.label}, which has no probability. "
            "Leave predict.probability out.",
            program,
            Span(name.span.start, statement.attributes[name].span.stop),
        )
    request = PredictRequest(
        select=statement.select,
        table=statement.table.name,
        column=statement.column.text,
        using=statement.using.text,
        options=settings.options,
        probability=settings.probability,
        output=settings.output,
        statement=statement.text,
        begins_at=_line_and_column(program, statement.span.start),
    )
    try:
        plan(request, database, record)
    except UsageError as error:
        raise StatementError(str(error), program, statement.table.span) from error
    return request


def evaluate_request(
    statement: Evaluate, program: str, database: Database, models: Models
) -> EvaluateRequest:
    """Check an EVALUATE statement and convert it to a request.

    `models` holds the trained models; other arguments and errors are as in `train_request`.
    """
    options = evaluate_options(statement.attributes, program)
    check_trained(statement.model, program, models)
    label = _checked_label(statement, statement.label, program, database, models)
    _check_into(statement.into, METRICS, program, database)
    return EvaluateRequest(
        select=statement.select,
        model=statement.model.text,
        label=None if statement.label is None else label,
        into=None if statement.into is None else statement.into.name,
        options=options,
        statement=statement.text,
        begins_at=_line_and_column(program, statement.span.start),
    )


def explain_request(
    statement: Explain, program: str, database: Database, models: Models
) -> ExplainRequest:
    """Check an EXPLAIN statement and convert it to a request.

    `models` holds the trained models; other arguments and errors are as in `train_request`.
    """
    options = explain_options(statement.attributes, program)
    check_trained(statement.model, program, models)
    _checked_label(statement, None, program, database, models)
    _check_into(statement.into, IMPORTANCES, program, database)
    return ExplainRequest(
        select=statement.select,
        model=statement.model.text,
        into=None if statement.into is None else statement.into.name,
        statement=statement.text,
        begins_at=_line_and_column(program, statement.span.start),
        **options,
    )


def _checked_label(
    statement: Evaluate | Explain,
    label: Word | None,
    program: str,
    database: Database,
    models: Models,
) -> str:
    """Check that the SELECT of an EVALUATE or EXPLAIN statement has all columns that are needed.

    These are the features of the model and the column with the true values.

    Args:
        statement: The statement.
        label: The LABEL clause; None means the column that the model was trained to predict.
        program: The whole program, for errors.
        database: Queried for the columns of the SELECT.
        models: The trained models.

    Returns:
        The name of the column with the true values.

    Raises:
        StatementError: The SELECT has no such column, the column has another type than during
            training, or a feature is missing.
    """
    record = models.current(statement.model.text).record
    schema = _as_trained(database.schema(statement.select), record, database)
    _check_features(schema, record, statement.model, program)
    what = _TRUE_VALUES
    span = statement.model.span if label is None else label.span
    if label is not None:
        found = _found(label.text, schema.names, what, program, span)
    elif record.label in schema.names:
        found = record.label
    else:
        raise _missing(record.label, schema.names, what, program, span)
    type_ = schema.field(schema.names.index(found)).type
    problem = unlike_trained(found, type_, record.label, record, statement.model.text)
    if problem:
        raise StatementError(problem, program, span)
    return found


def _check_into(
    into: Word | None, columns: Sequence[str], program: str, database: Database
) -> None:
    if into is None:
        return
    try:
        check_into(into.name, columns, database)
    except UsageError as error:
        raise StatementError(str(error), program, into.span) from error


def _as_trained(schema: pa.Schema, record: ModelRecord, database: Database) -> pa.Schema:
    """Return the schema of a SELECT, with column names spelled as when the model was trained.

    So a SELECT may write `AGE` where the training SELECT wrote `age`, if the database ignores case.
    """
    names = written_like(schema.names, record.details.get("columns", []), database.dialect)
    return schema.empty_table().rename_columns(names).schema


def _check_features(schema: pa.Schema, record: ModelRecord, model: Word, program: str) -> None:
    """Check that the SELECT has every column that the model was trained on, with a suitable type.

    Args:
        schema: Columns of the SELECT.
        record: How the model was trained.
        model: The model's name in the statement, which the error points at.
        program: The whole program, for the error.

    Raises:
        StatementError: A column is missing or has another type.
    """
    names = feature_columns(record)
    missing = [name for name in names if name not in schema.names]
    why = f", which {model.text} was trained on"
    if len(missing) == 1:
        raise _missing(missing[0], schema.names, why, program, model.span)
    if missing:
        raise StatementError(
            f"The SELECT has no columns {listed(missing)}{why}. It has: {', '.join(schema.names)}. "
            "Name them in the SELECT: the_column AS the_name.",
            program,
            model.span,
        )
    for name in names:
        problem = unlike_trained(name, schema.field(name).type, name, record, model.text)
        if problem:
            raise StatementError(problem, program, model.span)


def _found(name: str, names: Sequence[str], what: str, program: str, span: Span) -> str:
    """Return the column of a SELECT that a name refers to.

    This is the column with exactly this name, or else the only one that differs from it only in
    upper and lower case.

    Args:
        name: The name in the statement.
        names: Columns of the SELECT.
        what: Added to the error after the name, such as " with the true values".
        program: The whole program, for the error.
        span: Position of the name.

    Raises:
        StatementError: There is no such column.
    """
    found = matching(name, names)
    if found is None:
        raise _missing(name, names, what, program, span)
    return found


def _missing(
    name: str, names: Sequence[str], what: str, program: str, span: Span
) -> StatementError:
    near = did_you_mean(name, names, is_label=what == _TRUE_VALUES)
    only_case = matching(name, names) if near == "." else None
    if only_case is not None:
        near = f"; did you mean {only_case!r}?"
    alias = name if name.isidentifier() else f'"{name}"'
    return StatementError(
        f"The SELECT has no column {name!r}{what}{near} It has: {', '.join(names)}."
        + (f" Name it in the SELECT: the_column AS {alias}." if what.startswith(",") else ""),
        program,
        span,
    )


def check_trained(name: Word, program: str, models: Models) -> None:
    """Raise a `StatementError` if there is no trained model with this name."""
    try:
        models.current(name.text)
    except UsageError as error:
        raise StatementError(str(error), program, name.span) from error


def _entry(model: Word, program: str, zoo: Path | None) -> CatalogueEntry:
    known = {entry.name: entry for entry in entries(zoo or PREBUILT)}
    if model.text not in known:
        raise StatementError(
            f"There is no model {model.text!r}{did_you_mean(model.text, known)} There are: "
            f"{', '.join(known)}.",
            program,
            model.span,
        )
    return known[model.text]


def _check_values(statement: Train, program: str, zoo: Path | None) -> None:
    """Raise a `StatementError` if a parameter of the model has an invalid value.

    For a model in the user's own zoo, a value only has to have the type of the parameter's default.
    The model itself rejects other invalid values later, when its frameworks are loaded.
    """
    defaults = {p.name: p.default for p in _entry(statement.model, program, zoo).params}
    given = {n.text.removeprefix("model."): v.value for n, v in statement.attributes.items()}
    for name, value in statement.attributes.items():
        key = name.text.removeprefix("model.")
        if key not in defaults:
            continue
        problem = "" if zoo is not None else problem_with(key, value.value)
        if key in {"classes", "class_counts"} and zoo is None:
            problem = problem or _unlike_classes(key, given)
        problem = _unlike(value.value, defaults[key]) or problem
        if problem:
            raise StatementError(
                f"{name.text}={value.value!r} is not valid: {problem}.",
                program,
                Span(name.span.start, value.span.stop),
            )


def _unlike_classes(name: str, given: Mapping[str, Any]) -> str:
    """Check the model parameter `classes` or `class_counts`, and return what is wrong with it.

    Args:
        name: The parameter to check.
        given: All parameters in the statement: `class_counts` needs one number for each class.

    Returns:
        A phrase that completes an error message, such as "expected the number of rows of each of
        the 3 classes"; empty if the parameter is valid.
    """
    classes, counts = given.get("classes"), given.get("class_counts")
    try:
        known = None if classes is None else len(Classes.of(classes).values)
    except UsageError as error:
        return str(error).removeprefix("--params: ").rstrip(".") if name == "classes" else ""
    known = given.get("num_classes") if known is None else known
    if name == "classes" or counts is None or known is None or len(counts) == known:
        return ""
    return f"expected the number of rows of each of the {known:,} classes"


def _unlike(value: Any, default: str | None) -> str:
    """Check that a parameter's value has the type of its default, and return what is wrong.

    Args:
        value: The value in the statement.
        default: The parameter's default, as Python source; None if it has no default.

    Returns:
        A phrase that completes an error message, such as "expected a value of the same type as the
        default, 0.1"; empty if the type is right or the default does not tell it.
    """
    try:
        like = literal_eval(default or "None")
    except ValueError:
        return ""
    if _is_like(value, like):
        return ""
    shown = json.dumps(list(like) if isinstance(like, tuple) else like)
    return f"expected a value of the same type as the default, {shown}"


def _is_like(value: Any, default: Any) -> bool:
    if value is None or default is None:
        return True
    if isinstance(default, (list, tuple)):
        return isinstance(value, list) and all(_is_like(v, d) for v in value for d in default[:1])
    if isinstance(default, float):
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return type(value) is type(default)

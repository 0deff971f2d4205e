"""What a statement asks for, checked against the zoo, the models and the database.

    statement --check--> request

Everything that can be known without reading a row is refused here, with its place in the text:
unknown models, parameters, options, columns and tables.

Used by `execute.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.data.wording import did_you_mean
from elasticdl.errors import UsageError
from elasticdl.sql.columns import features_of
from elasticdl.sql.measuring import EvaluateRequest, ExplainRequest
from elasticdl.sql.prediction import PredictRequest, plan
from elasticdl.sql.settings import (
    evaluate_options,
    explain_options,
    predict_settings,
    train_settings,
)
from elasticdl.sql.statements import StatementError
from elasticdl.sql.training import TrainRequest
from elasticdl.zoo.catalogue import entries
from elasticdl.zoo.folder import PREBUILT

if TYPE_CHECKING:
    from pathlib import Path

    from elasticdl.sql.database import Database
    from elasticdl.sql.models import Models
    from elasticdl.sql.statements import Evaluate, Explain, Predict, Train, Word


def train_request(
    statement: Train,
    program: str,
    database: Database,
    zoo: Path | None = None,
) -> TrainRequest:
    """Return what a TRAIN statement asks for.

    Args:
        statement: The statement.
        program: The whole text, for errors.
        database: Asked for the columns of the SELECT.
        zoo: A folder of model files; None is the prebuilt zoo.

    Raises:
        StatementError: A name or a value is wrong.
        DatabaseError: The database refuses the SELECT.
    """
    params = _model_params(statement.model, program, zoo)
    settings = train_settings(statement.attributes, params, program)
    if statement.using is not None:
        raise StatementError(
            "USING in a TRAIN statement is not supported yet: a training starts from new weights.",
            program,
            statement.using.span,
        )
    names = list(database.schema(statement.select).names)
    label = statement.label.text if statement.label is not None else names[-1]
    if statement.label is not None and label not in names:
        raise StatementError(
            f"The SELECT has no column {label!r}{did_you_mean(label, names)} It has: "
            f"{', '.join(names)}.",
            program,
            statement.label.span,
        )
    columns = None
    if statement.columns:
        columns = features_of(statement.columns, [n for n in names if n != label], program)
        if "columns" not in params:
            raise StatementError(
                f"The model {statement.model.text} takes no COLUMN clause: it reads the columns "
                "by itself.",
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
    )


def predict_request(
    statement: Predict, program: str, database: Database, models: Models
) -> PredictRequest:
    """Return what a PREDICT statement asks for; arguments and errors as `train_request`."""
    settings = predict_settings(statement.attributes, program)
    check_trained(statement.using, program, models)
    # The database itself is asked whether the SELECT can be run.
    database.schema(statement.select)
    request = PredictRequest(
        select=statement.select,
        table=statement.table.text,
        column=statement.column.text,
        using=statement.using.text,
        options=settings.options,
        probability=settings.probability,
        output=settings.output,
    )
    try:
        plan(request, database, models.current(statement.using.text).record)
    except UsageError as error:
        raise StatementError(str(error), program, statement.table.span) from error
    return request


def evaluate_request(
    statement: Evaluate, program: str, database: Database, models: Models
) -> EvaluateRequest:
    """Return what an EVALUATE statement asks for; arguments and errors as `predict_request`."""
    options = evaluate_options(statement.attributes, program)
    check_trained(statement.model, program, models)
    _check_label(statement, statement.label, program, database, models)
    return EvaluateRequest(
        select=statement.select,
        model=statement.model.text,
        label=None if statement.label is None else statement.label.text,
        into=None if statement.into is None else statement.into.text,
        options=options,
    )


def explain_request(
    statement: Explain, program: str, database: Database, models: Models
) -> ExplainRequest:
    """Return what an EXPLAIN statement asks for; arguments and errors as `predict_request`."""
    options = explain_options(statement.attributes, program)
    check_trained(statement.model, program, models)
    _check_label(statement, None, program, database, models)
    return ExplainRequest(
        select=statement.select,
        model=statement.model.text,
        into=None if statement.into is None else statement.into.text,
        **options,
    )


def _check_label(
    statement: Evaluate | Explain,
    label: Word | None,
    program: str,
    database: Database,
    models: Models,
) -> None:
    """Raise a `StatementError` if the SELECT has no column with the true values."""
    names = list(database.schema(statement.select).names)
    wanted = models.current(statement.model.text).record.label if label is None else label.text
    if wanted not in names:
        raise StatementError(
            f"The SELECT has no column {wanted!r} with the true values"
            f"{did_you_mean(wanted, names)} It has: {', '.join(names)}.",
            program,
            statement.model.span if label is None else label.span,
        )


def check_trained(name: Word, program: str, models: Models) -> None:
    """Raise a `StatementError` if there is no trained model of a name."""
    try:
        models.current(name.text)
    except UsageError as error:
        raise StatementError(str(error), program, name.span) from error


def _model_params(model: Word, program: str, zoo: Path | None) -> set[str]:
    known = {entry.name: entry for entry in entries(zoo or PREBUILT)}
    if model.text not in known:
        raise StatementError(
            f"There is no model {model.text!r}{did_you_mean(model.text, known)} There are: "
            f"{', '.join(known)}.",
            program,
            model.span,
        )
    return {param.name for param in known[model.text].params}

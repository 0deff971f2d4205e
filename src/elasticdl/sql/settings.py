"""Settings of a WITH clause: parameters of the model, and options of the job.

    WITH hidden_units=[64, 32], model.learning_rate=0.01      parameters of the model
    WITH train.num_epochs=10, train.num_workers=4             flags of `elasticdl train`
    WITH validation.select="SELECT ...", validation.fraction=0.1
    WITH predict.num_workers=4, predict.probability=p         flags of `elasticdl predict`

All names and types are checked before any row is read; an error points at the attribute.

Used by `check.py`, `prediction.py`, `evaluation.py` and `training.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from elasticdl import job_options
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import UsageError
from elasticdl.job import TrainingOptions
from elasticdl.sql.statements import Span, StatementError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from elasticdl.sql.statements import Attributes, Value, Word

_WORKER_OPTIONS = (
    "num_workers",
    "num_spare_workers",
    "ray_address",
    "give_up_after",
    "heartbeat_timeout",
    "join_timeout",
    "batch_timeout",
    "sum_timeout",
    "transfer_timeout",
    "priority",
    "skip_bad_records",
)
_TRACKING_OPTIONS = ("tracking_uri", "experiment", "run_name", "tensorboard")
# SQLFlow's names of these options.
_ALIASES = {"batch_size": "minibatch_size", "epoch": "num_epochs", "epochs": "num_epochs"}
_MANY_ROWS, _LARGE_MINIBATCH = 4096, 2048
_PREDICT_OPTIONS = ("minibatch_size", "num_workers", "ray_address", "give_up_after")

DEFAULT_FRACTION = 0.2


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a TRAIN statement.

    Attributes:
        params: Parameters of the model.
        options: Options of `job_options.training_job`.
        validation_select: Query for the validation rows. None: hold out some training rows.
        validation_fraction: Fraction of the rows to hold out.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    validation_select: str | None = None
    validation_fraction: float = DEFAULT_FRACTION


@dataclass(frozen=True)
class PredictSettings:
    """Settings of a PREDICT statement.

    Attributes:
        options: Options of `job_options.prediction_job`.
        probability: Column for the probability of the predicted class. None: write no probability.
        output: Name of the model output to write; None means `prediction`, or the first output if
            the model has none of that name.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    probability: str | None = None
    output: str | None = None


def train_settings(
    attributes: Attributes, model_params: Collection[str] | None, program: str
) -> TrainSettings:
    """Read the settings of a TRAIN statement from its WITH clause.

    Args:
        attributes: The WITH clause.
        model_params: Names of the model's parameters; None if they are not known.
        program: The whole program, for errors.

    Raises:
        StatementError: A name is unknown, or a value is invalid.
    """
    params: dict[str, Any] = {}
    options: dict[str, Any] = {}
    select, fraction = None, DEFAULT_FRACTION
    known = [f.name for f in fields(TrainingOptions)]
    known += [*_WORKER_OPTIONS, *_TRACKING_OPTIONS]
    for name, value in attributes.items():
        group, dot, key = name.text.partition(".")
        if not dot or group == "model":
            key = key if dot else name.text
            if model_params is not None and key not in model_params:
                _check_not_option(name, key, known, program)
            _check_known(name, key, model_params, "a parameter of the model", program)
            params[key] = value.value
        elif group == "train":
            key = _ALIASES.get(key, key)
            _check_known(name, key, known, "a training option", program)
            options[key] = _checked(name, value, key, program)
        elif group == "validation" and key == "select":
            select = _text(name, value, program)
        elif group == "validation" and key == "fraction":
            fraction = _fraction(name, value, program)
        else:
            raise _unknown(name, program, ("model", "train", "validation"))
    return TrainSettings(params, options, select, fraction)


def predict_settings(attributes: Attributes, program: str) -> PredictSettings:
    """Read the settings of a PREDICT statement from its WITH clause.

    Raises:
        StatementError: A name is unknown, or a value is invalid.
    """
    options: dict[str, Any] = {}
    named: dict[str, str | None] = {"probability": None, "output": None}
    for name, value in attributes.items():
        group, _, key = name.text.partition(".")
        key = _ALIASES.get(key, key)
        if group != "predict":
            raise _unknown(name, program, ("predict",))
        if key in named:
            named[key] = _text(name, value, program)
            continue
        _check_known(name, key, (*_PREDICT_OPTIONS, *named), "an option of a prediction", program)
        options[key] = _valid(name, value, program, partial(_predict_job, key, value.value))
    return PredictSettings(options, named["probability"], named["output"])


def measuring_options(
    attributes: Attributes, group: str, known: Mapping[str, Any], program: str
) -> dict[str, Any]:
    """Read the options of an EVALUATE or EXPLAIN statement from its WITH clause.

    Args:
        attributes: The WITH clause.
        group: Prefix of the options' names, before the dot: `evaluate` or `explain`.
        known: Name -> function that checks a value; it raises a `UsageError` for an invalid one.
        program: The whole program, for errors.

    Raises:
        StatementError: A name is unknown, or a value is invalid.
    """
    options: dict[str, Any] = {}
    for name, value in attributes.items():
        found, _, key = name.text.partition(".")
        key = _ALIASES.get(key, key)
        if found != group:
            raise _unknown(name, program, (group,))
        _check_known(name, key, known, f"an option of {group.upper()}", program)
        options[key] = _valid(name, value, program, partial(known[key], value.value))
    return options


def evaluate_options(attributes: Attributes, program: str) -> dict[str, Any]:
    """Read the options of an EVALUATE statement, for `job_options.evaluation_job`."""
    known = {key: partial(_evaluation_job, key) for key in _PREDICT_OPTIONS}
    return measuring_options(attributes, "evaluate", known, program)


def explain_options(attributes: Attributes, program: str) -> dict[str, Any]:
    """Read the options of an EXPLAIN statement, for `explanation.ExplainRequest`."""
    known = dict.fromkeys(("num_rows", "repeats"), _count)
    return measuring_options(attributes, "explain", known, program)


def for_rows(options: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    """Return job options, with a large minibatch size if there are many rows.

    Large minibatches are faster for many rows. A size set by the user takes precedence.

    Args:
        options: Options of a prediction or an evaluation.
        num_rows: Number of rows to predict or evaluate.
    """
    suited = {"minibatch_size": _LARGE_MINIBATCH} if num_rows > _MANY_ROWS else {}
    return {**suited, **options}


def _evaluation_job(key: str, value: Any) -> None:
    job_options.evaluation_job(trained_model="-", data="-", **{key: value})


def _count(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError("--: expected a whole number, at least 1.")


def _checked(name: Word, value: Value, key: str, program: str) -> Any:
    more = {} if key == "num_workers" else {"num_workers": 1} if key in _WORKER_OPTIONS else {}

    def job() -> None:
        job_options.training_job(data="-", output="-", model_def="-", **{**more, key: value.value})

    return _valid(name, value, program, job)


def _predict_job(key: str, value: Any) -> None:
    job_options.prediction_job(trained_model="-", data="-", output="-", **{key: value})


def _valid(name: Word, value: Value, program: str, use: Callable[[], None]) -> Any:
    """Return the value of a setting, after a check by the code of the command-line flag.

    Args:
        name: The setting's name, for the error.
        value: The value to check and return.
        program: The whole program, for the error.
        use: Function () that applies this value as the flag's value. It raises a `UsageError` if
            the value is invalid; its result is ignored.

    Raises:
        StatementError: The value is invalid.
    """
    try:
        use()
    except UsageError as error:
        # Its message starts with the name of the flag.
        problem = str(error).partition(": ")[2] or str(error)
        raise StatementError(
            f"{name.text}={value.value}: {problem}", program, _both(name, value)
        ) from error
    return value.value


def _text(name: Word, value: Value, program: str) -> str:
    if isinstance(value.value, str) and value.value.strip():
        return value.value
    raise StatementError(f"{name.text} must be a string.", program, _both(name, value))


def _fraction(name: Word, value: Value, program: str) -> float:
    number = value.value
    if isinstance(number, (int, float)) and not isinstance(number, bool) and 0 <= number < 1:
        return float(number)
    raise StatementError(
        f"{name.text}={number}: expected a number from 0 to less than 1, such as 0.2.",
        program,
        _both(name, value),
    )


def _both(name: Word, value: Value) -> Span:
    return Span(name.span.start, value.span.stop)


def _check_known(
    name: Word, key: str, known: Collection[str] | None, what: str, program: str
) -> None:
    if known is not None and key not in known:
        near = did_you_mean(key, known)
        have = "" if near != "." else f" There are: {', '.join(sorted(known))}."
        raise StatementError(f"{key!r} is not {what}{near}{have}", program, name.span)


def _check_not_option(name: Word, key: str, options: Collection[str], program: str) -> None:
    if _ALIASES.get(key, key) in options:
        raise StatementError(
            f"{key!r} is not a parameter of the model; did you mean 'train.{key}'?",
            program,
            name.span,
        )


def _unknown(name: Word, program: str, groups: tuple[str, ...]) -> StatementError:
    prefixes = ", ".join(f"{group}." for group in groups)
    return StatementError(
        f"{name.text!r} is not a known option. Expected a name that begins with one of: {prefixes}",
        program,
        name.span,
    )

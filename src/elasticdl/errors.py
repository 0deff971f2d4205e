"""Exceptions of the package, as one tree.

A message states the problem with the wrong value, the expected value, the source of the value
and a remedy. The command line prints the message alone; `--debug` adds the traceback.

    ElasticDLError
    ├── UsageError            a wrong flag, name or param                          exit code 2
    ├── MissingExtraError     a package of an extra is not installed               exit code 2
    ├── DefinitionError       the user's model file cannot be used as it is        exit code 3
    │   └── ModelFileError    a saved model is damaged, of unknown kind, or would run code
    ├── UserCodeError         a user's function raised                             exit code 3
    ├── DataError             the data cannot be used                              exit code 4
    │   ├── NoDataError       no file matched, or the files contain no records
    │   ├── CorruptDataError  bytes of a file violate its format
    │   └── SchemaError       a record does not fit `data_schema()`
    ├── TrainingError         training cannot continue                             exit code 5
    │   ├── NonFiniteLossError
    │   ├── AggregationError  the parties' updates cannot be combined
    │   ├── MessageError      a party's or aggregator's message is not understood
    │   └── ClusterJobError   a job on a cluster failed                    exit code of the job
    ├── OutputError           the output folder cannot be written or used          exit code 6
    │   ├── OutputBusyError   another process is using it
    │   ├── OutputLostError   another process has taken it over in the meantime
    │   ├── OutputTakenError  it belongs to another job
    │   ├── CorruptCheckpointError
    │   │   └── CheckpointMismatchError  it is intact, but of a model with other parameters
    │   └── TrackingError     the tracking server cannot be reached, or rejects a request
    └── UnavailableError      a resource of the job is temporarily unavailable     exit code 75

The exit codes are part of the command line's contract (docs/reference/exit-codes.md).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator
from typing import ParamSpec, TypeVar

from elasticdl import tracebacks

# Exit codes of errors about the command, the model file and the data.
_REFUSALS = frozenset([2, 3, 4])

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

# Set by `elasticdl --debug`, or by people who want the whole traceback in a script.
DEBUG = "ELASTICDL_DEBUG"

# A command, which stays as it is, one param (`--params='NAME=VALUE'`), or the start of an option:
# `--NAME`, `--NAME=` or `--no-NAME`.
_OPTION = re.compile(
    r"\belasticdl (?:train|evaluate|predict|data|session|job|zoo)\b[^`\n]*"
    r"|(?<![\w-])--params=(['\"])(\w+)=((?:'\"'\"'|(?!\1)[^;\n])+)\1"
    r"|(?<![\w-])--(no-)?([a-z]\w*)=?"
)
_FRAMEWORKS = "keras", "tensorflow", "torch"
# A single quote within single quotes of a shell.
_QUOTE = "'\"'\"'"
# The names of the params after the first one of such an option.
_FURTHER_PARAM = re.compile(r", (\w+)=")

# Parts of a `UserCodeError`'s message; see `tracebacks`.
plain = tracebacks.plain
raised_at = tracebacks.raised_at
reason = tracebacks.reason
users_traceback = tracebacks.users_traceback

# Module of a framework -> extra that installs it.
_FRAMEWORK_EXTRAS = {
    "keras": "tensorflow",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
}


class ElasticDLError(Exception):
    """Base class of every exception that this package raises on purpose."""

    exit_code = 1

    def _render_traceback_(self) -> list[str]:
        """Return the text that a notebook shows instead of a traceback; called by IPython."""
        return [f"{type(self).__name__}: {self}"]


def for_scripts(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator: check the arguments of a public function, and shorten its tracebacks.

    If a required argument is missing, the error message is clearer than Python's.
    `ends_at_caller` describes how tracebacks are shortened.
    """

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        _check_arguments(function, args, kwargs)
        return function(*args, **kwargs)

    return ends_at_caller(call)


def ends_at_caller(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator: shorten tracebacks and name keywords in messages, for callers in scripts.

    A traceback shows only the caller's line and one of this module, because the message contains
    everything that the caller can act on. With the environment variable `ELASTICDL_DEBUG`, it is
    complete. Messages name the function's keywords instead of the command line's options.
    """

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **kwargs)
        except (ElasticDLError, KeyboardInterrupt) as error:
            names = inspect.signature(call).parameters
            error.args = tuple(
                as_keywords(each, names) if isinstance(each, str) else each for each in error.args
            )
            if os.environ.get(DEBUG):
                raise
            if isinstance(error, KeyboardInterrupt):
                _show_without_traceback(error)
            raise error.with_traceback(None) from None

    return call


def _show_without_traceback(error: KeyboardInterrupt) -> None:
    """Make notebooks show an interrupt without its traceback.

    They show only the notes that the run added to the exception, which say what is saved. There,
    "run the same command to resume" becomes "make the same call to resume". In a script the note
    stays unchanged, because a script is started by a command.
    """
    notes = " ".join(getattr(error, "__notes__", ()))
    if notes:
        notes = notes.replace("run the same command", "make the same call")
        if _is_half_imported():
            notes += " The import of a framework was interrupted: restart the kernel first."
        error._render_traceback_ = lambda: [f"{type(error).__name__}: {notes}"]  # type: ignore[attr-defined]


def _is_half_imported() -> bool:
    """Return whether an interrupt ended the import of a framework, which cannot be repeated.

    Python then forgets the package, but not the modules of it that were complete.
    """
    packages = {name.partition(".")[0] for name in list(sys.modules) if "." in name}
    return any(name in packages and name not in sys.modules for name in _FRAMEWORKS)


def _check_arguments(
    function: Callable[..., object], args: Collection[object], kwargs: Collection[str]
) -> None:
    """Check the arguments of a call before the call, for a clearer message than Python's.

    Args:
        function: The function to be called.
        args: The positional arguments.
        kwargs: Names of the keyword arguments.

    Raises:
        UsageError: A required argument is missing, or an argument that must be passed by keyword
            was passed by position.
    """
    own = inspect.signature(function).parameters.values()
    named = [each for each in own if each.kind is not each.VAR_KEYWORD]
    required = [each.name for each in named if each.default is each.empty]
    by_place = [each.name for each in named if each.kind is not each.KEYWORD_ONLY][: len(args)]
    lacking = [name for name in required if name not in {*kwargs, *by_place}]
    call = f"{function.__name__}({', '.join(f'{name}=...' for name in required)})"
    if len(by_place) < len(args):
        raise UsageError(f"The arguments need their names: elasticdl.{call}.")
    if lacking:
        names = " and ".join(f"{name}=" for name in lacking)
        hints: dict[tuple[str, ...], str] = {
            ("train", "data"): " If only the model's own code makes data, as in "
            'train_dataloader(): data="built-in" (any name).',
            ("predict", "output"): " For predictions in memory: "
            "elasticdl.load(trained_model).predict(data).",
        }
        raise UsageError(
            f"{function.__name__}() lacks {names}. It is called as elasticdl.{call}."
            f"{hints.get((function.__name__, *lacking), '')}"
        )


def as_keywords(message: str, names: Collection[str]) -> str:
    """Replace command-line options in a message with the keywords of a function.

    Commands in the message stay as they are, and so do options with other names.

    Example:
        >>> as_keywords(
        ...     "--seed=x: add --data, --no-shuffle or --quiet.", ["seed", "data", "shuffle"]
        ... )
        'seed=x: add data=, shuffle=False or --quiet.'
        >>> as_keywords("Name it: --params='rate=0.1'", ["params"])
        'Name it: params={"rate": 0.1}'
        >>> as_keywords('Add --params="rate=..., units=..."', ["params"])
        'Add params={"rate": ..., "units": ...}'
        >>> as_keywords("--params: rate is missing.", ["params"])
        'params: rate is missing.'
    """

    def replaced(option: re.Match[str]) -> str:
        _, param, value, negation, name = option.groups()
        if param and "params" in names:
            values = _FURTHER_PARAM.sub(r', "\1": ', value.replace(_QUOTE, "'"))
            return f'params={{"{param}": {values}}}'
        if name not in names:
            return option[0]
        if negation:
            return f"{name}=False"
        # A message about the option that begins with its name.
        return name if message.startswith(":", option.end()) else f"{name}="

    return _OPTION.sub(replaced, message)


class UsageError(ElasticDLError):
    """The caller named something that does not exist, or passed an invalid value."""

    exit_code = 2


class MissingExtraError(ElasticDLError):
    """A package of an optional extra is needed but not installed."""

    exit_code = 2

    def __init__(
        self, package: str, extra: str, needed_for: str, *, command: str | None = None
    ) -> None:
        command = command or f"pip install 'elasticdl[{extra}]'"
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed. "
            f"Install it with:  {command}"
        )


def missing_framework(error: BaseException, needed_for: str) -> MissingExtraError | None:
    """Convert a failed import of a framework to an error that names the extra to install.

    Args:
        error: The exception of the import.
        needed_for: The code that needs the framework, as the subject of a sentence.

    Returns:
        None if the exception has another cause.

    Example:
        >>> print(missing_framework(ModuleNotFoundError(name="keras"), "This model"))
        This model needs the package 'keras', ...:  pip install 'elasticdl[tensorflow]'
    """
    if not isinstance(error, ModuleNotFoundError) or error.name not in _FRAMEWORK_EXTRAS:
        return None
    return MissingExtraError(error.name, _FRAMEWORK_EXTRAS[error.name], needed_for)


@contextlib.contextmanager
def framework_needed(needed_for: str) -> Iterator[None]:
    """Context manager that converts the failed import of a framework to a `MissingExtraError`.

    Args:
        needed_for: The code that needs the framework, as the subject of a sentence.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = missing_framework(error, needed_for)
        if missing is None:
            raise
        raise missing from error


def is_refusal(error: BaseException) -> bool:
    """Return whether an error would recur if the same command were run again.

    It would if the user has to change the command, the model file or the data. If a job fails with
    such an error before it has begun, its event log is not worth keeping.
    """
    return isinstance(error, ElasticDLError) and error.exit_code in _REFUSALS


def kind_of(error: BaseException) -> str:
    """Return the name of an error's class, or of its nearest base class in this module.

    It is sent to another process, which raises an error with the same exit code and message.
    """
    bases = [each.__name__ for each in type(error).__mro__ if each.__module__ == __name__]
    return bases[0] if bases else type(error).__name__


class DefinitionError(ElasticDLError):
    """The user's model file lacks something, or contains something that cannot be used safely."""

    exit_code = 3


class ModelFileError(DefinitionError):
    """A saved model is missing, damaged, of an unknown kind, or would run untrusted code."""


class UserCodeError(ElasticDLError):
    """A user's function raised an exception; the message includes its traceback."""

    exit_code = 3


def ended_by_user(error: BaseException) -> UserCodeError | None:
    """Build the error for a user's function that ended the process, such as by `sys.exit()`.

    Args:
        error: An exception such as `SystemExit`, which `except Exception` does not catch.

    Returns:
        None if it did not come from the user's code.
    """
    where = tracebacks.raised_at(error, "")
    if not where:
        return None
    return UserCodeError(
        f"{where}: this code ended the command with {type(error).__name__}({plain(error)}). Raise "
        "an exception of your own if something is wrong."
    )


class DataError(ElasticDLError):
    """The data cannot be used."""

    exit_code = 4


class NoDataError(DataError):
    """No file matched, or the matching files contain no records."""


class CorruptDataError(DataError):
    """The bytes of a file violate its format.

    Attributes:
        file: URI of the file.
        offset_bytes: Where the damaged part starts.
    """

    def __init__(
        self,
        file: str,
        offset_bytes: int,
        expected: str | None,
        found: str,
        advice: str | None = None,
    ) -> None:
        advice = advice or "Write the file again from its source; nothing of it was used."
        # Not every decoder tells what it expected at which byte.
        problem = (
            found
            if expected is None
            else f"damaged at byte {offset_bytes}: expected {expected}, found {found}"
        )
        super().__init__(f"{file}: {problem}. {advice}")
        self.file = file
        self.offset_bytes = offset_bytes


class SchemaError(DataError):
    """A record does not fit the data schema; the message names file, record and field."""


class TrainingError(ElasticDLError):
    """Training cannot continue."""

    exit_code = 5


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite; the last good checkpoint is kept."""


class AggregationError(TrainingError):
    """The parties' updates cannot be combined into one model."""


class MessageError(TrainingError):
    """A message between a party and its aggregator is malformed, or unknown to this version."""


class ClusterJobError(TrainingError):
    """A job on a cluster has failed.

    Args:
        message: The reason.
        exit_code: Exit code of the job's command; 5 if the cluster does not report it.
    """

    def __init__(self, message: str, exit_code: int = TrainingError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class OutputError(ElasticDLError):
    """The output cannot be written or used."""

    exit_code = 6


class OutputBusyError(OutputError):
    """Another process is using this output."""


class OutputLostError(OutputError):
    """Another process took over this output while this one did not respond."""


class OutputTakenError(OutputError):
    """The output belongs to another job."""


class CorruptCheckpointError(OutputError):
    """The files of a checkpoint differ from those listed in its manifest."""


class CheckpointMismatchError(CorruptCheckpointError):
    """A checkpoint is intact, but the model, its optimizer or a metric has changed since."""


class TrackingError(OutputError):
    """The tracking server cannot be reached, or rejects a request."""


class UnavailableError(ElasticDLError):
    """A resource that the job runs on did not start or went away; rerun the command to resume.

    The exit code is EX_TEMPFAIL of sysexits.h.
    """

    exit_code = 75

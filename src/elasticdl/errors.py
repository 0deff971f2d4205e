"""Everything that can go wrong, as one tree.

A message says what is wrong with its value, what was expected, where it came from and what
to do. The command line prints the message alone; `--debug` adds the traceback.

    ElasticDLError
    ├── UsageError            a flag, a name or a param of the caller's            exit code 2
    ├── MissingExtraError     a package of an extra is not installed               exit code 2
    ├── DefinitionError       the user's model file cannot be used as it is        exit code 3
    │   └── ModelFileError    a saved model is damaged, unknown, or would run code
    ├── UserCodeError         a function of the user's raised                      exit code 3
    ├── DataError             the data cannot be used                              exit code 4
    │   ├── NoDataError       no file matched, or the files hold no record
    │   ├── CorruptDataError  bytes of a file are not what its format promises
    │   └── SchemaError       a record does not fit `data_schema()`
    ├── TrainingError         the training cannot go on                            exit code 5
    │   ├── NonFiniteLossError
    │   ├── AggregationError  what parties sent cannot become one model
    │   ├── MessageError      a party and its aggregator do not understand each other
    │   └── ClusterJobError   a job on a cluster failed                    exit code of the job
    ├── OutputError           the output folder cannot be written or used          exit code 6
    │   ├── OutputBusyError   another process is working on it
    │   ├── OutputLostError   another process has taken it over meanwhile
    │   ├── OutputTakenError  it belongs to another job
    │   ├── CorruptCheckpointError
    │   └── TrackingError     the tracking server cannot be reached or refuses
    └── UnavailableError      what the work runs on is not there for the moment    exit code 75

The exit codes are part of the command line's contract (docs/exit-codes.md).
"""

from __future__ import annotations

from elasticdl import tracebacks

# What a message of `UserCodeError` is made of; see there.
plain = tracebacks.plain
raised_at = tracebacks.raised_at
reason = tracebacks.reason
users_traceback = tracebacks.users_traceback


class ElasticDLError(Exception):
    """The root: everything this package raises on purpose."""

    exit_code = 1


class UsageError(ElasticDLError):
    """The caller named something that does not exist, or gave it an impossible value."""

    exit_code = 2


class MissingExtraError(ElasticDLError):
    """A package that an optional part needs is not installed."""

    exit_code = 2

    def __init__(
        self, package: str, extra: str, needed_for: str, *, command: str | None = None
    ) -> None:
        command = command or f"pip install 'elasticdl[{extra}]'"
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed. "
            f"Install it with:  {command}"
        )


class DefinitionError(ElasticDLError):
    """The user's model file lacks something, or says it in a way that cannot be read safely."""

    exit_code = 3


class ModelFileError(DefinitionError):
    """A saved model is not there, damaged, of no known kind, or would run what nobody trusted."""


class UserCodeError(ElasticDLError):
    """A function of the user's raised; its own traceback is in the message."""

    exit_code = 3


def ended_by_user(error: BaseException) -> UserCodeError | None:
    """Return the error for a `sys.exit()` and the like of a user's function.

    Args:
        error: What no `except Exception` meets.

    Returns:
        None if it came through no code of theirs.
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
    """No file matched, or the files that matched hold no record."""


class CorruptDataError(DataError):
    """Bytes of a file are not what its format promises.

    Attributes:
        file: URI of the file.
        offset_bytes: Where the damaged part starts.
    """

    def __init__(self, file: str, offset_bytes: int, expected: str, found: str) -> None:
        super().__init__(
            f"{file}: damaged at byte {offset_bytes}: expected {expected}, found {found}. "
            "Write the file anew from its source; nothing of it was used."
        )
        self.file = file
        self.offset_bytes = offset_bytes


class SchemaError(DataError):
    """A record does not fit the data schema; the message names file, record and field."""


class TrainingError(ElasticDLError):
    """The training cannot go on."""

    exit_code = 5


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite; the last good checkpoint is kept."""


class AggregationError(TrainingError):
    """What parties sent cannot become one model."""


class MessageError(TrainingError):
    """A message between a party and its aggregator is not one that this version knows."""


class ClusterJobError(TrainingError):
    """A job on a cluster has failed.

    Args:
        message: Why.
        exit_code: Of the job's command; 5 where the cluster does not tell.
    """

    def __init__(self, message: str, exit_code: int = TrainingError.exit_code) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class OutputError(ElasticDLError):
    """The output cannot be written or used."""

    exit_code = 6


class OutputBusyError(OutputError):
    """Another process is working on this output."""


class OutputLostError(OutputError):
    """Another process has taken this output over while this one was silent."""


class OutputTakenError(OutputError):
    """The output belongs to another job."""


class CorruptCheckpointError(OutputError):
    """A checkpoint's files are not those its manifest lists."""


class TrackingError(OutputError):
    """Where the training is to be followed cannot be reached, or refuses."""


class UnavailableError(ElasticDLError):
    """What the work runs on did not start or went away; the same command goes on later.

    The exit code is EX_TEMPFAIL of sysexits.h.
    """

    exit_code = 75

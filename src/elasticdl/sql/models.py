"""Store of trained models, by name and version.

    models/
      my_model/
        current.json    {"version": 2}: replaced when training completes
        v2/             a TrainedModel, as `elasticdl train` writes it
        v2.json         its ModelRecord: statement, database, label, parameters
        v2.rows/        the training rows, kept until training completes
        v1/, v1.json    the previous version

A version becomes visible under its name only when it is complete, so a prediction never sees a
partial model. The previous version stays, so that a user can return to it. Only one process at a
time trains a model of a given name.

Used by `training.py`, `prediction.py`, `evaluation.py` and `showing.py`.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.lock import hold
from elasticdl.artifacts.output_lease import ignore_note
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import OutputBusyError, UsageError
from elasticdl.sql.retry import retry_while_busy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasticdl.artifacts.output_lease import Note

ENVIRONMENT = "ELASTICDL_MODELS"
DEFAULT_FOLDER = "models"

_CURRENT, _LOCK = "current.json", ".lock"
# How long the submitter of a killed statement may take to save its progress.
_ENDING_S = 5.0
_VERSION = re.compile(r"v(\d+)\.json")


@dataclass(frozen=True)
class ModelRecord:
    """Record of how a model version was trained.

    Attributes:
        statement: Text of the TRAIN statement.
        database: Address of the database, without a password.
        label: The predicted column.
        is_complete: Whether training has completed.
        details: Further facts, once training has completed: the model and its `params`, names and
            types of the columns, numbers of rows, steps and metrics.
    """

    statement: str
    database: str
    label: str = ""
    is_complete: bool = False
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelVersion:
    """One version of a model.

    Attributes:
        name: Name of the model.
        number: Number of the version, from 1.
        uri: URI of its TrainedModel.
        rows: URI of the folder for the training rows, which are kept until training completes.
        record: Record of how the version was trained.
        is_resumed: Whether it continues an earlier, incomplete run of the same statement.
    """

    name: str
    number: int
    uri: str
    rows: str
    record: ModelRecord
    is_resumed: bool = False


class Models:
    """The trained models of a folder.

    Args:
        folder: Path or URI; created when the first model is trained.
    """

    def __init__(self, folder: str) -> None:
        self._folder = OutputFolder(folder)
        self.uri = self._folder.where()

    def names(self) -> list[str]:
        """Return the names of all models with a complete version, sorted."""
        return [name for name in self._folder.list() if self._folder.exists(f"{name}/{_CURRENT}")]

    def current(self, name: str) -> ModelVersion:
        """Return the current version of a model: the last one whose training was completed.

        Raises:
            UsageError: There is no such model.
        """
        if not self._folder.exists(f"{name}/{_CURRENT}"):
            known = self.names()
            training = " Its training is not complete." if self._versions(name) else ""
            have = f" There are {', '.join(known)}." if known else " There are none yet."
            raise UsageError(
                f"There is no trained model {name!r} in {self.uri}{did_you_mean(name, known)}"
                f"{training or have}"
            )
        current = self._folder.read_bytes(f"{name}/{_CURRENT}")
        return self._version(name, int(json.loads(current)["version"]))

    def versions(self, name: str) -> list[ModelVersion]:
        """Return all versions of a model, including incomplete ones, the newest first."""
        return [self._version(name, number) for number in reversed(self._versions(name))]

    @contextlib.contextmanager
    def training(
        self, name: str, statement: str, database: str, note: Note = ignore_note
    ) -> Iterator[ModelVersion]:
        """Context manager that locks a model's name while its next version is trained.

        It yields that version: the incomplete one of an earlier run of the same statement, or a new
        one.

        Args:
            name: Name of the model.
            statement: The statement's text.
            database: Address of the database, without a password.
            note: Reports why taking over the lock from another machine takes so long.

        Raises:
            OutputBusyError: Another process trains a model of this name and does not finish within
                five seconds.
        """
        subject, alternative = f"the model {name}", "train INTO another name"
        name_of_lock = f"{name}/{_LOCK}"
        lock = retry_while_busy(
            lambda: hold(self._folder, name_of_lock, subject, note, alternative),
            OutputBusyError,
            _ENDING_S,
        )
        try:
            yield self._next(name, statement, database)
        finally:
            lock.release()

    def _next(self, name: str, statement: str, database: str) -> ModelVersion:
        numbers = self._versions(name)
        if numbers:
            last = self._version(name, numbers[-1])
            before = last.record
            if not before.is_complete and (before.statement, before.database) == (
                statement,
                database,
            ):
                return replace(last, is_resumed=True)
        number = numbers[-1] + 1 if numbers else 1
        self._write(name, number, ModelRecord(statement, database))
        return self._version(name, number)

    def complete(self, version: ModelVersion, record: ModelRecord) -> None:
        """Make a newly trained version the current one, and delete its training rows.

        Args:
            version: The version.
            record: Record to store with it; marked as complete by this method.
        """
        self._write(version.name, version.number, replace(record, is_complete=True))
        current = json.dumps({"version": version.number}).encode()
        self._folder.write_bytes(f"{version.name}/{_CURRENT}", current)
        self.forget_rows(version)

    def discard(self, version: ModelVersion) -> None:
        """Delete a version whose training never started; its number is reused."""
        self.forget_rows(version)
        self._folder.delete(f"{version.name}/v{version.number}.json")

    def forget_rows(self, version: ModelVersion) -> None:
        """Delete the stored training rows of a version, so that its next run queries them again."""
        self._folder.delete(f"{version.name}/v{version.number}.rows")

    def _write(self, name: str, number: int, record: ModelRecord) -> None:
        text = json.dumps(asdict(record), indent=2).encode()
        self._folder.write_bytes(f"{name}/v{number}.json", text)

    def _version(self, name: str, number: int) -> ModelVersion:
        there = f"{name}/v{number}"
        record = ModelRecord(**json.loads(self._folder.read_bytes(f"{there}.json")))
        where = self._folder.where
        return ModelVersion(name, number, where(there), where(f"{there}.rows"), record)

    def _versions(self, name: str) -> list[int]:
        found = [_VERSION.fullmatch(entry) for entry in self._folder.list(name)]
        return sorted(int(match[1]) for match in found if match)

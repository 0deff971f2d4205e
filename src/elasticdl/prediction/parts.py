"""Parts of a prediction: ranges of records, each written once and completely, by any worker.

With n records per part, part i holds the records i * n to (i + 1) * n (exclusive), no matter which
worker writes it: the same records always give the same part. A part is complete once its
description, a JSON file, exists; `writers.py` publishes the parts.

    staging/  part-00000.csv   part-00000.json   part-00001.csv   ...

Callers: `writers.py`; workers that predict in parallel.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from elasticdl.artifacts.local_storage import output_errors
from elasticdl.data.atomic_writer import AtomicWriter
from elasticdl.errors import DefinitionError, OutputError
from elasticdl.prediction.rows import PredictionField, fields_of, named_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.data.batch import Arrays
    from elasticdl.job import PredictionFormat
    from elasticdl.prediction.rows import Columns

DEFAULT_RECORDS_PER_PART = 1 << 16


class RowWriter(Protocol):
    """Interface of a writer of rows into one new file; `csv.RowWriter` is the one for CSV."""

    def __init__(self, path: Path, fields: Sequence[PredictionField]) -> None: ...

    def write(self, keys: Sequence[str], columns: Columns) -> None:
        """Append rows.

        Args:
            keys: The key of each row.
            columns: Name -> array, with one entry per row.
        """
        ...

    def close(self) -> None:
        """Complete the file."""
        ...

    def discard(self) -> None:
        """Close the unfinished file; the caller removes it."""
        ...


@dataclass(frozen=True)
class PartDescription:
    """Description of a complete part, stored as JSON beside the part's file.

    Attributes:
        name: Name of the part's file.
        num_records: Number of rows.
        num_bytes: Size of the file.
        sha256: SHA-256 of the file.
        fields: The fields of the rows.
    """

    name: str
    num_records: int
    num_bytes: int
    sha256: str
    fields: tuple[PredictionField, ...]


@dataclass(frozen=True)
class PredictionParts:
    """The part files of a prediction, in a staging folder until they are published.

    Attributes:
        staging: The staging folder. Workers on several machines need a shared file system or object
            store.
        file_format: Format of the parts.
        records_per_part: Number of records in a part; the last part may hold fewer.
    """

    staging: OutputFolder
    file_format: PredictionFormat
    records_per_part: int = DEFAULT_RECORDS_PER_PART

    def part(self, index: int) -> PredictionPart:
        """Return a new writer of a part; an existing part is replaced when the writer closes."""
        return PredictionPart(self, index)

    def file_name(self, index: int) -> str:
        """Return the name of a part's file."""
        return f"part-{index:05d}.{self.file_format}"

    def described(self) -> list[PartDescription]:
        """Return descriptions of the parts that have been written completely, in order.

        Raises:
            OutputError: The descriptions cannot be read.
        """
        found = [
            _description(self.staging.read_bytes(name))
            for name in self.staging.list()
            if name.startswith("part-") and name.endswith(".json")
        ]
        return sorted(found, key=lambda part: (len(part.name), part.name))


class PredictionPart(AtomicWriter):
    """Writer of one part file, which is added to the staging folder by `close`.

    Used in a `with` statement: if the body of the statement raises, no part is added.
    """

    def __init__(self, parts: PredictionParts, index: int) -> None:
        self._parts = parts
        self._name = parts.file_name(index)
        self._where = parts.staging.where(self._name)
        self._stack = ExitStack()
        self._path = self._stack.enter_context(parts.staging.scratch()) / self._name
        self._rows: RowWriter | None = None
        self._fields: tuple[PredictionField, ...] = ()
        self.num_records = 0

    def write(self, keys: Sequence[str], outputs: Arrays) -> None:
        """Append the predictions of the next records.

        Args:
            keys: One per record; see `rows.RecordKeys`.
            outputs: The model's outputs, one row per example.

        Raises:
            OutputError: The predictions cannot be written.
            DefinitionError: The outputs are not rows, or their fields differ from the previous
                ones.
            ValueError: The part would hold more records than its range.
        """
        if self.num_records + len(keys) > self._parts.records_per_part:
            raise ValueError(f"{self._name} cannot hold {self.num_records} + {len(keys)} records")
        columns = named_outputs(outputs, len(keys))
        fields = fields_of(columns)
        if self._rows is None:
            self._rows = self._open(fields)
        elif fields != self._fields:
            raise DefinitionError(
                f"The model's outputs changed from {_shown(self._fields)} to {_shown(fields)} at "
                f"{keys[0]}. All rows of a file must have the same shape: pad values of different "
                "lengths."
            )
        with output_errors(self._where):
            self._rows.write(keys, columns)
        self.num_records += len(keys)

    def _open(self, fields: tuple[PredictionField, ...]) -> RowWriter:
        self._fields = fields
        module = format_module(self._parts.file_format)
        with output_errors(self._where):
            rows: RowWriter = module.RowWriter(self._path, fields)
        return rows

    def close(self) -> None:
        """Add the part to the staging folder; does nothing if it has no records.

        Raises:
            OutputError: The part cannot be completed.
        """
        if self._rows is None:
            self._stack.close()
            return
        try:
            with output_errors(self._where):
                self._rows.close()
                with self._path.open("rb") as file:
                    sha256 = hashlib.file_digest(file, "sha256").hexdigest()
                num_bytes = self._path.stat().st_size
            part = PartDescription(self._name, self.num_records, num_bytes, sha256, self._fields)
            staging = self._parts.staging
            staging.publish(self._path, self._name)
            stem = self._name.split(".")[0]
            staging.write_bytes(f"{stem}.json", json.dumps(asdict(part)).encode())
        finally:
            self._stack.close()

    def discard(self) -> None:
        """Close the part's file and delete it, without adding it to the staging folder."""
        # An earlier error led here, and that is the one to report.
        with suppress(OSError, OutputError):
            if self._rows is not None:
                self._rows.discard()
        self._stack.close()


def format_module(file_format: PredictionFormat) -> Any:
    """Return the module of a format; it has `RowWriter`, `join` and `first_key`."""
    return import_module(f"elasticdl.prediction.{file_format}")


def _description(text: bytes) -> PartDescription:
    values = json.loads(text)
    fields = tuple(
        PredictionField(field["name"], field["dtype"], tuple(field["shape"]))
        for field in values["fields"]
    )
    return PartDescription(**{**values, "fields": fields})


def _shown(fields: Sequence[PredictionField]) -> str:
    return ", ".join(f"{field.name}: {field.dtype}{list(field.shape)}" for field in fields)

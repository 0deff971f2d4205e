"""Parts of a prediction: ranges of records, each written once and whole, by whoever gets to it.

Part i holds records i * n to (i + 1) * n (exclusive), whoever writes it and however often: the
same records give the same part. A part counts when its description is there; what the parts
come to together is decided in `writers.py`.

    staging/  part-00000.csv   part-00000.json   part-00001.csv   ...

Callers: `writers.py`; workers that predict side by side.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from elasticdl.artifacts.local_storage import output_errors
from elasticdl.data.whole_or_nothing import WholeOrNothing
from elasticdl.errors import DefinitionError, OutputError
from elasticdl.prediction.rows import Field, fields_of, named_outputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from elasticdl.artifacts.folder import OutputFolder
    from elasticdl.data.batch import Arrays
    from elasticdl.job import PredictionFormat
    from elasticdl.prediction.rows import Columns

DEFAULT_RECORDS_PER_PART = 1 << 16


class RowWriter(Protocol):
    """Writes rows into one new file; each format has one."""

    def __init__(self, path: Path, fields: Sequence[Field]) -> None: ...

    def write(self, keys: Sequence[str], columns: Columns) -> None:
        """Append rows."""
        ...

    def close(self) -> None:
        """Complete the file."""
        ...

    def discard(self) -> None:
        """Leave the file as it is; it is going to be removed."""
        ...


@dataclass(frozen=True)
class PartDescription:
    """What a part is.

    Attributes:
        name: Its file.
        num_records: Rows in it.
        num_bytes: Size of the file.
        sha256: Its hash.
        fields: What the outputs are.
    """

    name: str
    num_records: int
    num_bytes: int
    sha256: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Parts:
    """The place where parts of one prediction are collected.

    Attributes:
        staging: Where they lie until they are published; on a store all workers reach, if
            there are several on several machines.
        file_format: What they are.
        records_per_part: How many records a part holds, the last one fewer.
    """

    staging: OutputFolder
    file_format: PredictionFormat
    records_per_part: int = DEFAULT_RECORDS_PER_PART

    def part(self, index: int) -> Part:
        """Return a new writer of a part; one that is there already is replaced at the end."""
        return Part(self, index)

    def file_name(self, index: int) -> str:
        """Return the name of a part's file."""
        return f"part-{index:05d}.{self.file_format}"

    def described(self) -> list[PartDescription]:
        """Return the parts that are whole, in order.

        Raises:
            OutputError: They cannot be read.
        """
        found = [
            _description(self.staging.read_bytes(name))
            for name in self.staging.list()
            if name.startswith("part-") and name.endswith(".json")
        ]
        return sorted(found, key=lambda part: (len(part.name), part.name))


class Part(WholeOrNothing):
    """One part being written; it counts when it is closed.

    Used in a `with` statement: an exception in its body leaves no part.
    """

    def __init__(self, parts: Parts, index: int) -> None:
        self._parts = parts
        self._name = parts.file_name(index)
        self._where = parts.staging.where(self._name)
        self._stack = ExitStack()
        self._path = self._stack.enter_context(parts.staging.scratch()) / self._name
        self._rows: RowWriter | None = None
        self._fields: tuple[Field, ...] = ()
        self.num_records = 0

    def write(self, keys: Sequence[str], outputs: Arrays) -> None:
        """Append the predictions of the records that come next.

        Args:
            keys: One for each record; see `rows.RecordKeys`.
            outputs: What the model says of them, one row an example.

        Raises:
            OutputError: They cannot be written.
            DefinitionError: The outputs are not rows, or not like those before.
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
                f"{keys[0]}. Rows of one file are alike: pad what differs in length."
            )
        with output_errors(self._where):
            self._rows.write(keys, columns)
        self.num_records += len(keys)

    def _open(self, fields: tuple[Field, ...]) -> RowWriter:
        self._fields = fields
        module = import_module(f"elasticdl.prediction.{self._parts.file_format}")
        with output_errors(self._where):
            rows: RowWriter = module.RowWriter(self._path, fields)
        return rows

    def close(self) -> None:
        """Complete the part; a part without a record is none.

        Raises:
            OutputError: It cannot be completed.
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
        """Leave nothing of the part."""
        # Something has gone wrong already, and that is what must be reported.
        with suppress(OSError, OutputError):
            if self._rows is not None:
                self._rows.discard()
        self._stack.close()


def _description(text: bytes) -> PartDescription:
    values = json.loads(text)
    fields = tuple(
        Field(field["name"], field["dtype"], tuple(field["shape"])) for field in values["fields"]
    )
    return PartDescription(**{**values, "fields": fields})


def _shown(fields: Sequence[Field]) -> str:
    return ", ".join(f"{field.name}: {field.dtype}{list(field.shape)}" for field in fields)

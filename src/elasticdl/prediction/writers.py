"""Writes predictions to one file, or to a folder of part files; complete or not at all.

    OUTPUT.recordio        rows in the order of the records; also OUTPUT.parquet and OUTPUT.csv
    OUTPUT/                part-00000.csv, part-00001.csv, ...
      _SUCCESS             description of the parts (JSON), written when all of them are there

Parts are written into a staging folder beside the output and published together when the last one
is complete. Only then is an earlier prediction of the same name replaced; anything else of that
name is an error. The output is locked while it is written.

On a local disk a folder appears in one step. Where that is not possible (an object store; a folder
that is mounted, or whose parent is not writable), parts appear one by one and `_SUCCESS` last:
readers should wait for `_SUCCESS`.

The formats are in `parquet.py`, `csv.py` and `recordio.py`, which `parts.py` loads.

Callers: `engines/inference.py`, `engines/elastic/inference.py`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.artifacts.lock import hold
from elasticdl.data.atomic_writer import AtomicWriter
from elasticdl.errors import DefinitionError, OutputError, UsageError
from elasticdl.prediction.parts import DEFAULT_RECORDS_PER_PART, PredictionParts
from elasticdl.prediction.rows import RecordKeys, named_outputs
from elasticdl.prediction.target import MANIFEST, Target, target_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.artifacts.lock import Lock
    from elasticdl.data.batch import Arrays
    from elasticdl.job import PredictionFormat
    from elasticdl.prediction.parts import PartDescription, PredictionPart

__all__ = ["MANIFEST", "PredictionWriter", "RecordKeys", "open_writer"]


def open_writer(
    output: str,
    file_format: PredictionFormat | None = None,
    *,
    records_per_part: int = DEFAULT_RECORDS_PER_PART,
) -> PredictionWriter:
    """Return a writer of predictions; nothing appears at the output before the writer is closed.

    Args:
        output: A path or address: one file if it ends in a format such as `.csv`, else a folder.
        file_format: Format of the part files; None means RecordIO, or that of the one file.
        records_per_part: Number of records in a part file.

    Raises:
        OutputBusyError: Another process is writing there.
        OutputTakenError: The output exists and is not a prediction.
        OutputError: The output cannot be written.
        UsageError: The name of the output file implies another format.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> output = tempfile.mkdtemp() + "/predicted"
        >>> with open_writer(output, "csv") as writer:
        ...     writer.write(0, ["a.csv:0", "a.csv:1"], np.float32([0.5, 1.0]))
        >>> print(Path(output, "part-00000.csv").read_text())
        key,output
        a.csv:0,0.5
        a.csv:1,1.0
        <BLANKLINE>
    """
    target = target_of(output)
    if target.file_format is not None and file_format not in {None, target.file_format}:
        raise UsageError(
            f"--output={output} is a {target.file_format} file by its name, but "
            f"--format={file_format} was requested. Leave --format out, or choose a folder."
        )
    file_format = target.file_format or file_format or "recordio"
    target.refuse_foreign()
    lock = hold(target.place, f".{target.name}.lock", output)
    try:
        target.place.fence(lock)
        target.refuse_foreign()
        target.place.remove_stale(target.name)
        staging = OutputFolder(target.place.where(target.staging))
        path = staging.local_path()
        if path is not None:
            with output_errors(path.parent):
                path.mkdir(parents=True)
    except BaseException:
        target.place.fence(None)
        lock.release()
        raise
    return PredictionWriter(target, PredictionParts(staging, file_format, records_per_part), lock)


class PredictionWriter(AtomicWriter):
    """Writer of predictions in the order of the records; publishes them when it is closed.

    Used in a `with` statement: if the body of the statement raises, nothing is published, and an
    earlier prediction is kept.

    Attributes:
        parts: The part files of the prediction. Other processes may write some of them.
        replaced: The output, if it is an earlier prediction that will be replaced; else empty.
    """

    def __init__(self, target: Target, parts: PredictionParts, lock: Lock) -> None:
        self.parts = parts
        self._target = target
        self._lock = lock
        self._part: PredictionPart | None = None
        self._part_index = -1
        self._next_record = 0
        self._closed = False
        self.replaced = target.output if target.exists() else ""

    def write(self, start_record: int, keys: Sequence[str], outputs: Arrays) -> None:
        """Append the predictions of the next records.

        Args:
            start_record: Number of the first one: 0, then where the previous call ended.
            keys: One per record; see `RecordKeys`.
            outputs: The model's outputs, one row per record.

        Raises:
            OutputError: The predictions cannot be written.
            DefinitionError: The outputs are not rows, or their fields differ from the previous
                ones.
            ValueError: The writer is closed, or `start_record` is not where the previous call
                ended.
        """
        if self._closed or start_record != self._next_record:
            raise ValueError(
                f"Record {self._next_record} comes next, not {start_record}"
                + (" (and the writer is closed)" if self._closed else "")
            )
        columns = named_outputs(outputs, len(keys))
        done = 0
        while done < len(keys):
            index, begun = divmod(start_record + done, self.parts.records_per_part)
            stop = min(len(keys), done + self.parts.records_per_part - begun)
            rows = {name: array[done:stop] for name, array in columns.items()}
            self._part_at(index).write(keys[done:stop], rows)
            done = stop
        self._next_record += len(keys)

    def _part_at(self, index: int) -> PredictionPart:
        if self._part is None or self._part_index != index:
            if self._part is not None:
                self._part.close()
            self._part, self._part_index = self.parts.part(index), index
        return self._part

    def part(self, index: int) -> PredictionPart:
        """Return a new writer of part `index`, for callers that do not write the parts in order."""
        return self.parts.part(index)

    def close(self) -> None:
        """Publish the predictions; a second call does nothing.

        Raises:
            OutputError: A part is missing, or the parts cannot be published. Then nothing new
                appears and an earlier prediction is kept, unless parts are published one by one.
            DefinitionError: The outputs in two parts have different fields.
        """
        if self._closed:
            return
        try:
            if self._part is not None:
                self._part.close()
                self._part = None
            described = self.parts.described()
            _check_complete(self.parts, described, self._target.output)
            self._target.publish(self.parts, described)
        finally:
            self.discard()

    def discard(self) -> None:
        """Delete all parts written so far and release the lock; an earlier prediction is kept.

        Does nothing if the writer is closed.
        """
        if self._closed:
            return
        self._closed = True
        if self._part is not None:
            self._part.discard()
        # A leftover must not hide the error that led here; the next writer removes it.
        with suppress(OutputError):
            self._target.place.delete(self._target.staging)
        self._target.place.fence(None)
        self._lock.release()


def _check_complete(
    parts: PredictionParts, described: Sequence[PartDescription], output: str
) -> None:
    for index, part in enumerate(described):
        if part.name != parts.file_name(index):
            raise OutputError(
                f"{output}: {parts.file_name(index)} was not written, though {part.name} was. "
                "Write the missing part, or predict again."
            )
        if part.num_records != parts.records_per_part and index + 1 < len(described):
            raise OutputError(
                f"{output}: {part.name} has {part.num_records} records and should have "
                f"{parts.records_per_part}, because other parts follow. Write it again from its "
                "first record."
            )
        if part.fields != described[0].fields:
            raise DefinitionError(
                f"{output}: the model's outputs in {part.name} are not those in "
                f"{described[0].name}. Predict again with one model."
            )

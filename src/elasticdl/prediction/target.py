"""What is at a prediction's output, and how parts get there: the file or folder itself.

    staging/ part-00000 part-00001 --join--> OUTPUT.recordio
                                   --rename as a whole--> OUTPUT/
                                   --one by one, _SUCCESS last--> OUTPUT/   (see `writers.py`)

It decides what may be replaced: an earlier prediction, and nothing else. What is in the parts
is not known here, but for the key in a row, by which a file is recognised.

Callers: `writers.py`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.artifacts.folder import OutputFolder, local_path_of
from elasticdl.artifacts.local_storage import is_temporary, output_errors, temporary_path
from elasticdl.data.recordio import RecordIOSource, Writer
from elasticdl.errors import DataError, OutputError, OutputTakenError
from elasticdl.prediction.rows import KEY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.prediction.parts import PartDescription, Parts

MANIFEST = "_SUCCESS"
FORMAT_VERSION = 1

# There while parts are put in place one by one: what a death leaves then is ours to replace.
_PUBLISHING = "_PUBLISHING"
_ROWS_AT_ONCE = 4096
_FILE_SUFFIX = ".recordio"
_PART = re.compile(r"^part-\d{5,}\.(recordio|parquet|csv)$")
_KEY = re.compile(rb".+:\d+", re.DOTALL)


@dataclass(frozen=True)
class Target:
    """An output and the folder its staging lies in.

    Attributes:
        output: As it was named.
        place: Holds staging and lock.
        name: What they are named after.
        staging: Name of the staging folder in `place`.
        is_file: Whether the output is one file.
        in_place: Whether `place` is the output itself, and not the folder it lies in.
    """

    output: str
    place: OutputFolder
    name: str
    staging: str
    is_file: bool
    in_place: bool

    def refuse_foreign(self) -> None:
        """Raise if there is something at the output that is no prediction.

        Raises:
            OutputTakenError: There is.
            OutputError: It is a file where a folder is meant, or the other way round.
        """
        path = self.place.local_path("" if self.in_place else self.name)
        if path is not None and path.exists() and path.is_dir() == self.is_file:
            raise OutputError(
                f"{self.output}: is a {'folder' if self.is_file else 'file'}, and predictions "
                f"would be a {'file' if self.is_file else 'folder'} (a name that ends in "
                f"{_FILE_SUFFIX} is a file). Name another --output."
            )
        reason = self._why_foreign_file() if self.is_file else self._why_foreign_folder()
        if reason:
            raise OutputTakenError(
                f"{self.output}: {reason}, and is not overwritten. Name another --output, or "
                "delete it."
            )

    def _why_foreign_file(self) -> str:
        if not self.place.exists(self.name):
            return ""
        try:
            source = RecordIOSource([self.place.where(self.name)])
            if source.num_records == 0:
                return ""
            keys = source.read_records(0, 1, None)[0].get(KEY)
        except DataError as error:
            return f"holds no predictions ({error})"
        key = keys[0] if keys is not None and len(keys) == 1 else None
        is_key = isinstance(key, bytes) and _KEY.fullmatch(key) is not None
        return "" if is_key else "holds records that are no predictions"

    def _why_foreign_folder(self) -> str:
        inside = "" if self.in_place else f"{self.name}/"
        ours = {f".{self.name}.lock", MANIFEST, _PUBLISHING}
        names = [name for name in self.place.list(inside) if not is_temporary(name)]
        foreign = [name for name in names if name not in ours and not _PART.match(name)]
        if foreign:
            return f"holds {foreign[0]}, which is no part of a prediction"
        if not any(_PART.match(name) for name in names) or _PUBLISHING in names:
            return ""
        if MANIFEST not in names:
            return f"holds {names[0]} and no {MANIFEST}"
        try:
            values = json.loads(self.place.read_bytes(f"{inside}{MANIFEST}"))
            known = values["elasticdl"] == "predictions"
        except (ValueError, KeyError, TypeError):
            known = False
        return "" if known else f"holds a {MANIFEST} of another program"

    # --- Publishing ---------------------------------------------------------------------------

    def publish(self, parts: Parts, described: Sequence[PartDescription]) -> None:
        """Make the parts appear at the output.

        Raises:
            OutputError: They cannot.
        """
        if self.is_file:
            self._publish_file(parts, described)
        elif self.in_place or not self.place.is_local:
            self._publish_one_by_one(parts, described)
        else:
            for part in described:
                parts.staging.delete(_sidecar(part))
            parts.staging.write_bytes(MANIFEST, _manifest(parts, described))
            path = parts.staging.local_path()
            if path is not None:
                self.place.publish(path, self.name)

    def _publish_one_by_one(self, parts: Parts, described: Sequence[PartDescription]) -> None:
        inside = "" if self.in_place else f"{self.name}/"
        self.place.write_bytes(f"{inside}{_PUBLISHING}", b"")
        for name in self.place.list(inside):
            if name == MANIFEST or _PART.match(name):
                self.place.delete(f"{inside}{name}")
        for part in described:
            self.place.move(f"{self.staging}/{part.name}", f"{inside}{part.name}")
        self.place.write_bytes(f"{inside}{MANIFEST}", _manifest(parts, described))
        self.place.delete(f"{inside}{_PUBLISHING}")

    def _publish_file(self, parts: Parts, described: Sequence[PartDescription]) -> None:
        """Join the parts into a file that does not show where one ended.

        Row by row: with the parts' own chunks, the file would depend on how many workers wrote.
        """
        with self.place.scratch() as scratch, output_errors(self.output):
            joined = scratch / "joined"
            with Writer(str(joined)) as writer:
                for part in described:
                    path = parts.staging.local_path(part.name)
                    if path is None:
                        path = scratch / part.name
                        parts.staging.fetch(part.name, path)
                    rows = RecordIOSource([str(path)])
                    for start in range(0, rows.num_records, _ROWS_AT_ONCE):
                        stop = min(start + _ROWS_AT_ONCE, rows.num_records)
                        for row in rows.read_bytes(start, stop):
                            writer.write(row)
                    # At once, so that the disk need not hold everything twice.
                    path.unlink()
            self.place.publish(joined, self.name)


def target_of(output: str) -> Target:
    """Return the target a path or address names, whatever is there."""
    is_file = output.endswith(_FILE_SUFFIX)
    path = local_path_of(output)
    if path is not None:
        path = path.resolve()
        parent, name = str(path.parent), path.name
        in_place = path.is_dir() and (
            path.is_mount() or not os.access(path.parent, os.W_OK | os.X_OK)
        )
    else:
        parent, _, name = output.rstrip("/").rpartition("/")
        # A bucket lies in no folder.
        in_place = parent.endswith(("/", ":"))
    if in_place and not is_file:
        parent, name = output, "predictions"
    staging = temporary_path(Path(name)).name
    return Target(output, OutputFolder(parent), name, staging, is_file, in_place and not is_file)


def _sidecar(part: PartDescription) -> str:
    return f"{part.name.split('.')[0]}.json"


def _manifest(parts: Parts, described: Sequence[PartDescription]) -> bytes:
    fields = described[0].fields if described else ()
    listed = [
        {key: value for key, value in asdict(part).items() if key != "fields"} for part in described
    ]
    values = {
        "elasticdl": "predictions",
        "format_version": FORMAT_VERSION,
        "format": parts.file_format,
        "num_records": sum(part.num_records for part in described),
        "fields": [asdict(field) for field in fields],
        "parts": listed,
    }
    return json.dumps(values, indent=2).encode()

"""The output of a prediction, a file or a folder: checks existing content, and publishes parts.

    staging/ part-00000 part-00001 --join--> OUTPUT.recordio, OUTPUT.parquet or OUTPUT.csv
                                   --rename as a whole--> OUTPUT/
                                   --one by one, _SUCCESS last--> OUTPUT/   (see `writers.py`)

An existing output is replaced only if it is an earlier prediction. To check that, the key in the
first row of a file is read; the parts' contents are not interpreted otherwise.

Callers: `writers.py`.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from elasticdl.artifacts.folder import OutputFolder, local_path_of
from elasticdl.artifacts.local_storage import is_temporary, output_errors, temporary_path
from elasticdl.errors import DataError, OutputError, OutputTakenError
from elasticdl.job import PredictionFormat
from elasticdl.prediction.parts import format_module

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elasticdl.prediction.parts import PartDescription, PredictionParts

MANIFEST = "_SUCCESS"
FORMAT_VERSION = 1

# Exists while parts are published one by one: after a kill, the remains may then be replaced.
_PUBLISHING = "_PUBLISHING"
_PART = re.compile(r"^part-\d{5,}\.(recordio|parquet|csv)$")
_FORMATS: Sequence[PredictionFormat] = get_args(PredictionFormat)
_KEY = re.compile(rb".+:\d+", re.DOTALL)


@dataclass(frozen=True)
class Target:
    """Where a prediction goes: a file or a folder, and the folder for its temporary files.

    Parts of the prediction are first written to a staging folder, and moved to the output when all
    are complete. A lock file keeps other processes from writing to the same output. Both are
    usually beside the output. They are inside it (`in_place`) if its parent cannot hold them, as
    for a bucket or a mount point.

    Attributes:
        output: Path or address of the file or folder, as named by the user.
        place: The folder that contains the staging folder and the lock: the parent folder of the
            output, or the output itself if `in_place`.
        name: Name of the output in `place`, from which the names of the staging folder and the lock
            are made. If `in_place`, the output has no name there, and this is `predictions`.
        staging: Name of the staging folder in `place`.
        file_format: The format of the output if it is one file; None for a folder.
        in_place: Whether `place` is the output itself.
    """

    output: str
    place: OutputFolder
    name: str
    staging: str
    file_format: PredictionFormat | None
    in_place: bool

    @property
    def is_file(self) -> bool:
        """Whether the output is one file."""
        return self.file_format is not None

    def exists(self) -> bool:
        """Return whether the output exists; a folder counts only if its prediction is complete."""
        if self.is_file:
            return self.place.exists(self.name)
        return self.place.exists(MANIFEST if self.in_place else f"{self.name}/{MANIFEST}")

    def refuse_foreign(self) -> None:
        """Check that nothing but an earlier prediction would be replaced by writing the output.

        Raises:
            OutputTakenError: The output exists and is not a prediction.
            OutputError: The output is a file where a folder is expected, or the other way round.
        """
        path = self.place.local_path("" if self.in_place else self.name)
        if path is not None and path.exists() and path.is_dir() == self.is_file:
            raise OutputError(
                f"{self.output} is a {'folder' if self.is_file else 'file'}, and predictions "
                f"would be a {'file' if self.is_file else 'folder'} (a name that ends in "
                f"{', '.join(f'.{each}' for each in _FORMATS)} is a file). Choose another --output."
            )
        reason = self._why_foreign_file() if self.is_file else self._why_foreign_folder()
        if reason:
            raise OutputTakenError(
                f"{self.output}: {reason}, and is not overwritten. Choose another --output, or "
                "delete it."
            )

    def _why_foreign_file(self) -> str:
        if self.file_format is None or not self.place.exists(self.name):
            return ""
        module = format_module(self.file_format)
        path = self.place.local_path(self.name)
        try:
            if path is not None:
                key = module.first_key(path)
            else:
                with self.place.scratch() as scratch:
                    self.place.fetch(self.name, scratch / self.name)
                    key = module.first_key(scratch / self.name)
        except DataError as error:
            return f"holds no predictions ({error})"
        is_key = key is None or _KEY.fullmatch(key) is not None
        return "" if is_key else "holds records that are not predictions"

    def _why_foreign_folder(self) -> str:
        inside = "" if self.in_place else f"{self.name}/"
        ours = {f".{self.name}.lock", MANIFEST, _PUBLISHING}
        names = [name for name in self.place.list(inside) if not is_temporary(name)]
        foreign = [name for name in names if name not in ours and not _PART.match(name)]
        if foreign:
            return f"holds {foreign[0]}, which is not part of a prediction"
        if not any(_PART.match(name) for name in names) or _PUBLISHING in names:
            return ""
        if MANIFEST not in names:
            return f"holds {names[0]} but no {MANIFEST}"
        try:
            values = json.loads(self.place.read_bytes(f"{inside}{MANIFEST}"))
            known = values["elasticdl"] == "predictions"
        except (ValueError, KeyError, TypeError):
            known = False
        return "" if known else f"holds a {MANIFEST} of another program"

    # --- Publishing ---------------------------------------------------------------------------

    def publish(self, parts: PredictionParts, described: Sequence[PartDescription]) -> None:
        """Move the parts to the output: joined to one file, or as the part files of a folder.

        Args:
            parts: The part files.
            described: Descriptions of all parts, in order.

        Raises:
            OutputError: The parts cannot be published.
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

    def _publish_one_by_one(
        self, parts: PredictionParts, described: Sequence[PartDescription]
    ) -> None:
        inside = "" if self.in_place else f"{self.name}/"
        self.place.write_bytes(f"{inside}{_PUBLISHING}", b"")
        for name in self.place.list(inside):
            if name == MANIFEST or _PART.match(name):
                self.place.delete(f"{inside}{name}")
        for part in described:
            self.place.move(f"{self.staging}/{part.name}", f"{inside}{part.name}")
        self.place.write_bytes(f"{inside}{MANIFEST}", _manifest(parts, described))
        self.place.delete(f"{inside}{_PUBLISHING}")

    def _publish_file(self, parts: PredictionParts, described: Sequence[PartDescription]) -> None:
        """Join the parts into one file, without visible boundaries between them."""

        def paths() -> Iterator[Path]:
            for part in described:
                path = parts.staging.local_path(part.name)
                if path is None:
                    path = scratch / part.name
                    parts.staging.fetch(part.name, path)
                yield path
                # Immediately, so that the disk does not need room for everything twice.
                path.unlink()

        with self.place.scratch() as scratch, output_errors(self.output):
            joined = scratch / "joined"
            format_module(parts.file_format).join(paths(), joined)
            self.place.publish(joined, self.name)


def target_of(output: str) -> Target:
    """Return the target for an output path or address; the output need not exist."""
    file_format = next((each for each in _FORMATS if output.lower().endswith(f".{each}")), None)
    path = local_path_of(output)
    if path is not None:
        path = path.resolve()
        parent, name = str(path.parent), path.name
        in_place = path.is_dir() and (
            path.is_mount() or not os.access(path.parent, os.W_OK | os.X_OK)
        )
    else:
        parent, _, name = output.rstrip("/").rpartition("/")
        # A bucket has no parent folder.
        in_place = parent.endswith(("/", ":"))
    in_place = in_place and file_format is None
    if in_place:
        parent, name = output, "predictions"
    staging = temporary_path(Path(name)).name
    return Target(output, OutputFolder(parent), name, staging, file_format, in_place)


def _sidecar(part: PartDescription) -> str:
    return f"{part.name.split('.')[0]}.json"


def _manifest(parts: PredictionParts, described: Sequence[PartDescription]) -> bytes:
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

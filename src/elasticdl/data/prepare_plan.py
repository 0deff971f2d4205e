"""Plan of a data preparation: divides input files into parts and finds parts that are up to date.

    input files --shuffled, cut--> parts --digest in the manifest?--> yes: kept, no: made again

A part's digest covers everything its bytes depend on except the user's code: finished parts are
kept while the user corrects that code. `prepare_part.py` makes the parts.

The manifest is a hidden folder in the output with one small file for each finished part, so that a
file is written only once and as a whole, even on an object store.

Callers: `prepare.py`, `prepare_part.py`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.record_source import RecordFile
from elasticdl.data.stored_file import filesystem, local_path

if TYPE_CHECKING:
    from elasticdl.data.recordio import Compressor

MANIFEST = ".prepare"
"""Name of the manifest's folder."""

_MIN_PARTS = 16
# Record files, and files left behind by a process that was killed while writing one.
_OURS = re.compile(r"\.?part-\d{5}-of-\d{5}(-\d{3})?\.recordio")
# Increased when parts are made differently, so that existing ones are made again.
_FORMAT = 1


@dataclass(frozen=True)
class Input:
    """An input file of a preparation.

    Attributes:
        uri: URI of the file.
        version: Changes when the file does: its size and its time, or an object store's tag.
    """

    uri: str
    version: str


@dataclass(frozen=True)
class Settings:
    """Settings of a preparation that affect the content of its record files.

    Attributes:
        schema_json: The data schema.
        model: The zoo and the name of the model file with the user's function, as the user wrote
            them. They identify the file, whatever its content.
        records_per_file: Maximum number of records in a file.
        shuffle: Whether files, and records within a part, are put in random order.
        seed: Determines that order.
        compressor: Compressor of the record files.
    """

    schema_json: str
    model: str
    records_per_file: int
    shuffle: bool
    seed: int
    compressor: Compressor


@dataclass(frozen=True)
class PlanPart:
    """A part of the input files, prepared by one process.

    Attributes:
        index: Its number, from 0.
        name: Prefix of its files' names: `NAME.recordio`, or `NAME-000.recordio` and so on if there
            are several files.
        inputs: The files, in order.
        digest: Hash of everything that the part's bytes depend on, except the user's code.
    """

    index: int
    name: str
    inputs: tuple[Input, ...]
    digest: str


@dataclass(frozen=True)
class PlanEntry:
    """Entry of the manifest for a finished part.

    Attributes:
        digest: The part's digest when it was made.
        code: Hash of the files with the user's code when it was made.
        files: Its files, named relative to the output, and the number of records in each.
    """

    digest: str
    code: str
    files: tuple[RecordFile, ...]


def plan_parts(inputs: Sequence[Input], settings: Settings) -> list[PlanPart]:
    """Divide some input files into parts.

    Two limits determine the size of a part. There are about `_MIN_PARTS` parts or more, so that
    many processes have work. A part has at most `records_per_file` input files: most input files
    give one record each, and such a part then gives one record file. The same inputs and settings
    give the same parts.

    Args:
        inputs: The files, sorted.
        settings: How they are prepared.
    """
    order = np.arange(len(inputs))
    if settings.shuffle:
        order = np.random.default_rng(settings.seed).permutation(order)
    size = min(settings.records_per_file, math.ceil(len(inputs) / _MIN_PARTS))
    num_parts = math.ceil(len(inputs) / size)
    parts = []
    for index in range(num_parts):
        chosen = tuple(inputs[i] for i in order[index * size : (index + 1) * size])
        text = json.dumps(
            [_FORMAT, index, num_parts, dataclasses.astuple(settings)]
            + [[file.uri, file.version] for file in chosen]
        )
        name = f"part-{index:05}-of-{num_parts:05}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        parts.append(PlanPart(index, name, chosen, digest))
    return parts


class PlanOutput:
    """The output folder of a preparation, local or remote: lists, reads, writes and removes files.

    Args:
        uri: A path or an fsspec URI.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/") or uri
        self._system, self._path = filesystem(self.uri)
        self.is_local = local_path(self.uri) is not None

    def where(self, name: str) -> str:
        """Return the URI of a file in the folder."""
        return f"{self.uri}/{name}"

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of everything in the folder, or in one of its subfolders."""
        path = f"{self._path}/{folder}".rstrip("/")
        if not self._system.isdir(path):
            return []
        found: list[str] = self._system.ls(path, detail=False, refresh=True)
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def make_folder(self, name: str = "") -> None:
        """Create the folder, or a subfolder of it, unless it exists.

        Raises:
            OSError: It cannot be created.
        """
        self._system.makedirs(f"{self._path}/{name}".rstrip("/"), exist_ok=True)

    def size_bytes(self, name: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        try:
            return int(self._system.size(f"{self._path}/{name}"))
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: The file does not exist.
        """
        data: bytes = self._system.cat_file(f"{self._path}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file completely or not at all.

        Raises:
            OutputError: It cannot be written.
        """
        file = AtomicFile(self.where(name))
        file.write(data)
        file.publish()

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        path = f"{self._path}/{name}"
        if self._system.exists(path):
            self._system.rm_file(path)


def entry_name(part: PlanPart) -> str:
    """Return the name of a part's entry in the manifest."""
    return f"{MANIFEST}/{part.name}.json"


def write_entry(output: PlanOutput, part: PlanPart, entry: PlanEntry) -> None:
    """Add a finished part to the manifest, or replace its entry.

    Args:
        output: The output folder, which contains the part's files.
        part: The part.
        entry: The entry to write; the sizes of the files are added to it.

    Raises:
        OutputError: The output cannot be written.
    """
    sizes = {file.uri: output.size_bytes(file.uri) for file in entry.files}
    value = {
        "digest": entry.digest,
        "code": entry.code,
        "files": [[file.uri, file.num_records, sizes[file.uri]] for file in entry.files],
    }
    output.write(entry_name(part), json.dumps(value).encode())


def read_entry(output: PlanOutput, part: PlanPart) -> PlanEntry | None:
    """Return the manifest entry of a part, unless the part has to be made again.

    Returns None if the part is not finished, depends on other inputs or settings than now, or one
    of its files is missing or has another size.
    """
    try:
        value: Any = json.loads(output.read(entry_name(part)))
        if value["digest"] != part.digest:
            return None
        for name, _, size_bytes in value["files"]:
            if output.size_bytes(name) != size_bytes:
                return None
        files = tuple(RecordFile(name, num_records) for name, num_records, _ in value["files"])
        return PlanEntry(value["digest"], value["code"], files)
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        # Whatever is wrong with the entry, making the part again repairs it.
        return None


def leftovers(
    output: PlanOutput, parts: Sequence[PlanPart], kept: Sequence[PlanEntry]
) -> Iterator[str]:
    """Find files of earlier runs in the output that the new plan does not use.

    Args:
        output: The output folder.
        parts: All parts of the new plan.
        kept: Manifest entries of the parts that are up to date.

    Yields:
        Names within the folder of record files and manifest entries, for the caller to delete.
    """
    wanted = {file.uri for entry in kept for file in entry.files}
    for name in output.names():
        if _OURS.match(name) and name not in wanted:
            yield name
    entries = {entry_name(part) for part in parts}
    for name in output.names(MANIFEST):
        if name.startswith("part-") and f"{MANIFEST}/{name}" not in entries:
            yield f"{MANIFEST}/{name}"

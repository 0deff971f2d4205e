"""Which input file goes into which part of prepared data, and whether a part is up to date.

    input files --shuffled, cut--> parts --digest--> the same as in the manifest? then it is kept

A part's digest is made of everything its bytes depend on, the user's code excepted: what was
finished is kept while a function is being mended. How a part is made is not known here.

The manifest is a hidden folder in the output with one small file for each finished part, so
that a file is written once and whole, on an object store as well.

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

_LEAST_PARTS = 16
# Record files, and those that a process left behind that was killed while writing one.
_OURS = re.compile(r"\.?part-\d{5}-of-\d{5}(-\d{3})?\.recordio")
# A change in how parts are made must make them anew.
_FORMAT = 1


@dataclass(frozen=True)
class Input:
    """A file to be prepared.

    Attributes:
        uri: Where it is.
        version: Changes when the file does: its size and its time, or an object store's tag.
    """

    uri: str
    version: str


@dataclass(frozen=True)
class Settings:
    """What the bytes of all parts depend on, apart from the inputs and the user's code.

    Attributes:
        schema_json: The data schema.
        model: Which model file the user's function is in.
        records_per_file: At most so many records in a file.
        shuffle: Whether files, and records within a part, are put in random order.
        seed: Decides that order.
        compressor: Of the record files.
    """

    schema_json: str
    model: str
    records_per_file: int
    shuffle: bool
    seed: int
    compressor: Compressor


@dataclass(frozen=True)
class Part:
    """Some input files, prepared by one process.

    Attributes:
        index: Its number, from 0.
        name: How its files' names start; they go on with `.recordio`, or with a number before
            that if there are several.
        inputs: The files, in order.
        digest: What its bytes depend on.
    """

    index: int
    name: str
    inputs: tuple[Input, ...]
    digest: str


@dataclass(frozen=True)
class Entry:
    """What the manifest says of a finished part.

    Attributes:
        digest: The part's digest when it was made.
        code: Hash of the file with the user's function when it was made.
        files: Its files and how many records each has; names within the output.
    """

    digest: str
    code: str
    files: tuple[RecordFile, ...]


def plan_parts(inputs: Sequence[Input], settings: Settings) -> list[Part]:
    """Return the parts that some input files are prepared as.

    There are enough of them to keep many processes busy, however few files there are; and no
    more files in a part than records should be in a file, for most files are one record each.
    The same inputs and settings give the same parts.

    Args:
        inputs: Sorted.
        settings: How they are prepared.
    """
    order = np.arange(len(inputs))
    if settings.shuffle:
        order = np.random.default_rng(settings.seed).permutation(order)
    size = min(settings.records_per_file, math.ceil(len(inputs) / _LEAST_PARTS))
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
        parts.append(Part(index, name, chosen, digest))
    return parts


class Output:
    """The folder prepared data are written into.

    Args:
        uri: A path or an fsspec URI.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri.rstrip("/") or uri
        self._system, self._path = filesystem(self.uri)
        self.is_local = local_path(self.uri) is not None

    def where(self, name: str) -> str:
        """Return the URI of something in the folder."""
        return f"{self.uri}/{name}"

    def names(self, folder: str = "") -> list[str]:
        """Return the names of what is in the folder, or in one of its folders; sorted."""
        path = f"{self._path}/{folder}".rstrip("/")
        if not self._system.isdir(path):
            return []
        found: list[str] = self._system.ls(path, detail=False, refresh=True)
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def make_folder(self, name: str = "") -> None:
        """Make the folder, or one in it, unless it is there.

        Raises:
            OSError: It cannot be made.
        """
        self._system.makedirs(f"{self._path}/{name}".rstrip("/"), exist_ok=True)

    def size_bytes(self, name: str) -> int | None:
        """Return the size of a file, None if it is not there."""
        try:
            return int(self._system.size(f"{self._path}/{name}"))
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: There is no such file.
        """
        data: bytes = self._system.cat_file(f"{self._path}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a file, whole or not at all.

        Raises:
            OutputError: It cannot be written.
        """
        file = AtomicFile(self.where(name))
        file.write(data)
        file.publish()

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = f"{self._path}/{name}"
        if self._system.exists(path):
            self._system.rm_file(path)


def entry_name(part: Part) -> str:
    """Return the name of a part's entry in the manifest."""
    return f"{MANIFEST}/{part.name}.json"


def write_entry(output: Output, part: Part, entry: Entry) -> None:
    """Put a finished part into the manifest.

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


def read_entry(output: Output, part: Part) -> Entry | None:
    """Return a part's entry if the part is finished, up to date and still there."""
    try:
        value: Any = json.loads(output.read(entry_name(part)))
        if value["digest"] != part.digest:
            return None
        for name, _, size_bytes in value["files"]:
            if output.size_bytes(name) != size_bytes:
                return None
        files = tuple(RecordFile(name, num_records) for name, num_records, _ in value["files"])
        return Entry(value["digest"], value["code"], files)
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        # Whatever is wrong with the entry, making the part anew mends it.
        return None


def leftovers(output: Output, parts: Sequence[Part], kept: Sequence[Entry]) -> Iterator[str]:
    """Yield the files of earlier runs that are not part of what the output will be."""
    wanted = {file.uri for entry in kept for file in entry.files}
    for name in output.names():
        if _OURS.match(name) and name not in wanted:
            yield name
    entries = {entry_name(part) for part in parts}
    for name in output.names(MANIFEST):
        if name.startswith("part-") and f"{MANIFEST}/{name}" not in entries:
            yield f"{MANIFEST}/{name}"

"""Files of one checkpoint: tensors, metadata, and a manifest with their hashes.

    step-0000000200/
      tensors-HASH.safetensors   path -> tensor
      metadata-HASH.json         everything else
      manifest.json              the two names, sizes and SHA-256; the step; the format's version

`read_checkpoint` verifies sizes and hashes, so a truncated or changed checkpoint is detected.

File names contain the hash, so a checkpoint that replaces another one has files with other names.
Uploading its manifest switches from the old files to the new ones in one step, even on an object
store, which cannot rename a folder. `checkpoint_store.py` decides which checkpoints are kept.

Callers: `checkpoint_store.py`, `engines/elastic/state_transfer.py`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.artifacts.remote_storage import MANIFEST
from elasticdl.artifacts.tensors import read_tensors, write_tensors
from elasticdl.errors import CorruptCheckpointError, OutputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from elasticdl.artifacts.folder import OutputFolder

FORMAT_VERSION = 1

_TENSORS = "tensors"
_METADATA = "metadata"
_HASH_DIGITS = 16


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A run's complete state at a step: tensors and metadata.

    Attributes:
        step: Number of updates made.
        state: Path -> tensor: weights, statistics (non-trainable variables, such as the moving mean
            of BatchNorm), optimizer slots.
        metadata: Everything else that is needed to resume, as JSON values (the ledger, metric
            states, callback states, seeds). JSON changes some types: after loading, NumPy values
            are numbers and lists, and all keys are strings.
    """

    step: int
    state: Mapping[str, np.ndarray[Any, Any]]
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class _ListedFile:
    """A file listed in a manifest: its name, size and SHA-256."""

    name: str
    num_bytes: int
    sha256: str


def encode_metadata(checkpoint: Checkpoint) -> bytes:
    """Encode a checkpoint's metadata as JSON.

    Raises:
        OutputError: The metadata contain a value that JSON cannot represent.
    """
    try:
        return json.dumps(checkpoint.metadata, default=_plain).encode()
    except (TypeError, ValueError) as error:
        raise OutputError(
            f"The checkpoint of step {checkpoint.step} contains a value that JSON cannot "
            f"represent: {error}. The state of a callback must consist of numbers, strings, lists "
            "and dicts."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r:.80}")


def write_files(
    folder: Path, step: int, state: Mapping[str, np.ndarray[Any, Any]], metadata: bytes
) -> int:
    """Write a checkpoint into an empty folder; return its size in bytes.

    Args:
        folder: The folder, on this machine.
        step: The checkpoint's step.
        state: The checkpoint's tensors by path.
        metadata: The checkpoint's metadata, as `encode_metadata` returned it.

    Raises:
        OutputError: A tensor cannot be stored.
        OSError: The folder cannot be written.
    """
    write_tensors(folder / f"{_TENSORS}.safetensors", state)
    (folder / f"{_METADATA}.json").write_bytes(metadata)
    files = {}
    for path in list(folder.iterdir()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        named = path.rename(path.with_stem(f"{path.stem}-{digest[:_HASH_DIGITS]}"))
        files[path.stem] = asdict(_ListedFile(named.name, named.stat().st_size, digest))
    manifest = {"format_version": FORMAT_VERSION, "step": step, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True))
    return sum(path.stat().st_size for path in folder.iterdir())


def read_checkpoint(folder: OutputFolder, name: str, step: int) -> Checkpoint:
    """Load the checkpoint in a folder, verifying the size and hash of each file.

    Args:
        folder: The output of the job.
        name: Name of the checkpoint's folder in the output.
        step: The step that the checkpoint should have.

    Raises:
        CorruptCheckpointError: There is no such checkpoint, or its files differ from those listed
            in its manifest.
        OutputError: Another version of elasticdl wrote it, or a store does not answer.
    """
    where = folder.where(f"{name}/{MANIFEST}")
    try:
        manifest = json.loads(_read(folder, f"{name}/{MANIFEST}"))
        version = manifest["format_version"]
        if version == FORMAT_VERSION:
            _check_step(manifest["step"], step)
            tensors = _ListedFile(**manifest["files"][_TENSORS])
            metadata = _ListedFile(**manifest["files"][_METADATA])
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpointError(
            f"{where}: not the manifest of the checkpoint of step {step}."
        ) from error
    if version != FORMAT_VERSION:
        raise OutputError(
            f"{where}: format version {version}; this version of elasticdl reads {FORMAT_VERSION}. "
            "Resume with the version that wrote it, or use another --output."
        )
    data = _read_verified(folder, name, tensors)
    try:
        state = read_tensors(data, folder.where(f"{name}/{tensors.name}"))
    except OutputError as error:
        raise CorruptCheckpointError(str(error)) from error
    return Checkpoint(step, state, json.loads(_read_verified(folder, name, metadata)))


def _check_step(found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"step {found}")


def _read_verified(folder: OutputFolder, name: str, listed: _ListedFile) -> bytes:
    path = f"{name}/{listed.name}"
    data = _read(folder, path)
    found = hashlib.sha256(data).hexdigest()
    if (len(data), found) != (listed.num_bytes, listed.sha256):
        raise CorruptCheckpointError(
            f"{folder.where(path)}: expected {listed.num_bytes} bytes with SHA-256 "
            f"{listed.sha256:.12}..., found {len(data)} bytes with {found:.12}...."
        )
    return data


def _read(folder: OutputFolder, path: str) -> bytes:
    try:
        return folder.read_bytes(path)
    except OutputError as error:
        # A store that does not answer does not mean a damaged checkpoint: skipping the newest would
        # discard its steps.
        if folder.is_local or not folder.exists(path):
            raise CorruptCheckpointError(str(error)) from error
        raise

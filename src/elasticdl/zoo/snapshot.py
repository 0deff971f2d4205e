"""Snapshot of a zoo's code, for the folder of a trained model.

Sources and small files are copied. Not copied, because they are not user code: hidden folders,
caches, virtual environments, logs, outputs of jobs, and links out of the zoo. Not copied, because
users share trained models: private keys, key stores, and data that the model's code does not read.
Files that are too large to be code are left out and listed, so that the user notices.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.zoo import specs
from elasticdl.zoo.code_files import own_files
from elasticdl.zoo.folder import may_hold_code

if TYPE_CHECKING:
    from elasticdl.job import ModelReference
    from elasticdl.zoo.folder import Zoo

MAX_FILE_BYTES = 2**20
MAX_TOTAL_BYTES = 32 * 2**20
MAX_FILES = 20_000

_SOURCES = frozenset(
    {".py", ".pyi", ".txt", ".toml", ".cfg", ".ini", ".yaml", ".yml", ".json", ".md"}
)
# Formats of data. The code of a model may read some, such as a vocabulary.
_DATA = frozenset(
    {
        *(".csv", ".tsv", ".parquet", ".arrow", ".feather", ".jsonl", ".xlsx", ".db", ".sqlite"),
        *(".recordio", ".tfrecord", ".tfrecords", ".npy", ".npz", ".ipynb", ".html"),
        *(".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".gz", ".zip"),
    }
)
# A log may be that of the job itself, and grow.
_NOT_BY_USERS = (".pyc", ".pyo", ".log")
_KEYS = (".pem", ".key", ".p12", ".pfx", ".jks", ".keystore", ".kdbx", ".ppk")
# Private keys of SSH and of cloud accounts, by their usual names.
_KEY_NAMES = frozenset({"id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials.json"})


def copy_model(model: ModelReference, zoo: Zoo, destination: Path) -> list[str]:
    """Copy everything that a model consists of: a zoo's code, and the files that a spec names.

    Args:
        model: The reference to the model.
        zoo: The model's zoo.
        destination: Target folder.

    Returns:
        Files left out because they are too large or too many: paths relative to the zoo, sorted.

    Raises:
        DefinitionError: A spec names a missing file.
        OSError: A file cannot be read or written.
    """
    if not specs.is_spec(model.model_def):
        # The config of a session: runs are beside each other, each with its config and its output.
        is_session = model.dialect == "abstractions" and model.config_file is not None
        runs = Path(str(model.config_file)).parent.parent if is_session else None
        return copy_zoo(zoo.folder, destination, without=runs, model=None if is_session else model)
    left_out: list[str] = []
    if model.overrides or specs.open_spec(zoo, model.model_def).custom_objects:
        # Code may import files beside it. A spec without code may be beside unrelated files.
        left_out = copy_zoo(zoo.folder, destination)
    specs.copy_spec(zoo, model.model_def, destination)
    return left_out


def copy_zoo(
    zoo: Path,
    destination: Path,
    *,
    without: Path | None = None,
    model: ModelReference | None = None,
) -> list[str]:
    """Copy a zoo's code.

    Args:
        zoo: Folder of the zoo.
        destination: Target folder, created if it does not exist; may be inside the zoo.
        without: A folder to leave out, because it has no user code; need not be in the zoo.
        model: Copy only those data files that this model's code may read. None: copy all.

    Returns:
        Files left out because they are too large or too many: paths relative to the zoo, sorted.

    Raises:
        OSError: A file cannot be read or written.
    """
    left_out = []
    chosen = []
    no_code = {destination.resolve()} | ({without.resolve()} if without else set())
    files = list(itertools.islice(_files(zoo.resolve(), no_code), MAX_FILES + 1))
    paths = {zoo / path for path, _ in files}
    own = paths if model is None else own_files(model, zoo, paths, with_folders=True)
    for number, (path, size) in enumerate(files):
        if number >= MAX_FILES:
            left_out.append(f"all but the first {MAX_FILES} files")
            break
        if Path(path).suffix.lower() in _DATA and zoo / path not in own:
            continue
        if size > MAX_FILE_BYTES:
            left_out.append(path)
        else:
            chosen.append((Path(path).suffix not in _SOURCES, path, size))
    total = 0
    # Sources first: other files must not use up the space for code.
    for _, path, size in sorted(chosen):
        total += size
        if total > MAX_TOTAL_BYTES:
            left_out.append(path)
            continue
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(zoo / path, target)
    destination.mkdir(parents=True, exist_ok=True)
    return sorted(left_out)


def _files(root: Path, no_code: Collection[Path]) -> Iterator[tuple[str, int]]:
    """Yield (path relative to `root`, size) of files that may be copied, those near the root first.

    Args:
        root: Folder of the zoo.
        no_code: Folders to skip.
    """
    folders = [root]
    while folders:
        inner = []
        for folder in folders:
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                path = Path(entry.path)
                if entry.name.startswith(".") or not path.resolve().is_relative_to(root):
                    continue
                if entry.is_dir():
                    if not entry.is_symlink() and path not in no_code and may_hold_code(path):
                        inner.append(path)
                elif entry.is_file() and _may_be_code(entry.name):
                    yield str(path.relative_to(root)), entry.stat().st_size
        folders = inner


def _may_be_code(name: str) -> bool:
    return name not in _KEY_NAMES and not name.lower().endswith((*_NOT_BY_USERS, *_KEYS))

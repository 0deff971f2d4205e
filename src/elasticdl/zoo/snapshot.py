"""A copy of a zoo's code as it was, for the folder of a trained model.

What is copied: sources and small files. What is not: hidden folders, caches, virtual
environments, trained models, links out of the zoo; these are nobody's code. What is too large
to be code is left out and named, so that a person can tell.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.zoo import specs

if TYPE_CHECKING:
    from elasticdl.job import ModelReference
    from elasticdl.zoo.folder import Zoo

MAX_FILE_BYTES = 2**20
MAX_TOTAL_BYTES = 32 * 2**20
MAX_FILES = 20_000

_SOURCES = frozenset(
    {".py", ".pyi", ".txt", ".toml", ".cfg", ".ini", ".yaml", ".yml", ".json", ".md"}
)
_NO_CODE = frozenset({"__pycache__", "__pypackages__", "node_modules", "site-packages"})
# What stands in a folder tells what it is.
_MARKS = ("pyvenv.cfg", "trained_model.pb")


def copy_model(model: ModelReference, zoo: Zoo, destination: Path) -> list[str]:
    """Copy all that a model is made of: a zoo's code, and the files that a spec names.

    Returns:
        As `copy_zoo`.

    Raises:
        DefinitionError: A spec names a file that is not there.
        OSError: A file cannot be read or written.
    """
    if not specs.is_spec(model.model_def):
        # Of a session: runs lie beside each other, each with its config and all that it writes.
        is_session = model.dialect == "abstractions" and model.config_file is not None
        runs = Path(str(model.config_file)).parent.parent if is_session else None
        return copy_zoo(zoo.folder, destination, without=runs)
    left_out: list[str] = []
    if model.overrides or specs.open_spec(zoo, model.model_def).custom_objects:
        # Code imports its neighbours. A spec without any may lie beside anything.
        left_out = copy_zoo(zoo.folder, destination)
    specs.copy_spec(zoo, model.model_def, destination)
    return left_out


def copy_zoo(zoo: Path, destination: Path, *, without: Path | None = None) -> list[str]:
    """Copy a zoo's code.

    Args:
        zoo: Its folder.
        destination: A folder, made if it is not there; it may lie inside of the zoo.
        without: A folder whose files are nobody's code; it need not lie in the zoo.

    Returns:
        What was left out because of its size: paths relative to the zoo, sorted.

    Raises:
        OSError: A file cannot be read or written.
    """
    left_out = []
    chosen = []
    no_code = {destination.resolve()} | ({without.resolve()} if without else set())
    files = _files(zoo.resolve(), no_code)
    for number, (path, size) in enumerate(files):
        if number >= MAX_FILES:
            left_out.append(f"all but the first {MAX_FILES} files")
            break
        if size > MAX_FILE_BYTES:
            left_out.append(path)
        else:
            chosen.append((Path(path).suffix not in _SOURCES, path, size))
    total = 0
    # Sources first: whatever else there is, it must not push code out.
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
    """Yield path and size of what may be code, folders near the root first."""
    folders = [root]
    while folders:
        inner = []
        for folder in folders:
            for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
                path = Path(entry.path)
                if entry.name.startswith(".") or not path.resolve().is_relative_to(root):
                    continue
                if entry.is_dir():
                    if not entry.is_symlink() and _may_hold_code(path, no_code):
                        inner.append(path)
                elif entry.is_file() and not entry.name.endswith((".pyc", ".pyo")):
                    yield str(path.relative_to(root)), entry.stat().st_size
        folders = inner


def _may_hold_code(folder: Path, no_code: Collection[Path]) -> bool:
    return (
        folder.name not in _NO_CODE
        and not folder.name.endswith(".egg-info")
        and folder not in no_code
        and not any((folder / mark).exists() for mark in _MARKS)
    )

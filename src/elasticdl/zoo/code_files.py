"""Finds the files of a zoo that belong to one model, without importing anything.

A folder may hold several models, scripts and data. A model's own files are:

    the file that its `model_def` names
    files that one of its own files imports
    files that one of its own files may read: their name is in a string of the code
    files whose name is a value of its params

They are copied into a trained model, and their hashes are stored in its checkpoints, so that a
later run notices that the code has changed. Files are found by their name alone, so a file of the
same name in another folder counts too.

Callers: `engines/publish.py`, `snapshot.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.dialects.source_lines import file_names_read, names_imported
from elasticdl.errors import UsageError
from elasticdl.zoo import specs
from elasticdl.zoo.folder import Zoo, find

if TYPE_CHECKING:
    from elasticdl.job import ModelReference


def code_files(model: ModelReference, copy: Path) -> dict[str, str]:
    """Compute the hashes of a model's own files, by which a changed file is noticed later.

    If the model is a spec (a YAML file), all files in the folder count as its own.

    Args:
        model: The reference to the model.
        copy: The folder to which `copy_model` copied the code.

    Returns:
        Path relative to the folder -> SHA-256 of the file.
    """
    files = {path: str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    own = files if specs.is_spec(model.model_def) else own_files(model, copy, files)
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path, name in sorted(files.items())
        if path in own
    }


def own_files(
    model: ModelReference, folder: Path, files: Collection[Path], *, with_folders: bool = False
) -> set[Path]:
    """Return those of the files in a zoo that are a model's own.

    Args:
        model: The reference to the model, which is not a spec.
        folder: The folder of the zoo, or a copy of it.
        files: The files to choose from, in this folder.
        with_folders: Whether a string in the code that is the name of a folder, such as "data",
            makes all files of the folder the model's own. A copy of the code includes them, because
            the code may read them. A comparison of the code leaves them out, because the string may
            mean something else.
    """
    roots = []
    for dotted in (model.model_def, *model.overrides.values()):
        # An override may come from an installed package.
        with contextlib.suppress(UsageError):
            roots.append(find(Zoo("", folder), dotted))
    pending = [place.file for place in roots]
    packages = {part for place in roots for part in place.module.split(".")[:-1]}
    own = set(pending)
    in_params = {str(value).rpartition("/")[2] for value in model.params.values()}
    own |= {path for path in files if path.name in in_params}
    while pending:
        file = pending.pop()
        modules, is_read = names_imported(file) | packages, file_names_read(file)
        found = {
            path
            for path in set(files) - own
            if _module(path) in modules
            or any(map(is_read, path.relative_to(folder).parts[0 if with_folders else -1 :]))
        }
        own |= found
        pending += found
    return own & set(files)


def _module(path: Path) -> str | None:
    if path.suffix != ".py":
        return None
    return path.parent.name if path.stem == "__init__" else path.stem

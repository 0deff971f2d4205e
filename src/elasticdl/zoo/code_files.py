"""Finds the files of a zoo that belong to one model, without importing anything.

A folder may hold several models, scripts and data. A model's own files are the file in its
`model_def`, the files that the code of its own files imports, and those whose name is a string, or
the last part of a path, in that code. Only names are compared, so a file of the same name in
another folder counts too.

Callers: `engines/publish.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.dialects.source_lines import file_names_in_texts, names_imported
from elasticdl.errors import UsageError
from elasticdl.zoo import specs
from elasticdl.zoo.folder import Zoo, find

if TYPE_CHECKING:
    from elasticdl.job import ModelReference


def code_files(model: ModelReference, copy: Path) -> dict[str, str]:
    """Return the model's own files, as paths relative to a copy of its zoo, with their SHA-256.

    Args:
        model: The reference to the model.
        copy: The folder that `copy_model` wrote. If the model is a spec (a YAML file), all files in
            the folder count as the model's own.
    """
    files = {path: str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    own = files if specs.is_spec(model.model_def) else set(_used(model, copy, files))
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path, name in sorted(files.items())
        if path in own
    }


def _used(model: ModelReference, copy: Path, files: Mapping[Path, str]) -> Iterator[Path]:
    roots = []
    for dotted in (model.model_def, *model.overrides.values()):
        # An override may come from an installed package.
        with contextlib.suppress(UsageError):
            roots.append(find(Zoo("", copy), dotted))
    pending = [place.file for place in roots]
    packages = {part for place in roots for part in place.module.split(".")[:-1]}
    unused = set(files) - set(pending)
    while pending:
        file = pending.pop()
        yield file
        modules, others = names_imported(file) | packages, file_names_in_texts(file)
        found = {path for path in unused if path.name in others or _module(path) in modules}
        unused -= found
        pending += found


def _module(path: Path) -> str | None:
    if path.suffix != ".py":
        return None
    return path.parent.name if path.stem == "__init__" else path.stem

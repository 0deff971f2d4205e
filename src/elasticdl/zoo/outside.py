"""Finds the user's modules that a model imports from outside its zoo.

A trained model has a copy of the zoo. A module beside the user's script, or in a folder of
PYTHONPATH, is importable during training, but not by another process that loads the trained model:
only the copy of the zoo's folder is on its `sys.path`. Nothing is imported to find such modules.
The imports of a model file and its own files are searched; specs and overrides are not.

Caller: `zoo/__init__.py`, which exports it for the publication of trained models.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.metadata
import importlib.util
import site
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.dialects.source_lines import calls_of, modules_imported
from elasticdl.tracebacks import is_of_the_user, shown_path
from elasticdl.zoo import specs
from elasticdl.zoo.code_files import own_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from elasticdl.job import ModelReference
    from elasticdl.zoo.folder import Zoo


def outside_notes(model: ModelReference, zoo: Zoo, copy: Path) -> list[str]:
    """Return notes on the modules of the user that the trained model will lack.

    Args:
        model: The reference to the model; a spec has no notes.
        zoo: The model's zoo.
        copy: The folder to which `copy_model` copied the code.
    """
    if zoo.is_prebuilt or specs.is_spec(model.model_def):
        return []
    files = [path for path in copy.rglob("*.py") if path.is_file()]
    own = own_files(model, copy, files)
    folder, installed = zoo.folder.resolve(), functools.cache(_installed)
    place_of = functools.cache(lambda top: _place(top, copy, folder, installed))
    pending = [(path, zoo.folder / path.relative_to(copy), "") for path in sorted(own)]
    seen: set[str] = set()
    of_zoo: dict[str, str] = {}
    outside: dict[Path, tuple[Path, str]] = {}
    while pending:
        read, importer, package = pending.pop(0)
        for name in sorted(modules_imported(read, package) - seen):
            seen.add(name)
            top, *parts = name.split(".")
            if (place := place_of(top)) is None:
                continue
            if note := _zoo_note(name, place, folder):
                if folder.is_relative_to(place) or not _changes_path(own):
                    of_zoo.setdefault(top, f"{shown_path(importer)} imports {note}")
                continue
            found = list(_files(place, top, parts))
            # A package that contains the zoo cannot be copied into it.
            named = found[-1][0] if found and folder.is_relative_to(place) else place
            outside.setdefault(named, (importer, top))
            pending += [(path, path, inner) for path, inner in found]
    return [*of_zoo.values(), *_outside_note(outside)]


def _zoo_note(name: str, place: Path, folder: Path) -> str:
    """Return the end of a note on a zoo module imported by a name other than its path in the zoo.

    Args:
        name: The dotted name of the module.
        place: File or folder of its first part.
        folder: Folder of the zoo.

    Returns:
        The note, which starts with the name; "" if the module is not in the zoo.
    """
    top = name.partition(".")[0]
    if folder.is_relative_to(place):
        prefix = ".".join([top, *folder.relative_to(place).parts])
        if not f"{name}.".startswith(f"{prefix}."):
            return ""
        return (
            f"{prefix!r}, which is the folder of the zoo itself: the trained model will lack a "
            "module of this name and cannot be loaded elsewhere. Import the files of the zoo "
            f"without {prefix!r}: `import x` in place of `import {prefix}.x`."
        )
    if not place.is_relative_to(folder):
        return ""
    inside = ".".join(place.relative_to(folder).with_suffix("").parts)
    return (
        f"{top!r}, which is {place.relative_to(folder)} in the zoo: the trained model cannot be "
        f"loaded elsewhere (No module named {top!r}). Import it as `{inside}` in all files."
    )


def _outside_note(outside: dict[Path, tuple[Path, str]]) -> Iterator[str]:
    """Yield one note on modules outside the zoo, if any; `outside`: place -> (importer, name)."""
    if not outside:
        return
    named = [
        f"{shown_path(place)}, which {shown_path(importer)} imports,"
        for place, (importer, _) in outside.items()
    ]
    are, them, packages = (
        ("is", "it", "a package") if len(named) == 1 else ("are", "them", "packages")
    )
    missing = next(iter(outside.values()))[1]
    yield (
        f"{' and '.join(named)} {are} outside the zoo and will not be in the trained model, which "
        f"cannot be loaded elsewhere (No module named {missing!r}). Copy {them} into the zoo, or "
        f"install {them} as {packages}."
    )


def _place(
    name: str,
    copy: Path,
    zoo: Path,
    installed: Callable[[], tuple[Collection[str], Collection[Path]]],
) -> Path | None:
    """Return the file or folder of a top-level module of the user; None for any other module.

    Args:
        name: Name of the module.
        copy: The copy of the zoo; the result is None for a module that is a file or folder in it.
        zoo: Folder of the zoo.
        installed: The function `_installed`.
    """
    if name in {"", "__main__", *sys.stdlib_module_names}:
        return None
    if (copy / name).is_dir() or (copy / f"{name}.py").is_file():
        return None
    spec = None
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    found = folders[0] if folders else spec.origin if spec.has_location else None
    if found is None or not is_of_the_user(str(Path(spec.origin or found))):
        return None
    place = Path(found).resolve()
    # A file of the zoo that was too large to copy has a note of its own.
    if place.with_suffix("") == zoo / name:
        return None
    names, editable = installed()
    return None if name in names or Path(found).parent.resolve() in editable else place


def _files(place: Path, top: str, parts: list[str]) -> Iterator[tuple[Path, str]]:
    """Yield the files that importing a module executes, each with the package that it is in.

    Args:
        place: File or folder of the first part of the module's name.
        top: The first part.
        parts: The other parts; the last may be a name in the file.
    """
    if place.is_file():
        yield place, ""
        return
    for number in range(len(parts) + 1):
        folder, package = place.joinpath(*parts[:number]), [top, *parts[:number]]
        if (folder / "__init__.py").is_file():
            yield folder / "__init__.py", ".".join(package)
        elif number and (file := folder.with_name(f"{folder.name}.py")).is_file():
            yield file, ".".join(package[:-1])


def _installed() -> tuple[frozenset[str], frozenset[Path]]:
    """Return the modules of installed packages, and the folders of those by `pip install -e`."""
    # The files of an editable package are elsewhere; often only a `.pth` file names their folder.
    folders = set()
    for place in {*site.getsitepackages(), site.getusersitepackages()}:
        for path in Path(place).glob("*.pth"):
            with contextlib.suppress(OSError, ValueError):
                lines = path.read_text(encoding="utf-8").splitlines()
                folders |= {
                    Path(place, line.rstrip()).resolve()
                    for line in lines
                    if line.strip() and not line.startswith(("import ", "#"))
                }
    return frozenset(importlib.metadata.packages_distributions()), frozenset(folders)


def _changes_path(files: Collection[Path]) -> bool:
    """Return whether one of these files adds a folder to `sys.path`, as it will when loaded."""
    calls = [
        call
        for file in files
        for method in ("append", "insert", "extend")
        for call in calls_of(file, method)
    ]
    return any(ast.unparse(call.func).startswith("sys.path.") for call in calls)

"""Finds the user's modules that a model imports from outside its zoo.

A trained model has a copy of the zoo. A module beside the user's script, or in a folder of
PYTHONPATH, is importable during training, but not by another process that loads the trained model.
Nothing is imported to find such modules.

Caller: `zoo/__init__.py`, which exports it for the publication of trained models.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.dialects.source_lines import modules_imported
from elasticdl.tracebacks import is_of_the_user, shown_path
from elasticdl.zoo import specs
from elasticdl.zoo.code_files import own_files

if TYPE_CHECKING:
    from elasticdl.job import ModelReference
    from elasticdl.zoo.folder import Zoo


def outside_notes(model: ModelReference, zoo: Zoo, copy: Path) -> list[str]:
    """Return a note for each module of the user that the trained model will lack.

    Args:
        model: The reference to the model; a spec has no notes.
        zoo: The model's zoo.
        copy: The folder to which `copy_model` copied the code.
    """
    if zoo.is_prebuilt or specs.is_spec(model.model_def):
        return []
    files = [path for path in copy.rglob("*.py") if path.is_file()]
    own = own_files(model, copy, files)
    pending = [(path, zoo.folder / path.relative_to(copy)) for path in sorted(own)]
    seen: set[str] = set()
    notes = []
    while pending:
        read, importer = pending.pop(0)
        for name in sorted(modules_imported(read) - seen - sys.stdlib_module_names):
            seen.add(name)
            place = _place(name, zoo.folder)
            if place == zoo.folder:
                notes.append(
                    f"{shown_path(importer)} imports {name!r}, which is the folder of the zoo "
                    f"itself: the trained model will lack a module of this name and cannot be "
                    f"loaded. Import the files of the zoo without {name!r}: `import x` in place of "
                    f"`import {name}.x`."
                )
            elif place is not None:
                notes.append(
                    f"{shown_path(place)}, which {shown_path(importer)} imports, is outside the "
                    f"zoo and will not be in the trained model: loading it elsewhere will fail "
                    f"with No module named {name!r}. Copy it into the zoo, or install it as a "
                    "package."
                )
                inner = [place] if place.is_file() else sorted(place.glob("*.py"))
                pending += [(path, path) for path in inner]
    return notes


def _place(name: str, zoo: Path) -> Path | None:
    """Return the file or folder of a top-level module of the user; None for any other module.

    Args:
        name: Name of the module.
        zoo: Folder of the zoo; the result is None for a module that is a file or folder in it.
    """
    if name in {"", "__main__"} or (zoo / name).is_dir() or (zoo / f"{name}.py").is_file():
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
    if place != zoo and place.is_relative_to(zoo):
        return None
    return None if _is_installed(name, Path(found).parent) else place


def _is_installed(name: str, folder: Path) -> bool:
    """Return whether a module belongs to an installed package, such as by `pip install -e`.

    Args:
        name: Name of the module.
        folder: The folder on `sys.path` that has the module.
    """
    # The files of an editable package are elsewhere; often only a `.pth` file names their folder.
    for installed in {sysconfig.get_path(key) for key in ("purelib", "platlib")}:
        for path in Path(installed).glob("*.pth"):
            with contextlib.suppress(OSError, ValueError):
                if str(folder) in path.read_text(encoding="utf-8").splitlines():
                    return True
    return name in importlib.metadata.packages_distributions()

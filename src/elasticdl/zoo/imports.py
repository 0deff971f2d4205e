"""Imports the files of a zoo: a fresh import each time, and one zoo at a time.

The zoo's folder is first on `sys.path`, like a script's own folder, so that its files import each
other as they do on the user's machine. Files are imported again for each definition: a run depends
on the current files, not on what ran before in the process. Two zoos may have files of the same
name, so only the newest zoo is on `sys.path`. A function of an older zoo that contains an import
may therefore fail when it is called. Modules of the prebuilt zoo keep their full names and need no
`sys.path`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from elasticdl.dialects.source_lines import shown_path
from elasticdl.errors import (
    ElasticDLError,
    UsageError,
    UserCodeError,
    missing_framework,
    users_traceback,
)
from elasticdl.training import generators
from elasticdl.training.create import quiet_frameworks

if TYPE_CHECKING:
    from elasticdl.zoo.folder import Zoo, ZooLocation

_PREBUILT_PACKAGE = "elasticdl.zoo.prebuilt."
_INSTALLED = tuple(
    sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")
)
_on_path: list[str] = []


def forget(zoo: Zoo) -> None:
    """Unload a zoo's modules, so that the next imports run its files again.

    Unload the zoo's modules, and other modules that would be mistaken for its files. In `sys.path`,
    replace the folder of the previous zoo by this zoo's folder.
    """
    for folder in _on_path:
        if folder in sys.path:
            sys.path.remove(folder)
    _on_path.clear()
    if not zoo.is_prebuilt:
        sys.path.insert(0, str(zoo.folder))
        _on_path.append(str(zoo.folder))
    importlib.invalidate_caches()
    # Thousands of modules may be loaded: only the few that share a name are inspected closely.
    top_names = {_PREBUILT_PACKAGE.partition(".")[0]} if zoo.is_prebuilt else _top_names(zoo)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in top_names and (
            _is_of(zoo, name, module) or _shadows(zoo, name, module)
        ):
            del sys.modules[name]
            _forget_in_package(name, module)


def _forget_in_package(name: str, module: object) -> None:
    """Remove an unloaded module from its package, so that `from package import` reloads it."""
    package, _, last = name.rpartition(".")
    parent = sys.modules.get(package)
    if parent is not None and vars(parent).get(last) is module:
        delattr(parent, last)


def import_file(zoo: Zoo, place: ZooLocation) -> ModuleType:
    """Import a file of the zoo unless it is loaded; to reload it, call `forget` first.

    Raises:
        UserCodeError: The file raised; the message has the user's part of the traceback.
        MissingExtraError: The file imports a framework that is not installed.
        UsageError: Python finds another module under the file's name.
    """
    # Before a file can execute `from random import random`.
    generators.install()
    quiet_frameworks()
    name = _PREBUILT_PACKAGE + place.module if zoo.is_prebuilt else place.module
    known = sys.modules.get(name)
    if known is None:
        with _naming_errors_of(place.file, zoo), _without_bytecode():
            # Not importlib.import_module: its frame would appear in the user's traceback.
            __import__(name)
            known = sys.modules[name]
    found = getattr(known, "__file__", None)
    if found is None or not _same_file(Path(found), place.file):
        raise UsageError(
            f"{shown_path(place.file)} cannot be imported: for the name {name!r}, Python finds "
            f"{found or 'a built-in module'}. Rename the file, or the folder of the same name."
        )
    return known


def is_of(zoo: Zoo, module: ModuleType) -> bool:
    """Return whether a module is a file of the zoo."""
    return _is_of(zoo, module.__name__, module)


def _top_names(zoo: Zoo) -> set[str]:
    """Return the top-level names under which files of the zoo are imported."""
    return {path.name.removesuffix(".py") for path in zoo.folder.iterdir()}


def _is_of(zoo: Zoo, name: str, module: object) -> bool:
    if zoo.is_prebuilt:
        return name.startswith(_PREBUILT_PACKAGE)
    if name.partition(".")[0] == "elasticdl":
        return False
    # The name must match the path: a library installed somewhere below the zoo is not the zoo's.
    expected = zoo.folder.joinpath(*name.split("."))
    candidates = (expected.with_suffix(".py"), expected / "__init__.py", expected)
    return any(Path(found) in candidates for found in _locations(module))


def _shadows(zoo: Zoo, name: str, module: object) -> bool:
    """Return whether a loaded module would be mistaken for a file of this zoo, so must be unloaded.

    Args:
        zoo: The zoo.
        name: Name under which the module is imported.
        module: The module. The result is False for modules of Python's standard library and of
            installed packages, which are never unloaded.
    """
    top = name.partition(".")[0]
    if zoo.is_prebuilt or top in {"elasticdl", "__main__"} or top in sys.stdlib_module_names:
        return False
    # Libraries stay: too many modules have imported them. `import_file` rejects files that they
    # hide.
    locations = _locations(module)
    return bool(locations) and not any(found.startswith(_INSTALLED) for found in locations)


def _locations(module: object) -> list[str]:
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        return [file]
    try:
        return [str(path) for path in getattr(module, "__path__", ())]
    except Exception:  # noqa: BLE001 - a namespace package looks its parent up, which may be gone
        return []


def _same_file(one: Path, other: Path) -> bool:
    return one == other or one.resolve() == other.resolve()


@contextmanager
def _naming_errors_of(file: Path, zoo: Zoo) -> Iterator[None]:
    """Context manager that converts exceptions raised by importing a user's file.

    They become errors that contain the user's part of the traceback.
    """
    try:
        yield
    except ElasticDLError:
        raise
    except (Exception, SystemExit) as error:
        missing = missing_framework(error, shown_path(file))
        if missing is not None:
            raise missing from error
        problem = f"{shown_path(file)}: importing the file raised:"
        text = users_traceback(error)
        advice = _advice(error, zoo)
        raise UserCodeError(
            "\n".join([problem, textwrap.indent(text, "  "), *([f"  {advice}"] if advice else [])])
        ) from error


def _advice(error: BaseException, zoo: Zoo) -> str:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    if error.name.startswith("elasticdl.python"):
        return f"Supported old import paths: {', '.join(_old_imports())}."
    if (zoo.folder / "requirements.txt").is_file():
        requirements = shown_path(zoo.folder / "requirements.txt")
        return f"Install what the zoo needs:  pip install -r {requirements}"
    return f"Is {error.name.partition('.')[0]!r} a file of the zoo, or a package to install?"


def _old_imports() -> list[str]:
    package = Path(__file__).parent.parent
    files = [f.relative_to(package.parent) for f in (package / "python").rglob("*.py")]
    return sorted(".".join(f.with_suffix("").parts) for f in files if f.stem != "__init__")


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Context manager in which Python writes no `__pycache__` into the user's folder.

    Python could later run a stale cached file: it regards a cached file as fresh if its source has
    the same size and modification second.
    """
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before

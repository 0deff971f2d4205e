"""Lookup of dotted names in a zoo, without importing anything.

    mnist.functional.custom_model    symbol of the file mnist/functional.py
    fintech.MyKerasModel             symbol of the package fintech/: what its __init__ has, or
                                     else the one file in it that defines the name
    mnist.functional                 the file itself

A zoo is a folder, a git repository (`git.py`) or the prebuilt one. Names cannot leave the zoo's
folder. Names that match two files are rejected; the error lists both.

Callers: `load_model_code.py`, and code that needs a zoo's files (`snapshot.py`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elasticdl.dialects.source_lines import shown_path, top_level_names
from elasticdl.errors import UsageError
from elasticdl.zoo import git

PREBUILT = Path(__file__).parent / "prebuilt"
"""Folder of the models in this package."""

_NO_CODE = frozenset({"__pycache__", "__pypackages__", "node_modules", "site-packages"})
# Files that show what kind of folder they are in; every output of a job has `.generation`.
_MARKS = ("pyvenv.cfg", "trained_model.pb", ".generation")


@dataclass(frozen=True)
class Zoo:
    """A folder of user code from any source.

    Attributes:
        name: Folder or URL of the zoo as the user wrote it, without a password.
        folder: Folder with its files.
        commit: The git commit of the files, with `-dirty` if they were changed since; None outside
            of a repository.
    """

    name: str
    folder: Path
    commit: str | None = None

    @property
    def is_prebuilt(self) -> bool:
        """Whether this is the zoo of prebuilt models, which is part of this package."""
        return self.folder == PREBUILT


@dataclass(frozen=True)
class ZooLocation:
    """Location of a dotted name in a zoo.

    Attributes:
        module: Import name of the file, relative to the zoo.
        file: The file.
        symbol: Name in the file; None means the file itself.
    """

    module: str
    file: Path
    symbol: str | None


def open_zoo(zoo: str | None) -> Zoo:
    """Return a zoo with its folder and commit; fetch it if it is a git repository.

    Args:
        zoo: A folder (`~` and `$HOME` are expanded as in a shell), a git URL, or None for the
            prebuilt models.

    Raises:
        UsageError: There is no such folder, or git cannot fetch it.
    """
    if zoo is None:
        return Zoo("prebuilt", PREBUILT)
    if git.is_git_url(zoo):
        folder, commit = git.checkout(zoo)
        return Zoo(git.without_credentials(zoo), folder, commit)
    folder = Path(os.path.expandvars(zoo)).expanduser()
    if not folder.is_dir():
        problem = "is a file; pass its folder" if folder.exists() else "there is no such folder"
        near = difflib.get_close_matches(folder.name, _folders(folder.parent), n=1)
        suggestion = f" Did you mean {folder.parent / near[0]}?" if near else ""
        raise UsageError(f"--model_zoo={zoo}: {problem}.{suggestion}")
    folder = folder.resolve()
    return Zoo(zoo, folder, git.commit_of(folder))


def find(zoo: Zoo, dotted: str, flag: str = "--model_def") -> ZooLocation:
    """Find the file and the symbol that a dotted name refers to.

    Args:
        zoo: The zoo to search.
        dotted: Files and folders, then the symbol: `a.b.C`.
        flag: The flag that has `dotted` as its value, for errors.

    Raises:
        UsageError: The name is not found, is found in several files, is not a dotted name, or is a
            link out of the zoo.
    """
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        path = Path(dotted)
        if zoo.folder == PREBUILT and path.suffix == ".py" and path.is_file():
            raise UsageError(
                f"{flag}={dotted} is not a dotted name, but a file. Pass its folder and the file: "
                f"--model_zoo={path.parent} {flag}={path.stem}"
            )
        if path.resolve().is_relative_to(zoo.folder):
            # A path that a shell completed, relative to the current folder.
            path = path.resolve().relative_to(zoo.folder)
        as_name = str(path).removesuffix(".py").strip("./").replace("/", ".")
        way_out = (
            f" Did you mean {flag}={as_name}?" if "/" in dotted or dotted[-3:] == ".py" else ""
        )
        raise UsageError(
            f"{flag}={dotted} is not a dotted name; expected FILE.SYMBOL, after its folders if "
            f"there are any: mnist.models.MyModel.{way_out}"
        )
    places = list(_places(zoo.folder, parts))
    if not places:
        raise UsageError(_not_found(zoo, parts, flag))
    if len(places) > 1:
        listed = " and ".join(str(place.file.relative_to(zoo.folder)) for place in places)
        raise UsageError(
            f"{flag}={dotted} is in several files of {zoo.name}: {listed}. Specify the file too, "
            "or rename one of them."
        )
    place = places[0]
    if not place.file.resolve().is_relative_to(zoo.folder.resolve()):
        raise UsageError(
            f"{flag}={dotted}: {shown_path(place.file)} is a link that points outside the zoo "
            f"{zoo.name}. Copy the file into the zoo, or pass its own folder."
        )
    return place


def may_hold_code(folder: Path) -> bool:
    """Return whether a folder may have user code: not a cache, an environment or a job's output."""
    return (
        folder.name not in _NO_CODE
        and not folder.name.endswith(".egg-info")
        and not any((folder / mark).exists() for mark in _MARKS)
    )


def near_names(zoo: Zoo, parts: list[str]) -> list[str]:
    """Return the zoo's dotted names that are similar to one that was not found, as suggestions.

    Args:
        zoo: The zoo.
        parts: Parts of the name that was not found, split at the dots.
    """
    known = [
        *_modules(zoo.folder, ""),
        *(
            f"{module}.{name}"
            for module in _modules(zoo.folder, "")
            for name in public_names(_file_of(zoo.folder, module.split(".")))
        ),
    ]
    dotted = ".".join(parts)
    near = difflib.get_close_matches(dotted, known, n=3, cutoff=0.7)
    # One wrong letter in a short name, such as `cnm` for `cnn`, changes a large share of it.
    return near or difflib.get_close_matches(dotted, known, n=1, cutoff=0.6)


def public_names(file: Path | None) -> list[str]:
    """Return the names a file defines itself, except for those that start with `_`."""
    if file is None:
        return []
    return [
        name
        for name, found in top_level_names(file).items()
        if not found.imported and not name.startswith("_")
    ]


def _places(root: Path, parts: list[str]) -> Iterator[ZooLocation]:
    """Yield every location that a dotted name could refer to: a file, or a symbol in a file.

    Args:
        root: Folder of the zoo.
        parts: Parts of the name.
    """
    module, symbol = ".".join(parts[:-1]), parts[-1]
    whole = _file_of(root, parts)
    if whole is not None:
        yield ZooLocation(".".join(parts), whole, None)
    if not module:
        return
    file = root.joinpath(*parts[:-1]).with_suffix(".py")
    may_be_symbol = whole is None and symbol != "py"
    if file.is_file() and (may_be_symbol or symbol in top_level_names(file)):
        yield ZooLocation(module, file, symbol)
    folder = root.joinpath(*parts[:-1])
    if not folder.is_dir():
        return
    package = folder / "__init__.py"
    if package.is_file() and symbol in top_level_names(package):
        # An import such as `from fintech.models import MyKerasModel` names the same object, so its
        # file is not a second match.
        if whole is None:
            yield ZooLocation(module, package, symbol)
        return
    for inner in sorted(folder.glob("*.py")):
        found = top_level_names(inner).get(symbol)
        if found is not None and not found.imported and inner.stem.isidentifier():
            yield ZooLocation(f"{module}.{inner.stem}", inner, symbol)


def _file_of(root: Path, parts: list[str]) -> Path | None:
    """Return the file of a module, `a/b.py` or `a/b/__init__.py`; None if neither exists."""
    place = root.joinpath(*parts)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def _not_found(zoo: Zoo, parts: list[str], flag: str) -> str:
    dotted = ".".join(parts)
    near = near_names(zoo, parts)
    suggestion = f" Did you mean {' or '.join(near)}?" if near else ""
    suggestion = prebuilt_hint(zoo, dotted) or suggestion
    file = _file_of(zoo.folder, parts[:-1]) if parts[:-1] else None
    if file is not None and parts[-1] == "py":
        as_name = ".".join(parts[:-1])
        return f"{flag}={dotted} is a file; expected a dotted name: {flag}={as_name}"
    if file is not None:
        names = ", ".join(public_names(file)) or "nothing"
        return (
            f"{flag}={dotted}: {shown_path(file)} has no {parts[-1]!r}; it defines {names}."
            f"{suggestion}"
        )
    if zoo.is_prebuilt:
        named = [each for each in (parts, parts[:-1]) if each]
        own = "To use your own model, pass its folder with --model_zoo."
        for here in filter(None, (_file_of(Path.cwd(), each) for each in named)):
            own = f"For a model of your own in {shown_path(here)}, add its folder: --model_zoo=."
            if parts[-1] == "py":
                own += f" {flag}={here.stem}"
            break
        return (
            f"{flag}={dotted}: no prebuilt model has this name.{suggestion} `elasticdl zoo list` "
            f"shows them. {own}"
        )
    depth = 0
    while depth < len(parts) and zoo.folder.joinpath(*parts[: depth + 1]).is_dir():
        depth += 1
    inside = zoo.folder.joinpath(*parts[:depth])
    found = sorted({*_folders(inside), *(file.name for file in inside.glob("*.py"))})
    listed = " and ".join(part for part in (", ".join(found[:-1]), *found[-1:]) if part)
    are = "are" if len(found) > 1 else "is"
    missing = parts[min(depth, len(parts) - 1)]
    return (
        f"{flag}={dotted}: there is neither a folder nor a file {missing!r} in "
        f"{shown_path(inside)}; there {are} {listed or 'no Python file'}.{suggestion}"
    )


def prebuilt_hint(zoo: Zoo, dotted: str) -> str:
    """Return the advice to leave out --model_zoo if a name is a prebuilt model's; else ""."""
    # Only for an error; and the catalogue imports this module.
    from elasticdl.zoo.catalogue import entries  # noqa: PLC0415

    if zoo.is_prebuilt or all(entry.name != dotted for entry in entries()):
        return ""
    return f" {dotted} is a prebuilt model: leave out --model_zoo."


def _modules(root: Path, prefix: str, depth: int = 0) -> Iterator[str]:
    """Yield the dotted names of a zoo's Python files, down to a limited depth."""
    for file in sorted(root.glob("*.py")):
        if file.stem.isidentifier() and file.stem != "__init__":
            yield f"{prefix}{file.stem}"
    if depth < 2:  # noqa: PLR2004 - a suggestion is not worth walking through a whole disk
        for name in _folders(root):
            yield from _modules(root / name, f"{prefix}{name}.", depth + 1)


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(
            path.name
            for path in folder.iterdir()
            if path.name.isidentifier() and path.is_dir() and may_hold_code(path)
        )
    except OSError:
        return []

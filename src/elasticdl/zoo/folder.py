"""Where in a zoo a dotted name is, found by looking and not by importing.

    mnist.functional.custom_model    symbol of the file mnist/functional.py
    fintech.MyKerasModel             symbol of the package fintech/: what its __init__ has, or
                                     else the one file in it that defines the name
    mnist.functional                 the file itself

A zoo is a folder, a git repository (`git.py`) or the prebuilt one. Every name stays inside its
folder. Names that fit two places are refused, naming both.

Callers: `reference.py`, and whoever needs a zoo's files (`snapshot.py`).
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
"""The folder of the models that come with this package."""


@dataclass(frozen=True)
class Zoo:
    """A folder of user code, wherever it came from.

    Attributes:
        name: As the user wrote it, without a password.
        folder: Its files.
        commit: The commit they are at, with `-dirty` if they were changed since; None outside of
            a repository.
    """

    name: str
    folder: Path
    commit: str | None = None

    @property
    def is_prebuilt(self) -> bool:
        """Whether it is the zoo that comes with this package."""
        return self.folder == PREBUILT


@dataclass(frozen=True)
class Place:
    """Where a dotted name is.

    Attributes:
        module: Name the file is imported by, relative to the zoo.
        file: The file.
        symbol: Name in it; None is the file itself.
    """

    module: str
    file: Path
    symbol: str | None


def open_zoo(zoo: str | None) -> Zoo:
    """Return a zoo's folder and commit, fetching it if it is a git repository.

    Args:
        zoo: A folder (`~` and `$HOME` are read as in a shell), a git URL, or None for the
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
        problem = "is a file; name its folder" if folder.exists() else "there is no such folder"
        near = difflib.get_close_matches(folder.name, _folders(folder.parent), n=1)
        suggestion = f" Did you mean {folder.parent / near[0]}?" if near else ""
        raise UsageError(f"--model_zoo={zoo}: {problem}.{suggestion}")
    folder = folder.resolve()
    return Zoo(zoo, folder, git.commit_of(folder))


def find(zoo: Zoo, dotted: str, flag: str = "--model_def") -> Place:
    """Return where a dotted name is.

    Args:
        zoo: Where to look.
        dotted: Files and folders, then the symbol: `a.b.C`.
        flag: Who asked, for the error.

    Raises:
        UsageError: It is nowhere, in several places, no dotted name, or a link out of the zoo.
    """
    parts = dotted.split(".")
    if not all(part.isidentifier() for part in parts):
        as_name = dotted.removesuffix(".py").strip("./").replace("/", ".")
        way_out = (
            f" Did you mean {flag}={as_name}?" if "/" in dotted or dotted[-3:] == ".py" else ""
        )
        raise UsageError(
            f"{flag}={dotted} is no dotted name; expected FILE.SYMBOL, with folders before it if "
            f"there are any: mnist.models.MyModel.{way_out}"
        )
    places = list(_places(zoo.folder, parts))
    if not places:
        raise UsageError(_not_found(zoo, parts, flag))
    if len(places) > 1:
        listed = " and ".join(str(place.file.relative_to(zoo.folder)) for place in places)
        raise UsageError(
            f"{flag}={dotted} is in several files of {zoo.name}: {listed}. Name the file too, or "
            "rename one of them."
        )
    place = places[0]
    if not place.file.resolve().is_relative_to(zoo.folder.resolve()):
        raise UsageError(
            f"{flag}={dotted}: {shown_path(place.file)} is a link out of the zoo {zoo.name}. Copy "
            "the file into the zoo, or name the folder it lies in."
        )
    return place


def near_names(zoo: Zoo, parts: list[str]) -> list[str]:
    """Return dotted names of the zoo that look like one that is not there."""
    known = [
        *_modules(zoo.folder, ""),
        *(
            f"{module}.{name}"
            for module in _modules(zoo.folder, "")
            for name in public_names(_file_of(zoo.folder, module.split(".")))
        ),
    ]
    return difflib.get_close_matches(".".join(parts), known, n=3, cutoff=0.7)


def public_names(file: Path | None) -> list[str]:
    """Return the names a file defines itself, those that start with `_` left out."""
    if file is None:
        return []
    return [
        name
        for name, found in top_level_names(file).items()
        if not found.imported and not name.startswith("_")
    ]


def _places(root: Path, parts: list[str]) -> Iterator[Place]:
    """Yield every place a name could mean."""
    module, symbol = ".".join(parts[:-1]), parts[-1]
    whole = _file_of(root, parts)
    if whole is not None:
        yield Place(".".join(parts), whole, None)
    if not module:
        return
    file = root.joinpath(*parts[:-1]).with_suffix(".py")
    if file.is_file() and (whole is None or symbol in top_level_names(file)):
        yield Place(module, file, symbol)
    folder = root.joinpath(*parts[:-1])
    if not folder.is_dir():
        return
    package = folder / "__init__.py"
    if package.is_file() and symbol in top_level_names(package):
        # `from fintech.models import MyKerasModel` says it: the file it comes from is no other.
        if whole is None:
            yield Place(module, package, symbol)
        return
    for inner in sorted(folder.glob("*.py")):
        found = top_level_names(inner).get(symbol)
        if found is not None and not found.imported and inner.stem.isidentifier():
            yield Place(f"{module}.{inner.stem}", inner, symbol)


def _file_of(root: Path, parts: list[str]) -> Path | None:
    """Return the file a module is: `a/b.py`, or `a/b/__init__.py`."""
    place = root.joinpath(*parts)
    for file in (place.with_suffix(".py"), place / "__init__.py"):
        if file.is_file():
            return file
    return None


def _not_found(zoo: Zoo, parts: list[str], flag: str) -> str:
    dotted = ".".join(parts)
    near = near_names(zoo, parts)
    suggestion = f" Did you mean {' or '.join(near)}?" if near else ""
    file = _file_of(zoo.folder, parts[:-1]) if parts[:-1] else None
    if file is not None:
        names = ", ".join(public_names(file)) or "nothing"
        return (
            f"{flag}={dotted}: {shown_path(file)} has no {parts[-1]!r}; it defines {names}."
            f"{suggestion}"
        )
    depth = 0
    while depth < len(parts) and zoo.folder.joinpath(*parts[: depth + 1]).is_dir():
        depth += 1
    inside = zoo.folder.joinpath(*parts[:depth])
    there = ", ".join(sorted({*_folders(inside), *(file.name for file in inside.glob("*.py"))}))
    missing = parts[min(depth, len(parts) - 1)]
    return (
        f"{flag}={dotted}: there is neither a folder nor a file {missing!r} in "
        f"{shown_path(inside)}; there is {there or 'no Python file'}.{suggestion}"
    )


def _modules(root: Path, prefix: str, depth: int = 0) -> Iterator[str]:
    """Yield the dotted names of the Python files of a zoo, not too deep."""
    for file in sorted(root.glob("*.py")):
        if file.stem.isidentifier() and file.stem != "__init__":
            yield f"{prefix}{file.stem}"
    if depth < 2:  # noqa: PLR2004 - a suggestion is not worth walking through a whole disk
        for name in _folders(root):
            yield from _modules(root / name, f"{prefix}{name}.", depth + 1)


def _folders(folder: Path) -> list[str]:
    try:
        return sorted(p.name for p in folder.iterdir() if p.name.isidentifier() and p.is_dir())
    except OSError:
        return []

"""Which files of a zoo enter an image: code and what lies beside it, never a credential.

Left out are, in this order:

    hidden files and folders    .git, .env, .ssh, .netrc and whatever else begins with a dot
    generated files             caches, virtual environments, trained models
    what is ignored             by .gitignore in any folder, by .dockerignore at the root
    keys                        by their names, and by what is in them

A link inside of the zoo stays a link; one that leads out of it is refused. Only reads.

Callers: `build.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pathspec

from elasticdl.errors import UsageError

# The image is copied to every machine of a cluster.
MAX_TOTAL_BYTES = 2**30
_SEARCHED_BYTES = 2**20
_NO_CODE = frozenset({"__pycache__", "__pypackages__", "node_modules", "site-packages", "venv"})
_MARKS = ("pyvenv.cfg", "trained_model.pb")
_KEY_NAMES = pathspec.GitIgnoreSpec.from_lines(
    [
        *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg"),
        *("*.asc", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "kubeconfig", "*.kubeconfig"),
        *("credentials", "credentials.*", "*.env", "_netrc", "service?account*.json"),
    ]
)
_KEY_TEXT = b"PRIVATE KEY-----"


@dataclass(frozen=True)
class Entry:
    """One file or link.

    Attributes:
        path: Within the zoo, with slashes.
        source: On this machine.
        link: Where it leads, relative to its folder; None is a file.
    """

    path: str
    source: Path
    link: str | None = None


@dataclass(frozen=True)
class ZooFiles:
    """What of a zoo enters an image.

    Attributes:
        entries: Sorted by path.
        keys: What was left out because it is or holds a key.
    """

    entries: tuple[Entry, ...] = ()
    keys: tuple[str, ...] = ()


def zoo_files(root: Path) -> ZooFiles:
    """Look through a zoo.

    Args:
        root: Its folder.

    Raises:
        UsageError: A link leads out of it, a file cannot be read, or it is too large.
    """
    entries, keys, total = [], [], 0
    root = root.resolve()
    try:
        for entry in _walk(root):
            if entry.link is None and _is_key(entry):
                keys.append(entry.path)
                continue
            total += 0 if entry.link else entry.source.stat().st_size
            entries.append(entry)
    except OSError as error:
        raise UsageError(f"--model_zoo: {error.filename}: {error.strerror}.") from error
    if total > MAX_TOTAL_BYTES:
        largest = sorted(entries, key=lambda each: -each.source.lstat().st_size)[:3]
        raise UsageError(
            f"The model zoo {root} has {total / 2**30:.1f} GiB of files, the largest "
            f"{', '.join(each.path for each in largest)}; an image takes 1 GiB of it. List data in "
            f"{root / '.dockerignore'}, and let --data name them."
        )
    return ZooFiles(tuple(sorted(entries, key=lambda each: each.path)), tuple(sorted(keys)))


def _walk(root: Path) -> Iterator[Entry]:
    docker = _rules(root / ".dockerignore", anchored=True)
    # Of each folder on the way: its path, and the rules in it.
    todo: list[tuple[str, tuple[tuple[str, pathspec.GitIgnoreSpec], ...]]] = [("", ())]
    while todo:
        folder, git = todo.pop()
        own = _rules(root / folder / ".gitignore")
        rules = git if own is None else ((folder, own), *git)
        for found in sorted(os.scandir(root / folder), key=lambda each: each.name):
            path = f"{folder}/{found.name}".lstrip("/")
            is_folder = found.is_dir(follow_symlinks=False)
            if found.name.startswith(".") or found.name.endswith((".pyc", ".pyo")):
                continue
            if _is_git_ignored(path, is_folder=is_folder, rules=rules):
                continue
            if is_folder:
                # `!` in a .dockerignore may want a file of an ignored folder.
                if _may_hold_code(Path(found.path)):
                    todo.append((path, rules))
            elif docker is not None and docker.match_file(path):
                continue
            elif found.is_symlink():
                yield Entry(path, Path(found.path), _link(root, path))
            elif found.is_file():
                yield Entry(path, Path(found.path))


def _rules(file: Path, *, anchored: bool = False) -> pathspec.GitIgnoreSpec | None:
    """Return the rules of a file; None if it has none.

    Args:
        file: .gitignore or .dockerignore.
        anchored: Names are relative to the root, as in a .dockerignore; else in any folder below.
    """
    if not file.is_file():
        return None
    lines = file.read_text(errors="replace").splitlines()
    if anchored:
        lines = [_anchored(line.strip()) for line in lines]
    return pathspec.GitIgnoreSpec.from_lines(lines)


def _anchored(line: str) -> str:
    if not line or line.startswith("#"):
        return ""
    sign = "!" if line.startswith("!") else ""
    return f"{sign}/{line.removeprefix('!').strip().removeprefix('./').strip('/')}"


def _is_git_ignored(
    path: str, *, is_folder: bool, rules: tuple[tuple[str, pathspec.GitIgnoreSpec], ...]
) -> bool:
    """Return what the nearest .gitignore says that says anything."""
    for folder, spec in rules:
        inner = PurePosixPath(path).relative_to(folder or ".").as_posix()
        ignored = spec.check_file(f"{inner}/" if is_folder else inner).include
        if ignored is not None:
            return ignored
    return False


def _may_hold_code(folder: Path) -> bool:
    return folder.name not in _NO_CODE and not any((folder / mark).exists() for mark in _MARKS)


def _link(root: Path, path: str) -> str:
    place = root / path
    target = Path(os.path.realpath(place))
    if not target.is_relative_to(root):
        raise UsageError(
            f"The model zoo {root} has a link that leads out of it: {path} -> "
            f"{place.readlink()}. An image cannot follow it. Copy into the zoo what it leads to, "
            "or list it in .dockerignore."
        )
    # One step only: what it leads to may be a link too.
    step = Path(os.path.normpath(place.parent / place.readlink()))
    if not step.is_relative_to(root):
        step = target
    return os.path.relpath(step, place.parent)


def _is_key(entry: Entry) -> bool:
    if _KEY_NAMES.match_file(entry.path.rpartition("/")[2]):
        return True
    if entry.source.stat().st_size > _SEARCHED_BYTES:
        return False
    return _KEY_TEXT in entry.source.read_bytes()

"""Selects the files of a zoo for an image: code and other files, never credentials.

Excluded are, in this order:

    hidden files and folders    .git, .env, .ssh, .netrc and everything else with a leading dot
    generated files             caches, virtual environments, trained models
    ignored files               by .gitignore in any folder, by .dockerignore at the root
    keys                        by their names, and by their contents

A link to a path inside the zoo stays a link; a link to a path outside is rejected. Read-only.

Callers: `build.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pathspec

from elasticdl.errors import UsageError

# Limited, because the image is copied to every machine of a cluster.
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
class ZooFile:
    """One file or link of a zoo.

    Attributes:
        path: Path within the zoo, with slashes.
        source: Path on this machine.
        link: Target of a link, relative to its folder; None for a file.
    """

    path: str
    source: Path
    link: str | None = None


@dataclass(frozen=True)
class ZooFiles:
    """The files of a zoo that belong in an image.

    Attributes:
        entries: The files and links, sorted by path.
        keys: Paths of the files that were excluded because they are, or contain, private keys or
            credentials.
    """

    entries: tuple[ZooFile, ...] = ()
    keys: tuple[str, ...] = ()


def zoo_files(root: Path) -> ZooFiles:
    """Select the files of a zoo that belong in its image.

    Args:
        root: Folder of the zoo.

    Raises:
        UsageError: A link leads out of the zoo, a file cannot be read, or the zoo is too large.
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
            f"{', '.join(each.path for each in largest)}; the limit for an image is 1 GiB. List "
            f"data files in {root / '.dockerignore'}, and pass them with --data."
        )
    return ZooFiles(tuple(sorted(entries, key=lambda each: each.path)), tuple(sorted(keys)))


def _walk(root: Path) -> Iterator[ZooFile]:
    docker = _rules(root / ".dockerignore", anchored=True)
    # For each folder: its path, and the rules that apply in it, the nearest first.
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
                # Not tested against .dockerignore: its `!` may include a file in an ignored folder.
                if _may_hold_code(Path(found.path)):
                    todo.append((path, rules))
            elif docker is not None and docker.match_file(path):
                continue
            elif found.is_symlink():
                yield ZooFile(path, Path(found.path), _link(root, path))
            elif found.is_file():
                yield ZooFile(path, Path(found.path))


def _rules(file: Path, *, anchored: bool = False) -> pathspec.GitIgnoreSpec | None:
    """Parse the rules of an ignore file; None if it does not exist.

    Args:
        file: .gitignore or .dockerignore.
        anchored: Whether names are relative to the root, as in a .dockerignore; otherwise they
            match in the folder of the file and in any folder below.
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
    """Return whether .gitignore rules exclude a path; the nearest file with a match decides."""
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
            f"The model zoo {root} has a link to a path outside it: {path} -> {place.readlink()}. "
            "The target is not part of the image. Copy the target into the zoo, or list the link "
            "in .dockerignore."
        )
    # Only one step, because the target may be a link too.
    step = Path(os.path.normpath(place.parent / place.readlink()))
    if not step.is_relative_to(root):
        step = target
    return os.path.relpath(step, place.parent)


def _is_key(entry: ZooFile) -> bool:
    if _KEY_NAMES.match_file(entry.path.rpartition("/")[2]):
        return True
    if entry.source.stat().st_size > _SEARCHED_BYTES:
        return False
    return _KEY_TEXT in entry.source.read_bytes()

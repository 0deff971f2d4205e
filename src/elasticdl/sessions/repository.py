"""Reads the user's git repository: its project, its commit, and its uncommitted changes.

Nothing is written to the repository, not even to its index: changes are read into a patch with
`git diff`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from elasticdl import scratch
from elasticdl.errors import UsageError
from elasticdl.sessions.project import RUNS
from elasticdl.zoo.git import GitError, git

# The user's settings for displaying diffs must not affect a diff that is applied.
_PLAIN = (
    "--binary",
    "--full-index",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-renames",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--ignore-submodules=dirty",
)


@dataclass(frozen=True)
class WorkingTree:
    """A repository with its files checked out.

    Attributes:
        top: The repository's top folder.
        project: Folder of the project in the repository, which contains `runs`.
    """

    top: Path
    project: Path

    @property
    def subfolder(self) -> str:
        """Path of the project in the repository; empty if the project is the whole repository."""
        return "" if self.project == self.top else self.project.relative_to(self.top).as_posix()

    def commit(self, name: str) -> str:
        """Return the full hash of the commit that a name refers to now.

        Raises:
            UsageError: The repository has no such commit.
        """
        try:
            found = git(
                *("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"),
                cwd=self.top,
            )
        except GitError:
            raise UsageError(
                f"--commit={name}: {self.top} has no such commit, branch or tag. "
                "`git log --oneline` shows the commits of the current branch."
            ) from None
        return found.strip()

    def changed(self) -> list[str]:
        """Return the tracked files that differ from HEAD, as paths from the top.

        Raises:
            UsageError: git fails.
        """
        listing = self._ask("diff", "--name-only", "-z", "--no-renames", *_PLAIN[-1:], "HEAD")
        return _names(listing)

    def untracked(self, folders: Sequence[Path]) -> list[str]:
        """Return the untracked files in `folders`, except for those that git ignores.

        Raises:
            UsageError: git fails.
        """
        inside = [folder.relative_to(self.top).as_posix() for folder in folders]
        listing = self._ask(
            *("--literal-pathspecs", "ls-files", "--others", "--exclude-standard", "-z", "--"),
            *inside,
        )
        return _names(listing)

    def has_others(self, folder: Path) -> bool:
        """Return whether a folder has files that are untracked or ignored by git.

        Such files may be data of which only a part, such as a README, was committed. A folder
        outside of the repository counts as one with such files.

        Raises:
            UsageError: git fails.
        """
        if not folder.is_relative_to(self.top):
            return True
        inside = folder.relative_to(self.top).as_posix()
        return bool(self._ask("--literal-pathspecs", "ls-files", "--others", "--", inside))

    def write_patch(self, target: Path, new_files: Sequence[str]) -> None:
        """Write a patch with the changes of tracked files since HEAD, and with some new files.

        Args:
            target: File to write the patch to.
            new_files: Untracked files to include, as paths from the top.

        Raises:
            UsageError: git fails.
        """
        with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder:
            index = Path(folder) / "index"
            shutil.copyfile(self.top / self._ask("rev-parse", "--git-path", "index").strip(), index)
            aside = {"GIT_INDEX_FILE": str(index)}
            if new_files:
                listed = Path(folder) / "files"
                listed.write_bytes("\0".join(new_files).encode())
                self._ask(
                    *("--literal-pathspecs", "add", "--intent-to-add"),
                    *(f"--pathspec-from-file={listed}", "--pathspec-file-nul"),
                    environment=aside,
                )
            self._ask("diff", *_PLAIN, f"--output={target}", "HEAD", environment=aside)

    def _ask(self, *arguments: str, environment: dict[str, str] | None = None) -> str:
        try:
            return git("--no-optional-locks", *arguments, cwd=self.top, environment=environment)
        except GitError as error:
            raise UsageError(f"--repo={self.top}: git reported: {error}") from None


def find(path: str) -> WorkingTree:
    """Return the repository that contains a folder, with the nearest project.

    Raises:
        UsageError: The folder is not in a repository, or neither it nor a folder above it in the
            repository contains `runs/`.
    """
    start = Path(path).expanduser().resolve()
    if not start.is_dir():
        raise UsageError(f"--repo={path}: there is no folder {start}, and it is not a URL.")
    try:
        top = Path(git("rev-parse", "--show-toplevel", cwd=start).strip()).resolve()
    except GitError as error:
        raise UsageError(
            f"--repo={path}: {start} is not in a repository with files (git reported: {error}). "
            "Submitting a session requires a commit; `elasticdl session run` does not."
        ) from None
    for folder in (start, *start.parents):
        if (folder / RUNS).is_dir():
            return WorkingTree(top, folder)
        if folder == top:
            break
    raise UsageError(
        f"--repo={path}: neither {start} nor a folder above it in the repository has {RUNS}/. A "
        f"session is described by {RUNS}/NAME/config.yaml of a project."
    )


def apply(patch: Path, checkout: Path) -> None:
    """Apply a patch to a checkout.

    Raises:
        UsageError: The patch cannot be applied.
    """
    try:
        git("apply", "--whitespace=nowarn", str(patch), cwd=checkout)
    except GitError as error:
        raise UsageError(
            "--with-patch: your changes could not be applied to the commit (git reported: "
            f"{error}). Commit them instead."
        ) from None


def _names(listing: str) -> list[str]:
    return sorted(name for name in listing.split("\0") if name)

"""A repository that somebody works in: which project, which commit, and what is not committed.

Nothing is written to it, not even its index: changes are read into a patch as git tells them.
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

# What a person has configured for reading diffs must not get into one that is applied.
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
        top: Its folder.
        project: The project in it, which has `runs`.
    """

    top: Path
    project: Path

    @property
    def subfolder(self) -> str:
        """The project's folder in the repository; empty for all of it."""
        return "" if self.project == self.top else self.project.relative_to(self.top).as_posix()

    def commit(self, name: str) -> str:
        """Return the full commit that a name stands for now.

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
            UsageError: git cannot tell.
        """
        told = self._ask("diff", "--name-only", "-z", "--no-renames", *_PLAIN[-1:], "HEAD")
        return _names(told)

    def untracked(self, folders: Sequence[Path]) -> list[str]:
        """Return the files in folders that git does not know, but for those it is to ignore.

        Raises:
            UsageError: git cannot tell.
        """
        inside = [folder.relative_to(self.top).as_posix() for folder in folders]
        told = self._ask(
            *("--literal-pathspecs", "ls-files", "--others", "--exclude-standard", "-z", "--"),
            *inside,
        )
        return _names(told)

    def has_others(self, folder: Path) -> bool:
        """Return whether a folder has files that git does not know, or is to ignore.

        Raises:
            UsageError: git cannot tell.
        """
        if not folder.is_relative_to(self.top):
            return True
        inside = folder.relative_to(self.top).as_posix()
        return bool(self._ask("--literal-pathspecs", "ls-files", "--others", "--", inside))

    def write_patch(self, target: Path, new_files: Sequence[str]) -> None:
        """Write what makes HEAD what the tracked files are now, and new files as well.

        Raises:
            UsageError: git cannot tell.
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
            raise UsageError(f"--repo={self.top}: git said: {error}") from None


def find(path: str) -> WorkingTree:
    """Return the repository that a folder is in, with the nearest project.

    Raises:
        UsageError: The folder is in no repository, or nothing up to its top has `runs`.
    """
    start = Path(path).expanduser().resolve()
    if not start.is_dir():
        raise UsageError(f"--repo={path}: there is no folder {start}, and it is no URL.")
    try:
        top = Path(git("rev-parse", "--show-toplevel", cwd=start).strip()).resolve()
    except GitError as error:
        raise UsageError(
            f"--repo={path}: {start} is in no repository with files (git said: {error}). A session "
            "is submitted by commit; `elasticdl session run` needs none."
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
        UsageError: It does not fit.
    """
    try:
        git("apply", "--whitespace=nowarn", str(patch), cwd=checkout)
    except GitError as error:
        raise UsageError(
            f"--with-patch: your changes could not be applied to the commit (git said: {error}). "
            "Commit them instead."
        ) from None


def _names(told: str) -> list[str]:
    return sorted(name for name in told.split("\0") if name)

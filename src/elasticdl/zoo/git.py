"""Zoos in git repositories: resolves the commit, and keeps a clean checkout of it in a cache.

    https://host/models              the default branch's commit, as of now
    https://host/models@v1.2         a branch, a tag or a commit
    https://host/models@v1.2#vision  a folder in it

A checkout is in `<cache>/<hash of the URL>/<commit>`. It is created elsewhere and renamed, so that
concurrent commands do not disturb each other, and a commit is fetched once. The git program does
the work, with the user's own credentials; no hook runs, no submodule is fetched, and only
the usual transports (https, ssh, git, file) are allowed, because others could run commands.

For a plain folder, this module returns its commit and whether it was changed since.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from elasticdl.errors import UsageError

_URL = re.compile(r"(https?|ssh|git|file)://", re.IGNORECASE)
# user@host:path, as ssh writes it; the letter of a Windows drive is not a host.
_SCP = re.compile(r"[\w.+-]+@[\w.-]+:")
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "advice.detachedHead=false",
    # A stalled server must not block a job for ever.
    "http.lowSpeedLimit=1000",
    "http.lowSpeedTime=60",
)
_STATUS_TIMEOUT_S = 10
_ADVICE = (
    "fatal: Could not read from remote repository",
    "Please make sure you have the correct access rights",
    "and the repository exists",
)


@dataclass(frozen=True)
class GitUrl:
    """Address of a repository.

    Attributes:
        url: URL for git to clone.
        ref: Branch, tag or commit; None means the default branch.
        subfolder: Folder within the repository; empty for the repository itself.
        option: Flag that the URL was passed with, for messages.
    """

    url: str
    ref: str | None = None
    subfolder: str = ""
    option: str = field(default="--model_zoo", repr=False)

    @property
    def shown(self) -> str:
        """The URL without a password, safe to print and store."""
        return without_credentials(self.url)


def is_git_url(zoo: str) -> bool:
    """Return whether a zoo is a git repository's address rather than a folder."""
    place = zoo.partition("#")[0]
    bare = place.rpartition("@")[0] or place
    return bool(_URL.match(zoo) or _SCP.match(zoo)) or ".git" in (place[-4:], bare[-4:])


def parse_git_url(zoo: str, option: str = "--model_zoo") -> GitUrl:
    """Return the parts of `URL[@ref][#subfolder]`.

    Args:
        zoo: The address as the user wrote it.
        option: The flag it was passed with, for messages.

    Raises:
        UsageError: The subfolder leaves the repository, or the ref is invalid.

    Example:
        >>> parse_git_url("https://host/models@v1.2#vision")
        GitUrl(url='https://host/models', ref='v1.2', subfolder='vision')
    """
    place, _, subfolder = zoo.partition("#")
    url, ref = place, None
    # The host may have an @ (ssh://git@host/...): only one in the path starts a ref.
    scheme = _URL.match(place) or _SCP.match(place)
    host_end = place.find("/", scheme.end()) if scheme and "://" in scheme[0] else 0
    host_end = scheme.end() if scheme and "://" not in scheme[0] else host_end
    at = place.rfind("@", max(host_end, 0))
    if at > 0 and host_end >= 0 and not _is_local_path(place):
        url, ref = place[:at], place[at + 1 :]
    if ref is not None and (not ref or ref.startswith("-") or not ref.isprintable() or " " in ref):
        raise UsageError(f"{option}={zoo}: {ref!r} cannot be a branch, tag or commit.")
    parts = Path(subfolder).parts
    if Path(subfolder).is_absolute() or ".." in parts or ".git" in parts:
        raise UsageError(f"{option}={zoo}: the folder {subfolder!r} must be inside the repository.")
    return GitUrl(url, ref, subfolder, option)


def checkout(zoo: str, cache: Path | None = None) -> tuple[Path, str]:
    """Return a folder with the repository's files, and the full hash of their commit.

    Args:
        zoo: `URL[@ref][#subfolder]`.
        cache: Folder for checkouts; the user's cache folder if None.

    Raises:
        UsageError: git is missing, cannot reach the repository or does not know the ref, or
            there is no such folder in it.
    """
    parsed = parse_git_url(zoo)
    commit = resolve(parsed)
    shelf = (cache or _cache()) / hashlib.sha256(parsed.shown.encode()).hexdigest()[:16]
    folder = shelf / commit
    if not _is_clean(folder, commit):
        shelf.mkdir(parents=True, exist_ok=True)
        fetch(parsed, commit, folder)
    inside = (folder / parsed.subfolder).resolve()
    if not inside.is_dir() or not inside.is_relative_to(folder.resolve()):
        there = sorted(p.name for p in folder.iterdir() if p.is_dir() and p.name != ".git")
        raise UsageError(
            f"--model_zoo={without_credentials(zoo)}: there is no folder {parsed.subfolder!r} at "
            f"commit {commit[:12]}. Folders there: {', '.join(there) or 'none'}."
        )
    return inside, commit


def commit_of(folder: Path) -> str | None:
    """Return the commit of a folder in a repository, with `-dirty` if it was changed since.

    None if the folder is not in a repository, if the repository does not track it, or if git is not
    installed.
    """
    try:
        # The second is the folder's own entry: it exists only if the commit has the folder.
        commit = git("rev-parse", "HEAD", "HEAD:./", cwd=folder).split()[0]
    except (GitError, UsageError):
        return None
    try:
        changed = git("status", "--porcelain", "--", ".", cwd=folder, timeout_s=_STATUS_TIMEOUT_S)
    except (GitError, UsageError):
        # If it is not known to be clean, it counts as changed.
        changed = "?"
    return f"{commit}-dirty" if changed else commit


def without_credentials(url: str) -> str:
    """Return a URL without the user and password of its host part.

    Example:
        >>> without_credentials("https://me:secret@host/models@v1")
        'https://host/models@v1'
    """
    return re.sub(r"^(https?://)[^/@]*@", r"\1", url, flags=re.IGNORECASE)


class GitError(Exception):
    """Failure of git, with the reason that git gave; callers turn it into a `UsageError`."""


def resolve(url: GitUrl) -> str:
    """Return the full hash of the commit that a URL's ref (branch, tag or commit) names.

    Queries the repository, unless the ref is a full hash.

    Raises:
        UsageError: git is missing, cannot reach the repository or does not know the ref.
    """
    if url.ref and _COMMIT.fullmatch(url.ref):
        return url.ref
    wanted = ["HEAD"] if url.ref is None else [f"refs/tags/{url.ref}^{{}}"]
    if url.ref is not None:
        wanted += [f"refs/tags/{url.ref}", f"refs/heads/{url.ref}"]
    with _as_usage_error(url):
        listing = git("ls-remote", "--", url.url)
    lines = (line.partition("\t") for line in listing.splitlines())
    commits = {name: commit for commit, _, name in lines}
    for name in wanted:
        if name in commits:
            return commits[name]
    if url.ref and re.fullmatch(r"[0-9a-f]{7,39}", url.ref):
        matching = {commit for commit in commits.values() if commit.startswith(url.ref)}
        if len(matching) == 1:
            return matching.pop()
    names = sorted(
        name.removeprefix("refs/heads/").removeprefix("refs/tags/")
        for name in commits
        if name.startswith(("refs/heads/", "refs/tags/")) and not name.endswith("^{}")
    )
    listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")  # noqa: PLR2004
    if url.ref is None:
        raise UsageError(f"{url.option}={url.shown}: the repository has no commits yet.")
    raise UsageError(
        f"{url.option}={url.shown}@{url.ref}: the repository has no branch or tag {url.ref!r}. It "
        f"has: {listed or 'none'}. Specify a commit with all of its 40 digits."
    )


def fetch(url: GitUrl, commit: str, folder: Path) -> None:
    """Fetch one commit of a repository and check it out as `folder`, replacing an existing one.

    The checkout is made in a temporary folder, so that `folder` is never incomplete.

    Args:
        url: The repository.
        commit: The commit's full hash.
        folder: Target folder; its parent must exist.

    Raises:
        UsageError: git is missing, or cannot fetch the commit.
    """
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    try:
        with _as_usage_error(url):
            git("init", "--quiet", "--template=", ".", cwd=aside)
            try:
                git("fetch", "--quiet", "--depth=1", "--no-tags", "--", url.url, commit, cwd=aside)
            except GitError:
                # Some servers do not serve single commits: fetch all branches and tags instead.
                everything = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
                git("fetch", "--quiet", "--", url.url, *everything, cwd=aside)
            git("checkout", "--quiet", "--detach", commit, "--", cwd=aside)
        if folder.exists():
            # The checkout was changed, or a copy interrupted: a folder named after a commit must be
            # that commit.
            shutil.rmtree(folder, ignore_errors=True)
        # Another command may have been faster: its checkout is the same.
        with contextlib.suppress(OSError):
            aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    if not _is_clean(folder, commit):
        raise UsageError(f"{url.option}={url.shown}: {folder} could not be written.")


def _is_clean(folder: Path, commit: str) -> bool:
    """Return whether a folder is a checkout of a commit, without changed or additional files."""
    if not (folder / ".git").is_dir():
        return False
    try:
        head = git("rev-parse", "HEAD", cwd=folder).strip()
        return head == commit and not git(
            "status", "--porcelain", "--untracked-files=all", "--ignored", cwd=folder
        )
    except GitError:
        return False


def _is_local_path(place: str) -> bool:
    """Return whether a zoo's whole address, including any `@`, is an existing local path.

    If so, an `@` in the address is part of a file name and does not start a ref.
    """
    return Path(place.removeprefix("file://")).exists()


def _cache() -> Path:
    return platformdirs.user_cache_path("elasticdl") / "zoo"


@contextlib.contextmanager
def _as_usage_error(url: GitUrl) -> Iterator[None]:
    try:
        yield
    except GitError as error:
        message = str(error).replace(url.url, url.shown)
        raise UsageError(
            f"{url.option}={url.shown}: git reported: {message}\n"
            "  Check the address and that `git ls-remote` can read it from here."
        ) from None


def git(
    *arguments: str,
    cwd: Path | None = None,
    timeout_s: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run git without hooks and without prompts, and return its output.

    Args:
        arguments: Arguments of the program.
        cwd: Folder to run in.
        timeout_s: Timeout; None means no limit.
        environment: Variables to set in addition to those of this process.

    Raises:
        GitError: It failed; the message is the line of its output that gives the reason.
        UsageError: There is no git program.
    """
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    # Set by git itself if we run in one of its hooks; they would select another repository.
    variables = {
        name: value
        for name, value in os.environ.items()
        if name not in {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX"}
    }
    variables |= {"GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh", "LC_ALL": "C"}
    if not sys.stdin or not sys.stdin.isatty():
        # There is no user to type a password: fail instead of waiting for one.
        variables["GIT_TERMINAL_PROMPT"] = "0"
        variables.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
    try:
        done = subprocess.run(  # noqa: S603 - arguments are a list; the URL comes after `--`
            ["git", *settings, *arguments],  # noqa: S607 - the user's own git, as in their shell
            cwd=cwd,
            env={**variables, **(environment or {})},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise UsageError(
            f"A git repository needs the program `git`, which cannot be started: {error.strerror}."
        ) from None
    except subprocess.TimeoutExpired:
        raise GitError(f"no response within {timeout_s:g} s") from None
    if done.returncode:
        raise GitError(_reason(done.stderr) or f"exit code {done.returncode}")
    return done.stdout


def _reason(message: str) -> str:
    """Return the line of git's output that gives the reason of a failure.

    The last lines are often only advice.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    relevant = [line for line in lines if not line.startswith(_ADVICE)]
    fatal = [line for line in relevant if line.startswith(("fatal:", "error:"))]
    return (fatal or relevant or lines or [""])[-1]

"""Submits a session of a commit to the queue, independent of the user's working tree.

    --repo, --commit --> full hash --> checked out --> patch applied --> config read --> queue

All rejections happen here, before a session waits: uncommitted changes, a config with an error,
missing data, a full queue. Later changes to the repository have no effect. No code from the
repository and no git hook runs here.

To submit the same code, run, data and settings again resumes the earlier submission.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl import job_options
from elasticdl.errors import DataError, DefinitionError, UsageError
from elasticdl.job import Workers, without_password
from elasticdl.sessions import repository
from elasticdl.sessions.project import RUNS, SessionProject, open_session
from elasticdl.sessions.state import SessionState
from elasticdl.sessions.submission import PATCH_FILE, PROJECT, Submission, id_of
from elasticdl.tracking.address import tracking_uri
from elasticdl.zoo import git
from elasticdl.zoo.git import GitUrl

if TYPE_CHECKING:
    from elasticdl.sessions.queue import Queue
    from elasticdl.sessions.repository import WorkingTree

_HEAD = "HEAD"
_SHOWN_FILES = 10


@dataclass(frozen=True)
class SubmitRequest:
    """A user's request to train a session.

    Attributes:
        run_name: Name of the run.
        repo: Folder in a repository, or a URL (`URL#folder` for a project in one).
        commit: Commit, branch or tag.
        data_dir: Data folder. None: `data_dir` of the config.
        settings: `key=value` strings that replace values of the config.
        epochs: Number of epochs. None: that of the config.
        num_workers: Number of workers, as the user typed it. None: train in one process.
        num_spare_workers: Number of additional workers kept ready to replace lost ones.
        ray_address: Address of the workers' Ray cluster. None: start Ray on this machine.
        checkpoint_steps: Save a checkpoint every N steps. 0: decide by time.
        tracking_uri: MLflow server, database or folder, as the user typed it. None: that of the
            environment.
        tracked: Whether to track it in MLflow and TensorBoard.
        as_ray_job: Whether the cluster runs the session itself, and not only its workers.
        with_patch: Whether to store uncommitted changes with the submission, as a patch.
    """

    run_name: str
    repo: str = "."
    commit: str = _HEAD
    data_dir: str | None = None
    settings: tuple[str, ...] = ()
    epochs: int | None = None
    num_workers: str | None = None
    num_spare_workers: int = Workers.spare
    ray_address: str | None = None
    checkpoint_steps: int = 0
    tracking_uri: str | None = None
    tracked: bool = True
    as_ray_job: bool = False
    with_patch: bool = False


@dataclass(frozen=True)
class SubmitOrigin:
    """The resolved repository and commit of a request.

    Attributes:
        url: URL that git fetches from, with the subfolder of the project.
        commit: Full hash.
        tree: The user's working tree; None for a URL.
        is_head: Whether the commit is the HEAD of this working tree.
    """

    url: GitUrl
    commit: str
    tree: WorkingTree | None = None
    is_head: bool = False


def find(request: SubmitRequest) -> SubmitOrigin:
    """Return the requested repository and commit, with the commit's full hash.

    Raises:
        UsageError: There is no such repository or commit; or uncommitted changes are to be
            included, but they are not based on this commit.
    """
    if git.is_git_url(request.repo):
        url = git.parse_git_url(request.repo, "--repo")
        if url.ref is not None and request.commit != _HEAD:
            raise UsageError(
                f"--commit={request.commit}: --repo={url.shown} already names {url.ref}. Leave out "
                "one of the two."
            )
        if request.commit != _HEAD:
            url = replace(url, ref=_ref(request.commit))
        if request.with_patch:
            raise UsageError(
                f"--with-patch includes uncommitted changes of a folder; --repo={url.shown} is a "
                "URL, which has only commits."
            )
        return SubmitOrigin(url, git.resolve(url))
    tree = repository.find(request.repo)
    url = GitUrl(str(tree.top), None, tree.subfolder, "--repo")
    commit = tree.commit(request.commit)
    is_head = commit == tree.commit(_HEAD)
    if request.with_patch and not is_head:
        raise UsageError(
            f"--with-patch includes the changes made to HEAD; --commit={request.commit} is "
            f"{commit[:12]}, another commit. Leave out one of the two."
        )
    return SubmitOrigin(url, commit, tree, is_head)


def submit(
    request: SubmitRequest, origin: SubmitOrigin, queue: Queue, *, max_queued: int = 10
) -> Submission:
    """Put a session into the queue.

    Args:
        request: The request.
        origin: The result of `find` for the request.
        queue: The queue.
        max_queued: Maximum number of waiting submissions.

    Returns:
        The submission. If the same one has already been trained successfully, it is not queued
        again.

    Raises:
        UsageError: There are uncommitted changes, a flag is wrong, or the queue is full.
        DefinitionError: The config at that commit cannot be used.
        DataError: The data folder does not exist.
        OutputError: The home cannot be written.
    """
    _check_home(queue, origin)
    tracking = _tracking_uri(request)
    if request.as_ray_job and request.ray_address is None:
        raise UsageError("--as_ray_job needs a cluster. Add --ray_address.")
    new_files = _new_files(request, origin)
    queue.make()
    aside = Path(tempfile.mkdtemp(prefix=".new-", dir=queue.home))
    try:
        checkout = aside / PROJECT
        git.fetch(origin.url, origin.commit, checkout)
        _ignore_bytecode(checkout)
        patch = _patched(origin, aside, new_files) if request.with_patch else ""
        session = _session(request, origin, checkout)
        submission = Submission(
            id="",
            repo=origin.url.shown,
            commit=origin.commit,
            patch=patch,
            subfolder=origin.url.subfolder,
            run_name=request.run_name,
            data_dir=_data(request, session, origin),
            settings=request.settings,
            epochs=request.epochs,
            num_workers=request.num_workers,
            num_spare_workers=request.num_spare_workers if request.num_workers else None,
            ray_address=request.ray_address,
            checkpoint_steps=request.checkpoint_steps,
            tracking_uri=tracking,
            tracked=request.tracked,
            as_ray_job=request.as_ray_job,
            python=sys.executable,
            submitted=time.time(),
        )
        submission = replace(submission, id=id_of(submission))
        with queue.locked():
            return _queued(queue, submission, aside, max_queued)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _queued(queue: Queue, new: Submission, aside: Path, max_queued: int) -> Submission:
    """Add a submission to the queue, unless the same one is in progress or done.

    The caller must hold the queue's lock.

    Args:
        queue: The queue.
        new: The submission.
        aside: Folder with the checkout and the patch, which are moved to the submission's folder.
        max_queued: Maximum number of waiting submissions.

    Returns:
        The queued submission; the earlier one if it is in progress or done.

    Raises:
        UsageError: The queue is full, or the same submission is being cancelled, or is running with
            other options.
    """
    folder = queue.folder(new.id)
    others = queue.all()
    before = next((one for one in others if one.id == new.id), None)
    if before is not None and (folder / PROJECT).is_dir():
        before = queue.settled(before)
        if before.state is SessionState.RUNNING and before.cancelled:
            raise UsageError(
                f"{new.id} was cancelled and is writing its last checkpoint. Submit it again when "
                "it has ended: elasticdl session queue"
            )
        if before.state is SessionState.RUNNING and before.how != new.how:
            raise UsageError(
                f"{new.id} is running with other options. Wait for it, or cancel it: elasticdl "
                f"session cancel {new.id}"
            )
        is_done = before.exit_code == 0 and before.how == new.how
        if before.state is SessionState.RUNNING or is_done:
            return before
    waiting = sum(one.is_waiting for one in others if one.id != new.id)
    if waiting >= max_queued:
        raise UsageError(
            f"{waiting} sessions are already waiting in {queue.home}; --max_queued={max_queued}. "
            "Wait, cancel one (elasticdl session cancel ID), or allow more."
        )
    if before is not None and before.is_waiting:
        new = replace(new, submitted=before.submitted)
    if not (folder / PROJECT).is_dir():
        folder.mkdir(exist_ok=True)
        for name in (PATCH_FILE, PROJECT):
            if (aside / name).exists():
                (aside / name).rename(folder / name)
    new = new.now(SessionState.QUEUED)
    queue.write(new)
    return new


def _check_home(queue: Queue, origin: SubmitOrigin) -> None:
    if origin.tree is not None and queue.home.is_relative_to(origin.tree.top):
        raise UsageError(
            f"--home={queue.home} is inside the repository {origin.tree.top}. Choose a folder "
            "outside of it: the output of sessions must not become part of submissions."
        )


def _tracking_uri(request: SubmitRequest) -> str | None:
    """Return the requested MLflow URI; None if there is none.

    A relative path becomes absolute, because the session runs in another folder.

    Raises:
        UsageError: The URI contains a password.
    """
    if request.tracking_uri is None:
        return None
    uri = tracking_uri(request.tracking_uri)
    shown = without_password(uri)
    if shown != uri:
        raise UsageError(
            f"--tracking_uri={shown}: submissions are stored, but passwords must not be. Give the "
            "address without the password, and set it as MLFLOW_TRACKING_PASSWORD; or set the "
            "whole address as MLFLOW_TRACKING_URI in the environment, instead of this option."
        )
    return uri


def _new_files(request: SubmitRequest, origin: SubmitOrigin) -> Sequence[str]:
    """Return the untracked files to include in the patch: those in the code's and the run's folder.

    There are none if a commit other than HEAD, or a URL, is submitted.

    Raises:
        UsageError: There are uncommitted changes that the request does not include.
    """
    tree = origin.tree
    if tree is None or not origin.is_head:
        return []
    # Errors in a config that is being edited are reported with the path of the edited file. The
    # data is looked up later, so any folder will do.
    here = open_session(
        request.run_name, project_root=str(tree.project), data_dir=".", settings=request.settings
    )
    changed = tree.changed()
    new_files = tree.untracked([here.source.resolve(), here.folder])
    if (changed or new_files) and not request.with_patch:
        files = [*(f"changed  {name}" for name in changed), *(f"new      {n}" for n in new_files)]
        more = len(files) - _SHOWN_FILES
        listed = "\n    ".join(files[:_SHOWN_FILES] + ([f"and {more} more"] if more > 0 else []))
        raise UsageError(
            f"--repo={tree.top}: uncommitted changes, so this training could not be reproduced:\n"
            f"    {listed}\n"
            "  Commit them, or store them with the submission: --with-patch."
        )
    return new_files


def _patched(origin: SubmitOrigin, aside: Path, new_files: Sequence[str]) -> str:
    """Apply uncommitted changes to the checkout as a patch.

    Args:
        origin: The working tree with the changes.
        aside: Temporary folder of the new submission; contains the checkout. The patch is written
            to it.
        new_files: Untracked files to include.

    Returns:
        The SHA-256 of the patch; empty if the working tree has no changes.
    """
    assert origin.tree is not None  # noqa: S101 - `find` has checked it
    patch = aside / PATCH_FILE
    origin.tree.write_patch(patch, new_files)
    content = patch.read_bytes()
    if not content:
        patch.unlink()
        return ""
    repository.apply(patch, aside / PROJECT)
    return hashlib.sha256(content).hexdigest()


def _session(request: SubmitRequest, origin: SubmitOrigin, checkout: Path) -> SessionProject:
    """Return the session as committed, after checking its config and the request's options.

    Args:
        request: The request.
        origin: The repository and commit.
        checkout: Folder with the files of the commit, and of the patch if there is one.

    Raises:
        UsageError: There is no such session, or an option is wrong.
        DefinitionError: The config cannot be used.
    """
    project = (checkout / origin.url.subfolder).resolve()
    place = f"{origin.url.shown}@{origin.commit[:12]}"
    if not project.is_dir() or not project.is_relative_to(checkout.resolve()):
        raise UsageError(f"{place}: there is no folder {origin.url.subfolder!r}.")
    try:
        session = open_session(
            request.run_name,
            project_root=str(project),
            # The data may be in the repository, which is determined from the config.
            data_dir=str(project),
            settings=request.settings,
        )
    except (UsageError, DefinitionError) as error:
        raise type(error)(str(error).replace(str(checkout.resolve()), place)) from None
    workers = job_options.workers(
        request.num_workers, request.num_spare_workers, request.ray_address
    )
    session.job(
        num_epochs=request.epochs, workers=workers, checkpoint_steps=request.checkpoint_steps
    )
    return session


def _data(request: SubmitRequest, session: SessionProject, origin: SubmitOrigin) -> str:
    """Return the data folder; empty if it is part of the commit.

    A relative path in the config is first looked up in the project as committed. If it is not
    there, or only a part of it was committed, the folder in the user's working tree is returned.

    Raises:
        UsageError: No data folder is configured.
        DataError: The data folder does not exist.
    """
    named = session.config.get("data_dir")
    if request.data_dir is not None:
        where, folder = "--data_dir", Path(request.data_dir).expanduser().resolve()
    elif named is None:
        raise UsageError(
            "The data folder is not set: use --data_dir, or data_dir in "
            f"{RUNS}/{session.name}/{session.config_file.name}."
        )
    else:
        where = f"{RUNS}/{session.name}/{session.config_file.name}: data_dir"
        path = Path(str(named)).expanduser()
        tree = origin.tree
        folder = path if tree is None else (tree.project / path).resolve()
        if not path.is_absolute() and (session.project / path).is_dir():
            # A folder of which only a README was committed is not the data.
            is_more_here = tree is not None and folder.is_dir() and tree.has_others(folder)
            if not is_more_here:
                return ""
        if not folder.is_absolute():
            raise DataError(
                f"{where} is {path}, which {origin.url.shown} does not have at "
                f"{origin.commit[:12]}. Set its folder with --data_dir."
            )
    if not folder.is_dir():
        raise DataError(f"{where}: there is no folder {folder}.")
    return str(folder)


def _ignore_bytecode(checkout: Path) -> None:
    """Let git ignore Python's bytecode in a checkout.

    Otherwise the `-dirty` that a session adds to its commit could mean `__pycache__` folders only,
    not changed code.
    """
    file = checkout / ".git" / "info" / "exclude"
    file.parent.mkdir(exist_ok=True)
    file.write_text("__pycache__/\n", encoding="utf-8")


def _ref(commit: str) -> str:
    if not commit or commit.startswith("-") or not commit.isprintable() or " " in commit:
        raise UsageError(f"--commit={commit}: not a valid name of a branch, tag or commit.")
    return commit

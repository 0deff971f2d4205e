"""Data class of a submission: a session of a commit, with its state in the queue.

    queued --> running --> exported, evaluated        the session's own last state
      ^          |------> failed, killed
      |          v
      +---- interrupted   its process is gone without a final state

This module only has values: files are in `queue.py`, processes in `runner.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elasticdl.sessions.state import SessionState, SessionStatus

PROJECT = "project"
LOG_FILE = "session.log"
PATCH_FILE = "patch.diff"
_WAITING = frozenset({SessionState.QUEUED, SessionState.INTERRUPTED})
# After this number of kills, a session is too big for the machine; restarts would never end.
_DEATHS = 3
_KILLED_CODES = frozenset({130, 143})
_SIGTERM_CODE = 143


@dataclass(frozen=True)
class Submission:
    """A session of a commit, and its state in the queue.

    The fields `repo` to `settings` identify the session and never change. The options of its
    training, `epochs` to `as_ray_job`, are those with which it was last submitted.

    Attributes:
        id: Name in commands and on disk.
        repo: The repository's folder or URL, without a password.
        commit: Full hash.
        patch: SHA-256 of the changes on top of the commit; empty if there are none.
        subfolder: The project's folder in the repository; empty for the repository itself.
        run_name: Name of the run.
        data_dir: Data folder; empty if the data are part of the commit, in the config's `data_dir`.
        settings: `key=value` strings that replace values of the config.
        epochs: Number of epochs. None: that of the config.
        num_workers: Number of workers, as the user typed it. None: train in one process.
        num_spare_workers: Number of additional workers kept ready to replace lost ones.
        ray_address: Address of the workers' Ray cluster. None: start Ray on this machine.
        checkpoint_steps: Save a checkpoint every N steps. 0: decide by time.
        tracking_uri: MLflow server or database, without a password. None: that of the environment.
        tracked: Whether training is recorded in MLflow and TensorBoard.
        as_ray_job: Whether the cluster runs the session itself, and not only its workers.
        python: The interpreter that submitted it and runs it.
        submitted: When it was submitted, in seconds since 1970-01-01 UTC; determines its position
            in the queue.
        state: The state it has reached.
        since: When it reached the state, in seconds since 1970-01-01 UTC.
        starts: Number of starts since it was submitted.
        deaths: Number of these starts whose process was killed by a signal.
        host: The machine it was started on.
        pid: Process ID; 0 if it has no process, or if the ID is unknown.
        pid_start: When that process started, in the kernel's ticks.
        cancelled: Whether it was cancelled.
        exit_code: Exit code of its process; None until the process has ended.
        error: Error message if the state is `failed`; else empty.
    """

    id: str
    repo: str
    commit: str
    patch: str
    subfolder: str
    run_name: str
    data_dir: str
    settings: tuple[str, ...] = ()
    epochs: int | None = None
    num_workers: str | None = None
    num_spare_workers: int | None = None
    ray_address: str | None = None
    checkpoint_steps: int = 0
    tracking_uri: str | None = None
    tracked: bool = True
    as_ray_job: bool = False
    python: str = ""
    submitted: float = 0.0
    state: SessionState = SessionState.QUEUED
    since: float = 0.0
    starts: int = 0
    deaths: int = 0
    host: str = ""
    pid: int = 0
    pid_start: str = ""
    cancelled: bool = False
    exit_code: int | None = None
    error: str = ""

    @property
    def is_waiting(self) -> bool:
        """Whether it waits to be started, or restarted after an interruption."""
        return self.state in _WAITING

    @property
    def has_ended(self) -> bool:
        """Whether it has reached its final state."""
        return not self.is_waiting and self.state is not SessionState.RUNNING

    @property
    def how(self) -> tuple[Any, ...]:
        """How to train: the fields `epochs` to `as_ray_job`, to compare two submissions by them."""
        return (
            self.epochs,
            self.num_workers,
            self.num_spare_workers,
            self.ray_address,
            self.checkpoint_steps,
            self.tracking_uri,
            self.tracked,
            self.as_ray_job,
        )

    def session_folder(self, folder: Path) -> Path:
        """Return the folder that the session writes to: `runs/NAME` of the checked-out project.

        Args:
            folder: The submission's own folder in the queue, which contains the checkout.
        """
        return folder / PROJECT / self.subfolder / "runs" / self.run_name

    def arguments(self, folder: Path) -> list[str]:
        """Return the arguments of the `elasticdl` command that runs the submission.

        Args:
            folder: The submission's own folder in the queue.
        """
        given = {
            "data_dir": self.data_dir or None,
            "epochs": self.epochs,
            "num_workers": self.num_workers,
            "num_spare_workers": self.num_spare_workers,
            # A job on the cluster finds the address itself.
            "ray_address": "auto" if self.as_ray_job else self.ray_address,
            "checkpoint_steps": self.checkpoint_steps or None,
            "tracking_uri": self.tracking_uri,
        }
        return [
            "session",
            "run",
            f"--run_name={self.run_name}",
            f"--project_root={folder / PROJECT / self.subfolder}",
            *(f"--set={setting}" for setting in self.settings),
            *(f"--{name}={value}" for name, value in given.items() if value is not None),
            *(() if self.tracked else ("--no-track",)),
        ]

    def now(self, state: SessionState, **changes: Any) -> Submission:
        """Return a copy that has reached a state just now, with `changes` of other fields."""
        return replace(self, state=state, since=time.time(), **changes)

    def ended(self, code: int | None, status: SessionStatus, said: str = "") -> Submission:
        """Return a copy that records how its process ended.

        Its state is then final, or `interrupted` if the session must be started again.

        Args:
            code: The process's exit code, or minus the number of the signal that killed it; None if
                it is unknown, because the runner that started the process died first.
            status: Status that the session wrote; ignored if it is from before this start.
            said: The last line of its log, used as the error message if the status has none.
        """
        # A status from before this start does not describe this start.
        reported = status.state if status.since >= self.since else SessionState.NEW
        if self.cancelled:
            return self._over(
                SessionState.KILLED, _SIGTERM_CODE if code is None else _shell_code(code)
            )
        if code is None:
            # After the export, it may have been evaluating: when restarted, it finds what is done.
            known = {
                SessionState.EVALUATED: 0,
                SessionState.FAILED: 1,
                SessionState.KILLED: _SIGTERM_CODE,
            }
            if reported in known:
                return self._over(reported, known[reported], status.error)
            return self.now(SessionState.INTERRUPTED, pid=0)
        if code < 0:
            deaths = self.deaths + 1
            if deaths < _DEATHS:
                return self.now(SessionState.INTERRUPTED, pid=0, deaths=deaths)
            error = (
                f"Its process was killed {deaths} times, the last time by signal {-code}. "
                + ("Check that the machine has enough memory. " if code == -9 else "")  # noqa: PLR2004
                + "Submit it again to resume from its last checkpoint."
            )
            return self._over(SessionState.FAILED, _shell_code(code), error)
        if code == 0:
            return self._over(
                reported if reported is SessionState.EXPORTED else SessionState.EVALUATED, 0
            )
        if code in _KILLED_CODES:
            return self._over(SessionState.KILLED, code)
        return self._over(
            SessionState.FAILED, code, status.error if reported is SessionState.FAILED else said
        )

    def _over(self, state: SessionState, code: int, error: str = "") -> Submission:
        return self.now(state, pid=0, exit_code=code, error=error)


def id_of(submission: Submission) -> str:
    """Return the id of a submission, which is equal for the same session of the same code.

    Example:
        >>> id_of(Submission("", "/models", "ab" * 20, "", "", "base line", "/data"))
        'base_line-875e2cb243'
    """
    same = [
        submission.repo,
        submission.commit,
        submission.patch,
        submission.subfolder,
        submission.run_name,
        submission.data_dir,
        *submission.settings,
    ]
    key = hashlib.sha256(json.dumps(same).encode()).hexdigest()[:10]
    name = re.sub(r"[^A-Za-z0-9_-]", "_", submission.run_name)[:40].lstrip("-")
    return f"{name}-{key}"


def _shell_code(code: int) -> int:
    """Return an exit code as a shell reports it: 128 plus the signal for a killed process."""
    return 128 - code if code < 0 else code

"""A session that was asked for by commit: what it is, how far its turn is, what its end means.

    queued --> running --> exported, evaluated        the session's own last state
      ^          |------> failed, killed
      |          v
      +---- interrupted   its process is gone and did not say why

Only values: files are `queue.py`, processes are `runner.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from elasticdl.sessions.state import State, Status

PROJECT = "project"
LOG_FILE = "session.log"
PATCH_FILE = "patch.diff"
_WAITING = frozenset({State.QUEUED, State.INTERRUPTED})
# A session that is killed each time is too big for the machine; going on would never end.
_DEATHS = 3
_KILLED_CODES = frozenset({130, 143})
_SIGTERM_CODE = 143


@dataclass(frozen=True)
class Submission:
    """A session of a commit, and how far its turn is.

    What it is (`repo` to `settings`) never changes; how it is trained (`epochs` to `as_ray_job`)
    is what it was submitted with last.

    Attributes:
        id: Its name, in commands and on disk.
        repo: The repository's folder or URL, without a password.
        commit: All of its digits.
        patch: SHA-256 of the changes on top of it; empty without.
        subfolder: The project's folder in the repository; empty for all of it.
        run_name: Of the session.
        data_dir: Where the data is; empty if it is part of the commit, where the config says.
        settings: `key=value` texts that replace values of the config.
        epochs: Instead of the config's.
        num_workers: As typed; None trains in one process.
        num_spare_workers: Processes that stand ready.
        ray_address: Cluster of the workers.
        checkpoint_steps: Checkpoint each so many steps; 0 is by time.
        tracking_uri: Where it is tracked, without a password; None leaves it to the environment.
        tracked: Whether people can follow it.
        as_ray_job: Whether the cluster runs the session itself, and not only its workers.
        python: The interpreter it was submitted with, which runs it.
        submitted: When, in seconds since 1970-01-01 UTC; the queue's order.
        state: How far it is.
        since: When it got there.
        starts: How often it was started since it was submitted.
        deaths: How often its process was killed by a signal, of these.
        host: The machine it was started on.
        pid: Its process; 0 if it has none, or it is not known.
        pid_start: When that process started, in the kernel's ticks.
        cancelled: Somebody wants it to end.
        exit_code: What its process ended with; None until then.
        error: The reason of `failed`.
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
    state: State = State.QUEUED
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
        """Whether it is to be started."""
        return self.state in _WAITING

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens to it."""
        return not self.is_waiting and self.state is not State.RUNNING

    @property
    def how(self) -> tuple[Any, ...]:
        """How it is trained, of what two submissions of the same may differ in."""
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
        """Return where the session writes, in the folder of the submission."""
        return folder / PROJECT / self.subfolder / "runs" / self.run_name

    def arguments(self, folder: Path) -> list[str]:
        """Return the arguments of the `elasticdl` that runs it."""
        given = {
            "data_dir": self.data_dir or None,
            "epochs": self.epochs,
            "num_workers": self.num_workers,
            "num_spare_workers": self.num_spare_workers,
            # A job of the cluster finds it by itself.
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

    def now(self, state: State, **changes: Any) -> Submission:
        """Return it with another state, reached now."""
        return replace(self, state=state, since=time.time(), **changes)

    def ended(self, code: int | None, status: Status, said: str = "") -> Submission:
        """Return what it is when its process is gone.

        Args:
            code: The process' exit code, minus a signal's number if that killed it; None if
                nobody was there to be told, because the runner was gone before.
            status: What the session says of itself.
            said: The last line of its log.
        """
        # What an earlier start left says nothing of this one.
        told = status.state if status.since >= self.since else State.NEW
        if self.cancelled:
            return self._over(State.KILLED, _SIGTERM_CODE if code is None else _shell_code(code))
        if code is None:
            # Exported, it may have been evaluating still: started again, it finds what is done.
            known = {State.EVALUATED: 0, State.FAILED: 1, State.KILLED: _SIGTERM_CODE}
            if told in known:
                return self._over(told, known[told], status.error)
            return self.now(State.INTERRUPTED, pid=0)
        if code < 0:
            deaths = self.deaths + 1
            if deaths < _DEATHS:
                return self.now(State.INTERRUPTED, pid=0, deaths=deaths)
            error = (
                f"Its process was killed {deaths} times, the last time by signal {-code}. "
                + ("Has the machine enough memory? " if code == -9 else "")  # noqa: PLR2004
                + "Submit it again to go on from its last checkpoint."
            )
            return self._over(State.FAILED, _shell_code(code), error)
        if code == 0:
            return self._over(told if told is State.EXPORTED else State.EVALUATED, 0)
        if code in _KILLED_CODES:
            return self._over(State.KILLED, code)
        return self._over(State.FAILED, code, status.error if told is State.FAILED else said)

    def _over(self, state: State, code: int, error: str = "") -> Submission:
        return self.now(state, pid=0, exit_code=code, error=error)


def id_of(submission: Submission) -> str:
    """Return the id of a submission: equal for what is the same session of the same code.

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
    """Return an exit code as a shell tells it: 128 and the signal for who was killed."""
    return 128 - code if code < 0 else code

"""Which jobs share a cluster, and whether one of higher priority waits for workers.

    every driver:  my job, its priority, how many workers it waits for  -->  board
                   workers that jobs of higher priority wait for        <--

The board is an actor that every driver looks for by name and whoever needs it first starts; it
goes with that driver, and the next one who asks starts another. It only carries numbers:
whether to make room is said by `decisions.py`.

Callers: `controller.py`.
"""

from __future__ import annotations

import time
from typing import Any, get_args

import ray
import ray.exceptions

from elasticdl.job import Priority

_NAME = "elasticdl-board"
_INTERVAL_S = 1.0
# A driver that has not asked for so long is gone, and what it waited for with it.
_TIMEOUT_S = 5.0
# Lowest first.
_PRIORITIES = get_args(Priority)


class Board:
    """What the jobs of a cluster wait for; the times are the board's own."""

    def __init__(self) -> None:
        self._posts: dict[str, tuple[float, int, int]] = {}

    def post(self, job: str, priority: Priority, num_missing: int) -> int:
        """Replace what was known of a job.

        Args:
            job: Any text that is its alone.
            priority: Its priority.
            num_missing: How many workers it waits for.

        Returns:
            How many workers jobs of higher priority wait for.
        """
        now, rank = time.monotonic(), _PRIORITIES.index(priority)
        self._posts[job] = (now, rank, num_missing)
        self._posts = {k: v for k, v in self._posts.items() if now - v[0] < _TIMEOUT_S}
        return sum(missing for _, other, missing in self._posts.values() if other > rank)


_BoardActor: Any = ray.remote(num_cpus=0, max_restarts=0)(Board)


class Neighbours:
    """One driver's side of the board: asks now and then, and never waits for the answer.

    Args:
        job: Any text that is this job's alone.
        priority: Its priority.
    """

    def __init__(self, job: str, priority: Priority) -> None:
        self._job, self._priority = job, priority
        self._board: Any = None
        self._answer: Any = None
        self._asked_s = 0.0
        self.wait = False

    def tell(self, num_missing: int) -> None:
        """Post how many workers this job waits for; sets `wait` to what was answered last.

        `wait` says that a job of higher priority waits for workers.
        """
        if self._answer is not None:
            done, _ = ray.wait([self._answer], timeout=0)
            if not done:
                return
            try:
                self.wait = ray.get(self._answer) > 0
            except ray.exceptions.RayError:
                # It went with the driver that had started it.
                self._board = None
            self._answer = None
        now = time.monotonic()
        if now - self._asked_s < _INTERVAL_S:
            return
        self._asked_s = now
        try:
            if self._board is None:
                self._board = _BoardActor.options(name=_NAME, get_if_exists=True).remote()
            self._answer = self._board.post.remote(self._job, self._priority, num_missing)
        except (ray.exceptions.RayError, ValueError):
            # Two drivers looked for it while it was going.
            self._board = None

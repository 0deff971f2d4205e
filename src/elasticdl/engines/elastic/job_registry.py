"""Registry of the jobs that share a cluster, to make room for jobs of higher priority.

    driver  -- name and priority of its job, number of workers the job waits for -->  registry
    driver  <-- number of workers that jobs of higher priority wait for ------------  registry

The registry is an actor that drivers find by name. The first driver that needs it starts it, and it
ends with that driver; then the next driver that needs it starts another one. It only stores
numbers: `scaling_policy.py` decides whether to make room.

Callers: `controller.py`.
"""

from __future__ import annotations

import time
from typing import Any, get_args

import ray
import ray.exceptions

from elasticdl.job import Priority

_NAME = "elasticdl-job-registry"
_INTERVAL_S = 1.0
# If a driver has not posted for this long, it is assumed to be gone and its entry expires.
_TIMEOUT_S = 5.0
# Lowest first.
_PRIORITIES = get_args(Priority)


class JobRegistry:
    """Ray actor that stores how many workers each job on a cluster still waits for.

    A job whose driver has not called `post` for some seconds is forgotten.
    """

    def __init__(self) -> None:
        self._posts: dict[str, tuple[float, int, int]] = {}

    def post(self, job: str, priority: Priority, num_missing: int) -> int:
        """Record how many workers a job still waits for.

        Returns:
            Number of workers that jobs of higher priority wait for.
        """
        now, rank = time.monotonic(), _PRIORITIES.index(priority)
        self._posts[job] = (now, rank, num_missing)
        self._posts = {k: v for k, v in self._posts.items() if now - v[0] < _TIMEOUT_S}
        return sum(missing for _, other, missing in self._posts.values() if other > rank)


_RegistryActor: Any = ray.remote(num_cpus=0, max_restarts=0)(JobRegistry)


class Preemption:
    """Client of the registry, which tells whether a job of higher priority waits for workers.

    This job can then end some of its own workers to make room.

    Args:
        job: Unique name of this job.
        priority: Priority of this job.

    Attributes:
        wait: Whether a job of higher priority waits for workers, by the registry's last answer;
            False before the first one.
    """

    def __init__(self, job: str, priority: Priority) -> None:
        self._job, self._priority = job, priority
        self._registry: Any = None
        self._answer: Any = None
        self._asked_s = 0.0
        self.wait = False

    def report_missing(self, num_missing: int) -> None:
        """Send the registry the number of workers that this job waits for, and update `wait`.

        Does not block and sends at most once a second, so call it regularly: an answer is read by a
        later call.

        Args:
            num_missing: Number of workers that this job waits for.
        """
        if self._answer is not None:
            done, _ = ray.wait([self._answer], timeout=0)
            if not done:
                return
            try:
                self.wait = ray.get(self._answer) > 0
            except ray.exceptions.RayError:
                # The registry ended together with the driver that had started it.
                self._registry = None
            self._answer = None
        now = time.monotonic()
        if now - self._asked_s < _INTERVAL_S:
            return
        self._asked_s = now
        try:
            if self._registry is None:
                self._registry = _RegistryActor.options(name=_NAME, get_if_exists=True).remote()
            self._answer = self._registry.post.remote(self._job, self._priority, num_missing)
        except (ray.exceptions.RayError, ValueError):
            # The registry was ending while this driver looked it up.
            self._registry = None

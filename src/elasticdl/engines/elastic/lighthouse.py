"""Watched Lighthouse: a server process that is replaced when it dies or freezes.

The Lighthouse, a part of torchft, decides which workers take part in the next step. It runs in a
process of its own on the driver's machine. When it is replaced, workers keep their state and switch
to the new one (`allreduce.Quorum.follow`), so no step is lost.

Callers: `controller.py`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from elasticdl.engines.elastic.placement import LighthouseActor, here

if TYPE_CHECKING:
    from elasticdl.engines.elastic.timeouts import Timeouts

# It only tracks heartbeats, so it answers within milliseconds, or seconds on a busy machine.
_SILENCE_S = 10.0
_INTERVAL_S = 1.0


class WatchedLighthouse:
    """A Lighthouse process that is replaced when it dies or freezes; see the module docstring.

    Args:
        host: Address under which workers reach this machine.
        min_workers: Minimum number of workers in a quorum.
        timeouts: Timeouts of the run.
    """

    def __init__(self, host: str, min_workers: int, timeouts: Timeouts) -> None:
        self._arguments = host, min_workers, timeouts
        self._is_new = False
        self._start()

    @property
    def address(self) -> str:
        """The address of the Lighthouse; waits until it has started."""
        while True:
            try:
                address: str = ray.get(self._address)
            except ray.exceptions.RayActorError:
                self._start()
            else:
                return address

    def replaced(self) -> bool:
        """Check the Lighthouse, at most once a second; return whether workers need a new address.

        Starts another Lighthouse if this one is dead or has been silent for ten seconds.
        """
        if not ray.wait([self._address], timeout=0)[0]:
            return False
        is_new: bool = self._is_new
        self._is_new = False
        if self._is_dead():
            self._start()
            # Workers receive its address once it has started.
            self._is_new = True
            return False
        return is_new

    def _start(self) -> None:
        self._actor: Any = LighthouseActor.options(scheduling_strategy=here()).remote()
        # It starts while the workers create the model.
        self._address = self._actor.start.remote(*self._arguments)
        self._question: Any = None
        self._asked_s = 0.0

    def _is_dead(self) -> bool:
        now = time.monotonic()
        if self._question is None:
            if now - self._asked_s >= _INTERVAL_S:
                self._question, self._asked_s = self._actor.is_alive.remote(), now
            return False
        if not ray.wait([self._question], timeout=0)[0]:
            if now - self._asked_s < _SILENCE_S:
                return False
            with contextlib.suppress(Exception):
                ray.kill(self._actor)
            return True
        question, self._question = self._question, None
        try:
            ray.get(question)
        except ray.exceptions.RayActorError:
            return True
        return False

"""The Lighthouse's process: started on the driver's machine, replaced when it dies or freezes.

Workers keep their state and go over to the new one (`quorum.Quorum.follow`), so no step is lost.

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
    from elasticdl.engines.elastic.pace import Pace

# It only counts heartbeats, so an answer takes milliseconds, and seconds on a busy machine.
_SILENCE_S = 10.0
_INTERVAL_S = 1.0


class WatchedLighthouse:
    """See the module.

    Args:
        host: Address of this machine, under which workers reach it.
        min_workers: Fewer than these do not train.
        pace: How soon silence is taken for death.
    """

    def __init__(self, host: str, min_workers: int, pace: Pace) -> None:
        self._arguments = host, min_workers, pace
        self._is_new = False
        self._start()

    @property
    def address(self) -> str:
        """Return where it is, as soon as it is there."""
        while True:
            try:
                address: str = ray.get(self._address)
            except ray.exceptions.RayActorError:
                self._start()
            else:
                return address

    def replaced(self) -> bool:
        """Look after it, at most once a second; return whether workers have to be told.

        It starts another one if this one is dead or has been silent for ten seconds.
        """
        if not ray.wait([self._address], timeout=0)[0]:
            return False
        is_new: bool = self._is_new
        self._is_new = False
        if self._is_dead():
            self._start()
            # Workers are told its address when it is there.
            self._is_new = True
            return False
        return is_new

    def _start(self) -> None:
        self._actor: Any = LighthouseActor.options(scheduling_strategy=here()).remote()
        # It starts while the workers make the model.
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

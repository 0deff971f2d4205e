"""Peer watch: ends a wait for peers when one of them is frozen, or when it takes too long.

A process that is stopped (SIGSTOP, a debugger, memory swapped out, a read from a dead NFS server)
keeps its connections, and its operating system acknowledges what it receives. So a worker that
waits for a stopped peer's gradients or state notices nothing. torchft's server within each worker
tells a busy process from a stopped one: the server has its own threads and answers while the worker
computes, even while Python is blocked, but not while the process is stopped.

The wait for peers that answer has a limit: ten times the slowest wait so far, so that a slow model
is not mistaken for a hung one, and at least the timeout that the user has set.

The driver decides separately which workers are hung, by the time since their last answer to
a report request and by the time spent on a batch (`scaling_policy.py`).

Callers: `allreduce.py`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

# More than one, because a request may be lost on a busy machine.
_NUM_QUESTIONS = 2
_LIMIT_FACTOR = 10.0


@dataclass(frozen=True, eq=False)
class _Wait:
    peers: Collection[str]
    give_up: Callable[[], None]
    limit_s: float
    since_s: float


class PeerWatch:
    """A thread that watches the peers this worker is waiting for.

    Args:
        silence_s: After a wait of this many seconds the thread begins to send requests to the
            peers. A peer must answer a request within the same time; one that misses two in a row
            is considered frozen.
        is_answering: Function (address, seconds) -> whether the peer answers a request within that
            time.
    """

    def __init__(self, silence_s: float, is_answering: Callable[[str, float], bool]) -> None:
        self._silence_s, self._is_answering = silence_s, is_answering
        self._wait: _Wait | None = None
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="elasticdl-peer-watch", daemon=True).start()

    @contextlib.contextmanager
    def waiting(
        self, peers: Collection[str], give_up: Callable[[], None], limit_s: float
    ) -> Iterator[None]:
        """Context manager that watches peers while its block waits for them.

        It ends the wait, with `give_up`, if a peer is frozen or the wait takes too long.

        Args:
            peers: Addresses of the peers' torchft servers.
            give_up: Function () that makes the block's wait fail; called at most once, in the
                watch's thread.
            limit_s: Maximum time that the block may wait for peers that answer.
        """
        self._wait = _Wait(peers, give_up, limit_s, time.monotonic())
        try:
            yield
        finally:
            self._wait = None

    def close(self) -> None:
        """Stop the thread that watches the peers."""
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(self._silence_s / 4):
            wait = self._wait
            if wait is None or time.monotonic() - wait.since_s < self._silence_s:
                continue
            is_late = time.monotonic() - wait.since_s > wait.limit_s
            is_over = is_late or not all(self._answers(peer, wait) for peer in wait.peers)
            # The block may have ended in the meantime.
            if is_over and self._wait is wait:
                self._wait = None
                wait.give_up()

    def _answers(self, peer: str, wait: _Wait) -> bool:
        for _ in range(_NUM_QUESTIONS):
            if self._wait is not wait or self._is_answering(peer, self._silence_s):
                return True
        return False


def limit_of(least_s: float, slowest_s: float) -> float:
    """Return a time limit in seconds: ten times `slowest_s`, but at least `least_s`."""
    return max(least_s, _LIMIT_FACTOR * slowest_s)

"""Who answers for the parties that are simulated: this process, or some that are forked from it.

A forked process has what this one has imported and defined, at once. Whoever is free answers for
the next party: what a party remembers travels with the question, and comes back with the answer, so
all of it is here whenever a round is kept.

Callers: `simulate.py`.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Self

from elasticdl.engines.interrupts import answered_at_once
from elasticdl.errors import TrainingError, UsageError
from elasticdl.training.create import prepare_to_fork, use_this_thread_only

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.federated.memory import Memory
    from elasticdl.engines.federated.messages import Refusal, Reply, Request
    from elasticdl.engines.federated.party import Party

_CHECK_INTERVAL_S = 0.2
_PR_SET_PDEATHSIG = 1


def num_processes_for(definition: ModelDefinition, num_parties: int, asked: int | None) -> int:
    """Return how many processes are to answer, each with one thread.

    Args:
        definition: What parties train.
        num_parties: How many there are.
        asked: What a person wants; None takes all cores if there are parties for all of them, and
            otherwise leaves it to the threads of one process to use them.

    Raises:
        UsageError: Several are asked for, and the model cannot be trained in such.
    """
    num_cores = len(os.sched_getaffinity(0))
    if asked is None and num_parties < num_cores:
        return 1
    wanted = min(num_parties, num_cores if asked is None else asked)
    if wanted == 1:
        return 1
    if prepare_to_fork(definition.framework):
        return wanted
    if asked is None:
        return 1
    raise UsageError(
        f"--num_processes={asked}: only PyTorch on CPUs trains in processes that are forked, and "
        f"{definition.origin} is a model of {definition.framework}. Leave it out: parties take "
        "turns in one process."
    )


class Crew:
    """Processes that answer for parties; a context manager, which ends them.

    Args:
        parties: By name.
        num_processes: How many; one is this process itself.
    """

    def __init__(self, parties: Mapping[str, Party], num_processes: int) -> None:
        self._parties = parties
        self._pool = None
        if num_processes > 1:
            self._pool = ProcessPoolExecutor(
                num_processes,
                mp_context=multiprocessing.get_context("fork"),
                initializer=_begin,
                initargs=(parties, os.getpid()),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if self._pool is None:
            return
        if kind is not None:
            # Nobody waits for what they are at: what a party has half trained is kept nowhere.
            for process in list(self._pool._processes.values()):  # noqa: SLF001 - until Python 3.14
                process.kill()
        self._pool.shutdown(cancel_futures=True)

    def answers(
        self, requests: Mapping[str, Request], check: Callable[[], None]
    ) -> Iterator[tuple[Request, Reply | Refusal]]:
        """Ask parties, and yield questions and answers as these come.

        Args:
            requests: Party -> what it is asked.
            check: Called now and then while it waits, and when a signal comes; what it raises ends
                that.

        Raises:
            TrainingError: A process died.
        """
        if self._pool is None:
            for name, request in requests.items():
                with answered_at_once(check):
                    answer = self._parties[name].answer(request)
                yield request, answer
            return
        try:
            yield from self._answers_of(self._pool, requests, check)
        except BrokenProcessPool as error:
            raise TrainingError(
                "A process that answered for parties was killed; it may have been for want of "
                "memory. What was reached is kept: the same command goes on, with less memory if "
                "it has a lower --num_processes."
            ) from error

    def _answers_of(
        self,
        pool: ProcessPoolExecutor,
        requests: Mapping[str, Request],
        check: Callable[[], None],
    ) -> Iterator[tuple[Request, Reply | Refusal]]:
        waiting = {
            pool.submit(_answer, name, request, self._parties[name].memory): name
            for name, request in requests.items()
        }
        while waiting:
            check()
            done, _ = wait(waiting, _CHECK_INTERVAL_S, FIRST_COMPLETED)
            for future in done:
                name = waiting.pop(future)
                answer, self._parties[name].memory = future.result()
                yield requests[name], answer


# Of a forked process: those whom it answers for.
_parties: Mapping[str, Party] = {}


def _begin(parties: Mapping[str, Party], parent: int) -> None:
    global _parties  # noqa: PLW0603 - a process of the pool has no other place for it
    _parties = parties
    # Ctrl-C reaches all processes of a terminal; what comes of it is decided by the first.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        # A killed parent closes its end of the queue, but the others keep theirs open.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    use_this_thread_only()


def _answer(name: str, request: Request, memory: Memory) -> tuple[Reply | Refusal, Memory]:
    party = _parties[name]
    party.memory = memory
    return party.answer(request), party.memory

"""Processes that run the simulated parties: this process, or processes forked from it.

A forked process begins with this process's imports and model definitions, which saves time. Any
free process can serve any party: a party's client state is sent with the request and returned with
the reply. So this process has all client states whenever a round is saved.

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

from elasticdl.engines.interrupts import handled_immediately
from elasticdl.errors import TrainingError, UsageError
from elasticdl.training.create import prepare_to_fork, use_this_thread_only

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.federated.client.client_state import ClientState
    from elasticdl.engines.federated.client.party import Party
    from elasticdl.engines.federated.protocol.messages import Refusal, Reply, RoundRequest

_CHECK_INTERVAL_S = 0.2
_PR_SET_PDEATHSIG = 1


def num_processes_for(definition: ModelDefinition, num_parties: int, asked: int | None) -> int:
    """Choose the number of processes that run the simulated parties.

    A single process trains with a thread per core. Each of several processes has one thread.

    Args:
        definition: The model that the parties train.
        num_parties: Number of parties.
        asked: The user's choice. None: one process per core if there are at least as many parties
            and the model can train in forked processes; otherwise a single process.

    Raises:
        UsageError: Several processes are requested, but the model cannot train in forked ones.
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
        f"--num_processes={asked}: only PyTorch models on CPUs can train in forked processes, and "
        f"{definition.origin} is a {definition.framework} model. Leave it out: the parties then "
        "take turns in one process."
    )


class PartyProcesses:
    """Processes that run simulated parties; a context manager that ends them on exit.

    Args:
        parties: The parties by name.
        num_processes: Number of processes; 1 means this process itself.
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
            # Their current work can be dropped: unfinished training of a party is never saved.
            for process in list(self._pool._processes.values()):  # noqa: SLF001 - until Python 3.14
                process.kill()
        self._pool.shutdown(cancel_futures=True)

    def answers(
        self, requests: Mapping[str, RoundRequest], check: Callable[[], None]
    ) -> Iterator[tuple[RoundRequest, Reply | Refusal]]:
        """Send requests to parties, and yield pairs of request and answer as the answers arrive.

        Args:
            requests: Party -> its request.
            check: Called regularly while waiting, and when a signal arrives; an exception from it
                ends the wait.

        Raises:
            TrainingError: A process died.
        """
        if self._pool is None:
            for name, request in requests.items():
                with handled_immediately(check):
                    answer = self._parties[name].answer(request)
                yield request, answer
            return
        try:
            yield from self._answers_of(self._pool, requests, check)
        except BrokenProcessPool as error:
            raise TrainingError(
                "A process that runs parties was killed, possibly because memory ran out. Progress "
                "is saved: run the same command to resume; a lower --num_processes needs less "
                "memory."
            ) from error

    def _answers_of(
        self,
        pool: ProcessPoolExecutor,
        requests: Mapping[str, RoundRequest],
        check: Callable[[], None],
    ) -> Iterator[tuple[RoundRequest, Reply | Refusal]]:
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


# In a forked process: the parties that it runs.
_parties: Mapping[str, Party] = {}


def _begin(parties: Mapping[str, Party], parent: int) -> None:
    global _parties  # noqa: PLW0603 - a pool's process can keep objects only in globals
    _parties = parties
    # Ctrl-C reaches all processes of a terminal; only the parent decides how to react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        # If the parent is killed, its end of the queue closes, but other children keep theirs open.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
    use_this_thread_only()


def _answer(
    name: str, request: RoundRequest, memory: ClientState
) -> tuple[Reply | Refusal, ClientState]:
    party = _parties[name]
    party.memory = memory
    return party.answer(request), party.memory

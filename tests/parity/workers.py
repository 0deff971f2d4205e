"""The elastic engine in one process: its workers in threads, their sums in memory.

Everything is the engine's own (`worker.Worker`, its loop, its committer, the agreement, the
accumulator) but for Ray, which places processes, and torchft, which finds quorums and adds up
over a network. One worker computes at a time: they share the frameworks of one process.

Callers: `runner.py`.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from elasticdl.engines.elastic.event_buffer import StateSnapshot
from elasticdl.engines.elastic.event_writer import EventWriter
from elasticdl.engines.elastic.timeouts import Timeouts
from elasticdl.engines.elastic.worker import (
    Assignment,
    InitialState,
    Worker,
    WorkerExit,
    WorkerFailure,
)
from elasticdl.engines.loop import split_arrays
from elasticdl.engines.run import Run, TrainResult

if TYPE_CHECKING:
    import numpy.typing as npt

_PATIENCE_S = 100.0


class Meeting:
    """Where workers in threads lay their buffers down and take the sum, one at work at a time."""

    def __init__(self, num_workers: int) -> None:
        self.turn = threading.Lock()
        self._buffers: dict[int, npt.NDArray[np.float32]] = {}
        self._all_here = threading.Barrier(num_workers, self._add_up)

    def _add_up(self) -> None:
        self._sum = functools.reduce(np.add, (self._buffers[i] for i in sorted(self._buffers)))

    def sum(self, rank: int, buffer: npt.NDArray[np.float32]) -> None:
        """Replace a buffer by the sum over all workers."""
        self._buffers[rank] = buffer.copy()
        self.turn.release()
        try:
            self._all_here.wait(_PATIENCE_S)
        except threading.BrokenBarrierError as error:
            raise TimeoutError("another worker has failed") from error
        finally:
            self.turn.acquire()
        buffer[:] = self._sum

    def leave(self) -> None:
        """Let nobody wait for this worker."""
        self._all_here.abort()


class MemoryQuorum:
    """See `elastic.allreduce.Quorum`; the members are those of the meeting, from start to end."""

    is_old = False

    def __init__(self, meeting: Meeting, *, name: str, **of_torchft: Any) -> None:
        self._meeting = meeting
        self._rank = int(name.removeprefix("rank").partition("-")[0])

    def begin(self) -> None:
        """Find nothing: the members are known."""

    def wait(self) -> None:
        """Wait for nothing."""

    def sum(self, buffer: npt.NDArray[np.float32]) -> bool:
        """Add up all workers' buffers in place."""
        self._meeting.sum(self._rank, buffer)
        return True

    def vote(self, *, commit: bool) -> bool:
        """Commit what this worker wants to."""
        return commit

    def give_up_state(self) -> None:
        """Fail: workers that disagree have computed different things."""
        raise AssertionError("The workers do not agree on their history")

    def close(self) -> None:
        """Leave the others alone."""


def train_on(num_workers: int, minibatches_per_shard: int) -> Callable[[Run], TrainResult]:
    """Return an engine, for `engines.run.train`."""

    def engine(run: Run) -> TrainResult:
        plan = dataclasses.replace(run.context.plan, minibatches_per_shard=minibatches_per_shard)
        assignment = Assignment(
            job=run.context.job,
            plan=plan,
            metadata={**run.metadata, "plan": dataclasses.asdict(plan)},
            code=None,
            num_ranks=num_workers,
            num_threads=1,
            framework=run.context.definition.framework,
            timeouts=Timeouts(),
            key=bytes(32),
        )
        run.started(0)
        with mock.patch.dict("os.environ"):
            workers = [Worker(assignment) for _ in range(num_workers)]
        _run_together(workers, run)
        _check_same_state(workers)
        return _finish(workers[0], run)

    return engine


def _run_together(workers: list[Worker], run: Run) -> None:
    from elasticdl.engines.elastic import allreduce

    meeting = Meeting(len(workers))
    results: list[Any] = [None] * len(workers)

    def live(rank: int) -> None:
        with meeting.turn:
            try:
                results[rank] = workers[rank].prepare()
                if not isinstance(results[rank], WorkerFailure):
                    start = InitialState(
                        rank, rank + 1, run.generation, 0, "http://127.0.0.1:9", None
                    )
                    results[rank] = workers[rank].run(start)
            except BaseException as error:  # noqa: BLE001 - raised below, in the main thread
                results[rank] = error
            if results[rank] is not None:
                meeting.leave()

    with mock.patch.object(allreduce, "Quorum", functools.partial(MemoryQuorum, meeting)):
        threads = [threading.Thread(target=live, args=(rank,)) for rank in range(len(workers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # One that left did so since another failed.
    for result in sorted(results, key=lambda result: isinstance(result, WorkerExit)):
        if isinstance(result, WorkerFailure):
            raise result.to_error()
        if isinstance(result, BaseException):
            raise result
        assert result is None, result


def _check_same_state(workers: list[Worker]) -> None:
    first = workers[0]._trainer.state()
    for other in workers[1:]:
        state = other._trainer.state()
        assert state.keys() == first.keys()
        differing = [path for path in first if first[path].tobytes() != state[path].tobytes()]
        assert not differing, f"The workers have different {', '.join(sorted(differing))}"


def _finish(worker: Worker, run: Run) -> TrainResult:
    """Take the last state and the events from a worker, as the controller does."""
    report = worker.report(None, with_events=True)
    final = worker.final()
    assert report is not None
    assert isinstance(final, StateSnapshot)
    journal = EventWriter(run)
    journal.take(report)
    journal.save(final)
    trainer = run.context.create_trainer()
    # What callbacks keep belongs to the worker that called them; a loop that has ended may
    # publish other weights than it trained.
    _, trained = split_arrays(final.checkpoint.state)
    trainer.load_state({**trained, **getattr(final, "published", {})})
    return TrainResult(trainer, dict(final.checkpoint.metadata["metrics"]))

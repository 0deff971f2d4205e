"""Evaluating and predicting on many workers: ranges of records, each a task of Ray's.

    driver   ranges.py: who does what -> a task a range --> worker   open_model.py: does it
       ^                                                      | parts of a prediction -> staging
       +---- how far it is, metric states, that it is done ---+

A prediction's ranges are its parts: a part is the same whoever writes it and however often, so a
worker's death costs the range that it had in hand and nothing else. When all parts are there, the
driver publishes them, as in one process.

Tasks are given out again here and not by Ray, which would neither tell anybody nor ever stop
where records end each worker that takes them. Metric states are added up in the order of the
records, so that the sum does not depend on who was first.

Callers: `api.py`.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from elasticdl.definition import DatasetInput, Mode
from elasticdl.engines.elastic.open_model import (
    Finished,
    Instructions,
    Message,
    OpenModel,
    model_files,
)
from elasticdl.engines.elastic.placement import connected
from elasticdl.engines.elastic.ranges import Range, Work, cut, records_per_range
from elasticdl.engines.elastic.sent_index import send
from elasticdl.engines.elastic.worker import Failure, Identity
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.record_data import MINIBATCHES_AT_ONCE, indexes_of
from elasticdl.engines.trained import open_trained, predicted, save_evaluation
from elasticdl.errors import OutputError, TrainingError, UnavailableError
from elasticdl.evaluation.metrics import add_states
from elasticdl.prediction.writers import open_writer

if TYPE_CHECKING:
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.trained import Opened
    from elasticdl.job import Job, Workers
    from elasticdl.prediction.parts import Parts
    from elasticdl.training.trainer import MetricStates

_POLL_S = 0.1
_CANCEL_TIMEOUT_S = 10.0
_ARRIVAL_TIMEOUT_S = 10.0
# So many for each worker, with no range done in between: a neighbour's appetite would have passed.
_MAX_OUT_OF_MEMORY = 3


def evaluate(job: Job, reporter: Reporter) -> Outcome:
    """Measure a trained model on many workers; the metrics are those of one process.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    opened = open_trained(job, Mode.EVALUATION)
    with _crew(opened, "Evaluating", reporter) as crew:
        found: dict[int, MetricStates] = {}
        for range_, finished in crew.run():
            found[range_.index] = finished.states
        metrics = crew.results([found[index] for index in sorted(found)])
    return save_evaluation(opened, metrics)


def predict(job: Job, reporter: Reporter) -> Outcome:
    """Write a trained model's outputs for records on many workers, as one process would.

    Raises:
        ElasticDLError: See `elasticdl.errors`. Nothing new is at the output then.
    """
    if job.output is None:
        raise ValueError(f"Not a prediction job: {job}")
    opened = open_trained(job, Mode.PREDICTION)
    size = _range_size(opened)
    with open_writer(job.output, job.prediction_format, records_per_part=size) as writer:
        # The workers are gone when this block ends: none of them writes into what is published.
        with _crew(opened, "Predicting", reporter, writer.parts) as crew:
            for range_, _ in crew.run():
                _check_arrived(writer.parts, range_, job)
        # What killed workers were writing lies among the parts.
        writer.parts.staging.remove_stale()
    return predicted(opened)


def _workers_of(job: Job) -> Workers:
    assert job.workers is not None  # noqa: S101 - `api.run` looked
    return job.workers


def _range_size(opened: Opened) -> int:
    """Return how many records a range holds: whole minibatches, those of one process."""
    unit = opened.job.training.minibatch_size
    if isinstance(opened.definition.input, DatasetInput):
        # A pipeline is built anew for so many: what it filters or draws is then the same.
        unit *= MINIBATCHES_AT_ONCE
    return records_per_range(opened.source.num_records, unit, _workers_of(opened.job).max)


def _check_arrived(parts: Parts, range_: Range, job: Job) -> None:
    name = parts.file_name(range_.index)
    deadline_s = time.monotonic() + _ARRIVAL_TIMEOUT_S
    # A shared disk may show a file some time after another machine wrote it.
    while not parts.staging.exists(name):
        if time.monotonic() > deadline_s:
            raise OutputError(
                f"{job.output}: a worker has written {name}, and it is not there. All machines "
                "must write into one place: name a folder on a shared disk, or on an object store."
            )
        time.sleep(_POLL_S)


# --- in the workers ---------------------------------------------------------------------------

_model: tuple[str, OpenModel] | None = None


def _kept_model(run: str, instructions: list[Any]) -> OpenModel:
    """Return this process' model of a run, which is loaded once.

    Args:
        run: Which run.
        instructions: A reference to them, in a list: Ray would fetch a plain one for each task.
    """
    global _model  # noqa: PLW0603 - a worker is a process; what it keeps is the process's
    if _model is None or _model[0] != run:
        _model = (run, OpenModel(ray.get(instructions[0])))
    return _model[1]


def _do(run: str, instructions: list[Any], range_: Range, worker_id: int) -> Iterator[Any]:
    yield from _kept_model(run, instructions).run(range_, worker_id)


def _results(run: str, instructions: list[Any], states: MetricStates, range_: Range) -> Any:
    return _kept_model(run, instructions).results(states, range_)


_do_task: Any = ray.remote(num_cpus=1, max_retries=0, num_returns="streaming")(_do)
_results_task: Any = ray.remote(num_cpus=1, max_retries=_MAX_OUT_OF_MEMORY)(_results)


# --- the driver -------------------------------------------------------------------------------


@contextlib.contextmanager
def _crew(
    opened: Opened, title: str, reporter: Reporter, parts: Parts | None = None
) -> Iterator[_Crew]:
    """Start workers, or join a cluster; none of them is at work when the block has ended."""
    with connected(_workers_of(opened.job)) as ray_here, Interrupts() as interrupts:

        def check() -> None:
            interrupts.check()
            why = ray_here.why_lost()
            if why is not None:
                raise UnavailableError(f"{why} Give the same command again.")
            ray_here.check_room()

        crew = _Crew(opened, parts, check, reporter)
        reporter.started(title, opened.source.num_records, "records")
        try:
            yield crew
        finally:
            crew.close()
            reporter.ended()


@dataclass(eq=False)
class _Task:
    """A range that a worker has in hand.

    Attributes:
        range_: Which one.
        worker_id: Number of the worker; no two have one at a time.
        identity: Who it is; None before it has the model.
        finished: What it came to; None before it is done.
    """

    range_: Range
    worker_id: int
    identity: Identity | None = None
    finished: Finished | None = None

    def __str__(self) -> str:
        if self.identity is None:
            return f"Worker {self.worker_id}"
        return f"Worker {self.worker_id} (process {self.identity.pid} on {self.identity.host})"


class _Crew:
    """Keeps as many ranges in hand as there are workers, until all are done."""

    def __init__(
        self,
        opened: Opened,
        parts: Parts | None,
        check_interrupts: Callable[[], None],
        reporter: Reporter,
    ) -> None:
        workers, num_records = _workers_of(opened.job), opened.source.num_records
        self._opened, self._reporter = opened, reporter
        self._check_interrupts = check_interrupts
        self._num_workers = workers.max
        size = _range_size(opened)
        self._ranges = cut(num_records, size)
        self._work = Work(self._ranges, workers.max, workers.give_up_after_s, time.monotonic())
        self._tasks: dict[Any, _Task] = {}
        self._ready: set[int] = set()
        self._out_of_memory = 0
        self._run = uuid.uuid4().hex
        num_cpus = os.cpu_count() or 1
        is_here = workers.ray_address is None
        indexes = indexes_of(opened.definition, {opened.job.data: opened.source})
        self._instructions = [
            ray.put(
                Instructions(
                    job=opened.job,
                    mode=opened.mode,
                    # Another machine has another disk; an address is the same everywhere.
                    model=None
                    if is_here or not opened.trained.folder.is_local
                    else model_files(opened.trained),
                    files=() if indexes else tuple(opened.source.files),
                    staging=parts.staging.uri if parts is not None else "",
                    records_per_part=size,
                    num_workers=workers.max,
                    num_threads=max(1, num_cpus // workers.max) if is_here else 1,
                    indexes=send(indexes, same_machine=is_here),
                )
            )
        ]

    def run(self) -> Iterator[tuple[Range, Finished]]:
        """Yield each range as it is done.

        Raises:
            ElasticDLError: What a worker failed with, or why it is no use to go on.
        """
        while not self._work.is_done:
            while (range_ := self._work.take()) is not None:
                self._give(range_)
            ready, _ = ray.wait(list(self._tasks), timeout=_POLL_S)
            for answers in ready:
                range_ = self._tasks[answers].range_
                finished = self._hear(answers)
                if finished is not None:
                    yield range_, finished
            self._tell()
            if reason := self._work.why_give_up(time.monotonic()):
                raise TrainingError(reason)
            self._check_interrupts()

    def results(self, states: list[MetricStates]) -> dict[str, Any]:
        """Return the metrics that the ranges' states come to, asked of a worker.

        Args:
            states: Of every range, in the order of the records.

        Raises:
            ElasticDLError: No range has an example, or what the worker failed with.
        """
        total = add_states(states)
        seen = [range_ for range_, of_it in zip(self._ranges, states, strict=True) if of_it]
        if not seen:
            raise self._opened.no_example()
        answer = _results_task.remote(self._run, self._instructions, total, seen[0])
        while not ray.wait([answer], timeout=_POLL_S)[0]:
            self._check_interrupts()
        try:
            metrics = ray.get(answer)
        except ray.exceptions.RayError as error:
            raise TrainingError(f"No worker could say what the metrics are:\n{error}") from error
        if isinstance(metrics, Failure):
            raise metrics.to_error()
        return dict(metrics)

    def close(self) -> None:
        """End what is still at work, and wait until it is."""
        for answers in self._tasks:
            ray.cancel(answers, force=True)
        deadline_s = time.monotonic() + _CANCEL_TIMEOUT_S
        for answers in self._tasks:
            with contextlib.suppress(ray.exceptions.RayError, StopIteration):
                while ray.wait([answers], timeout=max(0.0, deadline_s - time.monotonic()))[0]:
                    ray.get(next(answers))
        self._tasks = {}

    def _give(self, range_: Range) -> None:
        taken = {task.worker_id for task in self._tasks.values()}
        worker_id = min(set(range(self._num_workers)) - taken)
        answers = _do_task.remote(self._run, self._instructions, range_, worker_id)
        self._tasks[answers] = _Task(range_, worker_id)

    def _hear(self, answers: Any) -> Finished | None:
        """Take one answer of a task; return what the range came to when the task has ended.

        Not before: a process that has not quite ended is not given the next range, but another
        one that would have to load the model.

        Raises:
            ElasticDLError: The worker failed with it.
        """
        task = self._tasks[answers]
        try:
            self._take(task, ray.get(next(answers)))
        except StopIteration:
            del self._tasks[answers]
        except ray.exceptions.RayTaskError as error:
            raise TrainingError(f"{task} raised, which it should not:\n{error}") from error
        except ray.exceptions.RayError as error:
            del self._tasks[answers]
            self._ready.discard(task.worker_id)
            if task.finished is None:
                self._lose(task, error)
        if answers in self._tasks:
            return None
        if task.finished is not None:
            self._work.finished(task.range_, time.monotonic())
            self._out_of_memory = 0
        return task.finished

    def _take(self, task: _Task, message: Message) -> None:
        now_s = time.monotonic()
        match message:
            case Failure():
                raise message.to_error()
            case Identity():
                task.identity = message
                self._ready.add(task.worker_id)
                self._work.begun(now_s)
            case Finished():
                task.finished = message
            case _:
                self._work.advanced(task.range_, message, now_s)

    def _lose(self, task: _Task, error: ray.exceptions.RayError) -> None:
        """Let another do what a dead worker had in hand.

        Raises:
            TrainingError: Nobody has the memory for it.
        """
        why = f"died ({type(error).__name__})"
        if isinstance(error, ray.exceptions.OutOfMemoryError):
            why = "ran out of memory"
            self._out_of_memory += 1
            if self._out_of_memory >= _MAX_OUT_OF_MEMORY * self._num_workers:
                raise TrainingError(
                    f"{self._out_of_memory} workers in a row ran out of memory, the last one on "
                    f"{task.range_}: {str(error).splitlines()[0]} Use a smaller --minibatch_size, "
                    "fewer workers on a machine, or machines with more memory."
                ) from error
        self._work.lost(task.range_, f"{task} {why}", begun=task.identity is not None)
        self._reporter.note(f"{task} {why}; another does {task.range_}.")

    def _tell(self) -> None:
        facts = {"workers": f"{len(self._ready)}/{self._num_workers}"}
        self._reporter.advanced(self._work.records_done, facts)

"""Elastic inference: evaluates and predicts on many workers, one Ray task per range of records.

    driver   inference_ranges.py: ranges --> task per range --> worker   inference_worker.py
       ^                                                        | parts of a prediction -> staging
       +---- progress, metric states, completion ---------------+

The ranges of a prediction are the parts of its output. A part is the same no matter which worker
writes it and how often, so a worker's death costs only the range it was working on. When all parts
exist, the driver publishes them, as in one process.

Tasks are retried here and not by Ray: Ray would not report the retries, and would never give up
on a range whose records kill each worker. Metric states are summed in the order of the records, so
that the sum does not depend on the order in which workers finish.

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

from elasticdl.data.split_source import whole
from elasticdl.definition import DatasetInput, Mode
from elasticdl.engines.elastic import worker_warnings
from elasticdl.engines.elastic.index_transfer import send
from elasticdl.engines.elastic.inference_ranges import (
    Range,
    RangeQueue,
    records_per_range,
    split_into_ranges,
)
from elasticdl.engines.elastic.inference_worker import (
    Finished,
    InferenceWorker,
    Instructions,
    Message,
    model_files,
)
from elasticdl.engines.elastic.placement import connected
from elasticdl.engines.elastic.worker import Identity, WorkerFailure
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.engines.inference import note_replaced, open_trained, predicted, save_evaluation
from elasticdl.engines.interrupts import Interrupts
from elasticdl.engines.record_data import MINIBATCHES_AT_ONCE, indexes_of
from elasticdl.errors import OutputError, TrainingError, UnavailableError
from elasticdl.evaluation.metrics import add_states
from elasticdl.prediction.phase import prediction_note
from elasticdl.prediction.writers import open_writer

if TYPE_CHECKING:
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.inference import OpenedModel
    from elasticdl.job import Job, Workers
    from elasticdl.prediction.parts import PredictionParts
    from elasticdl.training.trainer import MetricStates

_POLL_S = 0.1
_CANCEL_TIMEOUT_S = 10.0
_ARRIVAL_TIMEOUT_S = 10.0
# Per worker, without a completed range in between. After this many, a temporary shortage caused by
# other programs is unlikely.
_MAX_OUT_OF_MEMORY = 3


def evaluate(job: Job, reporter: Reporter) -> Outcome:
    """Evaluate a trained model on many workers; the metrics are the same as in one process.

    Raises:
        ElasticDLError: The job failed; see `elasticdl.errors`.
    """
    with WarningLog().attached():
        return _evaluate(job, reporter)


def _evaluate(job: Job, reporter: Reporter) -> Outcome:
    opened = open_trained(job, Mode.EVALUATION)
    for note in opened.notes():
        reporter.note(note)
    with _crew(opened, "Evaluating", reporter) as crew:
        found: dict[int, MetricStates] = {}
        for range_, finished in crew.run():
            found[range_.index] = finished.states
        metrics = crew.results([found[index] for index in sorted(found)])
    return save_evaluation(opened, metrics)


def predict(job: Job, reporter: Reporter) -> Outcome:
    """Predict with a trained model on many workers; the output is the same as from one process.

    Raises:
        ElasticDLError: The job failed; the output is unchanged. See `elasticdl.errors`.
    """
    if job.output is None:
        raise ValueError(f"Not a prediction job: {job}")
    with WarningLog().attached():
        return _predict(job, job.output, reporter)


def _predict(job: Job, output: str, reporter: Reporter) -> Outcome:
    opened = open_trained(job, Mode.PREDICTION)
    size = _range_size(opened)
    with open_writer(output, job.prediction_format, records_per_part=size) as writer:
        note_replaced(writer, reporter)
        # The workers are gone when this block ends, so none of them writes into the published
        # output.
        with _crew(opened, "Predicting", reporter, writer.parts) as crew:
            class_note, num_without_class = "", 0
            for range_, finished in crew.run():
                _check_arrived(writer.parts, range_, job)
                class_note = class_note or finished.class_note
                num_without_class += finished.num_without_class
        # Remove the partial files of killed workers, which are among the parts.
        writer.parts.staging.remove_stale()
    if note := prediction_note(class_note, num_without_class, opened.source.num_records):
        reporter.note(note)
    return predicted(opened)


def _workers_of(job: Job) -> Workers:
    assert job.workers is not None  # noqa: S101 - checked by `api.run`
    return job.workers


def _range_size(opened: OpenedModel) -> int:
    """Return the number of records per range: a multiple of the minibatch size.

    The minibatches are then the same as in an evaluation or prediction in one process.
    """
    unit = opened.job.training.minibatch_size
    if isinstance(opened.definition.input, DatasetInput):
        # A single process rebuilds a pipeline after this many records. With ranges of multiples of
        # it, the pipeline filters and draws the same.
        unit *= MINIBATCHES_AT_ONCE
    return records_per_range(opened.source.num_records, unit, _workers_of(opened.job).max)


def _check_arrived(parts: PredictionParts, range_: Range, job: Job) -> None:
    name = parts.file_name(range_.index)
    deadline_s = time.monotonic() + _ARRIVAL_TIMEOUT_S
    # On a shared disk a file may become visible some time after another machine wrote it.
    while not parts.staging.exists(name):
        if time.monotonic() > deadline_s:
            raise OutputError(
                f"{job.output}: a worker wrote {name}, but it is not visible here. All machines "
                "must write to the same place: use a folder on a shared disk or on an object store."
            )
        time.sleep(_POLL_S)


# --- in the workers ---------------------------------------------------------------------------

_model: tuple[str, InferenceWorker] | None = None


def _kept_model(run: str, instructions: list[Any]) -> InferenceWorker:
    """Return this process's `InferenceWorker` of a run; it is created at the first call.

    Args:
        run: ID of the run.
        instructions: A list with one Ray reference to the `Instructions`. A reference that is not
            in a list would be fetched by Ray for each task.
    """
    global _model  # noqa: PLW0603 - the model is kept once per worker process
    if _model is None or _model[0] != run:
        _model = (run, InferenceWorker(ray.get(instructions[0])))
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
    opened: OpenedModel, title: str, reporter: Reporter, parts: PredictionParts | None = None
) -> Iterator[_WorkerPool]:
    """Context manager that starts Ray on this machine or joins a cluster, and yields a worker pool.

    The running tasks are cancelled when its block ends.

    Args:
        opened: The trained model and the records.
        title: Name of the phase, for progress reports.
        reporter: Reports progress to the user.
        parts: The part files of a prediction; None for an evaluation.
    """
    with connected(_workers_of(opened.job)) as ray_here, Interrupts() as interrupts:

        def check() -> None:
            interrupts.check()
            why = ray_here.why_lost()
            if why is not None:
                raise UnavailableError(f"{why} Run the same command again.")
            ray_here.check_room()

        crew = _WorkerPool(opened, parts, check, reporter)
        reporter.started(title, opened.source.num_records, "records")
        try:
            yield crew
        finally:
            crew.close()
            reporter.ended()


@dataclass(eq=False)
class _Task:
    """A range assigned to a worker.

    Attributes:
        range_: The range.
        worker_id: Number of the worker, unique among the running ones.
        identity: Machine and process of the worker; None until it has loaded the model.
        finished: The result; None before the range is done.
    """

    range_: Range
    worker_id: int
    identity: Identity | None = None
    finished: Finished | None = None

    def __str__(self) -> str:
        if self.identity is None:
            return f"Worker {self.worker_id}"
        return f"Worker {self.worker_id} (process {self.identity.pid} on {self.identity.host})"


class _WorkerPool:
    """Workers that each process one range of records at a time, until all ranges are done."""

    def __init__(
        self,
        opened: OpenedModel,
        parts: PredictionParts | None,
        check_interrupts: Callable[[], None],
        reporter: Reporter,
    ) -> None:
        workers, num_records = _workers_of(opened.job), opened.source.num_records
        self._opened, self._reporter = opened, reporter
        self._check_interrupts = check_interrupts
        self._num_workers = workers.max
        size = _range_size(opened)
        self._ranges = split_into_ranges(num_records, size)
        self._work = RangeQueue(
            self._ranges, workers.max, workers.give_up_after_s, time.monotonic()
        )
        self._tasks: dict[Any, _Task] = {}
        self._ready: set[int] = set()
        self._out_of_memory = 0
        self._run = uuid.uuid4().hex
        num_cpus = os.cpu_count() or 1
        is_here = workers.ray_address is None
        indexes = indexes_of(opened.definition, {opened.job.data: whole(opened.source)})
        self._instructions = [
            ray.put(
                Instructions(
                    job=opened.job,
                    mode=opened.mode,
                    # Other machines cannot read a local folder, but they can read a remote address.
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
        """Process all ranges on the workers; yield each one and its result when it is done.

        Raises:
            ElasticDLError: The error of a worker, or the reason for giving up.
        """
        while not self._work.is_done:
            while (range_ := self._work.take()) is not None:
                self._assign(range_)
            ready, _ = ray.wait(list(self._tasks), timeout=_POLL_S)
            for answers in ready:
                range_ = self._tasks[answers].range_
                finished = self._handle(answers)
                if finished is not None:
                    yield range_, finished
            self._report()
            if reason := self._work.why_give_up(time.monotonic()):
                raise TrainingError(reason)
            self._check_interrupts()

    def results(self, states: list[MetricStates]) -> dict[str, Any]:
        """Compute the metrics from the metric states of all ranges, in a worker.

        Args:
            states: Metric states of every range, in the order of the records; empty for a range
                from which the input pipeline makes no example.

        Raises:
            ElasticDLError: No range has an example, or the worker failed.
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
            raise TrainingError(f"No worker could compute the metrics:\n{error}") from error
        if isinstance(metrics, WorkerFailure):
            raise metrics.to_error()
        return dict(metrics)

    def close(self) -> None:
        """Cancel the running tasks and wait until they have ended."""
        for answers in self._tasks:
            ray.cancel(answers, force=True)
        deadline_s = time.monotonic() + _CANCEL_TIMEOUT_S
        for answers in self._tasks:
            with contextlib.suppress(ray.exceptions.RayError, StopIteration):
                while ray.wait([answers], timeout=max(0.0, deadline_s - time.monotonic()))[0]:
                    ray.get(next(answers))
        self._tasks = {}

    def _assign(self, range_: Range) -> None:
        taken = {task.worker_id for task in self._tasks.values()}
        worker_id = min(set(range(self._num_workers)) - taken)
        answers = _do_task.remote(self._run, self._instructions, range_, worker_id)
        self._tasks[answers] = _Task(range_, worker_id)

    def _handle(self, answers: Any) -> Finished | None:
        """Process one message of a task; return the task's result if the task has ended.

        The result is None if the task still runs, or if its worker has died. The task's end is
        awaited because until then Ray would give the next range to another process, which would
        have to load the model.

        Args:
            answers: Ray's generator of the task's messages.

        Raises:
            ElasticDLError: The error of the worker.
        """
        task = self._tasks[answers]
        try:
            self._take(task, ray.get(next(answers)))
        except StopIteration:
            del self._tasks[answers]
        except ray.exceptions.RayTaskError as error:
            raise TrainingError(f"Unexpected error in {task}:\n{error}") from error
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
            case WorkerFailure():
                raise message.to_error()
            case Identity():
                task.identity = message
                self._ready.add(task.worker_id)
                self._work.begun(now_s)
            case Finished():
                worker_warnings.repeat(message.warnings)
                task.finished = message
            case _:
                self._work.advanced(task.range_, message, now_s)

    def _lose(self, task: _Task, error: ray.exceptions.RayError) -> None:
        """Return the range of a dead worker to the queue, to be assigned again.

        Raises:
            TrainingError: Too many workers in a row ran out of memory.
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
        self._reporter.note(f"{task} {why}; another worker takes over {task.range_}.")

    def _report(self) -> None:
        facts = {"workers": f"{len(self._ready)}/{self._num_workers}"}
        self._reporter.advanced(self._work.records_done, facts)

"""Inference worker: applies a trained model to ranges of records, one after another.

The model is opened with the first range and kept for the following ones, because importing a
framework and building a model takes seconds, which may be longer than a range. The worker yields
its messages as plain values:

    Identity        the model is loaded, and the range begins
    int             number of records of the range done so far; sent from time to time
    Finished        the range is done
    WorkerFailure   in place of any of these: an error that ends the job

Does not depend on Ray. Callers: `inference.py`, whose task runs in the worker's process.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeAlias

from elasticdl import scratch
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import MODEL_FILE, ZOO_FOLDER
from elasticdl.definition import Mode
from elasticdl.engines.elastic.index_transfer import receive
from elasticdl.engines.elastic.worker import Identity, WorkerFailure, job_error
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.engines.inference import drain, open_trained
from elasticdl.engines.trained_shapes import explained_shapes
from elasticdl.errors import DataError, ElasticDLError, kind_of
from elasticdl.evaluation.phase import running_states
from elasticdl.prediction.input_columns import InputColumns
from elasticdl.prediction.parts import PredictionParts
from elasticdl.prediction.phase import Predictor
from elasticdl.training.create import limit_threads

if TYPE_CHECKING:
    from elasticdl.artifacts.trained_model import TrainedModel
    from elasticdl.data.batch import Batch
    from elasticdl.data.record_source import RecordFile
    from elasticdl.engines.elastic.index_transfer import SentIndexes
    from elasticdl.engines.elastic.inference_ranges import Range
    from elasticdl.engines.inference import OpenedModel
    from elasticdl.job import Job
    from elasticdl.training.trainer import MetricStates, Trainer

_REPORT_INTERVAL_S = 0.5


@dataclass(frozen=True, eq=False)
class Instructions:
    """Settings that every worker of a run receives.

    Attributes:
        job: The job.
        mode: Evaluation or prediction.
        model: The trained model's files: path within it -> content; None if every worker can read
            them from their original location.
        files: The files of the records as the driver found them; empty if `indexes` has them.
        staging: Folder to which each worker writes its parts of a prediction.
        records_per_part: Number of records in a part of the prediction.
        num_workers: Number of workers that share the records.
        num_threads: Compute threads of a worker.
        indexes: Indexes that the driver found when it opened the records. Data that has no index
            here is opened by the worker itself, as the driver did.
    """

    job: Job
    mode: Mode
    model: Mapping[str, bytes] | None
    files: Sequence[RecordFile]
    staging: str
    records_per_part: int
    num_workers: int
    num_threads: int
    indexes: SentIndexes = field(default_factory=dict, repr=False)


@dataclass(frozen=True, eq=False)
class Finished:
    """Result of processing one range of records.

    Attributes:
        states: Metric states of an evaluation; empty for a prediction, whose outputs are in a file.
        warnings: All warnings that this worker has logged so far.
        class_note: That of the `Predictor`; empty for an evaluation.
        num_without_class: Number of predictions in the range without a class.
    """

    states: MetricStates
    warnings: tuple[str, ...] = ()
    class_note: str = ""
    num_without_class: int = 0


Message: TypeAlias = "Identity | int | Finished | WorkerFailure"


def model_files(trained: TrainedModel) -> dict[str, bytes]:
    """Return the files needed to use a trained model elsewhere: path within it -> content.

    Raises:
        OutputError: A file cannot be read.
    """
    folder, params = trained.folder, trained.description.params_filename
    files = {name: folder.read_bytes(name) for name in (MODEL_FILE, params)}
    for path in sorted(trained.zoo.rglob("*")):
        if path.is_file():
            files[f"{ZOO_FOLDER}/{path.relative_to(trained.zoo)}"] = path.read_bytes()
    return files


class InferenceWorker:
    """A worker that applies a trained model to ranges of records; see the module docstring.

    Args:
        instructions: Settings of the run.
    """

    def __init__(self, instructions: Instructions) -> None:
        self._instructions = instructions
        limit_threads(instructions.num_threads)
        self._warnings = WarningLog()
        self._folder: Path | None = None
        self._opened: OpenedModel | None = None
        self._trainer: Trainer | None = None
        self._predictor: Predictor | None = None

    def run(self, range_: Range, worker_id: int) -> Iterator[Message]:
        """Process a range, reporting from time to time how many of its records are done.

        Args:
            range_: The records.
            worker_id: Number of this worker; the user's `ElasticDLSpec` and
                `PredictionOutputsProcessor` receive it.

        Yields:
            Messages; see the module docstring.
        """
        try:
            with self._warnings.attached():
                opened = self._open(worker_id)
                yield Identity(socket.gethostname(), os.getpid())
                with explained_shapes(opened):
                    if opened.mode is Mode.PREDICTION:
                        yield from self._predict(opened, range_, worker_id)
                    else:
                        yield from self._evaluate(opened, range_)
        except GeneratorExit:
            # The receiver is gone.
            raise
        except BaseException as error:  # noqa: BLE001 - user code may call `sys.exit()`
            yield self._failure(job_error(error))

    def results(self, states: MetricStates, range_: Range) -> dict[str, Any] | WorkerFailure:
        """Compute the metrics of an evaluation from its summed metric states.

        Args:
            states: Metric states summed over all ranges.
            range_: A range with at least one example. Its first batch is used to build the model,
                if this worker has not built it yet.

        Returns:
            Metric name -> value; a `WorkerFailure` if that is not possible.
        """
        try:
            opened = self._open(0)
            with opened.feed(range_.start, range_.stop) as feed:
                first = feed.peek()
                if first is None:
                    return self._failure(opened.no_example())
                trainer = self._trainer_for(opened, first[1])
            return trainer.evaluation_metrics.results(states)
        except BaseException as error:  # noqa: BLE001 - user code may call `sys.exit()`
            return self._failure(job_error(error))

    # --- evaluation and prediction -----------------------------------------------------------

    def _evaluate(self, opened: OpenedModel, range_: Range) -> Iterator[Message]:
        with opened.feed(range_.start, range_.stop) as feed:
            first = feed.peek()
            if first is None:
                # The user's pipeline may filter out all records.
                yield Finished({}, self._warnings_to_send())
                return
            trainer = self._trainer_for(opened, first[1])
            reported_s = time.monotonic()
            states: MetricStates = {}
            for done, states in running_states(trainer, drain(feed)):  # noqa: B007 - used below
                if time.monotonic() - reported_s >= _REPORT_INTERVAL_S:
                    reported_s = time.monotonic()
                    yield done
        yield Finished(states, self._warnings_to_send())

    def _predict(self, opened: OpenedModel, range_: Range, worker_id: int) -> Iterator[Message]:
        instructions = self._instructions
        parts = PredictionParts(
            OutputFolder(instructions.staging),
            opened.job.prediction_format,
            instructions.records_per_part,
        )
        with opened.feed(range_.start, range_.stop) as feed, parts.part(range_.index) as part:
            first = feed.peek()
            if first is None:
                raise opened.no_example()
            trainer = self._trainer_for(opened, first[1])
            if self._predictor is None:
                classes = opened.trained.description.classes
                files, columns = opened.source.files, opened.job.columns
                read = InputColumns(opened.source, columns) if columns else None
                self._predictor = Predictor(trainer, opened.definition, files, classes, read)
            reported_s, before = time.monotonic(), self._predictor.num_without_class
            for done in self._predictor.predict(
                drain(feed),
                lambda _, keys, outputs: part.write(keys, outputs),
                start=range_.start,
                stop=range_.stop,
                worker_id=worker_id,
            ):
                if time.monotonic() - reported_s >= _REPORT_INTERVAL_S:
                    reported_s = time.monotonic()
                    yield done - range_.start
        num_without_class = self._predictor.num_without_class - before
        class_note = self._predictor.class_note
        yield Finished({}, self._warnings_to_send(), class_note, num_without_class)

    # --- model and data ----------------------------------------------------------------------

    def _open(self, worker_id: int) -> OpenedModel:
        if self._opened is not None:
            return self._opened
        instructions = self._instructions
        if instructions.model is not None and self._folder is None:
            self._folder = _written(instructions.model)
        opened = open_trained(
            instructions.job,
            instructions.mode,
            folder=None if self._folder is None else str(self._folder),
            worker_id=worker_id,
            world_size=instructions.num_workers,
            indexes=receive(instructions.indexes),
        )
        if instructions.indexes:
            # Files that differ on this machine are detected when they are read.
            self._opened = opened
            return opened
        here = [file.num_records for file in opened.source.files]
        if here != [file.num_records for file in instructions.files]:
            raise DataError(
                f"{opened.job.data}: found {len(here)} files with {sum(here):,} records on "
                f"{socket.gethostname()}, but {len(instructions.files)} files with "
                f"{sum(file.num_records for file in instructions.files):,} where the command was "
                "run. Put the data on a shared disk or an object store, so that all machines see "
                "the same files."
            )
        self._opened = opened
        return opened

    def _trainer_for(self, opened: OpenedModel, example: Batch) -> Trainer:
        if self._trainer is None:
            self._trainer = opened.restored_trainer(example)
            if opened.mode is not Mode.PREDICTION:
                self._trainer.require_sums("several workers")
            if self._folder is not None:
                # A killed process leaves its copy behind for a while; it should not contain the
                # weights.
                (self._folder / opened.trained.description.params_filename).unlink()
        return self._trainer

    def _failure(self, error: ElasticDLError) -> WorkerFailure:
        return WorkerFailure(kind_of(error), self._in_original_folder(str(error)))

    def _warnings_to_send(self) -> tuple[str, ...]:
        return tuple(map(self._in_original_folder, self._warnings.texts))

    def _in_original_folder(self, message: str) -> str:
        if self._folder is None or self._instructions.job.trained_model is None:
            return message
        # The user knows the original folder, not this copy of it.
        return message.replace(str(self._folder), self._instructions.job.trained_model)


def _written(files: Mapping[str, bytes]) -> Path:
    """Write files into a new temporary folder, which is removed at exit, and return the folder."""
    folder = Path(mkdtemp(prefix="sent-model-", dir=scratch.folder()))
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder

"""A trained model opened in a worker's process, which does ranges of records one by one.

It is opened with the first range and kept for those that follow: importing a framework and
building a model takes seconds, a range may not. What it says, it says as values that travel:

    Identity, then int ... int, then Finished      or at any moment Failure, which ends the job

Ray is not known here. Callers: `tasks.py`, whose task runs in the worker's process.
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
from elasticdl.engines.elastic.sent_index import receive
from elasticdl.engines.elastic.worker import Failure, Identity, job_error
from elasticdl.engines.trained import drain, open_trained
from elasticdl.errors import DataError, ElasticDLError
from elasticdl.evaluation.phase import running_states
from elasticdl.prediction.parts import Parts
from elasticdl.prediction.phase import Predictor
from elasticdl.training.create import limit_threads

if TYPE_CHECKING:
    from elasticdl.artifacts.trained_model import TrainedModel
    from elasticdl.data.batch import Batch
    from elasticdl.data.record_source import RecordFile
    from elasticdl.engines.elastic.ranges import Range
    from elasticdl.engines.elastic.sent_index import SentIndexes
    from elasticdl.engines.trained import Opened
    from elasticdl.job import Job
    from elasticdl.training.trainer import MetricStates, Trainer

_TELL_INTERVAL_S = 0.5


@dataclass(frozen=True, eq=False)
class Instructions:
    """What every worker of a run is told.

    Attributes:
        job: What was asked for.
        mode: Evaluation or prediction.
        model: The trained model's files: path within it -> content; None where every worker can
            read them from where they lie.
        files: What the records are of, as the driver sees them; nothing if an index says it.
        staging: Where parts of a prediction are collected.
        records_per_part: How many records a part holds.
        num_workers: How many share the records.
        num_threads: Threads a worker computes with.
        indexes: What the driver found when it opened the records; a worker opens by itself what is
            not in it.
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
    """A range is done.

    Attributes:
        states: What an evaluation of it came to; empty for a part of a prediction, which lies in
            its file.
    """

    states: MetricStates


Message: TypeAlias = "Identity | int | Finished | Failure"


def model_files(trained: TrainedModel) -> dict[str, bytes]:
    """Return what it takes to use a trained model elsewhere: path within it -> content.

    Raises:
        OutputError: A file cannot be read.
    """
    folder, params = trained.folder, trained.description.params_filename
    files = {name: folder.read_bytes(name) for name in (MODEL_FILE, params)}
    for path in sorted(trained.zoo.rglob("*")):
        if path.is_file():
            files[f"{ZOO_FOLDER}/{path.relative_to(trained.zoo)}"] = path.read_bytes()
    return files


class OpenModel:
    """See the module.

    Args:
        instructions: What it is to do.
    """

    def __init__(self, instructions: Instructions) -> None:
        self._instructions = instructions
        limit_threads(instructions.num_threads)
        self._folder: Path | None = None
        self._opened: Opened | None = None
        self._trainer: Trainer | None = None
        self._predictor: Predictor | None = None

    def run(self, range_: Range, worker_id: int) -> Iterator[Message]:
        """Do a range, and tell now and then how many of its records are done.

        Args:
            range_: Which records.
            worker_id: What a spec and an outputs processor are told as the worker's number.

        Yields:
            See the module.
        """
        try:
            opened = self._open(worker_id)
            yield Identity(socket.gethostname(), os.getpid())
            if opened.mode is Mode.PREDICTION:
                yield from self._predict(opened, range_, worker_id)
            else:
                yield from self._evaluate(opened, range_)
        except GeneratorExit:
            # Nobody listens any more.
            raise
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` of the user's, too
            yield self._failure(job_error(error))

    def results(self, states: MetricStates, range_: Range) -> dict[str, Any] | Failure:
        """Return the metrics that summed states come to.

        Args:
            states: Of all ranges.
            range_: One that has an example, to make the model of if there is none here yet.
        """
        try:
            opened = self._open(0)
            with opened.feed(range_.start, range_.stop) as feed:
                first = feed.peek()
                if first is None:
                    return self._failure(opened.no_example())
                trainer = self._trainer_for(opened, first[1])
            return trainer.evaluation_metrics.results(states)
        except BaseException as error:  # noqa: BLE001 - `sys.exit()` of the user's, too
            return self._failure(job_error(error))

    # --- the two things it does --------------------------------------------------------------

    def _evaluate(self, opened: Opened, range_: Range) -> Iterator[Message]:
        with opened.feed(range_.start, range_.stop) as feed:
            first = feed.peek()
            if first is None:
                # A pipeline of the user's may leave out records.
                yield Finished({})
                return
            trainer = self._trainer_for(opened, first[1])
            told_s = time.monotonic()
            states: MetricStates = {}
            for done, states in running_states(trainer, drain(feed)):  # noqa: B007 - the last one
                if time.monotonic() - told_s >= _TELL_INTERVAL_S:
                    told_s = time.monotonic()
                    yield done
        yield Finished(states)

    def _predict(self, opened: Opened, range_: Range, worker_id: int) -> Iterator[Message]:
        instructions = self._instructions
        parts = Parts(
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
                self._predictor = Predictor(trainer, opened.definition, opened.source)
            told_s = time.monotonic()
            for done in self._predictor.predict(
                drain(feed),
                lambda _, keys, outputs: part.write(keys, outputs),
                start=range_.start,
                stop=range_.stop,
                worker_id=worker_id,
            ):
                if time.monotonic() - told_s >= _TELL_INTERVAL_S:
                    told_s = time.monotonic()
                    yield done - range_.start
        yield Finished({})

    # --- what it takes -----------------------------------------------------------------------

    def _open(self, worker_id: int) -> Opened:
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
            # What is another file here is found when it is read.
            self._opened = opened
            return opened
        here = [file.num_records for file in opened.source.files]
        if here != [file.num_records for file in instructions.files]:
            raise DataError(
                f"{opened.job.data}: on {socket.gethostname()} these are {len(here)} files with "
                f"{sum(here):,} records, and {len(instructions.files)} files with "
                f"{sum(file.num_records for file in instructions.files):,} where the command was "
                "given. Put them where all machines find the same: on a shared disk or an object "
                "store."
            )
        self._opened = opened
        return opened

    def _trainer_for(self, opened: Opened, example: Batch) -> Trainer:
        if self._trainer is None:
            self._trainer = opened.restored_trainer(example)
            if opened.mode is not Mode.PREDICTION:
                self._trainer.require_sums("several workers")
            if self._folder is not None:
                # A killed process leaves its copy for a while: then not of the weights.
                (self._folder / opened.trained.description.params_filename).unlink()
        return self._trainer

    def _failure(self, error: ElasticDLError) -> Failure:
        message = str(error)
        if self._folder is not None and self._instructions.job.trained_model is not None:
            # The user knows the folder, not our copy of it.
            message = message.replace(str(self._folder), self._instructions.job.trained_model)
        return Failure(type(error).__name__, message)


def _written(files: Mapping[str, bytes]) -> Path:
    """Write files into a new folder of this process, which is removed with it, or by the next."""
    folder = Path(mkdtemp(prefix="sent-model-", dir=scratch.folder()))
    for name, content in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder

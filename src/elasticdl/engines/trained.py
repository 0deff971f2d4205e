"""Using a trained model in this process: measuring it, and predicting with it.

All that is needed lies in the TrainedModel's folder, the user's code included.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from elasticdl import zoo
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import TrainedModel, load_trained_model
from elasticdl.data.batch import Batch, arrays_bytes, describe
from elasticdl.definition import Mode, ModelDefinition
from elasticdl.engines.engine import Outcome, Reporter, context_of
from elasticdl.engines.feed import batches_in_order, open_records
from elasticdl.engines.prefetch import Prefetch
from elasticdl.errors import CorruptCheckpointError, DataError
from elasticdl.evaluation.phase import evaluate as evaluate_batches
from elasticdl.job import Job
from elasticdl.prediction.phase import predict as predict_batches
from elasticdl.training.create import create_trainer, import_framework

if TYPE_CHECKING:
    from elasticdl.training.trainer import Trainer


def evaluate(job: Job, reporter: Reporter) -> Outcome:
    """Measure a trained model; the metrics are printed by who called and written to a file.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    with _trained(job, Mode.EVALUATION) as (trained, definition):
        source = open_records(definition, job.data)
        batches = batches_in_order(definition, source, job.training.minibatch_size, Mode.EVALUATION)
        with Prefetch(batches, lambda item: arrays_bytes(item[1].features)) as feed:
            trainer = _restored_trainer(trained, definition, _first(feed, job.data), job)
            reporter.started("Evaluating", source.num_records, "records")
            try:
                metrics = evaluate_batches(
                    trainer,
                    (batch for _, batch in _drain(feed)),
                    lambda done: reporter.advanced(done, {}),
                )
            finally:
                reporter.ended()
    report = {
        "metrics": metrics,
        "num_records": source.num_records,
        "data": job.data,
        "step": trained.description.step,
        "time": time.time(),
    }
    folder, name = _split(job.output or f"{job.trained_model}/evaluation.json")
    OutputFolder(folder).write_bytes(name, json.dumps(report, indent=2).encode())
    return Outcome(f"{folder}/{name}", trained.description.step, metrics)


def predict(job: Job, reporter: Reporter) -> Outcome:
    """Write a trained model's outputs for records, in their order and with their keys.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    if job.output is None:
        raise ValueError(f"Not a prediction job: {job}")
    with _trained(job, Mode.PREDICTION) as (trained, definition):
        source = open_records(definition, job.data)
        batches = batches_in_order(definition, source, job.training.minibatch_size, Mode.PREDICTION)
        with Prefetch(batches, lambda item: arrays_bytes(item[1].features)) as feed:
            trainer = _restored_trainer(trained, definition, _first(feed, job.data), job)
            reporter.started("Predicting", source.num_records, "records")
            try:
                predict_batches(
                    trainer,
                    _drain(feed),
                    definition=definition,
                    files=source.files,
                    output=job.output,
                    file_format=job.prediction_format,
                    advanced=lambda done: reporter.advanced(done, {}),
                )
            finally:
                reporter.ended()
    return Outcome(job.output, trained.description.step, {"num_records": source.num_records})


@contextlib.contextmanager
def _trained(job: Job, mode: Mode) -> Iterator[tuple[TrainedModel, ModelDefinition]]:
    """Yield a trained model and its definition, made from the code it carries."""
    if job.trained_model is None:
        raise ValueError(f"Not a job for a trained model: {job}")
    trained = load_trained_model(job.trained_model)
    trained_by = Job.from_json(trained.description.job_json)
    assert trained_by.model is not None  # noqa: S101 - a training job
    model = replace(trained_by.model, zoo=str(trained.zoo))
    import_framework()
    yield trained, zoo.define(model, context_of(job, mode))


def _restored_trainer(
    trained: TrainedModel, definition: ModelDefinition, example: Batch, job: Job
) -> Trainer:
    trainer = create_trainer(
        definition, example, minibatch_size=job.training.minibatch_size, seed=job.training.seed
    )
    state = trainer.state()
    # The optimizer is as it starts: only the weights matter for looking.
    weights = {f"model/{path}": array for path, array in trained.params.items()}
    others = {path: array for path, array in state.items() if not path.startswith("model/")}
    try:
        trainer.load_state({**others, **weights})
    except CorruptCheckpointError as error:
        # The tensors are whole (their hash was checked): the model was built on other inputs.
        raise DataError(
            f"{job.data}: these records do not fit {job.trained_model}: its input function makes "
            f"{describe(example.features)} of them, and on that the model has other parameters "
            "than it was trained with. Give it records with the fields it was trained on.\n"
            + "\n".join(str(error).splitlines()[1:-1])
        ) from error
    return trainer


def _first(feed: Prefetch[tuple[int, Batch]], data: str) -> Batch:
    first = feed.peek()
    if first is None:
        raise DataError(f"{data}: the model's input pipeline yields no example.")
    return first[1]


def _drain(feed: Prefetch[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
    while feed.peek() is not None:
        yield feed.take()


def _split(uri: str) -> tuple[str, str]:
    folder, _, name = uri.rpartition("/")
    return folder or ".", name

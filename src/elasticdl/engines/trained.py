"""Using a trained model: measuring it, and predicting with it.

All that is needed lies in the TrainedModel's folder, the user's code included. Records are gone
through in their order, by ranges; in this process it is one range, and `elastic/tasks.py` gives
ranges to workers that use the functions of this file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import TrainedModel, load_trained_model
from elasticdl.data.batch import Batch, arrays_bytes, describe
from elasticdl.definition import BatchesInput, Mode, ModelDefinition
from elasticdl.engines.engine import Outcome, Reporter, context_of
from elasticdl.engines.own_batches import open_validation
from elasticdl.engines.prefetch import Prefetch
from elasticdl.engines.record_data import batches_in_order, open_records
from elasticdl.errors import CorruptCheckpointError, DataError, UsageError
from elasticdl.evaluation.metrics import add_states
from elasticdl.evaluation.phase import running_states
from elasticdl.job import Job
from elasticdl.prediction.phase import Predictor
from elasticdl.prediction.writers import open_writer
from elasticdl.training.create import create_trainer, quiet_frameworks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.data.data_index import DataIndex
    from elasticdl.data.record_source import RecordSource
    from elasticdl.training.trainer import MetricStates, Trainer


@dataclass(frozen=True, eq=False)
class Opened:
    """A trained model and the records it is to be used on.

    Attributes:
        job: What was asked for.
        trained: The model as it lies there.
        definition: What it is, made from the code it carries.
        source: The records.
        mode: What it is used for.
    """

    job: Job
    trained: TrainedModel
    definition: ModelDefinition
    source: RecordSource
    mode: Mode

    def feed(self, start: int = 0, stop: int | None = None) -> Prefetch[tuple[int, Batch]]:
        """Begin to make the batches of a range of records, in their order.

        Args:
            start: First record; for the same batches as in one range from 0, a multiple of the
                minibatch size.
            stop: One past the last; None is all that follow.
        """
        batches = batches_in_order(
            self.definition,
            self.source,
            self.job.training.minibatch_size,
            self.mode,
            start=start,
            stop=stop,
        )
        return Prefetch(batches, lambda item: arrays_bytes(item[1].features))

    def restored_trainer(self, example: Batch) -> Trainer:
        """Return a trainer with the weights of the trained model.

        Raises:
            DataError: The records are not such as the model was trained on.
            OutputError: The weights cannot be read.
        """
        try:
            return restored_trainer(self.trained, self.definition, example, self.job)
        except CorruptCheckpointError as error:
            # The tensors are whole (their hash was checked): the model was built on other inputs.
            raise DataError(
                f"{self.job.data}: these records do not fit {self.job.trained_model}: its input "
                f"function makes {describe(example.features)} of them, and on that the model has "
                "other parameters than it was trained with. Give it records with the fields it "
                "was trained on.\n" + "\n".join(str(error).splitlines()[1:-1])
            ) from error

    def no_example(self) -> DataError:
        """Return the error for records that yield no example at all."""
        return DataError(f"{self.job.data}: the model's input pipeline yields no example.")


def open_trained(
    job: Job,
    mode: Mode,
    *,
    folder: str | None = None,
    worker_id: int = 0,
    world_size: int = 1,
    indexes: Mapping[str, DataIndex] | None = None,
) -> Opened:
    """Define a trained model from the code it carries, and open the records.

    Args:
        job: What is asked for.
        mode: What the model is used for.
        folder: A copy of the trained model; None takes the one the job names.
        worker_id: What a spec is told as its worker's number.
        world_size: ... and as the number of workers.
        indexes: What is known of data, by their names: nothing is listed or looked into there.

    Raises:
        ElasticDLError: The model or the data cannot be used.
    """
    trained, definition = _defined(job, mode, folder, worker_id, world_size)
    return _opened(job, trained, definition, mode, indexes)


def _opened(
    job: Job,
    trained: TrainedModel,
    definition: ModelDefinition,
    mode: Mode,
    indexes: Mapping[str, DataIndex] | None = None,
) -> Opened:
    if isinstance(definition.input, BatchesInput):
        raise _own_batches_error(job, definition)
    source = open_records(definition, job.data, indexes)
    return Opened(job, trained, definition, source, mode)


def _defined(
    job: Job, mode: Mode, folder: str | None = None, worker_id: int = 0, world_size: int = 1
) -> tuple[TrainedModel, ModelDefinition]:
    if job.trained_model is None:
        raise ValueError(f"Not a job for a trained model: {job}")
    trained = load_trained_model(folder or job.trained_model)
    trained_by = Job.from_json(trained.description.job_json)
    assert trained_by.model is not None  # noqa: S101 - a training job
    model = replace(trained_by.model, zoo=str(trained.zoo))
    quiet_frameworks()
    context = context_of(job, mode, worker_id=worker_id, world_size=world_size)
    return trained, zoo.define(model, context)


def _own_batches_error(job: Job, definition: ModelDefinition) -> UsageError:
    """Return the error for a model whose components make batches, where records are needed."""
    asked = f"elasticdl {job.command}" + (" --report" if job.report is not None else "")
    asked += " --num_workers" if job.workers is not None else ""
    if definition.framework == "torch":
        return UsageError(
            f"{asked} goes over records, and {job.trained_model} reads batches of a DataLoader "
            f"({definition.origin}).\n  `elasticdl evaluate --trained_model=... --data=...` "
            "measures it on val_dataloader(). For predictions, train it with an "
            "input_fn(records) in its file, or load "
            f"{job.trained_model}/model.pt2 with torch.export.load."
        )
    return UsageError(
        f"{asked} goes over records, and {job.trained_model} is a model of components: its data "
        f"loader reads a folder by itself ({definition.origin}).\n  `elasticdl evaluate "
        "--trained_model=... --data=FOLDER` measures it on the loader's validation data; "
        "`elasticdl session run` reports each example of a session; for predictions, load "
        f"{job.trained_model}/model.keras with keras.models.load_model."
    )


def restored_trainer(
    trained: TrainedModel, definition: ModelDefinition, example: Batch, job: Job
) -> Trainer:
    """Return a trainer with the weights of a trained model.

    Args:
        trained: The model as it lies there.
        definition: What it is.
        example: A batch like those to come.
        job: Says the size of minibatches, and the seed.

    Raises:
        CorruptCheckpointError: On such an example the model has other parameters.
        OutputError: The weights cannot be read.
    """
    training = job.training
    trainer = create_trainer(
        definition, example, minibatch_size=training.minibatch_size, seed=training.seed
    )
    # The optimizer is as it starts: only the weights matter for looking.
    weights = {f"model/{path}": array for path, array in trained.params.items()}
    others = {
        path: array for path, array in trainer.state().items() if not path.startswith("model/")
    }
    trainer.load_state({**others, **weights})
    return trainer


def evaluate(job: Job, reporter: Reporter) -> Outcome:
    """Measure a trained model; the metrics are printed by who called and written to a file.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    trained, definition = _defined(job, Mode.EVALUATION)
    if isinstance(definition.input, BatchesInput) and job.report is None:
        return _evaluate_own_batches(job, trained, definition, reporter)
    opened = _opened(job, trained, definition, Mode.EVALUATION)
    if job.report is not None:
        return _evaluate_with_report(opened, job.report, reporter)
    with opened.feed() as feed:
        trainer = opened.restored_trainer(_first(feed, opened))
        reporter.started("Evaluating", opened.source.num_records, "records")
        states: MetricStates = {}
        try:
            for done, states in running_states(trainer, drain(feed)):  # noqa: B007 - the last one
                reporter.advanced(done, {})
        finally:
            reporter.ended()
    return save_evaluation(opened, trainer.evaluation_metrics.results(states))


def _evaluate_own_batches(
    job: Job, trained: TrainedModel, definition: ModelDefinition, reporter: Reporter
) -> Outcome:
    """Measure a model on the validation data of its own pipeline, as its training did."""
    assert isinstance(definition.input, BatchesInput)  # noqa: S101 - the caller has looked
    seed = Job.from_json(trained.description.job_json).training.seed
    validation, num_examples = open_validation(definition.input, job.data, seed)
    trainer = restored_trainer(trained, definition, next(validation.batches(0)), job)
    reporter.started("Evaluating", num_examples, "examples")
    states: MetricStates = {}
    done = 0
    try:
        for shard in range(validation.num_shards):
            for batch in validation.batches(shard):
                states = add_states([states, trainer.evaluate(batch)])
                done += batch.num_examples
                reporter.advanced(done, {})
    finally:
        reporter.ended()
    return _save(job, trained, num_examples, trainer.evaluation_metrics.results(states))


def _evaluate_with_report(opened: Opened, folder: str, reporter: Reporter) -> Outcome:
    # Only now is it needed; pyarrow takes its time to import.
    from elasticdl.evaluation.record_report import RecordReport  # noqa: PLC0415

    with opened.feed() as feed:
        trainer = opened.restored_trainer(_first(feed, opened))
        report = RecordReport(folder, trainer, opened.definition, opened.source)
        reporter.started("Evaluating", opened.source.num_records, "records")
        states: MetricStates = {}
        try:
            with report.writer:
                for done, states in report.running_states(drain(feed)):  # noqa: B007 - the last one
                    reporter.advanced(done, {})
        finally:
            reporter.ended()
        _, notes = report.finish(f"{opened.job.trained_model} on {opened.job.data}")
    for note in notes:
        reporter.note(note)
    return save_evaluation(opened, trainer.evaluation_metrics.results(states))


def save_evaluation(opened: Opened, metrics: Mapping[str, Any]) -> Outcome:
    """Write the metrics into a file and return them.

    Raises:
        OutputError: It cannot be written.
    """
    return _save(opened.job, opened.trained, opened.source.num_records, metrics)


def _save(job: Job, trained: TrainedModel, num_records: int, metrics: Mapping[str, Any]) -> Outcome:
    step = trained.description.step
    report = {
        "metrics": metrics,
        "num_records": num_records,
        "data": job.data,
        "step": step,
        "time": time.time(),
    }
    folder, name = _split(job.output or f"{job.trained_model}/evaluation.json")
    OutputFolder(folder).write_bytes(name, json.dumps(report, indent=2).encode())
    return Outcome(f"{folder}/{name}", step, metrics)


def predict(job: Job, reporter: Reporter) -> Outcome:
    """Write a trained model's outputs for records, in their order and with their keys.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    if job.output is None:
        raise ValueError(f"Not a prediction job: {job}")
    opened = open_trained(job, Mode.PREDICTION)
    with opened.feed() as feed:
        trainer = opened.restored_trainer(_first(feed, opened))
        predictor = Predictor(trainer, opened.definition, opened.source)
        reporter.started("Predicting", opened.source.num_records, "records")
        try:
            with open_writer(job.output, job.prediction_format) as writer:
                for done in predictor.predict(drain(feed), writer.write):
                    reporter.advanced(done, {})
        finally:
            reporter.ended()
    return predicted(opened)


def predicted(opened: Opened) -> Outcome:
    """Return what a prediction came to."""
    assert opened.job.output is not None  # noqa: S101 - a prediction job
    return Outcome(
        opened.job.output,
        opened.trained.description.step,
        {"num_records": opened.source.num_records},
    )


def drain(feed: Prefetch[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
    """Yield what a feed makes, to its end."""
    while feed.peek() is not None:
        yield feed.take()


def _first(feed: Prefetch[tuple[int, Batch]], opened: Opened) -> Batch:
    first = feed.peek()
    if first is None:
        raise opened.no_example()
    return first[1]


def _split(uri: str) -> tuple[str, str]:
    folder, _, name = uri.rpartition("/")
    return folder or ".", name

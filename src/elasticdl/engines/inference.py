"""Inference: evaluates a trained model, and predicts with it.

The trained model's folder contains all that is needed, including the user's code. Records are
processed in order, divided into ranges. In this process there is a single range;
`elastic/inference.py` assigns ranges to workers, which use the functions of this module.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from elasticdl import zoo
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import TrainedModel, load_trained_model
from elasticdl.data.batch import Batch, arrays_bytes, describe
from elasticdl.data.record_source import RecordFile, TableSource
from elasticdl.data.schema import NoValueError, Schema
from elasticdl.data.split_source import split_records, whole
from elasticdl.data.wording import listed
from elasticdl.definition import BatchesInput, Mode, ModelDefinition, RecordInput
from elasticdl.did_you_mean import did_you_mean
from elasticdl.engines import class_numbers
from elasticdl.engines.data_changes import compared
from elasticdl.engines.engine import Outcome, Reporter, context_of
from elasticdl.engines.iterable_data import open_once
from elasticdl.engines.prefetch import Prefetch
from elasticdl.engines.record_data import batches_in_order, open_records
from elasticdl.engines.stored_data import is_stored, shown_data
from elasticdl.engines.trained_booleans import with_trained_booleans
from elasticdl.engines.trained_shapes import explained_shapes
from elasticdl.errors import (
    CheckpointMismatchError,
    DataError,
    DefinitionError,
    OutputError,
    SchemaError,
    UsageError,
)
from elasticdl.evaluation.phase import running_states
from elasticdl.job import Job
from elasticdl.prediction.input_columns import InputColumns
from elasticdl.prediction.phase import Predictor, prediction_note
from elasticdl.prediction.writers import PredictionWriter, open_writer
from elasticdl.training.create import create_trainer
from elasticdl.training.import_seed import seeded_import
from elasticdl.training.input_words import LABELS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.data_index import DataIndex
    from elasticdl.data.record_source import RecordSource
    from elasticdl.definition import Epochs
    from elasticdl.engines.feed import Validation
    from elasticdl.training.trainer import MetricStates, Trainer

_EXAMPLE = "example"

_log = logging.getLogger("elasticdl")


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A trained model and the records to use it on.

    Attributes:
        job: The job.
        trained: The published model.
        definition: The model's definition, from the code in the trained model.
        source: The records.
        mode: Evaluation or prediction.
    """

    job: Job
    trained: TrainedModel
    definition: ModelDefinition
    source: RecordSource
    mode: Mode

    def feed(self, start: int = 0, stop: int | None = None) -> Prefetch[tuple[int, Batch]]:
        """Start preparing the batches of a range of records, in order, in a thread.

        Args:
            start: First record. It must be a multiple of the minibatch size to get the same batches
                as in a single range from 0.
            stop: One past the last record; None for all remaining records.
        """
        batches = batches_in_order(
            self.definition,
            self.source,
            self.job.training.minibatch_size,
            self.mode,
            start=start,
            stop=stop,
        )
        return Prefetch(
            self._with_explained_errors(batches), lambda item: arrays_bytes(item[1].features)
        )

    def _with_explained_errors(
        self, batches: Iterator[tuple[int, Batch]]
    ) -> Iterator[tuple[int, Batch]]:
        """Yield the batches; add advice to the error for an empty cell in an additional column.

        An additional column is one that the training data did not have, and the advice is to remove
        it. But if the table also lacks columns of the training data, it is another kind of table,
        and an error names all differences instead.
        """
        try:
            yield from batches
        except NoValueError as error:
            fields = self.trained.description.record_fields_json
            if not fields or error.column in Schema.from_json(fields).names:
                raise
            if (other := self._missing_columns_error()) is not None:
                raise other from error
            raise SchemaError(
                f"{error.problem}. The data that the model was trained on had no such column: "
                f"leave it out, as with df.drop(columns=[{error.column!r}]) in pandas."
            ) from error

    def _missing_columns_error(self) -> DataError | None:
        """Return an error if the table lacks columns of the training data; else None.

        Column names are read from the table's header, because a row with an empty cell cannot be
        decoded. In prediction, one missing column is allowed: it may be the label.
        """
        if not isinstance(self.source, TableSource):
            return None
        now, before = self.source.arrow_schema().names, self._trained_fields()
        lacking, new = _differences(before, now)
        if len(lacking) <= (self.mode is Mode.PREDICTION):
            return None
        return self._not_matching(lacking, new)

    def restored_trainer(self, example: Batch) -> Trainer:
        """Return a trainer with the weights of the trained model.

        Raises:
            DataError: The records do not match those that the model was trained on.
            OutputError: The weights cannot be read.
        """
        self.check_names()
        try:
            with explained_shapes(self):
                return restored_trainer(self.trained, self.definition, example, self.job)
        except DefinitionError as error:
            lacking = self._missing_features()
            if not lacking:
                raise
            present = list(self.source.read_records(0, 1, None)[0])
            raise DataError(
                f"{self.job.data}: the records have {listed(present)}, and "
                f"{self.job.trained_model} was trained on {listed(self._trained_fields())}. "
                f"Missing: {listed(lacking)}. Add what is missing to the records."
            ) from error
        except CheckpointMismatchError as error:
            # The tensors are intact (their hash was checked): the model was built on other inputs.
            if (other := self.differing_fields_error()) is not None:
                raise other from error
            raise DataError(
                f"{self.job.data}: these records do not match {self.job.trained_model}: its input "
                f"function converts them to {describe(example.features)}, and with these inputs "
                "the model has different parameters from the trained ones. Use records with the "
                "fields that it was trained on.\n" + "\n".join(str(error).splitlines()[1:-1])
            ) from error

    def _missing_features(self) -> list[str]:
        """Return the features that the records lack and no other field may replace.

        Empty if the model file has an input function, which may not need them.
        """
        lacking, added = self._differences()
        if not self.definition.has_default_input or added:
            return []
        return [name for name in lacking if name not in LABELS]

    def notes(self) -> list[str]:
        """Return a warning, for the user, if `--validation_split` may select training records.

        The result is an empty list if there is nothing to warn about.

        Raises:
            UsageError: Some of the records of `--validation_split` are known to be training
                records.
        """
        share = self.job.validation_split
        if share is None:
            return []
        trained_by = Job.from_json(self.trained.description.job_json)
        before = trained_by.validation_split or 0
        found = self._compared_with_training(trained_by)
        if found == "same" or (found == "renamed" and not before):
            self._check_share(share, before)
            return []
        if found == "unknown" or not before:
            return []
        renamed = found == "renamed"
        data = shown_data(trained_by.data)
        differs = "names" if renamed else "names, contents or numbers of records"
        warning = (
            f"WARNING: the data is not the data of the training ({data}): its files have other "
            f"{differs}. So --validation_split={share:g} does not hold out the same records: "
            f"{self.job.trained_model} {'was' if renamed else 'may have been'} trained on most of "
            "these."
        )
        return [warning]

    def _compared_with_training(
        self, trained_by: Job
    ) -> Literal["same", "renamed", "other", "unknown"]:
        """Compare the data of the evaluation with the data that the model was trained on.

        Only on the same data does `--validation_split` select records that the training also held
        out. On other data, it may select records that the model was trained on.

        Args:
            trained_by: The job that trained the model.

        Returns:
            The result of `data_changes.compared`. If the trained model has no fingerprint of its
            data, only the names of the data are compared: "same", or "unknown" if they differ.
        """
        fingerprint = self.trained.description.data_fingerprint_json
        if not fingerprint:
            return "same" if trained_by.data == self.job.data else "unknown"
        files = [(file.uri, file.num_records) for file in whole(self.source).files]
        return compared(files, json.loads(fingerprint))

    def _check_share(self, share: float, before: float) -> None:
        """Check that the model was not trained on the records that `--validation_split` selects.

        The check compares only the shares: a smaller one selects a subset of the records that a
        larger one of the same data selects.

        Args:
            share: Share of the data to evaluate on.
            before: Share that was held out of the training; 0 if none.

        Raises:
            UsageError: The model was trained on some of the records.
        """
        if share <= before:
            return
        held_out = f"only {before:g} of the data" if before else "nothing"
        instead = f"with --validation_split={before:g}, or " if before else "it "
        raise UsageError(
            f"--validation_split={share:g}: {self.job.trained_model} was trained on some of these "
            f"records: its training held out {held_out}. Evaluate {instead}on other data."
        )

    def differing_fields_error(self) -> DataError | None:
        """Return an error if the records have other fields than the training data; else None.

        Also None if the trained model does not list the fields of its training data; one with a
        `data_schema()` does not.
        """
        lacking, added = self._differences()
        return self._not_matching(lacking, added) if lacking or added else None

    def _not_matching(self, lacking: Sequence[str], added: Sequence[str]) -> DataError:
        parts = [f"they have no {listed(lacking)}"] if lacking else []
        parts += [f"they also have {listed(added)}"] if added else []
        near = did_you_mean(added[0], lacking) if added else "."
        return DataError(
            f"{self.job.data}: these records do not match {self.job.trained_model}: "
            f"{', and '.join(parts)}{near} Use the fields that the model was trained on; only the "
            "label may be missing in prediction."
        )

    def _differences(self) -> tuple[list[str], list[str]]:
        """Return the fields that only the training data has, and those that only the records have.

        Both are empty if the trained model does not describe the fields of its training data.
        """
        before = self._trained_fields()
        if not before:
            return [], []
        return _differences(before, list(self.source.read_records(0, 1, None)[0]))

    def _trained_fields(self) -> Sequence[str]:
        """Return the names of the fields of the training data; empty if unknown.

        They are unknown if the model file has a `data_schema()`. The trained model then stores this
        schema, which names the fields that the model reads, but not all fields of the data.
        """
        fields = self.trained.description.record_fields_json
        return Schema.from_json(fields).names if fields else ()

    def field_names(self) -> set[str]:
        """Return the names of the fields that the model reads; empty if unknown.

        They are those of its schema, or else those of the training data.
        """
        how = self.definition.input
        schema = how.schema if isinstance(how, RecordInput) else None
        return set(self._trained_fields() if schema is None else schema.names)

    def check_names(self) -> None:
        """Raise an error if field names differ and the trained model is a prebuilt table model.

        Such a model reads all fields, sorted by name. With a renamed field, the number of inputs
        would be right, so nothing else would notice that their order is wrong.

        Raises:
            DataError: The records lack a field and have another one instead.
        """
        # The zoo of a prebuilt model has no name.
        if not self.trained.description.model_zoo and all(self._differences()):
            error = self.differing_fields_error()
            assert error is not None  # noqa: S101 - there are differences
            raise error

    def no_example(self) -> DataError:
        """Return the error for records from which the input pipeline makes no example."""
        return DataError(f"{self.job.data}: the model's input pipeline yields no examples.")


def open_trained(
    job: Job,
    mode: Mode,
    *,
    folder: str | None = None,
    worker_id: int = 0,
    world_size: int = 1,
    indexes: Mapping[str, DataIndex] | None = None,
) -> OpenedModel:
    """Define a trained model from the code that it contains, and open the records.

    Args:
        job: The job.
        mode: Evaluation or prediction.
        folder: A copy of the trained model. None: open the model that the job names.
        worker_id: Number of this worker, from 0; the user's `ElasticDLSpec` receives it.
        world_size: Number of workers; the user's `ElasticDLSpec` receives it.
        indexes: Known indexes, keyed by the name of the data. Data with an index is neither listed
            nor opened to find its records.

    Raises:
        ElasticDLError: The model or the data cannot be used.
    """
    trained, definition = define_trained(job, mode, folder, worker_id, world_size)
    return _opened(job, trained, definition, mode, indexes)


def _opened(
    job: Job,
    trained: TrainedModel,
    definition: ModelDefinition,
    mode: Mode,
    indexes: Mapping[str, DataIndex] | None = None,
) -> OpenedModel:
    if isinstance(definition.input, BatchesInput):
        raise _own_batches_error(job, definition)
    source = open_records(definition, job.data, indexes, mode)
    if indexes is None:
        check_class_numbers(trained, definition, source, mode)
    if mode is Mode.EVALUATION:
        class_numbers.require_classes(definition, source, "--data")
    if job.validation_split is not None:
        source = split_records(source, job.validation_split).validation
    return OpenedModel(job, trained, definition, source, mode)


def check_class_numbers(
    trained: TrainedModel, definition: ModelDefinition, source: RecordSource, mode: Mode
) -> None:
    """Check, before evaluation or prediction, that the data number the classes as the model does.

    Raises:
        DataError: The data name their classes, and a class has another number than in the model, or
            a prebuilt model to evaluate was trained on the names.
    """
    columns = class_numbers.class_columns(source)
    trained_on = json.loads(trained.description.class_columns_json or "{}")
    class_numbers.check_same_numbers(trained_on, columns, "the data")
    # Its training has compared the model file with the columns that the training data had.
    new = {name: classes for name, classes in columns.items() if name not in trained_on}
    if trained.description.model_zoo or "classes" not in definition.params:
        class_numbers.check_numbers(definition, new, "the data")
    elif mode is Mode.EVALUATION:
        # A prebuilt table model, which compares labels with the values of its training table.
        label = str(definition.params.get("label", "label"))
        class_numbers.check_not_numbers(definition.classes, new, label)


def define_trained(
    job: Job, mode: Mode, folder: str | None = None, worker_id: int = 0, world_size: int = 1
) -> tuple[TrainedModel, ModelDefinition]:
    """Load a trained model, and define it from the code that it contains.

    Args:
        job: The job.
        mode: Evaluation or prediction.
        folder: A copy of the trained model. None: open the model that the job names.
        worker_id: Number of this worker, from 0; the user's `ElasticDLSpec` receives it.
        world_size: Number of workers; the user's `ElasticDLSpec` receives it.

    Raises:
        ElasticDLError: There is no trained model, or its code cannot be used.
    """
    if job.trained_model is None:
        raise ValueError(f"Not a job for a trained model: {job}")
    trained = load_trained_model(folder or job.trained_model)
    trained_by = Job.from_json(trained.description.job_json)
    assert trained_by.model is not None  # noqa: S101 - a training job
    model = replace(trained_by.model, zoo=str(trained.zoo))
    context = context_of(job, mode, worker_id=worker_id, world_size=world_size)
    with seeded_import(trained_by.training.seed):
        definition = zoo.define(model, context)
    if not definition.classes:
        definition = replace(definition, classes=trained.description.classes)
    fields_json = trained.description.record_fields_json
    fields = Schema.from_json(fields_json).fields if fields_json else ()
    definition = with_trained_booleans(definition, {each.name: each.dtype for each in fields})
    # A user cannot change the schema of a trained model, only the data.
    return trained, definition.with_undeclared_schema()


def _own_batches_error(job: Job, definition: ModelDefinition) -> UsageError:
    """Return the error for a job that needs records, though the model's own code reads batches.

    For example, an evaluation on several workers needs records, to divide them into ranges.
    """
    asked = f"elasticdl {job.command}" + (" --report" if job.report is not None else "")
    asked += " --validation_split" if job.validation_split is not None else ""
    asked += " --num_workers" if job.workers is not None else ""
    if definition.framework == "torch":
        return UsageError(
            f"{asked} reads records, but {job.trained_model} reads batches of a DataLoader "
            f"({definition.origin}).\n  In this process, without --num_workers, --report and "
            "--validation_split, `elasticdl evaluate` uses its val_dataloader() and `elasticdl "
            "predict` its predict_dataloader(). Otherwise train it with an input_fn(records) in "
            "its file."
        )
    return UsageError(
        f"{asked} reads records, but {job.trained_model} is built from the components of a "
        f"session: its data loader reads a folder itself ({definition.origin}).\n  `elasticdl "
        "evaluate --trained_model=... --data=FOLDER` evaluates it on the loader's validation data; "
        "`elasticdl session run` reports each example of a session; for predictions, load "
        f"{job.trained_model}/model.keras with keras.models.load_model."
    )


def restored_trainer(
    trained: TrainedModel, definition: ModelDefinition, example: Batch, job: Job
) -> Trainer:
    """Return a trainer with the weights of a trained model.

    Args:
        trained: The published model.
        definition: The model's definition.
        example: A batch of the records, on which the model is built.
        job: Job that provides the minibatch size. The seed is that of the training job instead,
            because a model may draw random values other than weights when it is created.

    Raises:
        CheckpointMismatchError: The model that is built on `example` has other parameters than the
            trained one.
        OutputError: The weights cannot be read.
    """
    seed = Job.from_json(trained.description.job_json).training.seed
    trainer = create_trainer(
        definition, example, minibatch_size=job.training.minibatch_size, seed=seed
    )
    # The optimizer keeps its initial state: inference needs only the weights.
    weights = {f"model/{path}": array for path, array in trained.params.items()}
    others = {
        path: array for path, array in trainer.state().items() if not path.startswith("model/")
    }
    trainer.load_state({**others, **weights})
    return trainer


def evaluate(job: Job, reporter: Reporter) -> Outcome:
    """Evaluate a trained model and write the metrics to a file; the caller prints them.

    Raises:
        ElasticDLError: The job failed; see `elasticdl.errors`.
    """
    trained, definition = define_trained(job, Mode.EVALUATION)
    own = isinstance(definition.input, BatchesInput)
    if own and job.report is None and job.validation_split is None:
        return _evaluate_own_batches(job, trained, definition, reporter)
    opened = _opened(job, trained, definition, Mode.EVALUATION)
    for note in opened.notes():
        reporter.note(note)
    if job.report is not None:
        return _evaluate_with_report(opened, job.report, reporter)
    with opened.feed() as feed:
        trainer = opened.restored_trainer(_first(feed, opened))
        reporter.started("Evaluating", opened.source.num_records, "records")
        states: MetricStates = {}
        try:
            with explained_shapes(opened):
                for done, states in running_states(trainer, drain(feed)):  # noqa: B007 - used below
                    reporter.advanced(done, {})
        finally:
            reporter.ended()
    return save_evaluation(opened, trainer.evaluation_metrics.results(states))


def _evaluate_own_batches(
    job: Job, trained: TrainedModel, definition: ModelDefinition, reporter: Reporter
) -> Outcome:
    """Evaluate a model that reads batches with its own code, on its own validation data."""
    batches, epochs = own_batches(job, trained, definition, Mode.EVALUATION)
    trainer = restored_trainer(trained, definition, next(batches.batches(0)), job)
    reporter.started("Evaluating", epochs.num_examples, "examples")
    states: MetricStates = {}
    try:
        for done, states in running_states(trainer, _in_order(batches)):  # noqa: B007 - used below
            reporter.advanced(done, {})
    finally:
        reporter.ended()
    return _save(job, trained, epochs.num_examples, trainer.evaluation_metrics.results(states))


def own_batches(
    job: Job, trained: TrainedModel, definition: ModelDefinition, mode: Mode
) -> tuple[Validation, Epochs]:
    """Open the batches of a model that reads its data with its own code, for a single pass.

    Args:
        job: The job, which names the data.
        trained: The trained model. The seed of its training job seeds the batches.
        definition: The model's definition, whose input yields batches.
        mode: Evaluation or prediction.

    Returns:
        The batches in shards, and the opened pipeline, whose `num_batches` is their number.

    Raises:
        ElasticDLError: The user's code or the data cannot be used.
    """
    assert isinstance(definition.input, BatchesInput)  # noqa: S101 - the caller has checked
    seed = Job.from_json(trained.description.job_json).training.seed
    return open_once(definition.input, job.data, seed, mode)


def _in_order(batches: Validation) -> Iterator[tuple[int, Batch]]:
    """Yield (number of the first example, batch) for all batches, counting examples from 0."""
    first = 0
    for shard in range(batches.num_shards):
        for batch in batches.batches(shard):
            yield first, batch
            first += batch.num_examples


def _evaluate_with_report(opened: OpenedModel, folder: str, reporter: Reporter) -> Outcome:
    # Imported only when needed, because importing pyarrow takes long.
    from elasticdl.evaluation.record_report import RecordReport  # noqa: PLC0415

    with opened.feed() as feed:
        trainer = opened.restored_trainer(_first(feed, opened))
        report = RecordReport(
            folder,
            trainer,
            opened.definition,
            opened.source,
            names_files=not is_stored(opened.job.data),
        )
        reporter.started("Evaluating", opened.source.num_records, "records")
        states: MetricStates = {}
        try:
            with explained_shapes(opened), report.writer:
                for done, states in report.running_states(drain(feed)):  # noqa: B007 - used below
                    reporter.advanced(done, {})
        finally:
            reporter.ended()
        _, notes = report.finish(f"{opened.job.trained_model} on {shown_data(opened.job.data)}")
    for note in notes:
        reporter.note(note)
    return save_evaluation(opened, trainer.evaluation_metrics.results(states))


def save_evaluation(opened: OpenedModel, metrics: Mapping[str, Any]) -> Outcome:
    """Write the metrics of an evaluation to a file, and return the outcome.

    A trained model in a read-only folder can be evaluated too: without `job.output`, a file that
    cannot be written causes a warning, and the outcome's output is empty.

    Raises:
        OutputError: `job.output` cannot be written.
    """
    return _save(opened.job, opened.trained, opened.source.num_records, metrics)


def _save(job: Job, trained: TrainedModel, num_records: int, metrics: Mapping[str, Any]) -> Outcome:
    step = trained.description.step
    report = {
        "metrics": metrics,
        "num_records": num_records,
        "data": shown_data(job.data),
        "step": step,
        "time": time.time(),
    }
    folder, name = _split(job.output or f"{job.trained_model}/evaluation.json")
    try:
        OutputFolder(folder).write_bytes(name, json.dumps(report, indent=2).encode())
    except OutputError as error:
        if job.output is not None:
            raise
        _log.warning("The metrics are not saved. %s", error)
        return Outcome("", step, metrics)
    return Outcome(f"{folder}/{name}", step, metrics)


def predict(job: Job, reporter: Reporter) -> Outcome:
    """Write a trained model's outputs for records, in their order and with their keys.

    Raises:
        ElasticDLError: The job failed; see `elasticdl.errors`.
    """
    if job.output is None:
        raise ValueError(f"Not a prediction job: {job}")
    trained, definition = define_trained(job, Mode.PREDICTION)
    if isinstance(definition.input, BatchesInput) and definition.input.predicts:
        if job.columns:
            raise UsageError(
                f"--columns={','.join(job.columns)}: {job.trained_model} reads batches of a "
                "DataLoader, which have no columns to copy. Leave the option out: predictions are "
                "in the order of the loader's examples."
            )
        own, epochs = own_batches(job, trained, definition, Mode.PREDICTION)
        trainer = restored_trainer(trained, definition, next(own.batches(0)), job)
        # A loader has no files, so its examples are numbered.
        examples = RecordFile(_EXAMPLE, epochs.num_examples)
        classes = trained.description.classes
        predictor = Predictor(trainer, definition, [examples], classes)
        reporter.started("Predicting", epochs.num_examples, "examples")
        _write(job, predictor, _in_order(own), reporter)
        return _predicted(job, trained, epochs.num_examples)
    opened = _opened(job, trained, definition, Mode.PREDICTION)
    columns = InputColumns(opened.source, job.columns) if job.columns else None
    with opened.feed() as feed:
        trainer = opened.restored_trainer(_first(feed, opened))
        classes = trained.description.classes
        predictor = Predictor(trainer, definition, opened.source.files, classes, columns)
        reporter.started("Predicting", opened.source.num_records, "records")
        with explained_shapes(opened):
            _write(job, predictor, drain(feed), reporter)
    return predicted(opened)


def _write(
    job: Job,
    predictor: Predictor,
    batches: Iterator[tuple[int, Batch]],
    reporter: Reporter,
) -> None:
    assert job.output is not None  # noqa: S101 - a prediction job
    try:
        with open_writer(job.output, job.prediction_format) as writer:
            note_replaced(writer, reporter)
            done = 0
            for done in predictor.predict(batches, writer.write):
                reporter.advanced(done, {})
    finally:
        reporter.ended()
    if note := prediction_note(predictor.class_note, predictor.num_without_class, done):
        reporter.note(note)


def note_replaced(writer: PredictionWriter, reporter: Reporter) -> None:
    """Notify the user before the work begins if this prediction will replace an earlier one.

    Args:
        writer: The writer of the new prediction, which has looked for an earlier one.
        reporter: Shows the note.
    """
    if writer.replaced:
        reporter.note(
            f"{writer.replaced} is an earlier prediction; it is replaced when this one is complete."
        )


def predicted(opened: OpenedModel) -> Outcome:
    """Return the outcome of a finished prediction: its location and the trained model's step."""
    return _predicted(opened.job, opened.trained, opened.source.num_records)


def _predicted(job: Job, trained: TrainedModel, num_records: int) -> Outcome:
    assert job.output is not None  # noqa: S101 - a prediction job
    return Outcome(job.output, trained.description.step, {"num_records": num_records})


def _differences(before: Sequence[str], now: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names that are only in the first list, and those only in the second, in order."""
    known, present = set(before), set(now)
    return [name for name in before if name not in present], [
        name for name in now if name not in known
    ]


def drain(feed: Prefetch[tuple[int, Batch]]) -> Iterator[tuple[int, Batch]]:
    """Take and yield all remaining batches of a feed, until it is empty."""
    while feed.peek() is not None:
        yield feed.take()


def _first(feed: Prefetch[tuple[int, Batch]], opened: OpenedModel) -> Batch:
    first = feed.peek()
    if first is None:
        raise opened.no_example()
    return first[1]


def _split(uri: str) -> tuple[str, str]:
    folder, _, name = uri.rpartition("/")
    return folder or ".", name

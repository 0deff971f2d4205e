"""Loads a trained model as an object of its framework: `elasticdl.load`.

Keras and some PyTorch models have no weights before they are called, so the model is called on an
example: the first records of data that the caller names, or zeros of the shapes in `data_schema()`.
In these zeros, strings are empty. An input function may reject an empty label but accept a record
without a label, so if it raises, each string field is left out in turn.

A model that reads batches with its own code (a DataLoader) is called on the first batch.

Callers: `api.py`.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl import scratch
from elasticdl.data.arrays import ArraySource
from elasticdl.data.field import STRING
from elasticdl.data.in_memory import arrow_rows, named_in_errors, store
from elasticdl.data.schema import Schema
from elasticdl.definition import BatchesInput, Mode, RecordInput
from elasticdl.engines.inference import (
    OpenedModel,
    define_trained,
    own_batches,
    restored_trainer,
)
from elasticdl.engines.loaded_model import add_classes, with_additions
from elasticdl.engines.record_data import open_records
from elasticdl.engines.stored_data import ASIDE, file_names
from elasticdl.errors import ElasticDLError, UsageError, ends_at_caller
from elasticdl.job import Job, TrainingOptions

if TYPE_CHECKING:
    from elasticdl.artifacts.trained_model import TrainedModel
    from elasticdl.definition import ModelDefinition

_NUM_EXAMPLES = 2


def load(trained_model: str, data: Any) -> Any:
    """Return a Keras or PyTorch model with its trained weights; see `api.load`."""
    name = None if data is None else file_names(data)
    if data is None or name is not None:
        return _loaded(trained_model, name)
    with tempfile.TemporaryDirectory(dir=scratch.folder(), prefix=ASIDE) as folder:
        uri, *_ = store(arrow_rows(data), folder, Path(folder), lambda _: None)
        with named_in_errors({uri: "data"}):
            return _loaded(trained_model, uri)


def _loaded(trained_model: str, data: str | None) -> Any:
    training = TrainingOptions(minibatch_size=_NUM_EXAMPLES)
    job = Job("predict", data or "", None, trained_model=trained_model, training=training)
    trained, definition = define_trained(job, Mode.PREDICTION)
    if isinstance(definition.input, BatchesInput):
        return _of_own_batches(job, trained, definition)
    if data is not None:
        source = open_records(definition, data, mode=Mode.PREDICTION)
        return _built_on(OpenedModel(job, trained, definition, source, Mode.PREDICTION))
    schema = _schema(definition, trained, trained_model)
    # Without a schema, a source of arrays would return one-dimensional arrays.
    assert isinstance(definition.input, RecordInput)  # noqa: S101 - it has such a schema
    decoded = replace(definition, input=replace(definition.input, schema=schema))
    texts = [field.name for field in schema.fields if field.dtype == STRING]
    errors = []
    for left_out in ("", *texts):
        zeros = {name: array for name, array in _zeros(schema).items() if name != left_out}
        try:
            source = ArraySource(zeros, "zeros")
            opened = OpenedModel(job, trained, definition, source, Mode.PREDICTION)
            return _built_on(opened, decoded)
        except ElasticDLError as error:
            # A file that the code cannot open has nothing to do with the records.
            if isinstance(error.__cause__, OSError):
                raise
            errors.append(error)
    raise UsageError(
        f"{trained_model} cannot be loaded without data, because its code does not accept "
        f"zeros in place of a record: {errors[0]}\n  Pass some records: "
        f"elasticdl.load({trained_model!r}, data={_example_data(trained)})."
    ) from errors[0]


def _built_on(opened: OpenedModel, decoded: ModelDefinition | None = None) -> Any:
    """Return the model with its trained weights, built on the first batch of its records.

    Args:
        opened: The trained model, and records.
        decoded: A definition to read these records with, if they need another schema than the
            training data. None: the model's own definition.
    """
    definition = opened.definition
    with replace(opened, definition=decoded or definition).feed(
        0, min(_NUM_EXAMPLES, opened.source.num_records)
    ) as feed:
        first = feed.peek()
        if first is None:
            raise opened.no_example()
        trainer: Any = opened.restored_trainer(first[1])
    if definition.framework == "torch":
        trainer.model.eval()
    return with_additions(opened, trainer, first[1])


def _of_own_batches(job: Job, trained: TrainedModel, definition: ModelDefinition) -> Any:
    """Load a model that reads its data with its own code, built on one of its batches.

    Raises:
        UsageError: The data that the caller named, or the training data if none was named, cannot
            be read.
    """
    assert isinstance(definition.input, BatchesInput)  # noqa: S101 - the caller has checked
    own = definition.input
    mode = Mode.TRAINING
    if own.validates or own.predicts:
        mode = Mode.EVALUATION if own.validates else Mode.PREDICTION
    trained_by = Job.from_json(trained.description.job_json)
    job = replace(job, data=job.data or trained_by.data)
    try:
        batches, _ = own_batches(job, trained, definition, mode)
        trainer: Any = restored_trainer(trained, definition, next(batches.batches(0)), job)
    except ElasticDLError as error:
        raise UsageError(
            f"{job.trained_model} reads its data with its own code, and is built on a batch of "
            f"it, but {job.data} cannot be read: {error}\n  Pass data that its code reads: "
            f"elasticdl.load({job.trained_model!r}, data=...)."
        ) from error
    add_classes(trainer.model, trained)
    if definition.framework == "torch":
        trainer.model.eval()
        if not hasattr(trainer.model, "predict"):
            trainer.model.predict = (
                _predict_with_own_loader if own.predicts else _predict_without_loader
            )
    return trainer.model


@ends_at_caller
def _predict_with_own_loader(*args: Any, **kwargs: Any) -> Any:
    """Raise an error with advice: the `predict` of a PyTorch model that has a `predict_dataloader`.

    The model's own code makes its inputs, so `predict` cannot make them from a table.
    """
    del args, kwargs
    raise UsageError(
        "This model reads its data with its own loader, so predict() cannot make its inputs. Call "
        "the model on a batch, model(inputs), or name files: elasticdl.predict(data=...) reads "
        "them with its predict_dataloader(data) or val_dataloader(data)."
    )


@ends_at_caller
def _predict_without_loader(*args: Any, **kwargs: Any) -> Any:
    """Raise an error with advice: the `predict` of a PyTorch model without `predict_dataloader`.

    The model's own code makes its inputs, so `predict` cannot make them from a table.
    """
    del args, kwargs
    raise UsageError(
        "This model reads its data with its own loader, so predict() cannot make its inputs. Call "
        "the model on a batch, model(inputs). For elasticdl.predict, train it with a "
        "predict_dataloader(data) or an input_fn(records) in its file."
    )


def _schema(definition: ModelDefinition, trained: TrainedModel, trained_model: str) -> Schema:
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    if schema is None and (fields := trained.description.record_fields_json):
        schema = Schema.from_json(fields)
    if schema is None:
        raise UsageError(
            f"{trained_model} has no data_schema() that defines the shapes of its inputs. "
            f"Name some records: elasticdl.load({trained_model!r}, data={_example_data(trained)})."
        )
    return schema


def _example_data(trained: TrainedModel) -> str:
    """Return a value of `data` to suggest in an error: the training data, if it still exists."""
    data = Job.from_json(trained.description.job_json).data
    # Data that was in memory has no file that is still there.
    return repr(data) if Path(data).exists() else "..."


def _zeros(schema: Schema) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for field in schema.fields:
        shape = (_NUM_EXAMPLES, *((1,) if field.varies else field.shape))
        found[field.name] = np.zeros(shape, "S1" if field.dtype == STRING else field.dtype)
    return found

"""Predicting: read, run the model, hand each batch to a writer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.prediction.writers import open_writer, record_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from elasticdl.data.batch import Batch
    from elasticdl.data.record_source import RecordFile
    from elasticdl.definition import ModelDefinition
    from elasticdl.job import PredictionFormat
    from elasticdl.training.trainer import Trainer


def predict(
    trainer: Trainer,
    batches: Iterable[tuple[int, Batch]],
    *,
    definition: ModelDefinition,
    files: Sequence[RecordFile],
    output: str,
    file_format: PredictionFormat,
    advanced: Callable[[int], None],
) -> None:
    """Write the outputs of a model for batches, in order, each row with its record's key.

    The output appears when it is complete. A user's own outputs processor gets every batch as
    well.

    Args:
        trainer: The model.
        batches: First record and batch, in the records' order.
        definition: For the user's outputs processor.
        files: What the records are of.
        output: See `open_writer`, as `file_format`.
        file_format: See `open_writer`.
        advanced: Told how many records are done.

    Raises:
        OutputError: It cannot be written.
    """
    create_processor = definition.create_outputs_processor
    processor = None if create_processor is None else create_processor()
    with open_writer(output, file_format) as writer:
        for start, batch in batches:
            outputs = trainer.predict(batch.features)
            stop = start + batch.num_examples
            writer.write(start, record_keys(files, start, stop), outputs)
            if processor is not None:
                processor.process(outputs, 0)
            advanced(stop)

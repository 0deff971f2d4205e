"""Predicts in one process or as one of several workers, passing each batch to a writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from elasticdl.errors import (
    DataError,
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.prediction.rows import RecordKeys

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.data.record_source import RecordFile
    from elasticdl.definition import ModelDefinition
    from elasticdl.training.trainer import Trainer


class Predictor:
    """A model that predicts, and the user's own outputs processor if the model file has one.

    Args:
        trainer: The model.
        definition: Its definition.
        files: The files of the records, in their order.

    Raises:
        UserCodeError: The processor cannot be created.
    """

    def __init__(
        self, trainer: Trainer, definition: ModelDefinition, files: Sequence[RecordFile]
    ) -> None:
        self._trainer, self._definition, self._files = trainer, definition, files
        create = definition.create_outputs_processor
        self._processor = None if create is None else self._call(create)

    def predict(
        self,
        batches: Iterable[tuple[int, Batch]],
        write: Callable[[int, Sequence[str], Arrays], None],
        *,
        start: int = 0,
        stop: int | None = None,
        worker_id: int = 0,
    ) -> Iterator[int]:
        """Pass the outputs for a range of records to a writer, in order, each with its key.

        The user's own processor receives every batch as well.

        Args:
            batches: First record and batch, in the records' order.
            write: Takes the first record's number, keys and outputs.
            start: First record of the range.
            stop: One past the last; None means all that follow.
            worker_id: The worker number passed to the processor.

        Yields:
            The number of the record up to which prediction is done, after each batch.

        Raises:
            DataError: The number of examples differs from the number of records.
            OutputError: They cannot be written.
            UserCodeError: The processor or the model's `default_predictions` raised.
            DefinitionError: `default_predictions` returned something other than a dict or None.
        """
        keys = RecordKeys(self._files)
        done = start
        for first, batch in batches:
            self._check_complete(first, done)
            outputs = self._trainer.predict(batch.features)
            done = first + batch.num_examples
            write(first, keys.between(first, done), self._written(outputs))
            if self._processor is not None:
                self._call(partial(self._processor.process, outputs, worker_id))
            yield done
        if stop is None:
            stop = sum(file.num_records for file in self._files)
        self._check_complete(stop, done)

    def _check_complete(self, expected: int, done: int) -> None:
        if done != expected:
            raise DataError(
                f"{self._files[0].uri}: the input function of {self._definition.origin} made "
                f"{done} examples of the first {expected} records, so outputs cannot be matched "
                "with records. Do not drop or add examples in prediction mode."
            )

    def _written(self, outputs: Arrays) -> Arrays:
        """Return the outputs to write for a batch, after the model's own hook if it has one."""
        hook = self._definition.predictions
        if hook is None:
            return outputs
        made = self._call(partial(hook, outputs), "predictions", "default_predictions()")
        if made is None:
            return outputs
        if not isinstance(made, Mapping) or not made:
            raise DefinitionError(
                f"{self._definition.where('predictions')}: default_predictions() returned "
                f"{type(made).__name__} {made!r:.60}; expected a dict of name and array, or None "
                "to write the outputs as they are."
            )
        return dict(made)

    def _call(
        self,
        function: Callable[[], Any],
        part: str = "processor",
        name: str = "PredictionOutputsProcessor",
    ) -> Any:
        try:
            return function()
        except ElasticDLError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"{raised_at(error, self._definition.where(part))}: {name} raised:\n"
                f"{users_traceback(error)}"
            ) from error

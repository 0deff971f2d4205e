"""Prediction phase: passes a model's outputs for each batch of records to a writer.

It runs in one process, or in each of several workers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from elasticdl.data.wording import counted, listed
from elasticdl.errors import (
    DataError,
    DefinitionError,
    ElasticDLError,
    UsageError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.prediction.classes import PROBABILITY, ClassReading, scores_shape, without_class
from elasticdl.prediction.rows import (
    KEY,
    RecordKeys,
    named_outputs,
    outputs_without_axes,
    rows_only,
)
from elasticdl.training.trainer import LossProbe, ScoresProbe

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch
    from elasticdl.data.record_source import RecordFile
    from elasticdl.definition import ModelDefinition
    from elasticdl.prediction.input_columns import InputColumns
    from elasticdl.prediction.rows import Columns
    from elasticdl.training.trainer import Trainer

_log = logging.getLogger("elasticdl")


class Predictor:
    """Predicts with a model, and passes the outputs to the user's own processor if there is one.

    The processor is a class in the user's model file, for example to send outputs to a database.

    Args:
        trainer: The trainer that holds the model and computes its outputs.
        definition: The model's definition, which has the user's processor and
            `default_predictions`, if any.
        files: The files that contain the records, in reading order.
        classes: Names of the classes; empty if unknown.
        columns: Columns of the input to write beside the outputs. None: write no such columns.

    Attributes:
        class_note: A notice for the user if the model's output does not fit the names of the
            classes, or is already a probability where the loss expects logits.
        num_without_class: Number of predictions so far without a class, because of a NaN.

    Raises:
        UserCodeError: The processor cannot be created.
    """

    def __init__(
        self,
        trainer: Trainer,
        definition: ModelDefinition,
        files: Sequence[RecordFile],
        classes: Sequence[str] = (),
        columns: InputColumns | None = None,
    ) -> None:
        self._trainer, self._definition, self._files = trainer, definition, files
        self._classes, self._columns = classes, columns
        self._reading: ClassReading | None = None
        self._is_read = False
        self._left_out: list[str] | None = None
        self.class_note = ""
        self.num_without_class = 0
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
        """Predict a range of records; pass the keys of the records and the outputs to `write`.

        The user's own processor receives every batch as well.

        Args:
            batches: (Number of its first record, batch) of each batch, in the order of the records.
            write: Function (number of the first record, keys of the records, outputs); called for
                each batch.
            start: First record of the range.
            stop: One past the last record of the range; None means all that follow.
            worker_id: The worker number passed to the processor.

        Yields:
            After each batch, the number of the next record, which is not predicted yet.

        Raises:
            DataError: The number of examples differs from the number of records.
            OutputError: The outputs cannot be written.
            UserCodeError: The processor or the model's `default_predictions` raised.
            DefinitionError: `default_predictions` returned something other than a dict or None.
        """
        keys = RecordKeys(self._files)
        if stop is None:
            stop = sum(file.num_records for file in self._files)
        done = start
        for first, batch in batches:
            self._check_complete(first, done)
            try:
                outputs = self._trainer.predict(batch.features)
            except DataError as error:
                # The trainer does not know the records of features.
                names = "" if batch.where is None else f"\n  The batch contains {batch.where()}."
                raise DataError(f"{error}{names}") from error
            done = first + batch.num_examples
            if done > stop:
                self._check_complete(stop, done)
            written = self._written(outputs, batch.num_examples)
            if self._columns is not None:
                written = self._with_columns(self._columns.between(first, done), written)
            write(first, keys.between(first, done), written)
            if self._processor is not None:
                self._call(partial(self._processor.process, outputs, worker_id))
            yield done
        self._check_complete(stop, done)

    def _check_complete(self, expected: int, done: int) -> None:
        if done != expected:
            raise DataError(
                f"{self._files[0].uri}: the input function of {self._definition.origin} made "
                f"{done} examples of the first {expected} records, so outputs cannot be matched "
                "with records. Do not drop or add examples in prediction mode: of several views of "
                "a record, return one there (input_fn(records, mode) gets mode 'prediction')."
            )

    def _written(self, outputs: Arrays, num_examples: int) -> Arrays:
        """Return the outputs to write for a batch.

        If the model has a method `default_predictions` that does not return None, this is its
        result. Otherwise, it is the model's outputs, with the predicted class.

        Raises:
            UserCodeError: `default_predictions` raised.
            DefinitionError: `default_predictions` returned something other than a dict or None.
        """
        hook = self._definition.predictions
        if hook is None:
            return self._with_prediction(self._rows(outputs), num_examples)
        made = self._call(partial(hook, outputs), "predictions", "default_predictions()")
        if made is None:
            return self._with_prediction(self._rows(outputs), num_examples)
        if not isinstance(made, Mapping) or not made:
            raise DefinitionError(
                f"{self._definition.where('predictions')}: default_predictions() returned "
                f"{type(made).__name__} {made!r:.60}; expected a dict of name and array, or None "
                "to write the outputs as they are."
            )
        return dict(made)

    def _rows(self, outputs: Arrays) -> Arrays:
        """Return the outputs that have one row per example.

        Outputs that are one number for the whole batch, such as a penalty, are left out. The first
        batch decides which ones these are.
        """
        if self._left_out is None:
            self._left_out = outputs_without_axes(outputs)
            if self._left_out:
                _log.warning(
                    "%s: the prediction does not contain the model's output %s, which is one "
                    "number for a whole batch.",
                    self._definition.where("model"),
                    listed(self._left_out),
                )
        return rows_only(outputs, self._left_out)

    def _with_prediction(self, outputs: Arrays, num_examples: int) -> Arrays:
        """Return the outputs of a batch, with the predicted class if the model is a classifier.

        Whether the model is a classifier is decided by its outputs for the first batch.
        """
        columns = named_outputs(outputs, num_examples)
        if not self._is_read:
            self._is_read = True
            self._reading = self._read(columns)
        if self._reading is None:
            return outputs
        self.num_without_class += int(without_class(columns).sum())
        return self._reading.with_prediction(columns)

    @staticmethod
    def _with_columns(given: Columns, outputs: Arrays) -> Columns:
        found = named_outputs(outputs, len(next(iter(given.values()))))
        taken = sorted({KEY, *found} & given.keys())
        if taken:
            raise UsageError(
                f"--columns: {taken[0]!r} is also the name of a column that the prediction has: "
                f"{listed([KEY, *found])}. Rename it in the data, or leave it out."
            )
        return {**given, **found}

    def _read(self, columns: Columns) -> ClassReading | None:
        reading = class_reading(self._trainer, columns, self._classes)
        notes = []
        if reading is not None and reading.mismatch:
            notes.append(f"The trained model has {reading.mismatch}")
        if reading is not None and self._applies_an_activation_twice(reading, columns):
            is_single = reading.shape in {(), (1,)}
            which = "sigmoid" if is_single else "softmax"
            # The largest softmax of numbers between 0 and 1 is that of a single 1 among zeros.
            effect = (
                "and the prediction is always class 1"
                if is_single
                else f"at most {math.e / (math.e + reading.num_classes - 1):.2g}"
            )
            notes.append(
                f"{self._definition.where('model')}: the model's outputs are already "
                f"probabilities, and the loss expects logits, so the column `{PROBABILITY}` is the "
                f"{which} of a {which}, {effect}: return the outputs without the {which}, "
                "and train again if training applies it, too."
            )
        self.class_note = " ".join(notes)
        return reading

    def _applies_an_activation_twice(self, reading: ClassReading, columns: Columns) -> bool:
        if reading.are_already_probabilities(columns):
            return True
        is_single = reading.scores == "logits" and reading.shape in {(), (1,)}
        trainer = self._trainer
        return is_single and isinstance(trainer, LossProbe) and bool(trainer.repeated_activation())

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


def class_reading(trainer: Trainer, columns: Columns, names: Sequence[str]) -> ClassReading | None:
    """Return how to read predicted classes from a model's outputs; None if it is no classifier.

    Args:
        trainer: The trainer, which knows the loss.
        columns: The outputs for a batch, by name.
        names: Name of each class; empty if unknown.
    """
    shape = scores_shape(columns)
    if shape is None or not isinstance(trainer, ScoresProbe):
        return None
    scores = trainer.scores(shape)
    return None if scores is None else ClassReading(scores, shape, names)


def prediction_note(class_note: str, num_without_class: int, num_predictions: int) -> str:
    """Return a notice for the user at the end of a prediction; empty if there is none.

    Args:
        class_note: That of a `Predictor`.
        num_without_class: Number of predictions without a class.
        num_predictions: Number of all predictions.
    """
    if not num_without_class:
        return class_note
    return (
        f"{class_note}{' ' if class_note else ''}{counted(num_without_class, 'prediction')} of "
        f"{num_predictions:,} {'has' if num_without_class == 1 else 'have'} no class, because the "
        "model's output is NaN: look for missing or very large values in these records."
    )

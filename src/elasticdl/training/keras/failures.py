"""Translates TensorFlow's errors in a step into errors about the user's model and data.

    failure                                  error           named in its message
    a label or an id that is out of range    DataError       the label, the outputs, the records
    an operation with unsuitable arguments   UserCodeError   the user's line that created it
    memory, devices, cancellation            TrainingError   TensorFlow's message

A compiled step is far from the user's lines when it fails; TensorFlow's message contains where an
operation was created (see `tracebacks.py`).

Callers: `trainer.py`, after a failure.
"""

from __future__ import annotations

import contextlib
import re
import traceback
from typing import TYPE_CHECKING

import tensorflow as tf

from elasticdl.data.batch import Arrays, Batch, describe, leaves
from elasticdl.errors import (
    DataError,
    ElasticDLError,
    TrainingError,
    UserCodeError,
    plain,
    raised_at,
    users_traceback,
)
from elasticdl.training.failed_part import phase, where_raised
from elasticdl.training.input_words import has_text, text_label_advice
from elasticdl.training.keras import loss, metric_states, metrics
from elasticdl.training.range_errors import id_mistake, label_mistake, num_classes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from elasticdl.definition import ModelDefinition

# Messages of the operation that compares labels with scores, and of the one that looks up rows.
# Where operations must be deterministic, the latter also compares labels.
_OUT_OF_RANGE = re.compile(
    r"(?:label value of -?\d+ which is outside the valid range of|= -?\d+ is not in) \[0, (\d+)\)"
)
# The gradient of the latter; its positions in a flat table mean nothing to users.
_OF_A_GRADIENT = re.compile(r"segment_ids\[\d+\] = \d+ is out of range \[0, (\d+)\)")
# Messages of losses about labels of an unsuitable shape.
_ONE_HOT = re.compile(r"`output` must have rank \(ndim\) `target\.ndim - 1`")
_UNLIKE = re.compile(
    r"`target` and `output` must have the same (?:rank \(ndim\)|shape)\. "
    r"Received: target\.shape=\(([^)]*)\), output\.shape=\(([^)]*)\)"
)
# Messages of an operation on tensors of two types, compiled and not.
_TWO_TYPES = (
    re.compile(r"has type (\w+) that does not match type (\w+) of argument"),
    re.compile(r"was expected to be an? (\w+) tensor but is an? (\w+) tensor"),
    re.compile(r"has DataType (bool) not in list of allowed values"),
)
# Messages about text where numbers are needed.
_TEXT = re.compile(r"\bstring\b", re.IGNORECASE)
_AS_NUMPY = {"float": "float32", "double": "float64", "half": "float16"}
_COMPARES = ("label value of", "sparse_categorical_crossentropy", "SparseSoftmaxCrossEntropy")
_LOOKS_UP = ("layers/core/embedding.py", "Embedding.call()")
_NOT_OF_THE_USER = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
)
# Our source file -> the part of a definition that it calls.
_PARTS = {loss.__file__: "loss", metrics.__file__: "metrics", metric_states.__file__: "metrics"}


def out_of_range(
    error: Exception,
    batches: Sequence[Batch],
    definition: ModelDefinition,
    predict: Callable[[Arrays], Arrays],
) -> DataError | None:
    """Return the error for a label or an id that is out of range; None for any other failure.

    Args:
        error: TensorFlow's exception.
        batches: The batches of the failed steps.
        definition: The model's definition.
        predict: Function (features) -> the model's outputs.
    """
    in_gradient = _OF_A_GRADIENT.search(str(error))
    if in_gradient is not None:
        with contextlib.suppress(ElasticDLError):
            outputs = leaves(predict(batches[0].features))
            stop = num_classes(outputs[0].shape, batches[0].labels) if len(outputs) == 1 else 0
            rows = int(in_gradient[1])
            # A table of one score per example, not the rows of an embedding.
            if len(outputs) == 1 and outputs[0].shape == (rows, 1):
                stop = 1
            at = raised_at(error, definition.where("loss"))
            return _label_mistake(batches, stop, at, definition) if stop else None
    found = _OUT_OF_RANGE.search(str(error))
    if found is None:
        return None
    # For a compiled step the message contains where the operation was created; else the traceback
    # does.
    frames = traceback.extract_tb(error.__traceback__)
    text = "\n".join([str(error), *(f"{frame.filename} {frame.name}" for frame in frames)])
    stop = int(found[1])
    if any(each in text for each in _COMPARES):
        at = raised_at(error, definition.where("loss"))
        return _label_mistake(batches, stop, at, definition)
    if any(each in text for each in _LOOKS_UP):
        return id_mistake(batches, stop, raised_at(error, definition.where("model")))
    return None


def _label_mistake(
    batches: Sequence[Batch], num_outputs: int, where: object, definition: ModelDefinition
) -> DataError | None:
    return label_mistake(
        batches,
        num_outputs,
        where,
        binary_loss="BinaryCrossentropy() if the output has a sigmoid, else "
        "BinaryCrossentropy(from_logits=True)",
        classes=definition.classes,
    )


def of_a_step(
    error: Exception,
    what: str,
    step: int,
    *,
    batches: Sequence[Batch],
    definition: ModelDefinition,
    predict: Callable[[Arrays], Arrays],
) -> ElasticDLError:
    """Return the error for a failed step.

    Args:
        error: An exception of TensorFlow or of user code.
        what: Name of the step function that failed: "train", "evaluate", ...
        step: The step's number, from 1.
        batches: The batches of the step.
        definition: The model's definition.
        predict: Function (features) -> the model's outputs.
    """
    mistake = out_of_range(error, batches, definition, predict)
    if mistake is not None:
        return mistake
    if isinstance(error, _NOT_OF_THE_USER):
        return _of_tensorflow(error, what, step, definition)
    # Labels that are text are tried before training, in a step of evaluation.
    at = "" if has_text(batches[0].labels) else f" in {phase(what)}"
    return UserCodeError(
        f"{where_raised(error, definition, _PARTS)}: the model, its loss or its metrics raised{at} "
        f"on {_described(batches)}:\n{users_traceback(error)}"
        f"{label_advice(error, batches[0].labels, definition.classes)}"
    )


def of_an_update(error: Exception, step: int, definition: ModelDefinition) -> ElasticDLError:
    """Return the error for a failed update with summed gradients.

    Args:
        error: An exception of TensorFlow, or of the user's optimizer or constraint.
        step: The step's number, from 1.
        definition: The model's definition.
    """
    if isinstance(error, _NOT_OF_THE_USER):
        return _of_tensorflow(error, "apply gradients", step, definition)
    return UserCodeError(
        f"{raised_at(error, definition.where('optimizer'))}: the optimizer, or a constraint of the "
        f"model, raised at step {step}:\n{users_traceback(error)}"
    )


@contextlib.contextmanager
def naming(
    what: str, batch: Batch, definition: ModelDefinition, predict: Callable[[Arrays], Arrays]
) -> Iterator[None]:
    """Context manager that explains an exception of user code that runs in its block.

    The new error names the line of the user's code that failed and describes the batch: the label
    that is wrong, or the shapes and dtypes of the features.

    Args:
        what: The user code that runs, for the error: "the model or its loss".
        batch: The batch that the code is run on.
        definition: The model's definition.
        predict: Function (features) -> the model's outputs.

    Raises:
        DataError: A label or an id is out of range.
        UserCodeError: Any other exception that is not an `ElasticDLError`.
    """
    try:
        yield
    except ElasticDLError:
        raise
    except Exception as error:
        if mistake := out_of_range(error, [batch], definition, predict):
            raise mistake from error
        raise UserCodeError(
            f"{where_raised(error, definition, _PARTS)}: {what} raised on "
            f"{describe(batch.features)}:\n{users_traceback(error)}"
            f"{label_advice(error, batch.labels, definition.classes)}"
        ) from error


def label_advice(error: Exception, labels: Arrays, classes: Collection[str]) -> str:
    """Return advice for a loss that rejects the type or shape of the labels; empty otherwise.

    The advice is a separate line, to append to the error message.

    Args:
        error: The exception of TensorFlow or Keras.
        labels: The labels of the batch.
        classes: The names of the classes in the model file; empty if it has none.
    """
    if has_text(labels) and _TEXT.search(str(error)):
        return f"\n  {text_label_advice(labels, classes=classes)}"
    if (dtype := _refused_type(str(error), labels)) is not None:
        return (
            f"\n  The labels are of type {dtype}. Convert them in the function: "
            "labels = keras.ops.cast(labels, outputs.dtype), or store them as float32."
        )
    if _ONE_HOT.search(str(error)):
        return (
            "\n  This loss needs class numbers as labels. For labels with one value per class "
            "(one-hot), use CategoricalCrossentropy, or make class numbers of them, such as "
            "y.argmax(axis=1)."
        )
    found = _UNLIKE.search(str(error))
    if found is None:
        return ""
    target, output = (re.findall(r"\w+", shape) for shape in found.groups())
    if not output[1:] or output[-1] == "1" or (len(target) == len(output) and target[-1] != "1"):
        return ""
    return (
        f"\n  The outputs have {output[-1]} values where the labels have one. "
        "For class numbers, use SparseCategoricalCrossentropy; for BinaryCrossentropy, let the "
        'last layer have one unit, such as Dense(1, activation="sigmoid").'
    )


def _refused_type(text: str, labels: Arrays) -> str | None:
    """Return the labels' dtype if an error's text says that it mismatches another; else None."""
    found = next(filter(None, (pattern.search(text) for pattern in _TWO_TYPES)), None)
    if found is None:
        return None
    types = {_AS_NUMPY.get(name, name) for name in found.groups()}
    dtypes = (str(leaf.dtype) for leaf in leaves(labels))
    return next((dtype for dtype in dtypes if dtype in types and dtype != "float32"), None)


def _of_tensorflow(
    error: Exception, what: str, step: int, definition: ModelDefinition
) -> TrainingError:
    return TrainingError(
        f"{definition.origin}: TensorFlow could not {what} at step {step}: "
        f"{plain(error).splitlines()[0]}"
    )


def _described(batches: Sequence[Batch]) -> str:
    first = batches[0]
    labels = "" if first.labels is None else f", labels {describe(first.labels)}"
    return f"{describe(first.features)}{labels}"

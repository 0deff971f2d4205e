"""Translates PyTorch's errors in a step into errors about the user's model and data.

    a label or an id that is out of range   DataError       the label, the outputs, the records
    any other error in user code            UserCodeError   the user's line
    tensors on the CPU and on a GPU         advice, at the end of that error
    labels that do not fit the loss         advice, at the end of that error
    outputs that do not suit the loss       advice, at the end of that error

Callers: `trainer.py`, after a failure.
"""

from __future__ import annotations

import contextlib
import math
import re
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from elasticdl.errors import DataError, raised_at
from elasticdl.training.failed_part import where_raised
from elasticdl.training.range_errors import id_mistake, label_mistake, num_classes
from elasticdl.training.torch import losses, metric_states, metrics

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.definition import ModelDefinition

# Our source file -> the part of a definition that it calls. Autograd is called on the loss.
_PARTS = {
    losses.__file__: "loss",
    torch.autograd.__file__: "loss",
    metrics.__file__: "metrics",
    metric_states.__file__: "metrics",
}
# On a GPU both have the same message.
_LABEL = re.compile(r"Target -?\d+ is out of bounds|device-side assert")
_ID = re.compile(r"index out of range in self|device-side assert")

_DEVICE = re.compile(
    r"tensors to be on the same device|should be a 1D CPU int64 tensor|can't convert cuda"
)

_SIZES = re.compile(
    r"[Tt]arget size \((?:torch\.Size\()?\[([\d, ]*)\]\)?\) "
    r"(?:must be the same as|that is different to) (?:the )?input size "
    r"\((?:torch\.Size\()?\[([\d, ]*)\]"
)
_BROADCAST = re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")
_NEEDS_INTEGERS = re.compile(
    r"0D or 1D target tensor expected|expected target dtype to be Long"
    r"|(?:nll_loss|cross_entropy)\w*\" not implemented for"
)
# The losses of MarginRankingLoss and MultiMarginLoss name their needs; others share the first text.
_NEEDS_ONE_AXIS = re.compile(
    r"0D or 1D target tensor expected|target tensor should be 1-D"
    r"|margin_ranking_loss : All input tensors should have same dimension"
)
_RANKED_IN_COLUMNS = re.compile(
    r"margin_ranking_loss : .* input1: torch\.Size\(\[\d+, 1\]\).* target: torch\.Size\(\[\d+\]\)"
)
# Functions of torch.nn.functional whose labels are 1 and -1.
_OF_SIGNS = {"cosine_embedding_loss", "margin_ranking_loss"}
_NEEDS_FLOATS = re.compile(r"result type Float can't be cast|Found dtype \w+ but expected Float")
_SUBTRACTS_BOOLEANS = re.compile(r"Subtraction, .* with (?:a|two) bool tensors? is not supported")
# An integer type where a loss expects the outputs.
_SWAPPED = re.compile(
    r"log_softmax\w*\" not implemented for '(?:Long|Int|Short|Char|Byte)'"
    r"|Found dtype Float but expected Long"
)
_CLASS_PROBABILITIES = "floating point type for target with class probabilities"
_AS_INTEGERS = (
    'Class numbers must be integers of type int64, such as y.astype("int64"); for tensors, '
    "y.long()."
)
_AS_FLOATS = (
    'This loss needs labels of type float32, such as y.astype("float32"); for tensors, y.float().'
)

_TWO = 2


class _FoundError(Exception):
    """Raised by a hook to stop the model at the first embedding that receives an id out of range.

    Attributes:
        name: Name of the embedding in the model.
        num_rows: Number of its rows.
    """

    def __init__(self, name: str, num_rows: int) -> None:
        super().__init__(name)
        self.name, self.num_rows = name, num_rows


def out_of_range(
    error: Exception,
    model: nn.Module,
    run: Callable[[], object],
    *,
    shape: torch.Size | None,
    batch: Batch,
    definition: ModelDefinition,
) -> DataError | None:
    """Return the error to raise if an out-of-range label or id caused an error in PyTorch.

    Args:
        error: PyTorch's exception.
        model: The trained model.
        run: Function () that runs the model on the batch again, without side effects.
        shape: Shape of the model's outputs for another batch, if known: after an error on a GPU the
            model cannot run again.
        batch: The batch of the failed step.
        definition: The model's definition.

    Returns:
        The error, which names the label or id and the records; None for any other cause.
    """
    text = str(error)
    if _LABEL.search(text):
        with contextlib.suppress(Exception):
            outputs = run()
            shape = outputs.shape if isinstance(outputs, torch.Tensor) else None
        stop = 0 if shape is None else num_classes(shape, batch.labels)
        is_single = shape is not None and shape[1:] == (1,) and np.ndim(batch.labels) == 1
        # On a GPU, the same error may come from an embedding.
        if is_single and "Target" in text:
            stop = 1
        mistake = None
        if stop:
            mistake = label_mistake(
                [batch],
                stop,
                raised_at(error, definition.where("loss")),
                binary_loss="BCEWithLogitsLoss, with labels in float32 and of the outputs' shape",
                classes=definition.classes,
            )
        if mistake is not None:
            return mistake
    if _ID.search(text):
        found = _row_missing(model, run)
        if found is not None:
            at, layer = raised_at(error, definition.where("model")), f"the embedding {found.name!r}"
            return id_mistake([batch], found.num_rows, at, layer)
    return None


def place_of(error: Exception, definition: ModelDefinition) -> str:
    """Return `file:line` of the user's code that raised in a step, for an error message.

    If the traceback has no line of the user's code, this is the line that defines the loss, the
    metrics or the model; see `failed_part.where_raised`.
    """
    return where_raised(error, definition, _PARTS)


def device_advice(error: Exception) -> str:
    """Return advice, as a separate line, on an error about tensors on several devices.

    The result is empty for other errors.
    """
    if not torch.cuda.is_available() or not _DEVICE.search(str(error)):
        return ""
    return (
        "\n  The model and its batches are on the GPU. Create tensors on the device of the inputs, "
        "such as torch.zeros(3, device=x.device), keep constants in buffers, and pass `lengths` to "
        "pack_padded_sequence as lengths.cpu(). To train on the CPU, set CUDA_VISIBLE_DEVICES to "
        "an empty value."
    )


def loss_advice(error: Exception) -> str:
    """Return advice, as a separate line, on an error about outputs that do not suit the loss.

    The result is empty for other errors.
    """
    text, advice = str(error), ""
    if "elements of input should be between 0 and 1" in text:
        advice = (
            "This loss needs probabilities: add nn.Sigmoid() to the end of the model, or use "
            "nn.BCEWithLogitsLoss(), which takes the outputs without it."
        )
    elif "does not require grad and does not have a grad_fn" in text:
        advice = (
            "The loss has no gradient with respect to the model's parameters. argmax, comparisons, "
            "round(), .detach(), .item(), .numpy() and torch.no_grad() have none: compute the loss "
            "from the outputs themselves."
        )
    return f"\n  {advice}" if advice else ""


def label_advice(
    error: Exception, labels: object, outputs: torch.Size | None, *, is_default: bool = False
) -> str:
    """Return advice, as a separate line, on an error about the type or shape of labels.

    The result is empty for other errors.

    Args:
        error: PyTorch's exception.
        labels: The labels of the batch.
        outputs: Shape of the model's outputs for another batch, if known.
        is_default: Whether the model file has no input function.
    """
    if not isinstance(labels, np.ndarray):
        return ""
    text, is_float = str(error), labels.dtype.kind == "f"
    advice = ""
    if found := _SIZES.search(text):
        target, output = (
            tuple(int(size) for size in re.findall(r"\d+", each)) for each in found.groups()
        )
        advice = _size_advice(target, output, is_float=is_float)
    elif (found := _BROADCAST.search(text)) and outputs is not None and len(outputs) == _TWO:
        # [n, 3] and [n], if 3 is not n.
        if labels.ndim == 1 and {len(labels), outputs[1]} == {int(n) for n in found.groups()}:
            shape = (len(labels), outputs[1])
            advice = _size_advice(labels.shape, shape, is_float=is_float)
    elif of_column := _column_advice(error, labels, is_default=is_default):
        advice = of_column
    elif _SWAPPED.search(text) or (
        not is_float and labels.ndim == 1 and "0D or 1D target tensor expected" in text
    ):
        advice = (
            "Are the arguments of the loss swapped? PyTorch's losses take the outputs first: "
            "nn.CrossEntropyLoss()(outputs, labels)."
        )
    elif _CLASS_PROBABILITIES in text:
        advice = (
            "Labels with one value per class must be of type float32, such as "
            'y.astype("float32") (for tensors, y.float()); or use class numbers, such as '
            "y.argmax(axis=1)."
        )
    elif (is_float or labels.dtype == bool) and _NEEDS_INTEGERS.search(text):
        advice = _AS_INTEGERS
    elif (not is_float and _NEEDS_FLOATS.search(text)) or (
        labels.dtype == bool and _SUBTRACTS_BOOLEANS.search(text)
    ):
        advice = _AS_FLOATS
    return f"\n  {advice}" if advice else ""


def _size_advice(target: tuple[int, ...], output: tuple[int, ...], *, is_float: bool) -> str:
    if math.prod(target) == math.prod(output):
        if not is_float:
            return (
                f"This loss needs labels of type float32 in the shape of the outputs, {output}, "
                'such as y[:, None].astype("float32"); for tensors, y[:, None].float().'
            )
        return (
            f"The labels have the shape {target}, the outputs {output}: let the model return "
            "outputs without an axis of 1, such as outputs.squeeze(-1), or reshape the labels."
        )
    return (
        f"The labels have the shape {target}, the outputs {output}. For class numbers and one "
        "output per class, use nn.CrossEntropyLoss(); for this loss, let the model return as many "
        "values per example as there are labels."
    )


def _column_advice(
    error: Exception, labels: np.ndarray[Any, Any], *, is_default: bool = False
) -> str:
    """Return advice on labels or outputs of shape `[n, 1]` where a loss needs the shape `[n]`.

    The result is empty for other errors.
    """
    if labels.ndim == 1 and _RANKED_IN_COLUMNS.search(str(error)):
        return (
            f"The labels have the shape {labels.shape}, the outputs {(len(labels), 1)}: pass the "
            "outputs without their axis of 1, such as outputs[0].squeeze(-1)."
        )
    if labels.shape[1:] != (1,) or not _NEEDS_ONE_AXIS.search(str(error)):
        return ""
    functions = {frame.f_code.co_name for frame, _ in traceback.walk_tb(error.__traceback__)}
    is_of_signs = not functions.isdisjoint(_OF_SIGNS)
    as_integers = '.astype("int64")' if labels.dtype.kind == "f" and not is_of_signs else ""
    if is_default and as_integers:
        return (
            f"This loss needs class numbers that are integers, but the labels are {labels.dtype}: "
            'convert them in the data, y.astype("int64"), or int(y) for each label of a data set.'
        )
    kind = " and class numbers of type int64" if as_integers else ""
    how = "write input_fn(records) and return" if is_default else "return"
    return (
        f"This loss needs labels of the shape {labels.shape[:1]}{kind}, but they have the shape "
        f"{labels.shape}: {how} y[:, 0]{as_integers}."
    )


def _row_missing(model: nn.Module, run: Callable[[], object]) -> _FoundError | None:
    """Run the model again to find the first embedding that receives an id out of range.

    Args:
        model: The model, to whose embeddings hooks are added for this.
        run: Function () that runs the model on the failed batch.

    Returns:
        The error that names the embedding; None if there is no such embedding.
    """

    def checking(name: str, num_rows: int) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def check(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            if given and bool(((given[0] < 0) | (given[0] >= num_rows)).any()):
                raise _FoundError(name, num_rows)

        return check

    hooks = [
        module.register_forward_pre_hook(checking(name, module.num_embeddings))
        for name, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    ]
    try:
        run()
    except _FoundError as found:
        return found
    except Exception:  # noqa: BLE001 - its error is already known
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return None

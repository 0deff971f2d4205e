"""Finds the line of the user's code that an error names if a model, its loss or a metric raised.

A loss or a metric of a framework, such as `loss = torch.nn.CrossEntropyLoss()`, raises in the
framework's files, so no line of the traceback is the user's. The traceback then shows which file of
ElasticDL made the call: only `losses.py` calls the loss, for example. The error names the line of
the user's file that defines this part.

Callers: `keras/failures.py`, `torch/failures.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl import tracebacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.definition import ModelDefinition


_PHASES = {
    "train": "training",
    "gradients": "training",
    "evaluate": "evaluation",
    "predict": "prediction",
    "trial": "a trial with training=False, as in evaluation,",
}


def phase(step: str) -> str:
    """Return a word for an error message: the phase of training in which an operation failed.

    Args:
        step: Name of the operation. "train" and "gradients" give "training", "evaluate" gives
            "evaluation", "predict" gives "prediction", and "trial" a phrase for a call of a Keras
            model that only tries it.
    """
    return _PHASES.get(step, repr(step))


def where_raised(
    error: BaseException, definition: ModelDefinition, parts: Mapping[str, str]
) -> str:
    """Return `file:line` of the user's code that raised.

    If the traceback has no line of the user's code, return the line that defines the loss, the
    metrics or the model: whichever was being called.

    Args:
        error: An exception of the model, its loss or its metrics.
        definition: The model's definition.
        parts: Path of a source file of ElasticDL -> the part of the definition that it calls, such
            as `loss`. All other files call the model.
    """
    files = reversed(tracebacks.files_of(error))
    part = next((parts[file] for file in files if file in parts), "model")
    part = part if part in definition.places else "model"
    return tracebacks.raised_at(error, definition.where(part))

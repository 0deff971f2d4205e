"""Finds which line or function of the user an error should name if a model, loss or metric raised.

A loss or a metric of a framework, such as `loss = torch.nn.CrossEntropyLoss()`, raises in the
framework's files, where no line is the user's. The file of this library that called it shows which
of the user's functions it was.

Callers: `keras/failures.py`, `torch/failures.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl import tracebacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasticdl.definition import ModelDefinition


_PHASES = {"train": "training", "gradients": "training", "evaluate": "evaluation"}


def phase(step: str) -> str:
    """Return the phase of a step function, for messages: "training" for "train" or "gradients"."""
    return _PHASES.get(step, "prediction" if step == "predict" else repr(step))


def where_raised(
    error: BaseException, definition: ModelDefinition, parts: Mapping[str, str]
) -> str:
    """Return `file:line` of the user's line that raised.

    If no line of the user's raised, return that of the user's loss, metrics or model instead,
    whichever was being called.

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

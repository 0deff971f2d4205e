"""Params that a model leaves to its training data: completed once, before the first step.

    definition --summary of the table--> all params --> definition of the model that is trained

They are part of every checkpoint and of the trained model; workers and later runs of the job
receive them, so that all use the same ones.

Callers: `training_context.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticdl.data.table_source import TableSource, summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasticdl.artifacts.checkpoint import Checkpoint
    from elasticdl.data.record_source import RecordSource
    from elasticdl.definition import ModelDefinition
    from elasticdl.job import Job

_PARAMS = "params"


def completed(
    definition: ModelDefinition,
    source: RecordSource,
    checkpoint: Checkpoint | None,
    define: Callable[[Mapping[str, Any]], ModelDefinition],
) -> ModelDefinition:
    """Return the definition with all params; the same one if it needs no completion.

    Args:
        definition: The definition with the user's params.
        source: The training data; only tables can complete params.
        checkpoint: The checkpoint to resume from, whose params are used.
        define: Defines the model with other params.

    Raises:
        DataError: The table cannot be read, or does not suit the model.
        UsageError: The params do not suit the table.
    """
    if definition.complete_params is None or not isinstance(source, TableSource):
        return definition
    if checkpoint is not None:
        params = checkpoint.metadata.get(_PARAMS)
        return definition if params is None else define(params)
    found = definition.complete_params(summarise(source))

    def notes() -> Sequence[str]:
        return [*definition.notes(), *found.notes]

    return replace(define(found.params), notes=notes)


def complete_job(job: Job, definition: ModelDefinition) -> Job:
    """Return the job with the params of a completed definition."""
    assert job.model is not None  # noqa: S101 - a training job
    return replace(job, model=replace(job.model, params=dict(definition.params)))


def metadata_of(job: Job, complete: Job) -> dict[str, Any]:
    """Return what a checkpoint keeps of the params; empty if the user gave them all."""
    assert complete.model is not None  # noqa: S101 - a training job
    return {} if complete is job else {_PARAMS: dict(complete.model.params)}

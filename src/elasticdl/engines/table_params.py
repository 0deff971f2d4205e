"""Derives missing params of a model from the training table, once, before the first step.

    definition --summary of the table--> all params --> definition of the model that is trained

The completed params are part of every checkpoint and of the trained model. Workers and later runs
of the job receive them, so that all use the same ones.

Callers: `training_context.py`; `stored_data.py` checks the names of columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.data.record_source import TableSource
from elasticdl.definition import CompletedParams
from elasticdl.training.import_seed import seeded_import
from elasticdl.zoo.catalogue import entries
from elasticdl.zoo.prebuilt.table_params import misnamed_column

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.data.record_source import RecordSource
    from elasticdl.definition import ModelDefinition
    from elasticdl.errors import UsageError
    from elasticdl.job import Job
    from elasticdl.zoo import Zoo

_PARAMS = "params"


def completed(
    job: Job,
    definition: ModelDefinition,
    source: RecordSource,
    checkpoint: Checkpoint | None,
    opened: tuple[Mapping[str, Any], Zoo],
) -> tuple[Job, ModelDefinition]:
    """Fill in missing params of a prebuilt table model; return the new job and definition.

    If the model is not a prebuilt table model or the data is not a table, return both unchanged.

    Args:
        job: The user's job.
        definition: The definition of its model.
        source: The training data, from whose columns the params are derived.
        checkpoint: The checkpoint to resume from, whose params are used.
        opened: The `context` and the zoo that were passed to `zoo.define` to make `definition`. The
            model is defined again with them and the new params.

    Raises:
        DataError: The table cannot be read, or does not fit the model.
        UsageError: The params do not fit the table.
    """
    if definition.complete_params is None or not isinstance(source, TableSource):
        return job, definition
    if checkpoint is None:
        # pyarrow is imported only for tables.
        from elasticdl.data.table_source import summarise  # noqa: PLC0415

        found = definition.complete_params(summarise(source))
    elif _PARAMS in checkpoint.metadata:
        found = CompletedParams(checkpoint.metadata[_PARAMS])
    else:
        return job, definition
    assert job.model is not None  # noqa: S101 - a training job
    model = replace(job.model, params=dict(found.params))

    def notes() -> Sequence[str]:
        return [*definition.notes(), *found.notes]

    with seeded_import(job.training.seed):
        definition = zoo.define(model, *opened)
    return replace(job, model=model), replace(definition, notes=notes)


def check_before_storing(
    job: Job, option: str, names: Sequence[str], *, last_is_label: bool = False
) -> None:
    """Check, without importing a prebuilt table model, that its params name columns of the data.

    Args:
        job: Any job; only the training of a prebuilt table model is checked.
        option: Field of the job that the data is for; only `data` is checked.
        names: Names of the columns of the data.
        last_is_label: Whether the last of them is the y of data (x, y).

    Raises:
        UsageError: A column is missing.
    """
    model = job.model if job.command == "train" and option == "data" else None
    if model is None or model.zoo is not None:
        return
    label, ignore = model.params.get("label", ""), model.params.get("ignore", ())
    # Values of other types are refused where the model is created.
    if isinstance(label, str) and isinstance(ignore, (list, tuple)):
        error = misnamed_column(model.params, names, last_is_label=last_is_label)
        # Last, because it reads the files of all prebuilt models.
        if error is not None and _is_table(model.model_def):
            raise error


def _is_table(model_def: str) -> bool:
    """Return whether a prebuilt model is one for tables, which has the param `columns`."""
    params = next((entry.params for entry in entries() if entry.name == model_def), ())
    return any(param.name == "columns" for param in params)


def misnamed(params: Mapping[str, Any], present: Sequence[str]) -> UsageError | None:
    """Return an error if a param of a prebuilt table model names a field that the data lack.

    This check is needed if the user gives all params: then the table is not summarized, so its
    columns have not been compared with them.

    Args:
        params: The params that the user gave.
        present: Names of the fields of the data.

    Returns:
        The error; None if the data have the label and every column that the param `columns` names,
        or if there is no such param.
    """
    return None if params.get("columns") is None else misnamed_column(params, present)


def metadata_of(job: Job, complete: Job) -> dict[str, Any]:
    """Return the params to save in checkpoints, as `{"params": {...}}`.

    The result is empty if `completed` did not change the job.

    Args:
        job: The user's job.
        complete: The job with all params, from `completed`.
    """
    assert complete.model is not None  # noqa: S101 - a training job
    return {} if complete is job else {_PARAMS: dict(complete.model.params)}

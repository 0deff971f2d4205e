"""Where user code comes from: a folder, a git repository at a commit, the prebuilt models.

`define` is the one way from the user's words to a `ModelDefinition`; the other names are for
who needs a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticdl import dialects
from elasticdl.dialects import preparation as _preparation
from elasticdl.zoo.folder import PREBUILT, Zoo, open_zoo
from elasticdl.zoo.params import parse_params
from elasticdl.zoo.reference import OVERRIDES, load, load_symbol
from elasticdl.zoo.snapshot import copy_model

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.dialects.preparation import Preparation
    from elasticdl.job import ModelReference

__all__ = [
    "OVERRIDES",
    "PREBUILT",
    "Zoo",
    "copy_model",
    "define",
    "load",
    "load_symbol",
    "open_zoo",
    "parse_params",
    "preparation",
]


def define(
    model: ModelReference,
    context: Mapping[str, Any] | None = None,
    opened: Zoo | None = None,
) -> ModelDefinition:
    """Return what to train, from the user's words.

    The files are imported anew each time.

    Args:
        model: Zoo, dotted name, dialect, params and overrides.
        context: What a spec's constructor is told, where it differs from a lone process:
            `worker_id`, `world_size`, `job_id`, `mode`.
        opened: The zoo, if it is open already: a branch of a repository may have moved since.

    Raises:
        UsageError: The zoo, a file, a symbol or a param is not there or does not fit.
        DefinitionError: The file cannot be used as it is.
        UserCodeError: A function of the user's raised.
    """
    return dialects.resolve(load(model, context, opened), model.dialect)


def preparation(model: ModelReference) -> Preparation:
    """Return how the files of a user become records for this model.

    Raises:
        UsageError: The zoo, a file or a symbol is not there.
        DefinitionError: The file has no `prepare_data_for_a_single_file` or no `data_schema`.
        UserCodeError: A function of the user's raised.
    """
    return _preparation.preparation(load(model))

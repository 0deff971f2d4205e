"""Model zoos: user code from a folder, from a git repository at a commit, or prebuilt.

`define` is the only way from a user's model reference to a `ModelDefinition`; the other functions
are for callers that need only one step of that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticdl import dialects
from elasticdl.dialects import preparation as _preparation
from elasticdl.zoo.code_files import code_files
from elasticdl.zoo.folder import PREBUILT, Zoo, open_zoo
from elasticdl.zoo.load_model_code import OVERRIDES, load, load_symbol, reads_own_data
from elasticdl.zoo.outside import outside_notes
from elasticdl.zoo.params import parse_params
from elasticdl.zoo.snapshot import copy_model

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.dialects.preparation import Preparation
    from elasticdl.job import ModelReference

__all__ = [
    "OVERRIDES",
    "PREBUILT",
    "Zoo",
    "code_files",
    "copy_model",
    "define",
    "load",
    "load_symbol",
    "open_zoo",
    "outside_notes",
    "parse_params",
    "preparation",
    "reads_own_data",
]


def define(
    model: ModelReference,
    context: Mapping[str, Any] | None = None,
    opened: Zoo | None = None,
) -> ModelDefinition:
    """Load a user's model and return its definition.

    The files are imported again for each call.

    Args:
        model: Zoo, dotted name, dialect and params of the model, and the names of functions to use
            in place of the model file's own.
        context: Arguments for the constructor of an `ElasticDLSpec` (`worker_id`, `world_size`,
            `job_id`, `mode`); those left out get the values of a single process.
        opened: The model's zoo, if the caller has opened it before. Opening it again could give
            another commit, if a branch of its repository has moved since. None: open it here.

    Raises:
        UsageError: The zoo, a file, a symbol or a param is missing or does not fit.
        DefinitionError: The file's definition of the model is invalid.
        UserCodeError: A user function raised.
    """
    opened = opened or open_zoo(model.zoo)
    definition = dialects.resolve(load(model, context, opened), model.dialect)
    # A user cannot change the schema of a prebuilt model, only the data.
    return definition.with_undeclared_schema() if opened.is_prebuilt else definition


def preparation(model: ModelReference) -> Preparation:
    """Load what `elasticdl data prepare` runs: a function that converts files into records.

    This is the model file's `prepare_data_for_a_single_file`, with the file's `data_schema`, which
    describes the records.

    Args:
        model: The reference to the model.

    Raises:
        UsageError: The zoo, a file or a symbol is missing.
        DefinitionError: The file has no `prepare_data_for_a_single_file` or no `data_schema`.
        UserCodeError: A user function raised.
    """
    return _preparation.preparation(load(model))

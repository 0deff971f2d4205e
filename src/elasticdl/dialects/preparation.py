"""Reads the data preparation function of a model file; it has one form in all dialects.

`prepare_data_for_a_single_file(filename)` turns one user file into records that fit
`data_schema()`. In model files for the ElasticDL of 2019, it also takes the open file,
`(file_object, filename)`; the number of arguments shows which form it is.

Callers: `elasticdl data prepare`, by way of `zoo.preparation`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elasticdl.data.schema import Schema
from elasticdl.dialects.dialect_reader import call
from elasticdl.dialects.model_code import ModelCode, Symbol, symbol_of
from elasticdl.dialects.params import signature_of
from elasticdl.errors import DefinitionError

NAME = "prepare_data_for_a_single_file"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True, eq=False)
class Preparation:
    """A user's function that converts files into records, and their schema.

    Attributes:
        function: Function (filename) or (file_object, filename): returns one record, as a tuple in
            the schema's order or as a dict, or yields several.
        takes_file_object: Whether its first argument is the open file.
        schema: Schema of the records.
        where: `file:line` of the function, for errors.
    """

    function: Callable[..., Any]
    takes_file_object: bool
    schema: Schema
    where: str


def preparation(model_code: ModelCode) -> Preparation:
    """Return the data preparation of a model file: its function and the schema of the records.

    Raises:
        DefinitionError: The file has no `prepare_data_for_a_single_file` or no `data_schema`, or
            the function takes neither one nor two arguments.
        UserCodeError: `data_schema()` raised.
    """
    function, schema = _find(model_code, NAME), _find(model_code, "data_schema")
    missing = [
        f"{name}()" for name, found in ((NAME, function), ("data_schema", schema)) if not found
    ]
    if function is None or schema is None:
        raise DefinitionError(
            f"{model_code.symbol.file}: {' and '.join(missing)} missing. Preparing data needs "
            f"{NAME}(filename), which returns a record, and data_schema(), which describes it."
        )
    required = [
        p.name
        for p in signature_of(function).parameters.values()
        if p.default is p.empty and p.kind in _POSITIONAL
    ]
    if len(required) not in (1, 2):
        raise DefinitionError(
            f"{function}: {NAME}() takes {len(required)} arguments; it is called as "
            f"{NAME}(filename) or {NAME}(file_object, filename)."
        )
    value = schema.value
    if callable(value):
        value = call(schema)
    return Preparation(
        function=function.value,
        takes_file_object=len(required) == 2,  # noqa: PLR2004
        schema=Schema.from_user(value, f"{schema}: data_schema()"),
        where=str(function),
    )


def _find(model_code: ModelCode, name: str) -> Symbol | None:
    owner = model_code.symbol.value
    if inspect.isclass(owner) and hasattr(owner, name):
        found = getattr(owner, name)
        takes_self = inspect.isfunction(found) and "self" in inspect.signature(found).parameters
        if not takes_self:
            return symbol_of(name, found, model_code.modules[0])
    return model_code.find(name)

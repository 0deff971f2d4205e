"""Converts a user's input function to the `input` of a `ModelDefinition`.

    input_fn(records[, mode])               -> RecordInput
    feed(dataset, mode[, metadata])         -> DatasetInput; also called dataset_fn

The name of the function's first argument decides which; if that is inconclusive, the function's
own name does.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from elasticdl.data.schema import Schema
from elasticdl.definition import DatasetInput, Input, Mode, RecordInput
from elasticdl.dialects.dialect_reader import DialectReader, call
from elasticdl.dialects.params import signature_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasticdl.dialects.model_code import Symbol

Kind: TypeAlias = Literal["records", "dataset"]


@dataclass(frozen=True, eq=False)
class _Role:
    """An argument of an input function, and what ElasticDL passes for it.

    Attributes:
        parameter: The argument.
        given: What ElasticDL passes for it: the data, the mode or the column metadata.
        place: Position of the argument in the signature, from 0.
    """

    parameter: inspect.Parameter
    given: Literal["data", "mode", "metadata"]
    place: int


_RECORDS = frozenset(["record", "records", "batch", "example", "examples", "row", "rows"])
_DATASETS = frozenset(["dataset", "ds"])
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NAMED = frozenset(["mode", "metadata"])
_KINDS_BY_NAME: dict[str, Kind] = {
    "input_fn": "records",
    "feed": "dataset",
    "dataset_fn": "dataset",
    "create_dataset": "dataset",
}


def as_input(
    symbol: Symbol, reading: DialectReader, *, metadata: Callable[[], Any] = lambda: None
) -> Input:
    """Convert a user's input function to an `Input` without a schema; `with_schema` adds one.

    Args:
        symbol: The user's function.
        reading: Reader of the user's code, which provides the params and builds error messages.
        metadata: Function () -> column metadata of the user's own reader, or None if there is no
            such reader. It is passed to `feed(dataset, mode, metadata)`.

    Raises:
        DefinitionError: The function takes neither records nor a dataset.
        UsageError: The function needs a param that has no value.
    """
    kind, roles = _roles(symbol, reading)
    params = reading.params.declare(symbol, {role.parameter.name for role in roles})
    if kind == "records":
        return _record_input(symbol.value, roles, params)

    def create_dataset(dataset: Any, mode: Mode) -> Any:
        values = {"data": dataset, "mode": mode, "metadata": metadata()}
        positional, named = _placed(roles, values)
        return call(symbol, *positional, **named, **params)

    return DatasetInput(create_dataset)


def schema_of(
    symbol: Symbol | None, reading: DialectReader, *, may_be_none: bool = False
) -> Callable[[], Schema | None]:
    """Return a function that reads the schema from a user's `data_schema` function or list.

    Call the result only after the params were checked: it calls the user's function with them.

    Args:
        symbol: The user's function or list. None: the result returns None.
        reading: Reader of the user's code, which provides the params and builds error messages.
        may_be_none: Whether the user's function may return None, for records without a schema.
    """
    if symbol is None:
        return lambda: None
    if not callable(symbol.value):
        return lambda: Schema.from_user(symbol.value, f"{symbol}: {symbol.name}")
    given = reading.params.declare(symbol)

    def read() -> Schema | None:
        value = call(symbol, **given)
        if value is None and may_be_none:
            return None
        return Schema.from_user(value, f"{symbol}: {symbol.name}()")

    return read


def with_schema(model_input: Input, read_schema: Callable[[], Schema | None]) -> Input:
    """Return an input with a schema added.

    Args:
        model_input: Any input; only a `RecordInput` needs a schema, others are returned unchanged.
        read_schema: Function () -> schema; called only if it is needed.
    """
    if not isinstance(model_input, RecordInput):
        return model_input
    return dataclasses.replace(model_input, schema=read_schema())


def _record_input(
    function: Callable[..., Any], roles: Sequence[_Role], params: dict[str, Any]
) -> RecordInput:
    if len(roles) > 1:

        def with_mode(records: Any, mode: Mode) -> Any:
            positional, named = _placed(roles, {"data": records, "mode": mode})
            return function(*positional, **named, **params)

        return RecordInput(with_mode, takes_mode=True)
    return RecordInput(functools.partial(function, **params) if params else function)


def _roles(symbol: Symbol, reading: DialectReader) -> tuple[Kind, list[_Role]]:
    """Find out what each argument of an input function is for, by its name or position.

    Returns:
        Whether the function takes records or a dataset, and the arguments that ElasticDL passes:
        data, mode and metadata, in order. Other arguments are params.

    Raises:
        DefinitionError: No argument takes data, or it is unclear which kind of data.
    """
    parameters = list(enumerate(signature_of(symbol).parameters.values()))
    data = next(
        ((i, p) for i, p in parameters if p.kind in _POSITIONAL and p.name not in _NAMED), None
    )
    name = symbol.short_name
    if data is None:
        raise reading.error(
            symbol,
            f"{name}() takes no data argument; it is called as {name}(records) or {name}(dataset, "
            "mode).",
            "Add the missing argument."
            if reading.framework == "torch"
            else "Add the missing argument, or specify the dialect yourself: --dialect=NAME",
        )
    kind = _kind(data[1].name, symbol, reading)
    free: list[Literal["mode", "metadata"]] = (
        ["mode", "metadata"] if kind == "dataset" else ["mode"]
    )
    roles = [_Role(data[1], "data", data[0])]
    unnamed = []
    for place, parameter in parameters:
        if parameter is data[1] or parameter.kind in _VARIABLE:
            continue
        if parameter.name == "mode" or (parameter.name == "metadata" and kind == "dataset"):
            role: Literal["mode", "metadata"] = "mode" if parameter.name == "mode" else "metadata"
            free.remove(role)
            roles.append(_Role(parameter, role, place))
        elif parameter.default is parameter.empty and not reading.params.has(parameter.name):
            unnamed.append((place, parameter))
    if kind == "dataset":
        # Known by position: model files name an unused argument `_`.
        roles += [
            _Role(parameter, role, place)
            for (place, parameter), role in zip(unnamed, free, strict=False)
        ]
    return kind, sorted(roles, key=lambda role: role.place)


def _kind(argument: str, symbol: Symbol, reading: DialectReader) -> Kind:
    if argument in _RECORDS:
        return "records"
    if argument in _DATASETS:
        return "dataset"
    if symbol.short_name in _KINDS_BY_NAME:
        return _KINDS_BY_NAME[symbol.short_name]
    raise reading.error(
        symbol,
        f"{symbol.short_name}({argument}, ...) has an unclear first argument: it could be a list "
        "of decoded records or a tf.data.Dataset.",
        f"Rename its first argument: {symbol.short_name}(records) or "
        f"{symbol.short_name}(dataset, mode).",
    )


def _placed(roles: Sequence[_Role], values: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and keyword arguments to call an input function with.

    Args:
        roles: The arguments that ElasticDL passes. If a param precedes an argument in the
            signature, that argument and later ones are passed by name.
        values: What an argument is for (`_Role.given`) -> the value to pass.
    """
    positional = []
    named = {}
    for number, role in enumerate(roles):
        if role.parameter.kind in _POSITIONAL and role.place == number:
            positional.append(values[role.given])
        else:
            named[role.parameter.name] = values[role.given]
    return positional, named

"""Gives a trained model's input function booleans where the training data had them.

A boolean column of Parquet may be a column of 0 and 1 in a CSV or RecordIO file, for which `~x` and
`values[mask]` mean something else. The trained model has the dtypes of its training data.

Callers: `inference.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.schema import Schema
from elasticdl.definition import RecordInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.definition import ModelDefinition


def with_trained_booleans(definition: ModelDefinition, fields_json: str) -> ModelDefinition:
    """Return a definition whose input function gets booleans and integers as in training.

    Args:
        definition: The definition of a trained model.
        fields_json: Fields of the training data, as `Schema.to_json`; "" if they are unknown or
            have a `data_schema()`, which converts them.
    """
    if not fields_json or not isinstance(definition.input, RecordInput):
        return definition
    booleans, integers = (
        {field.name for field in Schema.from_json(fields_json).fields if field.dtype.kind in kinds}
        for kinds in ("b", "iu")
    )
    as_in_training = _AsInTraining(definition.input.input_fn, booleans, integers)
    return replace(definition, input=replace(definition.input, input_fn=as_in_training))


@dataclass(frozen=True)
class _AsInTraining:
    """An input function that converts records before it calls the user's.

    Attributes:
        input_fn: The user's input function.
        booleans: Names of the fields that were booleans in training.
        integers: Names of the fields that were integers in training.
    """

    input_fn: Callable[..., Any]
    booleans: set[str]
    integers: set[str]

    def __call__(self, records: Sequence[Record], *mode: Any) -> Any:
        return self.input_fn([self._converted(record) for record in records], *mode)

    def _converted(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        changed = {name: self._value(name, value) for name, value in record.items()}
        return changed if any(changed[name] is not record[name] for name in record) else record

    def _value(self, name: str, value: Any) -> Any:
        if name in self.integers and value.dtype == bool:
            return value.astype(np.int64)
        is_boolean = name in self.booleans and value.dtype.kind in "iu"
        return value.astype(bool) if is_boolean and ((value == 0) | (value == 1)).all() else value

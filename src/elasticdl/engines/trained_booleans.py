"""Gives an input function booleans where the training data has them, for other data as well.

A boolean column of Parquet may be a column of 0 and 1 in a CSV or RecordIO file, for which `~x` and
`values[mask]` mean something else. So validation data, and the data for a trained model, get the
dtypes of the training data.

Callers: `inference.py`, `record_data.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.definition import RecordInput
from elasticdl.errors import SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasticdl.data.batch import Record
    from elasticdl.definition import ModelDefinition


def with_trained_booleans(
    definition: ModelDefinition, dtypes: Mapping[str, np.dtype[Any]]
) -> ModelDefinition:
    """Return a definition whose input function gets booleans and integers as in training.

    Args:
        definition: The definition of the model.
        dtypes: Field of the training data -> its dtype. Empty if they are unknown, or if a
            `data_schema()` converts them.
    """
    booleans = frozenset(name for name, dtype in dtypes.items() if dtype.kind == "b")
    integers = frozenset(name for name, dtype in dtypes.items() if dtype.kind in "iu")
    if not (booleans or integers) or not isinstance(definition.input, RecordInput):
        return definition
    as_in_training = _AsInTraining(definition.input.input_fn, booleans, integers)
    return replace(definition, input=replace(definition.input, input_fn=as_in_training))


@dataclass(frozen=True)
class _AsInTraining:
    """An input function that converts records before it calls the user's.

    Attributes:
        input_fn: The user's input function.
        booleans: Names of the fields that are booleans in the training data.
        integers: Names of the fields that are integers in the training data.
    """

    input_fn: Callable[..., Any]
    booleans: frozenset[str]
    integers: frozenset[str]

    def __call__(self, records: Sequence[Record], *mode: Any) -> Any:
        """Return what the user's input function returns for these records.

        Raises:
            SchemaError: A number other than 0 and 1 stands for a boolean of the training data.
        """
        if any(self._differs(name, value) for name, value in records[0].items()):
            records = [
                {name: self._converted(name, value) for name, value in record.items()}
                for record in records
            ]
        return self.input_fn(records, *mode)

    def _differs(self, name: str, value: Any) -> bool:
        kind = value.dtype.kind
        return (kind == "b" and name in self.integers) or (kind in "iu" and name in self.booleans)

    def _converted(self, name: str, value: Any) -> Any:
        if not self._differs(name, value):
            return value
        if value.dtype == bool:
            return value.astype(np.int64)
        others = value[(value != 0) & (value != 1)]
        if others.size:
            raise SchemaError(
                f"the field {name!r} has the value {others.flat[0]}; it was true or false in the "
                "training data. Write true or false, or 1 or 0."
            )
        return value.astype(bool)

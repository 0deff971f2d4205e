"""Reads rows of a table for a model: all fields, or the features in `columns`.

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from elasticdl.definition import Mode
from elasticdl.errors import UsageError
from elasticdl.zoo.prebuilt.column_layers import ColumnTower
from elasticdl.zoo.prebuilt.columns import Columns
from elasticdl.zoo.prebuilt.label import labels_of
from elasticdl.zoo.prebuilt.limits import problem_with
from elasticdl.zoo.prebuilt.tabular import Tower, features_and_label

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import keras
    import numpy as np

    from elasticdl.data.batch import Record

    Array: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ModelArguments:
    """The constructor arguments of a model, wrapped so that Keras does not track them.

    Attributes:
        arguments: Name -> value, JSON values.
    """

    arguments: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Raise a `UsageError` if the value of an argument is invalid."""
        for name, value in self.arguments.items():
            if problem := problem_with(name, value):
                raise UsageError(f"--params: {name} is {value!r}; {problem}.")


@dataclass(frozen=True)
class TableReader:
    """Reader of a table's rows, which splits them into the features and the label of a model.

    Attributes:
        label: Name of the field to learn.
        ignore: Names of fields that are not features.
        columns: The features. None: all other fields.
    """

    label: str
    ignore: tuple[str, ...]
    columns: Columns | None

    @staticmethod
    def of(
        columns: Sequence[Mapping[str, Any]] | None, *, label: str, ignore: Sequence[str]
    ) -> TableReader:
        """Create a reader from a model's params.

        Args:
            columns: Entries that describe every feature. None: use all columns except `label` and
                `ignore`.
            label: Column to learn.
            ignore: Columns to leave out; only without `columns`.

        Raises:
            UsageError: `columns` is invalid, or `ignore` is given too.
        """
        if columns is None:
            return TableReader(label, tuple(ignore), None)
        if ignore:
            raise UsageError(
                "--params: there is columns, which names every feature, and also ignore. Leave "
                "ignore out."
            )
        return TableReader(label, (), Columns.of(columns, label))

    def schema(self, label_entry: dict[str, Any]) -> list[dict[str, Any]] | None:
        """Return the model's `data_schema()`; None, to read all fields, if `columns` is None.

        Args:
            label_entry: The label's entry of the schema.
        """
        return None if self.columns is None else [*self.columns.schema(), label_entry]

    def features_and_label(
        self, records: Sequence[Record], mode: Mode
    ) -> tuple[dict[str, Array], Array | None]:
        """Return the features of a batch, and its labels [batch, values]; None for predictions.

        Raises:
            SchemaError: A record lacks the label, or a value does not match its feature.
        """
        if self.columns is None:
            return features_and_label(records, mode, label=self.label, ignore=self.ignore)
        features = self.columns.arrays(records, mode)
        return features, None if mode == Mode.PREDICTION else labels_of(records, self.label)

    def tower(self, hidden_units: Sequence[int], embedding_size: int) -> keras.layers.Layer:
        """Create a layer that computes the last hidden layer of a dense network from the features.

        Args:
            hidden_units: Width of each hidden layer, the first one first.
            embedding_size: Length of the trained vector that represents a string or an id.
        """
        if self.columns is None:
            return Tower(hidden_units, embedding_size)
        return ColumnTower(self.columns, hidden_units, embedding_size)

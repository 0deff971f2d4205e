"""Input function of a saved model: fits records to the shapes that the model declares.

A saved model records the shapes of its inputs, but not the source of its data. One field of a
record is the label, the others are features. A feature is reshaped to the model's input shape if
it has the same number of elements. Several fields become one row of numbers if the model
has one input; otherwise each is passed to the input of its name. Labels that are class numbers
become one-hot rows if the loss accepts only those.

Callers: `ibmfl_spec.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.column_summary import is_frame_index
from elasticdl.definition import Mode
from elasticdl.errors import DataError

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Record

LABELS = ("label", "labels", "y", "y_train", "target", "class")
"""Names to look for if no label field is configured; the first that exists is the label."""


@dataclass(frozen=True)
class InputSignature:
    """Name, shape and dtype of one input of a model.

    Attributes:
        name: Name of the input.
        shape: Shape of one example, with None for axes of any size; None if unknown.
        dtype: Name of the NumPy dtype.
    """

    name: str
    shape: tuple[int | None, ...] | None
    dtype: str = "float32"


@dataclass(frozen=True)
class BatchSignature:
    """The form of the batches that a saved model expects: its inputs, and the labels of its loss.

    Attributes:
        inputs: The model's inputs, in its order.
        num_classes: Number of scores in the model's output for an example; 0 if unknown.
        one_hot: Whether the loss expects one-hot rows.
        by_name: Whether the features are a dict, with the inputs' names as keys.
    """

    inputs: Sequence[InputSignature]
    num_classes: int = 0
    one_hot: bool = False
    by_name: bool = False


@dataclass(frozen=True, eq=False)
class SavedInput:
    """Prepares batches for a saved model: `input_fn` of a `RecordInput`.

    Attributes:
        taken: Function () -> form of the batches that the model takes: its inputs and its labels.
        where: Location of the spec, for errors.
        features: Names of the feature fields; None means all fields but the label.
        label: Name of the label field. None: look for one of `LABELS`.
        shape: Shape of one example's features. None: that of the model.
        one_hot: Whether to turn class numbers into one-hot rows. None: decide by the loss.
    """

    taken: Callable[[], BatchSignature]
    where: str
    features: Sequence[str] | None = None
    label: str | None = None
    shape: Sequence[int] | None = None
    one_hot: bool | None = None

    def __call__(self, records: Sequence[Record], mode: Mode) -> tuple[Arrays, Arrays]:
        """Return the features and the labels of some records.

        The labels are None in prediction.

        Raises:
            DataError: The records do not fit the model's inputs.
        """
        fields = list(records[0])
        label = self._label(fields, mode)
        taken = self.taken()
        features = self._features(records, fields, label, taken)
        if label is None or mode is Mode.PREDICTION:
            return features, None
        return features, self._labels(records, label, taken)

    def _label(self, fields: Sequence[str], mode: Mode) -> str | None:
        wanted = LABELS if self.label is None else (self.label,)
        found = next((name for name in wanted if name in fields), None)
        if found is None and mode is not Mode.PREDICTION:
            named = f"no field {self.label!r}" if self.label else f"none of {', '.join(LABELS)}"
            raise DataError(
                f"{self.where}: the records have {named}; they have {', '.join(fields)}. "
                "Specify the label: --params=\"label='NAME'\""
            )
        return found

    def _features(
        self,
        records: Sequence[Record],
        fields: Sequence[str],
        label: str | None,
        taken: BatchSignature,
    ) -> Arrays:
        names = [name for name in fields if name != label and not is_frame_index(name)]
        if self.features is not None:
            missing = [name for name in self.features if name not in fields]
            if missing:
                raise DataError(
                    f"{self.where}: the records have no field {', '.join(missing)}; they have "
                    f"{', '.join(fields)}."
                )
            names = list(self.features)
        if not names:
            raise DataError(f"{self.where}: the records have no field except {label}.")
        if len(taken.inputs) == 1:
            rows = [_stacked(records, name, self.where) for name in names]
            joined = rows[0] if len(rows) == 1 else np.concatenate(_numbers(rows, names), axis=1)
            only = self._shaped(joined, taken.inputs[0], ", ".join(names))
            return {taken.inputs[0].name: only} if taken.by_name else only
        missing = [each.name for each in taken.inputs if each.name not in names]
        if missing:
            raise DataError(
                f"{self.where}: the model has the inputs "
                f"{', '.join(each.name for each in taken.inputs)}; the records have "
                f"{', '.join(names)}. Missing: {', '.join(missing)}."
            )
        return {
            each.name: self._shaped(_stacked(records, each.name, self.where), each, each.name)
            for each in taken.inputs
        }

    def _shaped(self, rows: np.ndarray[Any, Any], taken: InputSignature, fields: str) -> Any:
        if rows.dtype != object:
            rows = rows.astype(taken.dtype, copy=False)
        shape = taken.shape if self.shape is None else tuple(self.shape)
        if shape is None:
            return rows
        size = math.prod(rows.shape[1:])
        known = math.prod(axis for axis in shape if axis is not None)
        open_axes = sum(axis is None for axis in shape)
        if (not open_axes and known != size) or (open_axes and (known == 0 or size % known)):
            shown = " x ".join("any" if axis is None else str(axis) for axis in shape)
            raise DataError(
                f"{self.where}: {fields} of a record has {size:,} numbers; the model takes "
                f"{shown}{'' if open_axes else f' ({known:,})'}. Use other data, or specify the "
                "fields that are features: --params=\"features=['NAME']\""
            )
        if open_axes > 1:
            return rows
        return rows.reshape(len(rows), *(-1 if axis is None else axis for axis in shape))

    def _labels(self, records: Sequence[Record], label: str, taken: BatchSignature) -> Any:
        labels, num_classes = _stacked(records, label, self.where), taken.num_classes
        if labels.dtype == bool:
            # Losses of PyTorch take no booleans.
            labels = labels.astype(np.int64)
        if labels.shape[1] == 1:
            labels = labels[:, 0]
        one_hot = taken.one_hot if self.one_hot is None else self.one_hot
        if not one_hot or labels.ndim > 1 or labels.dtype.kind not in "iub":
            return labels
        if not num_classes:
            raise DataError(
                f"{self.where}: one_hot is true, but the model does not define its number of "
                "classes. Write the one-hot rows into the records."
            )
        if labels.min() < 0 or labels.max() >= num_classes:
            worst = labels.min() if labels.min() < 0 else labels.max()
            raise DataError(
                f"{self.where}: the label {label} is {worst}; the model has {num_classes} classes, "
                f"0 to {num_classes - 1}."
            )
        return np.eye(num_classes, dtype=np.float32)[labels.astype(np.int64)]


def _stacked(records: Sequence[Record], name: str, where: str) -> np.ndarray[Any, Any]:
    try:
        return np.stack([record[name].reshape(-1) for record in records])
    except (KeyError, ValueError) as error:
        sizes = sorted({record[name].size if name in record else 0 for record in records})
        raise DataError(
            f"{where}: {name} has {sizes[0]} numbers in one record and {sizes[-1]} in another; all "
            "examples of a saved model must have the same shape."
        ) from error


def _numbers(
    rows: Sequence[np.ndarray[Any, Any]], names: Sequence[str]
) -> Sequence[np.ndarray[Any, Any]]:
    texts = [name for name, row in zip(names, rows, strict=True) if row.dtype == object]
    if texts:
        raise DataError(
            f"{', '.join(texts)} is text, but the model needs numbers. Specify the fields that are "
            "features: --params=\"features=['NAME', ...]\""
        )
    return rows

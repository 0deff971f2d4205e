"""Default input function: splits records into features and one label.

It is used for a model file that has no input function of its own:

    label      the field y, label, labels or target
    features   all other fields: one as an array, several as a dict, by their names

Ambiguous records (with two labels, no label, or strings) cause an error that recommends
`input_fn(records)`. The label of an example is a scalar if it is an integer, as losses of class
numbers expect, and otherwise has one axis, like a model's output; a trainer reshapes labels for a
loss that needs the other shape (`label_shapes.py`).

Callers: `elasticdl_module.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.column_summary import is_frame_index
from elasticdl.data.wording import listed
from elasticdl.definition import Mode, RecordInput
from elasticdl.errors import SchemaError
from elasticdl.training.input_words import (
    LABELS,
    how_to_resize,
    images_of_two_sizes,
    text_label_advice,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.data.batch import Record

_NAMES = f"{', '.join(LABELS[:-1])} or {LABELS[-1]}"


def default_input(
    file: str, create_model: Callable[[], Any], misspelled: str = "", *, of_torch: bool = False
) -> RecordInput:
    """Return the input for a model file without an input function.

    Args:
        file: The model file, for errors.
        create_model: Function () -> the model, whose input may be the advice of an error.
        misspelled: A question about a name in the file that may mean `input_fn`, for errors.
        of_torch: Whether the model is one of PyTorch. Its losses take no booleans as labels, so
            they become int64; those of Keras convert them themselves.
    """
    input_function = _DefaultInput(file, create_model, misspelled, of_torch=of_torch)
    return RecordInput(input_function, takes_mode=True, is_default=True)


def note(file: str) -> str:
    """Return a notice about which fields become label and features without an input function."""
    return (
        f"{file} has no input_fn(records): the field called {_NAMES} is the label, and "
        "all other fields are the features, a single number as [batch, 1]."
    )


class _DefaultInput:
    """Input function `(records, mode)` that finds the label by its name, and returns a batch."""

    def __init__(
        self, file: str, create_model: Callable[[], Any], misspelled: str, *, of_torch: bool
    ) -> None:
        self._file = file
        self._misspelled = misspelled
        self._of_torch = of_torch
        self._create_model = create_model

    def __call__(self, records: Sequence[Record], mode: Mode) -> tuple[Any, Any]:
        names = [name for name in records[0] if not is_frame_index(name)]
        labels = [name for name in names if name in LABELS]
        if len(labels) > 1 or (not labels and mode != Mode.PREDICTION):
            if labels:
                problem = f"{listed(labels)} could all be labels (a label is called {_NAMES})"
                raise self._error(names, problem)
            rename = (
                'df.rename(columns={"NAME": "y"}); in data (x, y), a Series keeps its name: '
                'y.rename("y").'
            )
            if names == ["x"]:
                rename = "in Python, data=(x, y)."
            if mode == Mode.EVALUATION:
                raise SchemaError(
                    f"the records have no label (a label is called {_NAMES}); they have "
                    f"{listed(names)}. An evaluation needs labels; use predict for data without "
                    f"them. Else call the label y: {rename}"
                )
            raise self._error(
                names,
                f"none of them is a label (a label is called {_NAMES})",
                f"Or call the label y: {rename}",
            )
        features = [name for name in names if name not in labels]
        if not features:
            raise self._error(names, "there are no features beside the label")
        arrays = {name: self._stacked(records, name) for name in features}
        only = arrays[features[0]] if len(features) == 1 else arrays
        if mode == Mode.PREDICTION:
            return only, None
        label = self._stacked(records, labels[0])
        if self._of_torch and label.dtype == bool:
            label = label.astype(np.int64)
        is_class = label.dtype.kind in "iub" and label.shape[1:] == (1,)
        return only, label[:, 0] if is_class else label

    def _stacked(self, records: Sequence[Record], name: str) -> np.ndarray[Any, Any]:
        arrays = [np.atleast_1d(record[name]) for record in records if name in record]
        shapes = sorted({array.shape for array in arrays})
        if len(arrays) < len(records) or len(shapes) > 1:
            values = (
                "is missing in some records" if len(arrays) < len(records) else "varies in size"
            )
            pair = images_of_two_sizes(records) if name == "image" else None
            if pair:
                way_out = how_to_resize(records, pair, self._create_model)
                raise SchemaError(f"{self._file} has no input_fn(records). {way_out}")
            raise self._error(list(records[0]), f"{name!r} {values}")
        if arrays[0].dtype.kind in "OSU":
            problem = f"{name!r} is text, but a model needs numbers"
            advice = (
                text_label_advice(arrays[0], field=name)
                if name in LABELS
                else "It may return the strings as they are, for a model that takes text "
                '(keras.Input((), dtype="string")): '
                f"np.array([record[{name!r}].item() for record in records])."
            )
            raise self._error(list(records[0]), problem, advice)
        return np.stack(arrays)

    def _error(self, names: Sequence[str], problem: str, way_out: str = "") -> SchemaError:
        if "varies in size" in problem and not way_out:
            way_out = "Or give it one shape in data_schema()."
        return SchemaError(
            f"{self._file} has no input_fn(records), and the model's input cannot be derived from "
            f"the fields of the records, {listed(names)}: {problem}. Write "
            "input_fn(records), which returns features and labels."
            + (f" {way_out}" if way_out else "")
            + self._misspelled
        )

"""Label of a table: converts its values to class numbers, and predictions back to its values.

    classes=["clerk", "boss"]:  b"boss" -> 1,  and the probabilities [0.3, 0.7] -> "boss", 0.7

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.class_names import no_label_advice
from elasticdl.data.field import MAX_EXACT
from elasticdl.did_you_mean import is_number, nearest
from elasticdl.errors import SchemaError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.batch import Record

    Array: TypeAlias = np.ndarray[Any, Any]
    Value: TypeAlias = str | int | float | bool

_FEWEST = 2
_MAX_SHOWN = 8


@dataclass(frozen=True)
class Classes:
    """The classes of a model: the values of its label, in the order of its outputs.

    Attributes:
        values: All strings, all numbers, or all booleans; each once.
        are_text: Whether they are strings.
        are_wide: Whether they are integers, at least one of which float64 would round.
    """

    values: tuple[Value, ...]
    are_text: bool
    are_wide: bool = False

    @staticmethod
    def of(values: Any) -> Classes:
        """Return the classes in the param `classes`.

        Raises:
            UsageError: They are not at least two different strings, numbers or booleans.
        """
        is_list = isinstance(values, (list, tuple))
        kinds = {_kind(value) for value in values} if is_list else {None}
        if len(kinds) != 1 or None in kinds:
            raise UsageError(
                f"--params: classes is {values!r}; expected a list of the label's values, all text "
                'or all numbers, such as ["no", "yes"].'
            )
        wide = kinds == {"number"} and any(
            isinstance(value, int) and abs(value) >= MAX_EXACT for value in values
        )
        classes = Classes(tuple(values), kinds == {"text"}, wide)
        compared = [classes._compared(value) for value in values]
        for value, one in zip(values, compared, strict=True):
            if compared.count(one) > 1:
                raise UsageError(f"--params: classes has {value!r} twice.")
        if len(compared) < _FEWEST:
            raise UsageError(
                f"--params: classes has {values[0]!r} only; there is nothing to learn from a "
                "constant label."
            )
        return classes

    def ids(self, labels: Array, label: str) -> Array:
        """Return the class number of each label, as an int64 array of the labels' shape.

        Args:
            labels: Strings or numbers, as the label's column has them.
            label: The column's name, for an error message.

        Raises:
            SchemaError: A label is not one of the classes.
        """
        known = {self._compared(value): number for number, value in enumerate(self.values)}
        if not self.are_text and not self.are_wide:
            # As read from a record, which has float32 instead of float64.
            for number, value in enumerate(self.values):
                known.setdefault(float(np.float32(value)), number)
        given = [self._given(value) for value in labels.ravel().tolist()]
        found = [known.get(value) for value in given]
        if None in found:
            raise self._unknown(given[found.index(None)], label)
        return np.array(found, np.int64).reshape(labels.shape)

    def predictions(self, outputs: Any) -> dict[str, Array]:
        """Return the columns to write for a batch of predictions, by name.

        They are `prediction` (the most probable class), `probability` (that of this class) and
        `output` (the probabilities of all classes).

        Args:
            outputs: Class probabilities, [batch, classes].
        """
        outputs = np.asarray(outputs)
        likeliest = outputs.argmax(axis=-1)
        return {
            "prediction": as_array(self.values)[likeliest],
            "probability": np.take_along_axis(outputs, likeliest[:, None], axis=-1)[:, 0],
            "output": outputs,
        }

    def _compared(self, value: Any) -> Any:
        if self.are_wide:
            return str(int(value) if float(value).is_integer() else value).encode()
        return value.encode() if self.are_text else float(value)

    def _given(self, value: Any) -> Any:
        """Convert a label in a record to the form in which the classes are compared.

        Strings become bytes, and numbers floats. If the classes are wide, whole numbers become
        their decimal digits as bytes, because floats would round them.
        """
        if not self.are_wide or (isinstance(value, float) and not value.is_integer()):
            return _plain(value)
        with contextlib.suppress(ValueError):  # not an integer, so not a class
            return str(int(value)).encode()
        return _plain(value)

    def _unknown(self, value: Any, label: str) -> SchemaError:
        if value is None or value != value:  # noqa: PLR0124 - NaN
            return missing_label(label)
        shown = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(shown, float) and shown.is_integer():
            shown = int(shown)
        near = nearest(str(shown), map(str, self.values))
        guess = "" if near is None else f" Did you mean {near!r}?"
        some = ", ".join(map(repr, self.values[:_MAX_SHOWN]))
        more = f", ... ({len(self.values)} in all)" if len(self.values) > _MAX_SHOWN else ""
        names = self._names_advice(str(shown), label)
        # Numbers are read as text if the classes are text.
        value = shown if names else repr(shown)
        with_all = "train with all values of the label (the model's param `classes`)"
        advice = f"{guess}{names} Leave such rows out, or {with_all}."
        if str(shown) == "-1":
            advice = f" {no_label_advice(label, with_all)}"
        return SchemaError(
            f"Field {label!r} has the value {value}, which is not one of the classes "
            f"{some}{more}.{advice}"
        )

    def _names_advice(self, value: str, label: str) -> str:
        """Return advice for the error about a label that is not one of the classes.

        If the label is a number and all classes are words, the advice is to replace the numbers by
        words. Otherwise, the result is empty.
        """
        if not self.are_text or not is_number(value) or any(map(is_number, self.values)):
            return ""
        return (
            " If the numbers stand for classes, replace them by the names, in pandas with "
            f"df[{label!r}].map({{{value}: 'NAME', ...}})."
        )


def as_array(values: Sequence[Value]) -> Array:
    """Return classes as an array without rounding any of them.

    Example:
        >>> as_array([5, 2**63 + 1]).tolist(), as_array(["a", "bc"]).dtype.kind
        ([5, 9223372036854775809], 'U')
    """
    whole = [value for value in values if type(value) is int]
    # NumPy converts integers on both sides of 2^63 to float64.
    is_wide = len(whole) == len(values) and min(whole) >= 0 and 2**63 <= max(whole) < 2**64
    return np.array(values, np.uint64 if is_wide else None)


def label_entry(label: str, classes: Classes | None) -> dict[str, Any]:
    """Return the label's entry of `data_schema()`.

    With this entry, a record may lack the label, as records for predictions do.

    Args:
        label: Name of the label's field.
        classes: The classes of a classifier; None for a regressor, or if the label already holds
            class numbers.
    """
    exact = classes is not None and (classes.are_text or classes.are_wide)
    entry = {"name": label, "shape": [], "dtype": "string" if exact else "float64"}
    # Numbers in place of text are read as text, so that the error about them names the classes.
    return {**entry, "nullable": True, "wide": classes is None or exact}


def labels_of(records: Sequence[Record], label: str) -> Array:
    """Return the labels of a batch, [batch, 1].

    Raises:
        SchemaError: A label is missing.
    """
    values = [record[label].item() for record in records]
    if any(value is None or value != value for value in values):  # noqa: PLR0124 - NaN
        raise missing_label(label)
    dtype = object if isinstance(values[0], bytes) else np.float64
    return np.array(values, dtype).reshape(-1, 1)


def missing_label(label: str) -> SchemaError:
    """Return the error for a row without a label."""
    return SchemaError(
        f"Field {label!r}, the label, has no value in a row. Leave such rows out of training and "
        f"evaluation, in pandas with df.dropna(subset=[{label!r}]); prediction does not need "
        "them to have one."
    )


def balanced(class_counts: Sequence[int], num_classes: int) -> Mapping[int, float]:
    """Return class weights that balance the classes: each class has the same total weight.

    Args:
        class_counts: Number of rows of each class, in the order of the classes.
        num_classes: Number of classes.

    Raises:
        UsageError: There is not one count for each class.

    Example:
        >>> balanced([30, 10], 2)
        {0: 0.6666666666666666, 1: 2.0}
    """
    fits = len(class_counts) == num_classes and all(count >= 0 for count in class_counts)
    if not fits or not any(class_counts):
        raise UsageError(
            f"--params: class_counts is {list(class_counts)!r}; expected the number of rows of "
            f"each of the {num_classes} classes, in their order."
        )
    present = [count for count in class_counts if count]
    return {
        number: sum(present) / (len(present) * count)
        for number, count in enumerate(class_counts)
        # A class without rows has no example to weight.
        if count
    }


def _kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)) and math.isfinite(value):
        return "number"
    return "text" if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    """Convert a label for comparison: a string to bytes, a number to a float."""
    if isinstance(value, str):
        return value.encode()
    return value if value is None or isinstance(value, bytes) else float(value)

"""Computes params from the label's values: classes of a classifier, scale of a regressor.

Not a model: `elasticdl zoo list` skips this file. Used by `table_params.py` and
`sql/training.py`; it imports no framework.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from elasticdl.data.type_words import in_words
from elasticdl.data.wording import near_classes
from elasticdl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.data.column_summary import ColumnSummary

MANY_CLASSES = 50
"""With more classes than this, the user probably wants to predict a number."""

# Different texts per row from which a label is taken for an identifier.
_IDENTIFIER_SHARE = 0.8
# Share of the classes that occur once from which a label is doubtful.
_SINGLE_SHARE = 0.5
# Share of the rows that such classes must have, too: a label with a long tail has few of them.
_SINGLE_ROWS_SHARE = 0.1


@dataclass(frozen=True)
class Advice:
    """Remedies for an unsuitable label, as phrases for error messages.

    Attributes:
        another: How to select another label, as a phrase to put after "Use", such as "LABEL with
            another column".
        as_text: Function (name of a column) -> how to turn its values into strings, such as "write
            the values of 'size' as words".
        shifted: Function (name of a column) -> how to subtract its smallest value, as a phrase of
            the same form.
    """

    another: str
    as_text: Callable[[str], str]
    shifted: Callable[[str], str]


def check_label(label: ColumnSummary, advice: Advice) -> None:
    """Check that the label has values, and not the same one in every row.

    Args:
        label: Summary of its column.
        advice: Remedies to recommend in the error.

    Raises:
        DataError: The label is always missing, or always the same.
    """
    if label.kind == "empty":
        raise DataError(f"The column {label.name!r} has no values at all.")
    if label.is_constant:
        value = label.values[0][0] if label.values else label.minimum
        raise DataError(
            f"The column {label.name!r} is {value!r} in every row, so there is nothing to learn. "
            f"Use {advice.another}, or more rows."
        )


def check_class_type(name: str, type_: Any, kind: str, advice: Advice) -> None:
    """Raise a `DataError` with the reason if the values of a label's type cannot be classes.

    Args:
        name: Name of the label.
        type_: Its Arrow type, or the name of it.
        kind: Kind of the values, one of those of `ColumnSummary.kind`.
        advice: Remedies to recommend in the error.
    """
    if kind in {"time", "list", "other"}:
        raise DataError(
            f"{name!r} holds {in_words(type_)}, which cannot be classes. "
            f"{_begun(advice.as_text(name))}, or use {advice.another}."
        )


def check_number_type(name: str, type_: Any, kind: str, model: str, advice: Advice) -> None:
    """Raise a `DataError` if the values of a label's type are not numbers.

    Args:
        name: Name of the label.
        type_: Its Arrow type, or the name of it.
        kind: Kind of the values, one of those of `ColumnSummary.kind`.
        model: Name of the model, for the error.
        advice: Remedies to recommend in the error.
    """
    if kind != "number":
        raise DataError(
            f"{model} predicts a number; {name!r} holds {in_words(type_)}. Use a classifier, or "
            f"{advice.another}."
        )


def classes_of(label: ColumnSummary, model: str, advice: Advice) -> tuple[list[Any], str]:
    """Return the values of a label as a sorted list of classes, and a note for the user.

    The note says that there are very many classes, or that some differ only by case or surrounding
    space; it is empty otherwise.

    Args:
        label: Summary of its column.
        model: Name of the model, for errors.
        advice: Remedies to recommend in errors.

    Raises:
        DataError: The values cannot be classes.
    """
    check_class_type(label.name, label.type, label.kind, advice)
    if label.values is None:
        way_out = "" if label.kind == "text" else "Use a regressor, or "
        raise DataError(
            f"{label.name!r} has too many distinct values to be classes. "
            f"{_begun(f'{way_out}{advice.another}')}."
        )
    values = sorted(value for value, _ in label.values)
    if label.is_wide and not (
        values[0] >= -(2**63) and values[-1] < (2**63 if values[0] < 0 else 2**64)
    ):
        raise DataError(
            f"{label.name!r} has whole numbers of more than 64 bits, which cannot be classes. "
            f"{_begun(advice.as_text(label.name))}."
        )
    fraction = next((v for v in values if isinstance(v, float) and not v.is_integer()), None)
    if fraction is not None:
        raise DataError(
            f"{label.name!r} is a number with fractions, such as {fraction!r} "
            f"({len(values):,} different values), and {model} predicts classes. Use a regressor, "
            f"such as regressor.DNN. If each value is a class, {advice.as_text(label.name)}."
        )
    notes = [near] if (near := near_classes(values)) else []
    if len(values) > MANY_CLASSES:
        notes.append(_many_classes_note(label, len(values), advice))
    # Whole numbers with gaps are floating-point numbers in many files.
    return [int(v) if isinstance(v, float) else v for v in values], " ".join(notes)


def _many_classes_note(label: ColumnSummary, num_classes: int, advice: Advice) -> str:
    note = f"{label.name} has {num_classes:,} different values, and each becomes a class."
    num_single = sum(count == 1 for _, count in label.values or ())
    is_text = label.kind == "text"
    are_single = num_single > _SINGLE_SHARE * num_classes and (
        num_single >= _SINGLE_ROWS_SHARE * label.num_present
    )
    if not is_text and not are_single:
        return f"{note} To predict a number, use a regressor."
    if num_classes >= _IDENTIFIER_SHARE * label.num_present and is_text:
        why = "Almost every row has a text of its own, so it looks like an identifier, which"
    elif are_single:
        looks = "an identifier or free text, which" if is_text else "a number or an identifier;"
        why = f"{num_single:,} of them occur in one row only, so it looks like {looks}"
    else:
        return note
    if not is_text:
        return (
            f"WARNING: {note} {why} a class can hardly be learned from one row. Use a "
            f"regressor, such as regressor.DNN, to predict a number, or use {advice.another}."
        )
    return (
        f"WARNING: {note} {why} can hardly be predicted. Is it the label? If not, use "
        f"{advice.another}; if it is, join the rare values into one class, such as 'other'."
    )


def scale_of(label: ColumnSummary, model: str, advice: Advice) -> dict[str, float]:
    """Return a regressor's params `label_mean` and `label_scale`: the label's mean and deviation.

    Args:
        label: Summary of its column.
        model: Name of the model, for errors.
        advice: Remedies to recommend in errors.

    Raises:
        DataError: The label is not a number, or float64 cannot distinguish its values.
    """
    check_number_type(label.name, label.type, label.kind, model, advice)
    assert label.mean is not None  # noqa: S101 - `check_label` refuses a column without values
    if not label.deviation:
        raise DataError(
            f"The values of {label.name!r} are so large and so close together that {model}, which "
            f"computes with about 15 digits, cannot tell them apart. "
            f"{_begun(advice.shifted(label.name))}."
        )
    return {"label_mean": label.mean, "label_scale": label.deviation}


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]

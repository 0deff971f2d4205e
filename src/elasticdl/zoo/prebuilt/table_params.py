"""Computes the params of a table model that the user did not give, from all training rows.

    columns                    the default features (`derived.py`)
    classes                    the sorted values of a classifier's label
    label_mean, label_scale    mean and deviation of a regressor's label

They are stored in the trained model like params that the user gave, so predictions use the same
features and classes.

Not a model: `elasticdl zoo list` skips this file. Used by `classifier.py`,
`regressor.py` and `engines/table_params.py`; it imports no framework.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from elasticdl.data.class_names import names_advice
from elasticdl.data.type_words import in_words
from elasticdl.data.wording import as_option, counted, listed
from elasticdl.definition import CompletedParams
from elasticdl.did_you_mean import did_you_mean, is_number, nearest
from elasticdl.errors import DataError, UsageError
from elasticdl.zoo.prebuilt.derived import Derived, derive
from elasticdl.zoo.prebuilt.label_params import Advice, check_label, classes_of, scale_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elasticdl.data.column_summary import ColumnSummary

    Completion = Callable[[Sequence[ColumnSummary]], CompletedParams]

_ADVICE = Advice(
    "another column as the label (--params='label=\"NAME\"')",
    as_text=lambda name: f"write the values of {name!r} as words",
    shifted=lambda name: f"subtract its smallest value from {name!r}",
)
# Maximum numbers of values and of names of classes in a message.
_MAX_UNNAMED, _MAX_NAMES = 5, 3
# Ids into which the words of a text are hashed.
_WORD_BUCKETS = 5000
_SCALE = {"label_mean", "label_scale"}


def classifier_completion(params: Mapping[str, Any], model: str) -> Completion | None:
    """Return a function that computes a classifier's missing params from the training table.

    Args:
        params: The params that the user gave.
        model: Name of the model, for errors.

    Returns:
        Function (summaries of the table's columns) -> all params. None if none is missing.
    """
    has_classes = params.get("classes") is not None
    if has_classes and params.get("columns") is not None:
        return None
    return functools.partial(_completed, dict(params), model, is_classifier=True)


def regressor_completion(params: Mapping[str, Any], model: str) -> Completion | None:
    """Return a function that computes a regressor's missing params from the training table.

    Args:
        params: The params that the user gave.
        model: Name of the model, for errors.

    Returns:
        Function (summaries of the table's columns) -> all params. None if none is missing.
    """
    if _SCALE & params.keys() and params.get("columns") is not None:
        return None
    return functools.partial(_completed, dict(params), model, is_classifier=False)


def _completed(
    params: dict[str, Any], model: str, table: Sequence[ColumnSummary], *, is_classifier: bool
) -> CompletedParams:
    """Complete a model's params from its table.

    The result also has notes for the user, such as which columns are not features.

    Args:
        params: The params that the user gave; modified in place.
        model: Name of the model, for errors.
        table: Summaries of the table's columns.
        is_classifier: Whether the model predicts classes; otherwise it predicts a number.

    Raises:
        UsageError: A param names a column that the table does not have.
        DataError: The label cannot be learned, or no feature is left.
    """
    notes: list[str] = []
    names = [column.name for column in table]
    error = misnamed_column(params, names)
    if error is not None:
        raise error
    label_name = str(params.get("label", "label"))
    label = next((column for column in table if column.name == label_name), None)
    if label is None:
        # The columns `label_0` and so on are no single label.
        raise _no_label(label_name, names, is_given="label" in params)
    check_label(label, _ADVICE)
    if is_classifier and params.get("classes") is not None:
        _check_are_numbers(params["classes"], label)
    elif is_classifier:
        _check_named(label)
        notes += _names_notes(label)
        if not _are_numbered(params, label):
            params["classes"], note = classes_of(label, model, _ADVICE)
            notes += [note] if note else []
    if not is_classifier and not _SCALE & params.keys():
        params |= scale_of(label, model, _ADVICE)
    # After its type: without these rows, a label of the wrong type would be the next error.
    if label.num_missing:
        first = "" if label.num_missing == 1 else "the first is "
        at = f" ({first}{label.missing_at})" if label.missing_at else ""
        raise DataError(
            f"The column {label.name!r}, the label, has no value in "
            f"{counted(label.num_missing, 'row')} of {label.num_rows:,}{at}. Leave these rows out "
            f"of the training data (in pandas: df.dropna(subset=[{label.name!r}])); they can be "
            "predicted afterwards."
        )
    if params.get("columns") is None:
        ignore = params.pop("ignore", ())
        derived = derive(table, label.name, ignore)
        notes += derived.notes()
        if not derived.columns:
            raise DataError(
                f"No column is left to predict {label.name!r} from. {' '.join(derived.notes())} "
                f"{_way_out(derived, table, label.name)}"
            )
        params["columns"] = list(derived.columns)
    return CompletedParams(params, notes)


def misnamed_column(
    params: Mapping[str, Any], names: Sequence[str], *, last_is_label: bool = False
) -> UsageError | None:
    """Return an error if a table lacks a column that `label`, `ignore` or `columns` names.

    A column `x` of several numbers may be stored as the columns `x_0` to `x_{n-1}`.

    Args:
        params: The params that the user gave.
        names: Names of the table's columns.
        last_is_label: Whether the last column is known to be the label; the error suggests it.

    Returns:
        The error; None if the table has all these columns.
    """
    label = str(params.get("label", "label"))
    if label not in names and f"{label}_0" not in names:
        return _no_label(label, names, is_given="label" in params, last_is_label=last_is_label)
    derives_columns = params.get("columns") is None
    param = "ignore" if derives_columns else "columns"
    named = params.get("ignore", ()) if derives_columns else _columns_in(params["columns"])
    for name in named:
        if name not in names and (derives_columns or f"{name}_0" not in names):
            return UsageError(
                f"--params: {param} has {name!r}, which is not a column of the table"
                f"{did_you_mean(name, names)} It has {listed(names)}."
            )
    return None


def _columns_in(entries: Any) -> Iterator[str]:
    """Yield the names of the table's columns in the param `columns`, also those within `of`.

    An entry of `columns` describes a feature; `of` lists the entries that it is computed from.
    """
    for entry in entries if isinstance(entries, (list, tuple)) else [entries]:
        # Others are the column of another entry, or a mistake that is reported elsewhere.
        if isinstance(entry, dict):
            if isinstance(entry.get("column"), str):
                yield entry["column"]
            yield from _columns_in(entry.get("of"))


def _no_label(
    label: str, names: Sequence[str], *, is_given: bool, last_is_label: bool = False
) -> UsageError:
    # A column such as `table` is similar to the default name `label`, but only a column that is
    # named like it is probably meant.
    near = nearest(label, names, is_label=not is_given)
    # A column `y` at the end was probably the y of data (x, y).
    if not is_given and (last_is_label or names[-1:] == ["y"]):
        near = near or names[-1]
    specify = as_option("label", near or "NAME")
    if not is_given:
        return UsageError(
            "--params: label, the name of the column to predict, is not given, and the table "
            f"has no column 'label'. It has {listed(names)}. Name one of them: {specify}"
        )
    return UsageError(
        f"--params: the table has no column {label!r}, the label; it has {listed(names)}"
        f"{did_you_mean(label, names)} Specify the right one: {specify}"
    )


def _way_out(derived: Derived, table: Sequence[ColumnSummary], label: str) -> str:
    """Return advice for a table in which no column is a feature."""
    texts = [each.name for each in table if each.kind == "text" and each.name in derived.left_out]
    if not texts:
        return (
            "Add columns of numbers, text or dates, or describe the features in the param "
            "`columns`."
        )
    entry = {"kind": "sequence", "column": texts[0], "delimiter": " ", "buckets": _WORD_BUCKETS}
    return (
        f"To learn from the words in {texts[0]!r}, read it as a sequence of words: "
        f"{as_option('label', label, columns=[entry])}"
    )


def _are_numbered(params: Mapping[str, Any], label: ColumnSummary) -> bool:
    """Return whether a label already holds class numbers, so that `classes` need not be derived.

    That is so if the label holds whole numbers and the user gave `num_classes`.
    """
    return params.get("num_classes") is not None and in_words(label.type) == "whole numbers"


def _check_named(label: ColumnSummary) -> None:
    """Check that each number of a label has a name, if the data name the classes.

    Hugging Face writes -1 into a `ClassLabel` for "no label".

    Raises:
        DataError: A number has no name.
    """
    if not label.class_names or label.kind != "number":
        return
    last = len(label.class_names) - 1
    unnamed = [(value, count) for value, count in label.values or () if not 0 <= value <= last]
    if not unnamed:
        return
    count = sum(count for _, count in unnamed)
    values = listed(sorted(value for value, _ in unnamed)[:_MAX_UNNAMED])
    raise DataError(
        f"The column {label.name!r}, the label, has no value in {counted(count, 'row')} of "
        f"{label.num_rows:,}: it has {values} there, and its classes (ClassLabel) are 0 to {last}. "
        "Leave these rows out of the training data: data = data.filter(lambda row: 0 <= "
        f"row[{label.name!r}] <= {last}). They can be predicted afterwards. If they are a class, "
        "list all values in the param `classes`."
    )


def _check_are_numbers(classes: Any, label: ColumnSummary) -> None:
    """Check that the param `classes` has no words, if the label holds numbers of named classes.

    Raises:
        UsageError: `classes` has words.
        DataError: `classes` has words, and a number of the label has no name.
    """
    values = classes if isinstance(classes, (list, tuple)) else [classes]
    words = [value for value in values if isinstance(value, str) and not is_number(value)]
    if label.class_names and label.kind == "number" and words:
        # First: the advice below would give these rows the last name.
        _check_named(label)
        last = len(label.class_names) - 1
        raise UsageError(
            f"--params: classes has {words[0]!r}, but the column {label.name!r}, the label, holds "
            f"class numbers (ClassLabel), 0 to {last}. Leave classes out, to predict these "
            f"numbers. {_for_names(label.name)}"
        )


def _for_names(name: str) -> str:
    return f"For names, replace the numbers before training: {names_advice(name)}"


def _names_notes(label: ColumnSummary) -> list[str]:
    """Return a note if the data name the classes, but predictions will have their numbers."""
    name, names = label.name, label.class_names
    # The digits of MNIST have their numbers as names.
    if names == tuple(map(str, range(len(names)))):
        return []
    few = f"{listed(names[:_MAX_NAMES])}{', ...' * (len(names) > _MAX_NAMES)}"
    note = (
        f"Predictions have the class numbers of {name!r}, not their names ({few}). "
        f"{_for_names(name)}"
    )
    return [note]

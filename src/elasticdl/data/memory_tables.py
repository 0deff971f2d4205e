"""Converts tables that users have in memory, of any package, to Arrow tables.

    DataFrame of pandas, Dataset of Hugging Face, Arrow table, DataFrame of polars, list of dicts

No package is imported to recognise its objects. Callers: `in_memory.py`,
`memory_elements.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from elasticdl.data.batch import dense_form, not_in_numpy
from elasticdl.data.wording import counted, listed
from elasticdl.errors import DataError, UsageError

_log = logging.getLogger("elasticdl")
# Package -> unsupported class -> end of the error message: why, and what to pass instead.
_UNREAD = {
    "pandas": {"Series": "is one column. Give a DataFrame, such as data.to_frame()."},
    "polars": {
        "LazyFrame": "has no rows yet. Give its DataFrame: data.collect().",
        "Series": "is one column. Give a DataFrame, such as data.to_frame().",
    },
    "datasets": {
        "DatasetDict": 'holds several data sets. Give one of them, such as data["train"].',
        "IterableDatasetDict": "holds several data sets. Give one of them.",
        "IterableDataset": (
            "is read from its start only. Load it without streaming=True, or store its rows: "
            "datasets.Dataset.from_list(list(data))."
        ),
    },
}

# Features of Hugging Face whose values are arrays, but which Arrow stores as something else.
_DECODED = {"Array2D", "Array3D", "Array4D", "Array5D", "Audio", "Image"}

# What pyarrow raises for values that it cannot convert.
_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError)

USE_A_DICT = (
    "For several inputs or labels, use a dict of them with the names of the model's inputs, such "
    'as ({"a": a, "b": b}, y); input_fn(records) of the model file gets them by these names. For a '
    "single array, stack them"
)
"""Advice for data whose x or y consists of several arrays, without a period at its end."""

# Maximum number of labels of an index in an error message.
_MAX_LABELS = 3


def kinds_of(data: Any) -> tuple[str, set[str]]:
    """Return the name of an object's package, and the names of its class and base classes.

    With these names, callers recognise the objects of a package without importing it.
    """
    return type(data).__module__.partition(".")[0], {kind.__name__ for kind in type(data).__mro__}


def table_of(data: Any) -> pa.Table | None:
    """Convert an object that has columns to a table; None for any other object.

    Raises:
        UsageError: The user must convert it to a table first: it is a single column (Series), a
            lazy table, a stream, or a dict of data sets.
        DataError: It cannot be converted.
    """
    root, kinds = kinds_of(data)
    for kind, way_out in _UNREAD.get(root, {}).items():
        if kind in kinds:
            raise UsageError(f"data is a {root}.{kind}, which {_row_advice(data) or way_out}")
    if root == "pandas" and "DataFrame" in kinds:
        _check_dense(data)
        _note_levels(data)
        _check_distinct([str(name) for name in data.columns])
        return converted(
            lambda: _with_index(pa.Table.from_pandas(data, preserve_index=False), data),
            advice=" Give each column values of one type, such as by pandas.to_numeric() or "
            "astype(str).",
        )
    if root == "datasets" and "Dataset" in kinds:
        return _of_hugging_face(data)
    # Arrow's own interface, which most packages with tables have (the Arrow PyCapsule Interface).
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, type):
        return converted(lambda: pa.table(data))
    return None


def _check_dense(frame: Any) -> None:
    """Check that no column of a DataFrame of pandas is sparse, which Arrow cannot convert.

    Raises:
        UsageError: A column is sparse.
    """
    for name, dtype in frame.dtypes.items():
        if type(dtype).__name__ == "SparseDtype":
            raise UsageError(
                f"The column {name!r} of data is sparse, which is not supported. Convert it: "
                f"df[{name!r}] = df[{name!r}].sparse.to_dense()."
            )


def _note_levels(frame: Any) -> None:
    """Warn if a DataFrame has multi-level column names (MultiIndex), which become text."""
    if getattr(frame.columns, "nlevels", 1) > 1 and len(frame.columns):
        _log.warning(
            "The DataFrame has columns of several levels (MultiIndex); the names are text such as "
            '%r. To give them others: df.columns = ["_".join(map(str, name)) for name in '
            "df.columns].",
            str(frame.columns[0]),
        )


def _row_advice(data: Any) -> str | None:
    """Return advice for a pandas Series that seems to be a row of a DataFrame: `df.iloc[[0]]`.

    Such a Series has strings, the names of columns, as its index. The result is None for other
    objects.
    """
    labels = list(data.index) if type(data).__name__ == "Series" and hasattr(data, "index") else []
    if not labels or not all(isinstance(label, str) for label in labels):
        return None
    more = ", ..." * (len(labels) > _MAX_LABELS)
    # Not data.to_frame().T: all its columns have the type `object`.
    return (
        f"is one row, judging by its index {listed(labels[:_MAX_LABELS])}{more}. Give a DataFrame "
        "with that row: df.iloc[[0]] instead of df.iloc[0], df.loc[[key]] instead of df.loc[key]. "
        "If it is a column: data.to_frame()."
    )


def _of_hugging_face(data: Any) -> pa.Table | None:
    """Convert a Hugging Face `Dataset` to a table; None if its rows must be read one by one.

    That is necessary if a transform of the data set (`set_transform`) makes the rows, or if a
    column has a type that only the package `datasets` can decode: images, sounds, and arrays of
    several axes.
    """
    data = _with_its_columns(data)
    if data.format["type"] == "custom":
        return None
    table: pa.Table = data.with_format("arrow")[:]
    kinds = {type(feature).__name__ for feature in data.features.values()}
    return None if kinds & _DECODED else table


def class_names(data: Any) -> dict[str, list[str]]:
    """Return column -> the names of its classes, for each `ClassLabel` of a Hugging Face `Dataset`.

    Empty for any other data, such as a `DatasetDict`.
    """
    root, kinds = kinds_of(data)
    if root != "datasets" or "Dataset" not in kinds:
        return {}
    features = data.features or {}
    return {
        name: list(feature.names)
        for name, feature in features.items()
        if type(feature).__name__ == "ClassLabel"
    }


def rows_of_hugging_face(data: Any) -> Sequence[Any]:
    """Return the rows of a Hugging Face `Dataset` as a sequence of dicts.

    If the data set has a transform (`set_transform`), the rows are those that it returns. Otherwise
    their values are NumPy arrays.
    """
    data = _with_its_columns(data)
    rows: Sequence[Any] = data if data.format["type"] == "custom" else data.with_format("numpy")
    return rows


def _with_its_columns(data: Any) -> Any:
    """Return a Hugging Face `Dataset` with only the columns that its `set_format` selects.

    A data set with a transform is returned unchanged, because the transform receives and returns
    the right columns by itself.
    """
    return data.select_columns(data.format["columns"]) if hidden_columns(data) else data


def hidden_columns(data: Any) -> list[str]:
    """Return the columns that the format of a Hugging Face `Dataset` leaves out (`set_format`).

    Empty for a data set with a transform, and for any other data.
    """
    root, kinds = kinds_of(data)
    if root != "datasets" or "Dataset" not in kinds:
        return []
    format_ = data.format
    if format_["output_all_columns"] or format_["type"] == "custom":
        return []
    return [name for name in data.column_names if name not in format_["columns"]]


def _with_index(table: pa.Table, frame: Any) -> pa.Table:
    """Append the index of a pandas DataFrame to its table as further columns, if it has a name.

    Raises:
        DataError: The index has the name of a column, but different values.
    """
    for level, name in enumerate(frame.index.names):
        if name is None:
            continue
        values = pa.array(frame.index.get_level_values(level), from_pandas=True)
        if str(name) not in table.column_names:
            table = table.append_column(str(name), values)
        elif not table[str(name)].combine_chunks().equals(values):
            raise DataError(
                f"The DataFrame has a column {str(name)!r}, and an index of this name with other "
                "values. Rename one of them, or leave the index out: frame.reset_index(drop=True)."
            )
    return table


def table_of_rows(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Convert dicts to a table; a column that a dict lacks is null there.

    Raises:
        DataError: There is no column, or the values of one have no common type.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if not names:
        raise DataError("The rows of data have no columns.")
    columns = {}
    for name in names:
        values = [_plain_value(row[name]) if name in row else None for row in rows]
        try:
            columns[str(name)] = as_column(values)
        except DataError as error:
            raise DataError(
                f"{error}. That is in the column {name!r}: give it numbers, text or dates of one "
                "type, and None for a missing value."
            ) from error
    return converted(lambda: pa.table(columns))


def as_column(values: Any) -> pa.Array:
    """Convert values to an Arrow column.

    A NaN among strings or dates becomes null, because pandas marks missing values with NaN.

    Raises:
        DataError: The values have no common type.
    """
    try:
        return pa.array(values)
    except _ERRORS:
        return converted(lambda: pa.array(values, from_pandas=True))


def _plain_value(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def with_label(table: pa.Table, label: Any) -> pa.Table:
    """Append labels to a table as its last column, for data that a user passes as (x, y).

    Args:
        table: The rows, without labels.
        label: One label per row, also as an array or a DataFrame with one column. If it has an
            attribute `name`, as a pandas Series does, the new column gets that name; otherwise it
            is called `y`.

    Raises:
        DataError: The numbers of rows and labels differ, the rows have a column of that name, or
            the labels cannot be stored.
    """
    name = str(getattr(label, "name", None) or "y")
    values = as_numpy(label)
    if values.ndim > 1 and values.shape[1:] == (1,):
        values = values[:, 0]
    column = converted(lambda: pa.array(values.tolist()))
    if len(column) != table.num_rows:
        raise DataError(
            f"x has {counted(table.num_rows, 'row')}, but y has {counted(len(column), 'value')}."
        )
    if name in table.column_names:
        raise DataError(
            f"In data (x, y), both x and y have a column {name!r}. If it is the label, leave it "
            f"out of x: x.drop(columns=[{name!r}]). Else rename one of them, such as y: "
            'y.rename("y").'
        )
    return table.append_column(name, column)


def _check_distinct(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(f"Two columns are called {listed(twice)}. Give one of them another name.")


def plain_table(table: pa.Table) -> pa.Table:
    """Return a table without metadata, and with plain column types.

    Dictionary-encoded values and string or binary views are converted, so that tables with equal
    data compare equal.

    Raises:
        DataError: Two columns have the same name.
    """
    names = table.column_names
    _check_distinct(names)
    for i, column in enumerate(table.columns):
        plain = _plain(column)
        if plain is not column:
            table = table.set_column(i, names[i], plain)
    return table.replace_schema_metadata()


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column with dictionary-encoded values or string views replaced by plain values.

    Dictionaries of equal columns may be in different orders. String views, the type in which
    polars stores strings, do not support picking rows in Arrow.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        values = pa.chunked_array([pa.array([], kind.value_type)])
        plain = _plain(values).type
        parts = [chunk.dictionary.cast(plain).take(chunk.indices) for chunk in column.chunks]
        return pa.chunked_array(parts, plain)
    if pa.types.is_string_view(kind):
        return column.cast(pa.large_string())
    return column.cast(pa.large_binary()) if pa.types.is_binary_view(kind) else column


def one_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Convert a value of an element of a data set to an array.

    Args:
        name: Its name, for errors.
        value: An array, a tensor, a number, a text or a list of these.

    Raises:
        DataError: `as_numpy` raises it, or the value is a tuple or a list of arrays. These are
            several inputs or labels of a model; stacked, they would be another, single one.
    """
    is_tuple = isinstance(value, tuple)
    # A NumPy scalar is a number of a vector, such as those of tuple(row).
    if isinstance(value, (tuple, list)) and any(
        hasattr(each, "__array__")
        and (getattr(each, "ndim", 0) or (is_tuple and not isinstance(each, np.generic)))
        for each in value
    ):
        kind = "tuple" if is_tuple else "list"
        raise DataError(f"In an element of data, {name!r} is a {kind} of arrays. {USE_A_DICT}.")
    return as_numpy(value)


def as_numpy(value: Any) -> np.ndarray[Any, Any]:
    """Convert a value, which may be a tensor, to an array.

    Raises:
        DataError: It is a nested list whose parts have different lengths, a sparse matrix, or a
            tensor of a dtype that NumPy lacks.
    """
    if problem := not_in_numpy(value):
        raise DataError(f"data has {problem}")
    if dense := dense_form(value):
        raise DataError(
            f"data has a sparse matrix ({type(value).__name__}), which is not supported. Give a "
            f"dense array: {dense}."
        )
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"data has a value that is no array: {error}.") from error
    items = value if array.dtype.kind in "SU" and isinstance(value, (list, tuple)) else ()
    # NumPy has written a NaN between strings as the string "nan".
    has_others = any(not isinstance(each, (str, bytes, list, tuple)) for each in items)
    return np.array(value, object) if has_others else array


def converted(convert: Callable[[], Any], *, advice: str = "") -> Any:
    """Return the result of a function that converts data to Arrow; turn its errors into DataError.

    Args:
        convert: Function () that converts the data.
        advice: What the user can do about a failure; added to the end of the error message.

    Raises:
        DataError: The function raised an error of Arrow, a `TypeError`, a `ValueError` or an
            `OverflowError`.
    """
    try:
        return convert()
    except _ERRORS as error:
        # Of several arguments, the last one names the column.
        reason = ": ".join(str(part) for part in reversed(error.args))
        if isinstance(error, OverflowError):
            limits = "-2^63 to 2^63 - 1"
            reason = f"a whole number outside of {limits} must be converted to a float or to text"
        end = f".{advice}" if advice and not reason.endswith(".") else advice
        raise DataError(f"data cannot be stored as a table: {reason}{end}") from error

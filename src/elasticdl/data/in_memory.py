"""Stores data that users pass as Python objects in a Parquet file, which any engine reads by row.

    DataFrame of pandas                                its columns
    Dataset of Hugging Face                            its columns; with a transform, its rows
    Arrow table, polars, any Arrow-compatible object   its columns
    dict of arrays                                     one column for each array
    list of dicts                                      one row for each dict
    (x, y), or x alone                                 columns x and y; for a table x, its columns
    tf.data.Dataset, PyTorch Dataset or DataLoader     its elements, in order

    data --arrow_rows--> batches of rows --store--> FOLDER/CONTENT_HASH.parquet

Training reads records by number, in each epoch, on several processes and after a crash, so the
rows are written once. The name of the file is a hash of the content: the same data is the same file
in each run, and a run cannot be resumed with other data.

An array of more than two dimensions becomes a column of flat lists, one for each row. The shape of
a row is stored with the column (`array_shapes.py`): the reader returns values of this shape, and
rejects a `data_schema()` of the model file with another shape. The names of the classes of a
Hugging Face `ClassLabel` are stored in the same way (`class_names.py`).

`memory_tables.py` converts tables, `memory_elements.py` reads data sets of elements. Callers:
`engines/stored_data.py`, `engines/load.py`, `engines/loaded_model.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from elasticdl.data.array_shapes import shape_of, with_shape
from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.class_names import with_class_columns
from elasticdl.data.find_files import exists
from elasticdl.data.memory_elements import (
    ADVICE_ON_WEIGHTS,
    PAIR,
    WITH_WEIGHTS,
    Elements,
    elements_of,
    is_array,
    pair,
)
from elasticdl.data.memory_tables import (
    as_column,
    as_numpy,
    class_names,
    kinds_of,
    plain_table,
    table_of,
    table_of_rows,
    with_label,
)
from elasticdl.data.snapshot import TableWriter
from elasticdl.data.stored_file import local_path
from elasticdl.data.wording import counted, listed, shown
from elasticdl.errors import (
    DataError,
    ElasticDLError,
    OutputError,
    UsageError,
)

_BATCH_ROWS = 1 << 14
_COPY_BYTES = 1 << 24
# Arrow's names of types -> those of NumPy, which users know.
_TYPE_NAMES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "string": "text",
    "large_string": "text",
}
# Maximum number of names in an error message.
_MAX_NAMES = 3
_EXPECTED = (
    "expected the name of files, a DataFrame of pandas or polars, an Arrow table, a Dataset of "
    "Hugging Face, a dict of arrays, a list of dicts, arrays (x, y) or x, a tf.data.Dataset, or a "
    "PyTorch Dataset or DataLoader"
)
_FROM_GENERATOR = (
    "Pass its examples as arrays (x, y), or a tf.data.Dataset of the generator function: "
    "tf.data.Dataset.from_generator(FUNCTION, output_signature=...)"
)


@dataclass(frozen=True)
class ArrowRows:
    """A user's in-memory data converted to Arrow rows, in order, in batches of bounded size.

    Attributes:
        schema: Names and types of the columns.
        batches: The rows; the batches can be iterated only once.
        num_rows: Number of all rows; None if it is unknown.
        batch_size: If the user's data consisted of batches, which were split into rows: the size of
            these batches. None if it did not, or if the size is unknown.
    """

    schema: pa.Schema
    batches: Iterable[pa.RecordBatch]
    num_rows: int | None
    batch_size: int | None = None


def store(
    rows: ArrowRows, folder: str, scratch: Path, on_rows: Callable[[int], None]
) -> tuple[str, bool, int]:
    """Store rows as a Parquet file, named by a hash of them, unless that file exists already.

    Args:
        rows: The rows.
        folder: URI of the folder for the file.
        scratch: A local folder for a temporary file of the same size.
        on_rows: Called with the number of rows so far.

    Returns:
        URI of the file, whether it is new, and its number of rows.

    Raises:
        DataError: There are no rows or no columns, or a value cannot be stored.
        OutputError: The file cannot be written.
    """
    if not rows.schema.names:
        raise DataError("The data has no columns; expected at least one.")
    aside = scratch / "rows.parquet"
    content = hashlib.sha256(rows.schema.remove_metadata().to_string().encode())
    count = 0
    try:
        with TableWriter(str(aside), rows.schema) as writer:
            for batch in rows.batches:
                count += writer.write(batch, None)
                content.update(batch.serialize())
                on_rows(count)
        if not count:
            raise DataError("The data has no rows.")
        uri = f"{folder}/{content.hexdigest()[:16]}.parquet"
        is_new = not exists(uri)
        if is_new:
            _copy(aside, uri)
    finally:
        aside.unlink(missing_ok=True)
    return uri, is_new, count


def column_types(schema: pa.Schema) -> dict[str, str]:
    """Return name -> type of each column, for messages.

    Example:
        >>> image = with_shape(pa.field("image", pa.list_(pa.float32(), 784)), (28, 28))
        >>> column_types(pa.schema([("a", pa.float64()), ("b", pa.string()), image]))
        {'a': 'float64', 'b': 'text', 'image': 'float32[28, 28]'}
    """
    types: dict[str, str] = {}
    for column in schema:
        if pa.types.is_fixed_size_list(column.type):
            shape = shape_of(column) or (column.type.list_size,)
            types[column.name] = f"{_type_name(column.type.value_type)}{list(shape)}"
        else:
            types[column.name] = _type_name(column.type)
    return types


def _type_name(type_: pa.DataType) -> str:
    return _TYPE_NAMES.get(str(type_), str(type_))


@contextlib.contextmanager
def named_in_errors(files: Mapping[str, str]) -> Iterator[None]:
    """Context manager that replaces the names of stored files in the errors of its block.

    The files hold data that the user passed in memory: the user does not know their names.

    Args:
        files: URI of a stored file -> the user's name for the data.
    """
    try:
        yield
    except ElasticDLError as error:
        for uri, name in files.items():
            paths = (uri,) if local_path(uri) is None else (str(Path(uri).absolute()), uri)
            for path in paths:
                error.args = tuple(
                    each.replace(path, name) if isinstance(each, str) else each
                    for each in error.args
                )
        raise


def arrow_rows(data: Any) -> ArrowRows:
    """Convert a user's in-memory data, such as a DataFrame or arrays, to rows to be stored.

    Raises:
        UsageError: The type of the data is not supported.
        UserCodeError: The code of a data set raised.
        DataError: Its columns have different lengths, or values that cannot be stored.
    """
    check_kinds({"data": data})
    rows = _arrow_rows(data)
    return replace(rows, schema=with_class_columns(rows.schema, class_names(data)))


def check_kinds(data: Mapping[str, Any]) -> None:
    """Check, without reading the data, that none is a single value or a class.

    Args:
        data: The user's name for the data, for the error -> what the user passed.

    Raises:
        UsageError: Some data is a single value or a class.
    """
    for option, value in data.items():
        if isinstance(value, type):
            name = value.__name__
            raise UsageError(f"{option} is the class {name}; pass an instance: {name}(...).")
        if isinstance(value, Real):
            is_share = option == "validation_data" and 0 < float(value) < 1
            hint = f" To hold out a part of the data: validation_split={value}." if is_share else ""
            raise UsageError(f"{option} is {value} ({type(value).__name__}); {_EXPECTED}.{hint}")


def _arrow_rows(data: Any) -> ArrowRows:
    table = table_of(data)
    if table is not None:
        return _of_table(table)
    elements = elements_of(data)
    if elements is not None:
        return _of_elements(elements)
    if isinstance(data, Mapping):
        return _of_columns(data)
    if is_array(data):
        return _of_columns({"x": data})
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return _of_table(table_of_rows(data))
    if isinstance(data, tuple) and len(data) == WITH_WEIGHTS:
        raise UsageError(f"data{ADVICE_ON_WEIGHTS}")
    if isinstance(data, tuple) and len(data) == PAIR:
        return _of_pair(data)
    if isinstance(data, (list, tuple)) and not data:
        raise UsageError(f"data is an empty {type(data).__name__}; {_EXPECTED}.")
    raise UsageError(f"data is {_advice_on(data) or f'{_type_of(data)}; {_EXPECTED}'}.")


def _of_pair(data: tuple[Any, Any]) -> ArrowRows:
    if _are_two_pairs(data):
        raise UsageError(
            "data is two pairs (x, y), such as those of keras.datasets.mnist.load_data(). Pass one "
            "of them as data, and one to validate on as validation_data: data=data[0], "
            "validation_data=data[1]."
        )
    if data[1] is None:
        raise UsageError("data is (x, None), without labels. Pass x alone to predict.")
    x = table_of(data[0])
    return _of_columns(pair(*data)) if x is None else _of_table(with_label(x, data[1]))


def _type_of(data: Any) -> str:
    kind = type(data)
    # "a list", but "a package.Class".
    return f"a {'' if kind.__module__ == 'builtins' else f'{kind.__module__}.'}{kind.__name__}"


def _advice_on(data: Any) -> str:
    """Describe data of a type that is not supported, with what to pass instead; "" if unknown."""
    if isinstance(data, (list, tuple)):
        return _advice_on_sequence(data)
    if inspect.isgeneratorfunction(data):
        return f"the function {data.__name__}, a generator. {_FROM_GENERATOR}"
    if inspect.isroutine(data):
        return f"the function {data.__name__}. Pass what it returns: data={data.__name__}()"
    if isinstance(data, Iterator):
        what = type(data).__name__
        return f"an iterator ({what}), which can be read only once. {_FROM_GENERATOR}"
    if "PyDataset" in kinds_of(data)[1]:
        return (
            f"a keras.utils.PyDataset ({type(data).__name__}), which is not supported here. Pass "
            "arrays (x, y) or a tf.data.Dataset; a session's data loader may return one"
        )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return (
            f"{_type_of(data)}; {_EXPECTED}. If data[i] is example i, derive its class from "
            "torch.utils.data.Dataset"
        )
    return ""


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == PAIR


def _are_two_pairs(data: tuple[Any, ...]) -> bool:
    """Return whether data is (x, y) twice, rather than several inputs and several labels.

    Inputs and labels have the same number of rows, training and test data rarely have.
    """
    if not all(map(_is_pair, data)) or not all(is_array(each) for pair in data for each in pair):
        return False
    (x, y), (other_x, other_y) = data
    return len(x) == len(y) != len(other_x) == len(other_y)


def _advice_on_sequence(data: Sequence[Any]) -> str:
    kind, size = type(data).__name__, len(data)
    if isinstance(data, list) and all(map(_is_pair, data)):
        return (
            "a list of pairs (x, y). Pass one array of each: xs, ys = zip(*data); "
            "data=(np.array(xs), np.array(ys))"
        )
    are_columns = all(
        is_array(each) or isinstance(each, list) or has_columns(each) for each in data
    )
    if isinstance(data, list) and size == PAIR and are_columns:
        return (
            "a list of two; for features x and labels y, pass a tuple: data=(x, y). For several "
            'inputs, pass a dict with their names: data=({"a": A, "b": B}, y)'
        )
    if isinstance(data, list) and all(isinstance(each, list) for each in data):
        return "a list of lists. Pass an array, np.array(data), or (x, y) to train"
    if not are_columns:
        return ""
    if size == 1:
        return f"a {kind} of one. Pass x alone to predict, or a tuple (x, y) to train"
    return (
        f"a {kind} of {size}; expected features and labels, (x, y). Pass other data to validate on "
        "as validation_data: data=(x_train, y_train), validation_data=(x_test, y_test)"
    )


def has_columns(data: Any) -> bool:
    """Return whether data is a table with named columns: a DataFrame, an Arrow table etc."""
    return table_of(data) is not None or kinds_of(data)[0] == "datasets"


def _of_table(table: pa.Table) -> ArrowRows:
    table = plain_table(table)
    # Joined, so that equal data has equal batches, whatever its chunks are.
    batches = (
        batch
        for start in range(0, table.num_rows, _BATCH_ROWS)
        for batch in table.slice(start, _BATCH_ROWS).combine_chunks().to_batches()
    )
    return ArrowRows(table.schema, batches, table.num_rows)


def _of_columns(columns: Mapping[str, Any]) -> ArrowRows:
    if not columns:
        raise DataError("data is an empty dict; expected one array for each column.")
    _check_not_several(columns)
    arrays = {str(name): as_numpy(value) for name, value in columns.items()}
    single = [name for name, array in arrays.items() if not array.ndim]
    if single:
        some = f"{listed(single[:_MAX_NAMES])}{', ...' * (len(single) > _MAX_NAMES)}"
        raise DataError(
            "data must have one array per column, with one row per example; it has a single value "
            f"for {some}. For one example, give lists of one value, or a list of one dict: [row]."
        )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1:
        found = ", ".join(
            f"{name!r} has {counted(length, 'row')}" for name, length in lengths.items()
        )
        raise DataError(f"The columns of data must have equal numbers of rows: {found}.")
    (num_rows,) = set(lengths.values())

    def batch(start: int) -> pa.RecordBatch:
        some = {name: array[start : start + _BATCH_ROWS] for name, array in arrays.items()}
        return _batch(some)

    first = batch(0)
    batches = (batch(start) for start in range(0, num_rows or 0, _BATCH_ROWS))
    return ArrowRows(first.schema, batches, num_rows)


def _check_not_several(columns: Mapping[str, Any]) -> None:
    """Check that no column is a list or tuple of several arrays, each with all rows.

    Raises:
        DataError: A column is one, as Keras takes the data of several inputs.
    """
    # Not for sparse matrices, which have no length.
    sizes = {len(each) for each in columns.values() if isinstance(each, list) or is_array(each)}
    for name, value in columns.items():
        if not isinstance(value, (list, tuple)) or not value or not all(map(is_array, value)):
            continue
        lengths = {len(each) for each in value}
        if len(lengths) == 1 and lengths <= sizes - {len(value)}:
            (num_rows,) = lengths
            raise DataError(
                f"{name!r} of data is a {type(value).__name__} of {counted(len(value), 'array')} "
                f"with {counted(num_rows, 'row')} each; expected one array, or a dict that names "
                'several, such as data=({"a": A, "b": B}, y). Each becomes a column with its name; '
                "a model with several inputs gets them by these names."
            )


def _of_elements(elements: Elements) -> ArrowRows:
    rows = elements.rows()
    groups = iter(lambda: list(itertools.islice(rows, _BATCH_ROWS)), [])
    first = next(groups, None)
    if first is None:
        raise DataError("The data has no elements.")

    def batch(group: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        columns = {name: [row[name] for row in group] for name in first[0]}
        return _batch({name: _stacked(name, values) for name, values in columns.items()})

    begun = batch(first)
    batches = itertools.chain([begun], map(batch, groups))
    return ArrowRows(begun.schema, batches, elements.num_rows, elements.batch_size)


def _stacked(name: str, values: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    if len({value.shape for value in values}) == 1:
        return np.stack(values)
    if any(value.ndim != 1 for value in values):
        shapes = sorted({str(list(value.shape)) for value in values})
        raise DataError(
            f"The values of {name!r} have the shapes {', '.join(shapes[:3])}; they must have one "
            "shape, or be lists of any length. Give them one shape before, such as images by "
            "resizing them (tf.data.Dataset, Hugging Face: in data.map(); PyTorch: in the "
            "transform of the data set). If they are windows of a tf.data.Dataset, leave out the "
            "shorter ones at the end: window(SIZE, ..., drop_remainder=True)."
        )
    ragged = np.empty(len(values), object)
    ragged[:] = values
    return ragged


def _batch(arrays: Mapping[str, np.ndarray[Any, Any]]) -> pa.RecordBatch:
    columns = {name: _column(name, values) for name, values in arrays.items()}
    fields = [
        with_shape(pa.field(name, column.type), arrays[name].shape[1:])
        for name, column in columns.items()
    ]
    return pa.record_batch(list(columns.values()), pa.schema(fields))


def _column(name: str, values: np.ndarray[Any, Any]) -> pa.Array:
    """Convert an array to an Arrow column, one row per entry of the first axis.

    Raises:
        DataError: The values have no common type.
    """
    try:
        if values.ndim > 1:
            flat = pa.array(np.ascontiguousarray(values).reshape(-1))
            return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
        return as_column(values.tolist() if values.dtype.kind in "SU" else values)
    except (pa.ArrowException, TypeError, DataError) as error:
        examples = _examples_by_type(values)
        if len(examples) < 2:  # noqa: PLR2004 - two types cannot be one column
            if isinstance(error, DataError):
                raise
            raise DataError(f"The array {name!r} cannot be stored: {error}.") from error
        types = "; ".join(f"{kind}, such as {shown(each)}" for kind, each in examples.items())
        raise DataError(
            f"The array {name!r} has objects of several types: {types}. Give a DataFrame, which "
            "has one type for each column, or an array of numbers."
        ) from error


def _examples_by_type(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Return type name -> first object of that type, for an error about an array of mixed types.

    The result is empty for arrays of other dtypes than `object`; None is not counted as a type.
    """
    examples: dict[str, Any] = {}
    for value in values.flat if values.dtype == object else ():
        if value is not None:
            examples.setdefault(type(value).__name__, value)
    return examples


def _copy(source: Path, uri: str) -> None:
    path = local_path(uri)
    if path is not None:
        folder = Path(path).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{folder}: the data cannot be stored there: {error.strerror}. Use another "
                "--output."
            ) from error
    target = AtomicFile(uri)
    with source.open("rb") as file:
        for block in iter(lambda: file.read(_COPY_BYTES), b""):
            target.write(block)
    target.publish()

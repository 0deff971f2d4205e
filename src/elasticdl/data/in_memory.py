"""Data in memory: Python objects stored as a Parquet file, which any engine reads by row.

    DataFrame of pandas, Dataset of Hugging Face                           its columns; if it has a
                                                                           transform, its rows
    Arrow table, DataFrame of polars, whatever has Arrow's interface       its columns
    dict of arrays                                                         one column for each
    list of dicts                                                          one row for each
    (x, y), or x alone                                                     columns x and y; of a
                                                                           DataFrame, its own
    tf.data.Dataset, PyTorch Dataset or DataLoader                         its elements, in order

    data --arrow_rows--> batches of rows --store--> FOLDER/CONTENT_HASH.parquet

Training reads records by number, in each epoch, on several processes and after a crash, so the
rows are written once. The name of the file is a hash of the content: the same data is the same file
in each run, and a run cannot be resumed with other data.

An array of more than two dimensions becomes a column of lists with the values of a row. Their shape
is stored beside them (`array_shapes.py`): the reader returns values of this shape, and rejects
another one in the model file's `data_schema()`.

Callers: `engines/stored_data.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from elasticdl.data.array_shapes import with_shape
from elasticdl.data.atomic_file import AtomicFile
from elasticdl.data.batch import leaves
from elasticdl.data.find_files import exists
from elasticdl.data.memory_tables import (
    as_column,
    as_numpy,
    kinds_of,
    plain_table,
    rows_of_hugging_face,
    table_of,
    table_of_rows,
    with_label,
)
from elasticdl.data.snapshot import TableWriter
from elasticdl.data.stored_file import local_path
from elasticdl.data.wording import counted
from elasticdl.errors import (
    DataError,
    ElasticDLError,
    UsageError,
    UserCodeError,
    raised_at,
    users_traceback,
)

_BATCH_ROWS = 1 << 14
_COPY_BYTES = 1 << 24
_PAIR, _WITH_WEIGHTS = 2, 3
# Enough to find random steps, without reading a large data set twice.
_COMPARED = 10_000
_DRAWING = ("Random", "Stateful", "StatelessRandom", "TruncatedNormal", "Multinomial")
# Steps of a pipeline after which batches have the size that they had before.
_ELEMENT_BY_ELEMENT = {
    f"{step}Dataset"
    for step in (
        *("AssertCardinality", "Filter", "IgnoreErrors", "Map", "ParallelMap"),
        *("Repeat", "Shard", "Shuffle", "Skip", "Take", "Zip"),
    )
}
_RANDOM = (
    "data is random: it may yield different elements when it is read again. It is stored once, so "
    "augmentation would be the same in every epoch. Remove shuffle() and random steps: ElasticDL "
    "shuffles by itself, and augmentation belongs in the model (Keras layers such as RandomFlip) "
    "or in its file (input_fn(records, mode), which augments in training only, or train_dataloader "
    "for PyTorch)."
)
_SHUFFLED = (
    "data is random: its shuffle() gives another order each time it is read. Remove it: ElasticDL "
    "shuffles the records of each epoch by itself. An order that stays the same is accepted: "
    "shuffle(n, seed=1, reshuffle_each_iteration=False)."
)
_WEIGHTS = (
    " is a tuple of three; if it is (x, y, sample_weights), give a dict with names, such as "
    '{"x": x, "y": y, "weight": w}, and return the weights from the model file: input_fn(records) '
    "-> (features, labels, weights)."
)
# tf.data.INFINITE_CARDINALITY
_INFINITE = -1
_EXPECTED = (
    "expected the name of files, a DataFrame of pandas or polars, an Arrow table, a Dataset of "
    "Hugging Face, a dict of arrays, a list of dicts, arrays (x, y) or x, a tf.data.Dataset, or a "
    "PyTorch Dataset or DataLoader"
)


@dataclass(frozen=True)
class ArrowRows:
    """Rows in order, in batches of bounded size.

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
) -> tuple[str, bool]:
    """Store rows as a Parquet file, named by a hash of them, unless that file exists already.

    Args:
        rows: The rows.
        folder: URI of the folder for the file.
        scratch: A local folder for a temporary file of the same size.
        on_rows: Called with the number of rows so far.

    Returns:
        URI of the file, and whether it is new.

    Raises:
        DataError: There are no rows, or a value cannot be stored.
        OutputError: The file cannot be written.
    """
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
    return uri, is_new


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
    """Convert data to rows.

    Raises:
        UsageError: Its type is not supported.
        UserCodeError: The code of a data set raised.
        DataError: Its columns have different lengths, or values that cannot be stored.
    """
    table = table_of(data)
    if table is not None:
        return _of_table(table)
    root, kinds = kinds_of(data)
    if root == "tensorflow" and "DatasetV2" in kinds:
        # A batch raises as a whole, so the number of the item is not known.
        return _of_elements(*_of_tensorflow(data), raised="after {} items")
    if {"Dataset", "DataLoader"} & kinds:
        return _of_elements(*_of_torch(data), raised="on item {} (counted from 0)")
    if isinstance(data, Mapping):
        return _of_columns(data)
    if _is_array(data):
        return _of_columns({"x": data})
    if isinstance(data, list) and data and all(isinstance(row, Mapping) for row in data):
        return _of_table(table_of_rows(data))
    if isinstance(data, tuple) and len(data) == _WITH_WEIGHTS:
        raise UsageError(f"data{_WEIGHTS}")
    if isinstance(data, tuple) and len(data) == _PAIR:
        x = table_of(data[0])
        return _of_columns(_pair(*data)) if x is None else _of_table(with_label(x, data[1]))
    if isinstance(data, (list, tuple)) and not data:
        raise UsageError(f"data is an empty {type(data).__name__}; {_EXPECTED}.")
    raise UsageError(f"data is a {type(data).__module__}.{type(data).__name__}; {_EXPECTED}.")


def has_columns(data: Any) -> bool:
    """Return whether data is a table: a DataFrame, an Arrow table or the like."""
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
    arrays = {str(name): as_numpy(value) for name, value in columns.items()}
    lengths = {name: len(array) if array.ndim else None for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        shown = ", ".join(
            f"{name} {'no rows' if length is None else counted(length, 'row')}"
            for name, length in lengths.items()
        )
        raise DataError(f"The arrays of data must have one row per example; they have: {shown}.")
    (num_rows,) = set(lengths.values())

    def batch(start: int) -> pa.RecordBatch:
        some = {name: array[start : start + _BATCH_ROWS] for name, array in arrays.items()}
        return _batch(some)

    first = batch(0)
    batches = (batch(start) for start in range(0, num_rows or 0, _BATCH_ROWS))
    return ArrowRows(first.schema, batches, num_rows)


def _of_elements(
    elements: Callable[[], Iterable[Any]],
    num_rows: int | None,
    batch_size: int | None,
    *,
    raised: str,
) -> ArrowRows:
    """Return the elements of a data set as rows.

    Args:
        elements: Function () -> the elements: dicts, pairs (x, y), or x alone. Called several
            times, to check that they are not random.
        num_rows: Number of elements; None if unknown.
        batch_size: Size of the user's batches, if the elements were split from batches; else None.
        raised: Where the data set raised, for an error, with a placeholder for the number of
            elements before.

    Raises:
        UsageError: The elements are random, or of another kind.
        UserCodeError: The code of the data set raised.
        DataError: There are no elements.
    """

    def read() -> Iterator[Any]:
        return _read(elements(), raised)

    _check_same_again(read)
    rows = (_element(each) for each in read())
    groups = iter(lambda: list(itertools.islice(rows, _BATCH_ROWS)), [])
    first = next(groups, None)
    if first is None:
        raise DataError("The data has no elements.")

    def batch(group: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        columns = {name: [row[name] for row in group] for name in first[0]}
        return _batch({name: _stacked(name, values) for name, values in columns.items()})

    begun = batch(first)
    batches = itertools.chain([begun], map(batch, groups))
    return ArrowRows(begun.schema, batches, num_rows, batch_size)


def _read(elements: Iterable[Any], raised: str) -> Iterator[Any]:
    """Yield the elements of a data set, which the user's code makes.

    Args:
        elements: The elements.
        raised: Where the data set raised; see `_of_elements`.

    Raises:
        UserCodeError: The code raised. The error names the element and the user's line.
    """
    number = 0
    iterator = iter(elements)
    while True:
        try:
            element = next(iterator)
        except StopIteration:
            return
        except ElasticDLError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"{raised_at(error, 'data')}: the data set raised {raised.format(number)}:\n"
                f"{users_traceback(error)}"
            ) from error
        yield element
        number += 1


def _element(element: Any) -> dict[str, Any]:
    if isinstance(element, Mapping):
        return {str(name): as_numpy(value) for name, value in element.items()}
    if isinstance(element, (tuple, list)) and len(element) == _PAIR:
        return {name: as_numpy(value) for name, value in _pair(*element).items()}
    if isinstance(element, (tuple, list)) and len(element) == _WITH_WEIGHTS:
        raise UsageError(f"An element of data{_WEIGHTS}")
    if isinstance(element, (tuple, list)) and len(element) == 1:
        # The item of a TensorDataset of one tensor.
        (element,) = element
    if _is_array(element):
        return {"x": as_numpy(element)}
    raise UsageError(
        f"An element of data is a {type(element).__name__}; expected a dict, a pair (x, y), or an "
        "array x."
    )


def _is_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor with at least one axis."""
    return hasattr(value, "__array__") and bool(getattr(value, "ndim", 0))


def _pair(x: Any, y: Any) -> dict[str, Any]:
    """Return x and y as columns `x` and `y`; the entries of a dict become separate columns.

    Raises:
        DataError: Both have a column of the same name.
    """
    columns = dict(x) if isinstance(x, Mapping) else {"x": x}
    for name, value in y.items() if isinstance(y, Mapping) else [("y", y)]:
        if name in columns:
            raise DataError(f"Both x and y have a column {name!r}. Rename one of them.")
        columns[name] = value
    return columns


def _check_same_again(elements: Callable[[], Iterable[Any]]) -> None:
    """Check that a data set is not random, as after augmentation, by reading its start twice.

    The elements are stored only once, so random values would be the same in all epochs.

    Args:
        elements: Function () -> the elements, from the first one.

    Raises:
        UsageError: One of the first elements differs when it is read again.
    """
    first, again = (_digest(itertools.islice(elements(), _COMPARED)) for _ in range(2))
    if first != again:
        raise UsageError(_RANDOM)


def _digest(elements: Iterable[Any]) -> bytes:
    digest = hashlib.blake2b()
    for element in elements:
        for value in _element(element).values():
            # The memory of an array of objects, such as strings, contains only addresses.
            plain = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
            digest.update(plain)
    return digest.digest()


def _of_tensorflow(dataset: Any) -> tuple[Callable[[], Iterable[Any]], int | None, int | None]:
    specs = leaves(dataset.element_spec)
    size = int(dataset.cardinality().numpy())
    if size == _INFINITE:
        raise UsageError(
            "data is a tf.data.Dataset that TensorFlow regards as infinite. Remove repeat(); if it "
            "is finite (sample_from_datasets() with stop_on_empty_dataset=True), declare its "
            "number of elements: data.apply(tf.data.experimental.assert_cardinality(n))."
        )
    steps = list(_steps(dataset))
    for step in steps:
        # With a seed set, random steps repeat their draws, so comparing elements does not find
        # them.
        if _draws(step):
            raise UsageError(_RANDOM)
        if "Shuffle" in type(step).__name__ and not _repeats_its_order(step):
            raise UsageError(_SHUFFLED)
    # The size of a batch is unknown before its last one is read, unless that one is dropped.
    is_batched = "BatchDataset" in type(steps[0]).__name__ or all(
        spec.shape.rank and spec.shape[0] is None for spec in specs
    )
    batch_size = None
    if is_batched:
        batch_size = _batch_size(steps)
        dataset, size = dataset.unbatch(), -1
    return dataset.as_numpy_iterator, size if size >= 0 else None, batch_size


def _steps(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that a `tf.data` pipeline consists of, the last step first.

    Steps that only read ahead, cache or set options are left out: they do not change elements.
    """
    if not any(word in type(dataset).__name__ for word in ("Prefetch", "Cache", "Options")):
        yield dataset
    # TensorFlow has no public names for the inputs and the functions of a step.
    for each in dataset._inputs():  # noqa: SLF001
        yield from _steps(each)


def _batch_size(steps: Sequence[Any]) -> int | None:
    """Return the size of the batches that a `tf.data` pipeline yields; None if it is unknown.

    Args:
        steps: The steps of the pipeline, the last one first.
    """
    for step in steps:
        name = type(step).__name__
        if "BatchDataset" in name:
            # A size that is computed in the pipeline is unknown here.
            given = getattr(step, "_batch_size", None)
            return None if given is None else int(given)
        if name.strip("_") not in _ELEMENT_BY_ELEMENT:
            return None
    return None


def _repeats_its_order(step: Any) -> bool:
    """Return whether a `shuffle` step gives the same order in every epoch and every process.

    Raises:
        UsageError: The order is the same in every epoch, but it has no seed, so it would be another
            one in the next process.
    """
    if getattr(step, "_reshuffle_each_iteration", True) is not False:
        return False
    if not any(int(seed) for seed in (step._seed, step._seed2)):  # noqa: SLF001
        raise UsageError(
            "data: its shuffle(reshuffle_each_iteration=False) has no seed, so the order would be "
            "another one when the training is resumed. Give it a seed, shuffle(..., seed=1), or "
            "remove it: ElasticDL shuffles by itself."
        )
    return True


def _draws(step: Any) -> bool:
    """Return whether a function in a `tf.data` step, such as that of `map`, uses random numbers."""
    for each in step._functions():  # noqa: SLF001
        graph = each.function.graph.as_graph_def()
        nodes = [*graph.node, *(node for fun in graph.library.function for node in fun.node_def)]
        if any(node.op.startswith(_DRAWING) for node in nodes):
            return True
    return False


def _of_torch(data: Any) -> tuple[Callable[[], Iterable[Any]], int | None, int | None]:
    root, kinds = kinds_of(data)
    if root == "datasets":
        data = rows_of_hugging_face(data)
    is_loader = "DataLoader" in kinds
    if is_loader:
        _check_loader(data)
    # A Subset has a `dataset` too, of which it is a part.
    dataset = data.dataset if is_loader else data
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise UsageError(
            f"data is an object of the class {type(dataset).__name__} without __len__ and "
            "__getitem__. Return its "
            "DataLoader from train_dataloader() of the model file."
        )
    batch_size = data.batch_size if is_loader else None
    return lambda: (dataset[i] for i in range(len(dataset))), len(dataset), batch_size


def _check_loader(loader: Any) -> None:
    """Check that storing the data set of a DataLoader loses nothing that the DataLoader does.

    Raises:
        UsageError: It has a sampler that selects or repeats items, or a `collate_fn` of the user.
    """
    kind = type(getattr(loader, "sampler", None)).__name__
    collate = getattr(loader.collate_fn, "__module__", "")
    chooses = kind not in {"SequentialSampler", "RandomSampler", "_InfiniteConstantSampler"}
    repeats = getattr(loader.sampler, "replacement", False)
    if chooses or repeats or not collate.startswith("torch.utils.data"):
        what = f"sampler ({kind})" if chooses or repeats else "collate_fn"
        raise UsageError(
            f"data is a DataLoader with a {what} of its own, which would not be used: its data set "
            "is stored. Give the data set, a torch.utils.data.Subset of it, or return the "
            "DataLoader from train_dataloader() of the model file."
        )


def _stacked(name: str, values: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    if len({value.shape for value in values}) == 1:
        return np.stack(values)
    if any(value.ndim != 1 for value in values):
        shapes = sorted({str(list(value.shape)) for value in values})
        raise DataError(
            f"The values of {name!r} have the shapes {', '.join(shapes[:3])}; they must have one "
            "shape, or be lists of any length."
        )
    ragged = np.empty(len(values), object)
    ragged[:] = values
    return ragged


def _batch(arrays: Mapping[str, np.ndarray[Any, Any]]) -> pa.RecordBatch:
    columns = {name: _column(values) for name, values in arrays.items()}
    fields = [
        with_shape(pa.field(name, column.type), arrays[name].shape[1:])
        for name, column in columns.items()
    ]
    return pa.record_batch(list(columns.values()), pa.schema(fields))


def _column(values: np.ndarray[Any, Any]) -> pa.Array:
    """Convert an array to an Arrow column, one row per entry of the first axis."""
    if values.ndim > 1:
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, int(np.prod(values.shape[1:])))
    return as_column(values.tolist() if values.dtype.kind in "SU" else values)


def _copy(source: Path, uri: str) -> None:
    path = local_path(uri)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    target = AtomicFile(uri)
    with source.open("rb") as file:
        for block in iter(lambda: file.read(_COPY_BYTES), b""):
            target.write(block)
    target.publish()

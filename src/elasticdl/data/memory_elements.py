"""Reads a user's data set (tf.data, PyTorch) element by element as rows.

A data set whose elements change from one reading to the next is rejected.

    tf.data.Dataset                  its elements, or the rows of its batches
    PyTorch Dataset, DataLoader      its items; of a DataLoader, those of its data set
    Dataset of Hugging Face          its rows, if a transform makes them

No package is imported to recognise its objects. Callers: `in_memory.py`,
`engines/stored_data.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.data.batch import leaves
from elasticdl.data.memory_tables import as_numpy, kinds_of, one_array, rows_of_hugging_face
from elasticdl.data.pipeline_steps import MAYBE_WINDOWS, may_be_windows, problem_of
from elasticdl.data.wording import counted
from elasticdl.errors import (
    DataError,
    ElasticDLError,
    UsageError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.tracebacks import is_of_the_user, shown_path

_log = logging.getLogger("elasticdl")
PAIR, WITH_WEIGHTS = 2, 3
# Enough to find random steps, without reading a large data set twice.
_COMPARED = 10_000
_JOINED = "ConcatDataset"
_WITH_ITSELF = " of a data set with itself"
_DRAWING = ("Random", "Stateful", "StatelessRandom", "TruncatedNormal", "Multinomial")
# In the names of steps of a pipeline that do not change its elements.
_UNCHANGED = ("Prefetch", "Cache", "Options")
# Steps of a pipeline after which batches have the size that they had before.
_ELEMENT_BY_ELEMENT = {
    f"{step}Dataset"
    for step in (
        *("AssertCardinality", "Filter", "IgnoreErrors", "Map", "ParallelMap"),
        *("Repeat", "Shard", "Shuffle", "Skip", "Take", "Zip"),
    )
}
_STORED_ONCE = "It is stored once, so augmentation would be the same in every epoch. "
_RANDOM = (
    f"data is random: it may yield different elements when it is read again. {_STORED_ONCE}"
    "Remove shuffle() and random steps: ElasticDL "
    "shuffles by itself, and augmentation belongs in the model (Keras layers such as RandomFlip) "
    "or in its file: input_fn(records, mode), which augments in training only."
)
_SHUFFLED = (
    "data is random: its shuffle() gives another order each time it is read. Remove it, or pass "
    "shuffle=False to the function of Keras that made the data set: ElasticDL shuffles the records "
    "of each epoch by itself. shuffle(n, seed=1, reshuffle_each_iteration=False) is accepted."
)
_FROM_LOADER = (
    'train_dataloader() of the model file; data="built-in" (any name) if that code needs no file'
)
ADVICE_ON_WEIGHTS = (
    " is a tuple of three; if it is (x, y, sample_weights), give a dict with names, such as "
    '{"x": x, "y": y, "weight": w}, and return the weights from the model file: input_fn(records) '
    "-> (features, labels, weights)."
)
# tf.data.INFINITE_CARDINALITY
_INFINITE = -1


@dataclass(frozen=True)
class Elements:
    """Reads the elements of a user's data set, of tf.data or PyTorch, as rows.

    Attributes:
        read: Function () -> the elements: dicts, pairs (x, y), or x alone.
        num_rows: Number of elements; None if it is unknown.
        batch_size: Size of the user's batches, if the elements were split from batches; else None.
        position_format: Phrase that says in an error where the code of the data set raised, such as
            "on item {} (counted from 0)"; `{}` is replaced by the number of elements read before.
        data_set: The data set itself, if its items are numbered, as in PyTorch; else None. An error
            about an item that changes names it.
    """

    read: Callable[[], Iterable[Any]]
    num_rows: int | None
    batch_size: int | None
    position_format: str
    data_set: Any = None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a dict of arrays per element, after checking that elements do not change.

        For this check, the first elements are read twice.

        Raises:
            UsageError: The elements are random, or are neither dicts, pairs (x, y) nor x alone.
            UserCodeError: The code of the data set raised.
        """
        _check_same_again(lambda: _read(self.read(), self.position_format), self.data_set)
        return (_element(each) for each in _read(self.read(), self.position_format))


def elements_of(data: Any) -> Elements | None:
    """Return an `Elements` that reads a tf.data or PyTorch data set; None for other objects.

    Raises:
        UsageError: The data set is random or infinite, or has no length.
    """
    root, kinds = kinds_of(data)
    if root == "tensorflow" and "DatasetV2" in kinds:
        # A batch raises as a whole, so the number of the item is not known.
        return Elements(*_of_tensorflow(data), position_format="after {} items")
    if {"Dataset", "DataLoader"} & kinds:
        of_torch = _of_torch(data)
        numbered = data.dataset if "DataLoader" in kinds else data
        return Elements(*of_torch, "on item {} (counted from 0)", numbered)
    return None


def num_repetitions(data: Any) -> int:
    """Return how many times a `tf.data` pipeline yields its examples: n if it has `repeat(n)`.

    The result is 1 without such a step, for an endless `repeat()`, and for other data. Repeated
    examples must not be split for validation: copies would be on both sides.
    """
    root, kinds = kinds_of(data)
    if root != "tensorflow" or "DatasetV2" not in kinds:
        return 1
    counts = (
        getattr(step, "_count", 1) for step in _steps(data) if "Repeat" in type(step).__name__
    )
    # Negative in an endless pipeline, which has an error of its own.
    return math.prod(max(1, int(count)) for count in counts)


def repeated_by(data: Any) -> str:
    """Return what repeats examples of a data set, as a phrase; empty if nothing does.

    Such as "concatenate() of a data set with itself", or "select() with repeated numbers". Such
    data must not be split for validation: the same example would be on both sides. Only the
    very same object is recognised, not another data set with the same examples.
    """
    root, kinds = kinds_of(data)
    if root == "tensorflow" and "DatasetV2" in kinds:
        for step in _steps(data):
            if "Concatenate" in type(step).__name__:
                first, second = map(_read_from, step._inputs())  # noqa: SLF001 - as in `_steps`
                if first is second:
                    return f"concatenate(){_WITH_ITSELF}"
    if root == "torch":
        data = data.dataset if "DataLoader" in kinds else data
        parts = [id(part) for part in getattr(data, "datasets", ())]
        is_joined = _has_twice(parts) and type(data).__name__ == _JOINED
        return f"ConcatDataset{_WITH_ITSELF}" if is_joined else ""
    if root == "datasets" and (selected := getattr(data, "_indices", None)) is not None:
        numbers = selected.column(0)
        has_twice = len(numbers.unique()) < len(numbers)
        return "select() with repeated numbers" if has_twice else ""
    if root == "datasets" and data.column_names:
        chunks = data.data.column(0).chunks
        places = [
            (buffer.address, chunk.offset)
            for chunk in chunks
            if (buffer := next(filter(None, reversed(chunk.buffers())), None)) is not None
        ]
        return f"concatenate_datasets(){_WITH_ITSELF}" if _has_twice(places) else ""
    return ""


def _has_twice(values: Sequence[Any]) -> bool:
    return len(set(values)) < len(values)


def _read_from(dataset: Any) -> Any:
    """Return the data set from which the last steps of a `tf.data` pipeline take their elements.

    Only steps that keep the number and the order of the elements are skipped: `map`, `prefetch`,
    `cache` and the like. If two pipelines read the same data set in this way, they have the same
    examples.
    """
    while any(word in type(dataset).__name__ for word in (*_UNCHANGED, "Map")):
        (dataset,) = dataset._inputs()  # noqa: SLF001 - as in `_steps`
    return dataset


def _read(elements: Iterable[Any], position_format: str) -> Iterator[Any]:
    """Yield the elements of a data set; convert an exception of the user's code to an error.

    Args:
        elements: The elements.
        position_format: Phrase that says where the data set raised; see `Elements`.

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
                f"{raised_at(error, 'data')}: the data set raised "
                f"{position_format.format(number)}:\n{users_traceback(error)}"
            ) from error
        yield element
        number += 1


def _element(element: Any) -> dict[str, Any]:
    if isinstance(element, Mapping):
        return {str(name): one_array(str(name), value) for name, value in element.items()}
    if isinstance(element, (tuple, list)) and len(element) == PAIR:
        return {name: one_array(name, value) for name, value in pair(*element).items()}
    if isinstance(element, (tuple, list)) and len(element) == WITH_WEIGHTS:
        raise UsageError(f"An element of data{ADVICE_ON_WEIGHTS}")
    if isinstance(element, (tuple, list)) and len(element) == 1:
        # The item of a TensorDataset of one tensor.
        (element,) = element
    # A text or a number, too, which NumPy has as a scalar without axes.
    if hasattr(element, "__array__") or isinstance(element, (bytes, str, bool, int, float)):
        return {"x": as_numpy(element)}
    raise UsageError(
        f"An element of data is a {type(element).__name__}; expected a dict, a pair (x, y), or x "
        "alone: an array, a text or a number."
    )


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor with at least one axis, not a scalar."""
    return hasattr(value, "__array__") and bool(getattr(value, "ndim", 0))


def pair(x: Any, y: Any) -> dict[str, Any]:
    """Return x and y of an element as columns `x` and `y`, or as one column per entry of a dict.

    Raises:
        DataError: Both have a column of the same name.
    """
    columns = dict(x) if isinstance(x, Mapping) else {"x": x}
    for name, value in y.items() if isinstance(y, Mapping) else [("y", y)]:
        if name in columns:
            raise DataError(f"Both x and y have a column {name!r}. Rename one of them.")
        columns[name] = value
    return columns


def _check_same_again(elements: Callable[[], Iterable[Any]], data_set: Any) -> None:
    """Check that a data set yields the same elements each time, by reading its first ones twice.

    The elements are stored only once, so random augmentation would be the same in all epochs.

    Args:
        elements: Function () -> the elements, from the first one.
        data_set: The data set, if its items are numbered; else None.

    Raises:
        UsageError: One of the first elements differs when it is read again.
    """
    # Digests, because two copies of the elements may not fit into memory.
    first, again = (list(_digests(itertools.islice(elements(), _COMPARED))) for _ in range(2))
    if first == again:
        return
    if data_set is None or len(first) != len(again):
        raise UsageError(_RANDOM)
    item = next(i for i, (one, other) in enumerate(zip(first, again, strict=True)) if one != other)
    raise UsageError(_random_item(data_set, item, first[item], again[item]))


def _random_item(
    data_set: Any, item: int, first: Mapping[str, bytes], again: Mapping[str, bytes]
) -> str:
    """Return the error message about an item that differs each time it is read.

    Args:
        data_set: The PyTorch or Hugging Face data set.
        item: Number of the item.
        first: Digests of the item's fields, by name.
        again: Digests of the same fields when the item was read again.
    """
    names = [name for name in {**first, **again} if first.get(name) != again.get(name)]
    while type(data_set).__name__ == "Subset" and type(data_set).__module__.startswith("torch."):
        data_set, item = data_set.dataset, data_set.indices[item]
    code = getattr(getattr(type(data_set), "__getitem__", None), "__code__", None)
    where = ""
    if code is not None and is_of_the_user(code.co_filename):
        where = f"{shown_path(code.co_filename)}:{code.co_firstlineno}: "
    called = f"{type(data_set).__name__}.__getitem__({item})"
    if kinds_of(data_set)[0] == "datasets":
        called = f"the transform of the data set, on row {item},"
    return (
        f"{where}data is random: {called} gives another {' and '.join(map(repr, names))} when it "
        f"is called again. {_STORED_ONCE}Let it return the example without random steps, and "
        "augment in the model file, in training only: input_fn(records, mode). Or, with PyTorch, "
        f"return a DataLoader of the data set from {_FROM_LOADER}."
    )


def _digests(elements: Iterable[Any]) -> Iterator[dict[str, bytes]]:
    """Yield, for each element, field name -> digest of its value, to compare two readings."""
    for element in elements:
        yield {name: _digest(value) for name, value in _element(element).items()}


def _digest(value: Any) -> bytes:
    # The memory of an array of objects, such as strings, contains only addresses.
    plain = repr(value.tolist()).encode() if value.dtype.hasobject else value.tobytes()
    return hashlib.blake2b(plain, digest_size=16).digest()


def _of_tensorflow(dataset: Any) -> tuple[Callable[[], Iterable[Any]], int | None, int | None]:
    specs = leaves(dataset.element_spec)
    if problem := problem_of(dataset.element_spec):
        raise UsageError(f"Each element of data, a tf.data.Dataset, is or contains {problem}.")
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
        if may_be_windows(steps):
            raise UsageError(f"data, a tf.data.Dataset, {MAYBE_WINDOWS}")
        batch_size = _batch_size(steps)
        _note_dropped(steps)
        dataset, size = dataset.unbatch(), -1
    elif (given := _batch_size(steps)) is not None and given > 1:
        shapes = [list(spec.shape) for spec in specs]
        if all(shape[:1] == [given] for shape in shapes):
            _log.warning(
                "data: its examples have the shapes %s, because map() or another step follows "
                "batch(%d, drop_remainder=True): each batch is taken for one example. If single "
                "examples are meant, leave out batch(): ElasticDL makes the batches.",
                " and ".join(map(str, shapes)),
                given,
            )
    return dataset.as_numpy_iterator, size if size >= 0 else None, batch_size


def _steps(dataset: Any) -> Iterator[Any]:
    """Yield the datasets that a `tf.data` pipeline consists of, the last step first.

    Steps that only read ahead, cache or set options are left out: they do not change elements.
    """
    if not any(word in type(dataset).__name__ for word in _UNCHANGED):
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


def _note_dropped(steps: Sequence[Any]) -> None:
    """Warn if a pipeline that yields batches drops the last, smaller one, and so loses examples.

    Args:
        steps: The steps of the pipeline, the last one first.
    """
    for step in steps:
        name = type(step).__name__
        if "BatchDataset" not in name:
            if name.strip("_") not in _ELEMENT_BY_ELEMENT:
                return
            continue
        drops, batch_size = getattr(step, "_drop_remainder", None), _batch_size([step])
        if drops is None or not bool(drops) or not batch_size:
            return
        (given,) = step._inputs()  # noqa: SLF001 - no public name
        size = int(given.cardinality())
        dropped = size % batch_size if size >= 0 else None
        if dropped != 0:
            _log.warning(
                "data: its batch(%d, drop_remainder=True) leaves out %s. Remove drop_remainder "
                "to use all examples: ElasticDL makes batches of its own.",
                batch_size,
                f"the last {counted(dropped, 'example').removeprefix('1 ')}"
                if dropped
                else "the examples of a last, smaller batch",
            )
        return


def _repeats_its_order(step: Any) -> bool:
    """Return whether a `shuffle` step gives the same order in every epoch and every process.

    If the order changed, each start of a job would store other data, and the job could not be
    resumed.

    Raises:
        UsageError: The order is the same in every epoch, but has no seed: another process would get
            a different order.
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
    """Return whether the user's function in a `tf.data` step such as `map` uses random numbers."""
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
            f"__getitem__. Return its DataLoader from {_FROM_LOADER}."
        )
    batch_size = data.batch_size if is_loader else None
    if is_loader and data.drop_last and batch_size and len(dataset) % batch_size:
        _log.warning(
            "data: its drop_last=True is ignored: all %s are used.",
            counted(len(dataset), "example"),
        )
    return lambda: (dataset[i] for i in range(len(dataset))), len(dataset), batch_size


def _check_loader(loader: Any) -> None:
    """Check that a DataLoader only batches and shuffles its data set.

    Anything else that it does would be lost, because only its data set is stored.

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
            f"DataLoader from {_FROM_LOADER}."
        )

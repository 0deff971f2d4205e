"""Checks of a user's `tf.data` pipeline for steps that behave differently on parts of the data.

A pipeline over records is built again for each part of the data: a shard, on whichever worker has
it, or a few minibatches in evaluation. `map`, `filter`, `flat_map`, `shuffle` and `repeat` treat a
part as they treat all data. `take`, `window` or `zip` with other data do not: without any warning,
the examples would differ from those of a script that reads all records.

Only the steps between the records and the examples are checked, not what functions do to one
record. TensorFlow has no public way to walk a dataset's inputs; a kind of dataset that is not
listed here is accepted.

Callers: `tensorflow.py`; `memory_elements.py`, for the kinds of elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.data.batch import leaves
from elasticdl.data.memory_tables import USE_A_DICT

_PARTS = "A pipeline is built separately for each part of the data, on any worker, so "
_CHOOSE = (
    "Select records with --data, or by content with filter(). To stop training early, use "
    "--max_steps."
)
_WRITE = (
    "Build examples that span several records before the training, and write each as one record."
)
_SINGLE = "Yield single examples: --minibatch_size sets the batch size."
_ALL_DATA = "Pass all the data in --data."

MAYBE_WINDOWS = (
    "yields elements whose first axis has an unknown size: each may be one example, such as a "
    "window, or a batch of examples. If it is an example, give it a fixed size: "
    "window.batch(SIZE, drop_remainder=True) in flat_map(). If it is a batch, add .unbatch() at "
    "the end."
)
"""What is wrong with a pipeline for which `may_be_windows` is true, and what to do."""

# Kinds of elements that are not arrays -> what they are, and what to do.
_NOT_ARRAYS = {
    "DatasetSpec": "a data set, as window() makes it: join each window to one example with "
    "data.flat_map(lambda window: window.batch(SIZE, drop_remainder=True)), with the SIZE given to "
    "window() (if the elements have several parts, batch each part and join them with "
    "tf.data.Dataset.zip())",
    "NoneTensorSpec": "None: leave it out with map(), such as data.map(lambda x, _: x)",
    "OptionalSpec": "a tf.experimental.Optional: replace it with map() by its value, get_value()",
    "TensorArraySpec": "a tf.TensorArray: replace it with map() by its stack()",
}


@dataclass(frozen=True)
class Problem:
    """The reason why a pipeline would yield different examples if built for each part of the data.

    Attributes:
        what: What the pipeline does, worded to follow "the pipeline" in a message.
        why: How the examples would differ, as a sentence.
        instead: What the user can do about it, as a sentence.
    """

    what: str
    why: str
    instead: str


def _each(call: str, effect: str, instead: str) -> Problem:
    return Problem(f"calls {call}", f"{_PARTS}{effect}.", instead)


_PROBLEMS = {
    "_TakeDataset": _each("take()", "it would take that many records from each part", _CHOOSE),
    "_SkipDataset": _each("skip()", "it would drop that many records from each part", _CHOOSE),
    "_TakeWhileDataset": _each("take_while()", "it would end each part, not the epoch", _CHOOSE),
    "_ShardDataset": _each(
        "shard()", "it would skip most of each part", "Each worker already reads only its share."
    ),
    "_WindowDataset": _each(
        "window()", "no window would span two parts, and --shuffle mixes the records", _WRITE
    ),
    "_ScanDataset": _each("scan()", "its state would be reset for each part", _WRITE),
    "_SnapshotDataset": _each(
        "snapshot()", "it would keep a copy of each part of each epoch", "Leave it out."
    ),
    "_UniqueDataset": _each(
        "unique()", "records that occur in two parts would be read twice", _CHOOSE
    ),
    "_ConcatenateDataset": _each(
        "concatenate()", "the other data would be added to each part", _ALL_DATA
    ),
    "_DirectedInterleaveDataset": _each(
        "sample_from_datasets(), choose_from_datasets() or rejection_resample()",
        "it would choose within each part only",
        f"{_ALL_DATA} To balance classes, use class_weight or sample weights.",
    ),
}
"""Kind of dataset -> its problem."""

_ZIPPED = _each(
    "zip() or enumerate()",
    "what the records are combined with would start again for each part",
    "Compute such values from each record in map(), where tf.random is seeded for each part.",
)
_CACHED = _each(
    "cache() with a file",
    "every part would be read from the cache file of the first part",
    "Leave out the name.",
)
_DROPPED = _each(
    "batch(drop_remainder=True)", "the end of each part would be dropped", "Leave drop_remainder."
)
_GROUPED = _each(
    "group_by_window()", "a group would end with each part, and examples depend on their group",
    _WRITE,
)  # fmt: skip
_BATCHED = Problem(
    "yields batches", "They would be batched again, as if each were one example.",
    _SINGLE,
)  # fmt: skip
_UNREAD = Problem(
    "does not read the dataset that it receives",
    f"{_PARTS}it would yield the same examples for each part.",
    "Make the examples from the records of that dataset; --data names the files.",
)

_BATCHING = frozenset(
    ["_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset", "_GroupByWindowDataset",
     "_MapAndBatchDataset", "_RebatchDataset", "_DenseToSparseBatchDataset"]
)  # fmt: skip


def problem(dataset: Any, records: Any, create_dataset: Callable[[Any], Any]) -> Problem | None:
    """Check that a user's pipeline yields the same examples if it is built for parts of the data.

    Args:
        dataset: The result of the user's function.
        records: The dataset that the function received.
        create_dataset: The user's function. It is called again, with no records, if `dataset` does
            not seem to read them.

    Returns:
        The problem of the step closest to the end of the pipeline; None if there is no problem.
    """
    checker = _StepChecker(records)
    if not checker.reads(dataset):
        # A Python generator may read them invisibly; then it yields nothing without records.
        return _UNREAD if _yields(create_dataset, records.take(0)) else None
    return next(checker.problems(dataset, 0), None)


def _yields(create_dataset: Callable[[Any], Any], nothing: Any) -> bool:
    """Return whether a pipeline yields examples even without records: it then reads other data.

    Args:
        create_dataset: The user's function.
        nothing: An empty dataset, passed in place of the records.
    """
    try:
        return next(iter(create_dataset(nothing)), None) is not None
    except Exception:  # noqa: BLE001 - a user's pipeline may raise anything: it did read then
        return False


class _StepChecker:
    """Finds steps of a `tf.data` pipeline that behave differently on parts of the data.

    A dataset only refers to the datasets that it reads, so steps are visited from the last one back
    to the records.

    Args:
        records: The dataset of records, with which the pipeline begins.
    """

    def __init__(self, records: Any) -> None:
        self._records = records
        self._known: dict[int, bool] = {}

    def reads(self, dataset: Any) -> bool:
        """Return whether a dataset is the dataset of the records, or is derived from it."""
        if dataset is self._records:
            return True
        if id(dataset) not in self._known:
            self._known[id(dataset)] = any(map(self.reads, _inputs(dataset)))
        return self._known[id(dataset)]

    def problems(self, dataset: Any, unbatched: int) -> Iterator[Problem]:
        """Yield the problems of the steps that lead from the records to a dataset, last step first.

        Args:
            dataset: A dataset that reads the records.
            unbatched: Number of later `unbatch()` steps whose `batch()` step is `dataset` or an
                earlier step. A `batch()` step is only a problem if no such step undoes it.
        """
        if dataset is self._records:
            return
        kind, inputs = type(dataset).__name__, _inputs(dataset)
        if kind == "_UnbatchDataset":
            unbatched += 1
        elif kind in _BATCHING:
            yield from _of_batches(dataset, unbatched)
            unbatched -= 1
        elif kind == "_ZipDataset" and not all(map(self.reads, inputs)):
            yield _ZIPPED
        else:
            yield from _of_step(dataset, kind)
        for each in filter(self.reads, inputs):
            yield from self.problems(each, unbatched)


def _of_batches(dataset: Any, unbatched: int) -> Iterator[Problem]:
    if not unbatched:
        yield _BATCHED
    if type(dataset).__name__ == "_GroupByWindowDataset":
        yield _GROUPED
    if _value(dataset, "_drop_remainder"):
        yield _DROPPED


def _of_step(dataset: Any, kind: str) -> Iterator[Problem]:
    if kind == "CacheDataset" and _value(dataset, "_filename"):
        yield _CACHED
    if kind in _PROBLEMS and not (kind == "_TakeDataset" and _value(dataset, "_count") == -1):
        yield _PROBLEMS[kind]


def _inputs(dataset: Any) -> list[Any]:
    inputs = getattr(dataset, "_inputs", None)
    return list(inputs()) if callable(inputs) else []


def _value(dataset: Any, attribute: str) -> Any:
    """Return the value of a dataset's attribute, such as the count of a `take` step.

    Returns None if there is no such attribute, or if its value is only known in a graph.
    """
    tensor: Any = getattr(dataset, attribute, None)
    return tensor.numpy() if hasattr(tensor, "numpy") else None


def problem_of(spec: Any) -> str:
    """Return what a pipeline's elements are or contain, and what to do, if it cannot be stored.

    Args:
        spec: The `element_spec` of the pipeline.

    Returns:
        The problem, without a period at its end; "" if there is none.
    """
    for problem in filter(None, map(_not_an_array, leaves(spec))):
        return problem
    return f"a tuple of arrays as x or y. {USE_A_DICT}" if _has_several_arrays(spec) else ""


def _not_an_array(spec: Any) -> str:
    """Return what a part of the elements is, and what to do, if it is not a tensor; else ""."""
    if hasattr(spec, "shape"):
        return ""
    kind = type(spec).__name__
    return _NOT_ARRAYS.get(kind, f"a {kind.removesuffix('Spec')}: turn it into a tensor with map()")


def _has_several_arrays(spec: Any) -> bool:
    """Return whether x or y of a pipeline's elements is a tuple of tensors."""
    parts = spec if isinstance(spec, (tuple, list)) else [spec]
    values = [each for p in parts for each in (p.values() if isinstance(p, Mapping) else [p])]
    return any(isinstance(each, (tuple, list)) for each in values)


def may_be_windows(steps: Sequence[Any]) -> bool:
    """Return whether elements whose first axis has an unknown size may be windows, not batches.

    Args:
        steps: The steps of a pipeline whose elements have a first axis of unknown size.
    """
    kinds = " ".join(type(step).__name__ for step in steps)
    return "FlatMap" in kinds and "Batch" not in kinds

"""Finds in a user's `tf.data` pipeline what would give other examples of a part of the data.

A pipeline over records is made again for each part of the data: a shard, on whichever worker has
it, or a few minibatches in evaluation. `map`, `filter`, `flat_map`, `shuffle` and `repeat` do to a
part what they do to all of the data. `take`, `window` or `zip` with other data do not: there would
be other examples than in a script that reads all records, without a word.

Only what lies between the records and the examples is looked at, not what functions do to one
record. TensorFlow has no public way to walk a dataset's inputs; a kind of dataset that is not
named here is let pass.

Callers: `tensorflow.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

_PARTS = "A pipeline is made again for each part of the data, wherever it is trained on, so "
_CHOOSE = "Choose records by --data, or by what they hold: filter(). --max_steps ends a training."
_WRITE = "Make what spans several records before the training, and write it as one record."
_SINGLE = "Yield single examples: --minibatch_size says how many make a batch."
_ALL_DATA = "Name all data in --data."


@dataclass(frozen=True)
class Problem:
    """Why a pipeline cannot be made of parts of the data.

    Attributes:
        what: What the pipeline does, as the rest of "the pipeline ...".
        why: A sentence: what would come of it.
        instead: A sentence: what to do.
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
        "shard()", "it would leave out most of each part", "Each worker has a share already."
    ),
    "_WindowDataset": _each(
        "window()", "no window would span two parts, and --shuffle mixes the records", _WRITE
    ),
    "_ScanDataset": _each("scan()", "its state would begin again with each part", _WRITE),
    "_SnapshotDataset": _each(
        "snapshot()", "it would keep a copy of each part of each epoch", "Leave it out."
    ),
    "_UniqueDataset": _each("unique()", "what is in two parts would come twice", _CHOOSE),
    "_ConcatenateDataset": _each(
        "concatenate()", "the other data would be added to each part", _ALL_DATA
    ),
    "_DirectedInterleaveDataset": _each(
        "sample_from_datasets(), choose_from_datasets() or rejection_resample()",
        "it would choose among each part alone",
        f"{_ALL_DATA} class_weight, or sample weights, balance classes.",
    ),
}
"""Kind of dataset -> what is wrong with it."""

_ZIPPED = _each(
    "zip() or enumerate()",
    "what the records are put together with would begin again with each part",
    "Make of a record what belongs to it in map(), where tf.random draws are seeded for each part.",
)
_CACHED = _each(
    "cache() with a file",
    "every part would be read from the file of the first one",
    "Leave out the name.",
)
_DROPPED = _each(
    "batch(drop_remainder=True)", "the end of each part would be dropped", "Leave drop_remainder."
)
_BATCHED = Problem(
    "yields batches of its own", "They would be batched once more, as if each were an example.",
    _SINGLE,
)  # fmt: skip
_UNREAD = Problem(
    "does not read the dataset that it is given",
    f"{_PARTS}it would yield the same examples for each part.",
    "Make the examples of the dataset's records; --data names the files.",
)

_BATCHING = frozenset(
    ["_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset", "_GroupByWindowDataset",
     "_MapAndBatchDataset", "_RebatchDataset", "_DenseToSparseBatchDataset"]
)  # fmt: skip


def problem(dataset: Any, records: Any, create_dataset: Callable[[Any], Any]) -> Problem | None:
    """Return what is wrong with a pipeline, or None.

    Args:
        dataset: What the user's function made.
        records: The dataset it was made of.
        create_dataset: The user's function.
    """
    reading = _Reading(records)
    if not reading.reads(dataset):
        # A generator may read them where it cannot be seen. Then it makes nothing of nothing.
        return _UNREAD if _yields(create_dataset, records.take(0)) else None
    return next(reading.problems(dataset, 0), None)


def _yields(create_dataset: Callable[[Any], Any], nothing: Any) -> bool:
    """Return whether a pipeline yields an example although there is no record."""
    try:
        return next(iter(create_dataset(nothing)), None) is not None
    except Exception:  # noqa: BLE001 - a user's pipeline may raise anything: it did read then
        return False


class _Reading:
    """Which datasets are made of records, and what those between do."""

    def __init__(self, records: Any) -> None:
        self._records = records
        self._known: dict[int, bool] = {}

    def reads(self, dataset: Any) -> bool:
        """Return whether a dataset is made of the records."""
        if dataset is self._records:
            return True
        if id(dataset) not in self._known:
            self._known[id(dataset)] = any(map(self.reads, _inputs(dataset)))
        return self._known[id(dataset)]

    def problems(self, dataset: Any, unbatched: int) -> Iterator[Problem]:
        """Yield what is wrong in a dataset that is made of the records, last step first.

        Args:
            dataset: The dataset.
            unbatched: How many batches are taken apart after it.
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
    """Return a constant of a dataset; None if it has none that is known now."""
    tensor: Any = getattr(dataset, attribute, None)
    return tensor.numpy() if hasattr(tensor, "numpy") else None

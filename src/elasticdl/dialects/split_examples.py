"""The examples of an evaluated split, one by one, after the user's preprocessing.

    loader's generator -> add_image_preprocess, add_label_preprocess -> batchify -> rows

The user's `batchify` is called as in training, because it may scale or pad; its batches are split
into examples again. Reports contain each example once, so the examples are counted before
`batchify`: examples that it drops at the end are passed to it again in a full batch, and repeated
examples are left out.

A preprocessor that overrides `add_preprocess` may accept `(x, y, sample weight)` only, while test
data are `(x, y, id)`. If `add_preprocess` raises on them, two fallbacks are tried in turn:

* the methods for single steps (`add_image_preprocess`, `add_label_preprocess`, `batchify`);
* `add_preprocess` with each id replaced by a weight of 1; the ids are added back in their order.

Callers: `abstractions.py`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.dialects import pipelines
from elasticdl.dialects.params import described
from elasticdl.errors import DefinitionError, UserCodeError

_PARTS = 3
_LARGEST_BATCH = 4096
_NO_MORE = object()


@dataclass(frozen=True, eq=False)
class SplitMethod:
    """A method to make batches from the examples of a loader's generator.

    Attributes:
        prepare: Function (generator of examples) -> generator of preprocessed examples.
        batchify: Function (generator of preprocessed examples, number of examples) -> generator of
            batches.
        drops: Whether `batchify` may drop the last examples if they do not fill a batch; those are
            then passed to it again.
        carries_ids: Whether to replace `(x, y, id)` by `(x, y, 1.0)` for user code that expects a
            sample weight as the third part. The ids are put back, in order, after batching.
        note: Note to the user if this method is used; empty for the usual one.
    """

    prepare: Callable[[Any], Any]
    batchify: Callable[[Any, int], Any]
    drops: bool = True
    carries_ids: bool = False
    note: str = ""


def rows(
    generator: Callable[[], Any],
    ways: Sequence[SplitMethod],
    *,
    name: str,
    num_examples: int,
    notes: list[str],
) -> Iterator[Any]:
    """Yield each example as `(x, y, sample weight or id)`, or `(x, y)` if there is no third part.

    The first method whose first batch does not raise is used.

    Args:
        generator: Function () -> new generator from the user's data loader.
        ways: The methods to make batches, in order of preference; at least one.
        name: The user's name for the generator, for errors.
        num_examples: Number of examples, according to the user's data loader.
        notes: List to which the note of the method used is appended, if it has one.

    Raises:
        UserCodeError: The user's code raised; if it raises with all methods, the first error.
        DefinitionError: The user's code does not yield batches.
    """
    first: UserCodeError | None = None
    for way in ways:
        made = _rows(generator(), way, name, num_examples)
        try:
            head = next(made, _NO_MORE)
        except UserCodeError as error:
            first = first or error
            continue
        if way.note:
            notes.append(way.note)
        if head is not _NO_MORE:
            yield head
        yield from made
        return
    if first is not None:
        raise first


def _rows(generator: Any, way: SplitMethod, name: str, num_examples: int) -> Iterator[Any]:
    ids: Iterator[Any] = iter(())
    if way.carries_ids:
        generator, ids = _without_ids(generator, name)
    prepared = way.prepare(generator)
    if pipelines.kind_of(prepared, name) == "tf.data":
        made = _dataset_rows(prepared, way, name, num_examples)
    elif pipelines.kind_of(prepared, name) == "iterable":
        made = _iterated_rows(prepared, way, name, num_examples)
    else:
        made = _taken_apart(way.batchify(prepared, num_examples), name)
    for row in made:
        yield (*row[:2], next(ids)) if way.carries_ids else row


def _dataset_rows(dataset: Any, way: SplitMethod, name: str, num_examples: int) -> Iterator[Any]:
    """Yield each example of a `tf.data.Dataset` exactly once, in the form `batchify` gives it.

    Args:
        dataset: The preprocessed examples.
        way: Makes the batches. If it drops a last batch that is not full, the first examples are
            appended to fill that batch; they are not yielded a second time.
        name: The user's name for the generator, for errors.
        num_examples: Declared number of examples.
    """
    batches = way.batchify(dataset, num_examples)
    size = _fixed_size(batches)
    if way.drops and size and num_examples % size:
        # Batches of one fixed size: repeat the first examples to fill up the last batch.
        batches = way.batchify(dataset.concatenate(dataset.take(size)), num_examples)
    # -1 is endless, -2 unknown, as after a filter.
    known = int(dataset.cardinality())
    limit = {-1: None, -2: num_examples}.get(known, known)
    return itertools.islice(_taken_apart(batches, name), limit)


def _fixed_size(batches: Any) -> int | None:
    """Return the batch size that all batches of a `tf.data.Dataset` have; None if it may vary.

    With a fixed size, examples at the end that do not fill a batch are dropped.
    """
    spec = getattr(batches, "element_spec", None)
    shapes = [each.shape for each in leaves(spec) if hasattr(each, "shape")] if spec else []
    return shapes[0][0] if shapes and shapes[0].rank else None


def _iterated_rows(generator: Any, way: SplitMethod, name: str, num_examples: int) -> Iterator[Any]:
    """Yield each example of an iterable once, as it is in the batches of `batchify`.

    Args:
        generator: The preprocessed examples.
        way: Makes the batches; examples that it drops at the end are passed to it again.
        name: The user's name for the generator, for errors.
        num_examples: Declared number of examples.
    """
    source = _Counted(generator)
    number = size = 0
    for element in pipelines.elements(way.batchify(source, num_examples), name):
        parts = list(_apart(element, name))
        size = size or len(parts)
        source.keep(size)
        for part in parts:
            if source.has_ended and number == source.count:
                return
            number += 1
            yield part
    lost = source.count - number
    # A full batch or more was dropped on purpose, not at the end.
    if not way.drops or not 0 < lost < (size or lost + 1):
        return
    # Without any batch, its size is unknown, but it is larger than the number of examples.
    size = size or max(_LARGEST_BATCH, lost)
    examples = list(source.recent)[-lost:]
    padded = itertools.chain(examples, itertools.repeat(examples[-1], size - lost))
    again = way.batchify(padded, size)
    yield from itertools.islice(_taken_apart(again, name), lost)


class _Counted(Iterator[Any]):
    """Iterator over a generator that counts the items taken and keeps the last ones.

    So examples that `batchify` drops at the end can be passed to it again.

    Args:
        generator: Any iterable.

    Attributes:
        count: Number of items taken.
        has_ended: Whether the iterator is exhausted.
        recent: The last items taken; `keep` sets their maximum number.
    """

    def __init__(self, generator: Any) -> None:
        self._iterator = iter(generator)
        self.count = 0
        self.has_ended = False
        self.recent: deque[Any] = deque()

    def keep(self, number: int) -> None:
        """Set the maximum number of `recent` items, which is unlimited at first."""
        if self.recent.maxlen != number:
            self.recent = deque(self.recent, number)

    def __next__(self) -> Any:
        """Return the next item."""
        try:
            found = next(self._iterator)
        except StopIteration:
            self.has_ended = True
            raise
        except RuntimeError as error:
            # A user's generator that called `next` on an exhausted one.
            self.has_ended = pipelines.is_end(error)
            raise
        self.count += 1
        self.recent.append(found)
        return found


def _without_ids(generator: Any, name: str) -> tuple[Any, Iterator[Any]]:
    """Replace the ids of examples by sample weights of 1, for user code that takes only weights.

    Args:
        generator: Yields `(x, y, id)`.
        name: The user's name for it, for errors.

    Returns:
        The new generator, and an iterator over the ids in the order of the examples.
    """
    if pipelines.kind_of(generator, name) == "tf.data":
        ids = pipelines.elements(generator.map(lambda *parts: parts[2]), name)
        return generator.map(lambda *parts: (parts[0], parts[1], 1.0)), ids
    found: deque[Any] = deque()

    def weighted() -> Iterator[Any]:
        for x, y, data_id in generator:
            found.append(data_id)
            yield x, y, 1.0

    return weighted(), iter(found.popleft, _NO_MORE)


def _taken_apart(batches: Any, name: str) -> Iterator[Any]:
    for element in pipelines.elements(batches, name):
        yield from _apart(element, name)


def _apart(element: Any, name: str) -> Iterator[tuple[Any, ...]]:
    """Split a batch into its examples.

    Args:
        element: A batch `(x, y)`, or `(x, y, sample weights or ids)`.
        name: The user's name for the generator, for errors.

    Yields:
        Each example, as a tuple of the same form.

    Raises:
        DefinitionError: The batch has another form.
    """
    parts = tuple(element) if isinstance(element, (tuple, list)) else ()
    if len(parts) not in (_PARTS - 1, _PARTS):
        raise DefinitionError(
            f"{name} yields {described(element)} after preprocessing; expected tuples of three: x, "
            "y, and the sample weight (validation) or the id (test)."
        )
    x = parts[0]
    arrays = leaves(x)
    if not arrays or not getattr(arrays[0], "ndim", 0):
        raise DefinitionError(
            f"{name} yields x of {described(x)} after preprocessing; expected batches, which are "
            "made by the preprocessor's batchify()."
        )
    sizes = [_size(part) for part in parts]
    if len({size for size in sizes if size is not None}) > 1:
        raise DefinitionError(
            f"{name} yields a batch of {' and '.join(map(str, sizes))} entries in its parts after "
            "preprocessing; expected one entry per example in each."
        )
    for row in range(len(arrays[0])):
        yield tuple(_row(part, row) for part in parts)


def _size(part: Any) -> int | None:
    """Return the number of examples in a part of a batch (x, y, weights or ids).

    Returns None if the part has no axis of examples.
    """
    if isinstance(part, (list, tuple)) and part and isinstance(part[0], (str, bytes)):
        return len(part)
    arrays = leaves(part)
    first: Any = arrays[0] if arrays else None
    return None if first is None or not getattr(first, "ndim", 1) else len(first)


def _row(part: Any, row: int) -> Any:
    # A list of strings is not a nested structure of arrays.
    if isinstance(part, (list, tuple)) and part and isinstance(part[0], (str, bytes)):
        return part[row]
    return map_arrays(lambda array: array[row] if getattr(array, "ndim", 1) else array, part)

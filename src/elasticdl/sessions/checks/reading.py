"""Reads the beginning of each split for the session check, as training and evaluation would.

Generators are created again for each reading, because one that was partly read cannot be reused.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, leaves
from elasticdl.engines.feed import chained_digest
from elasticdl.engines.progress_bar import Silent
from elasticdl.engines.randomness import Stream
from elasticdl.errors import ElasticDLError
from elasticdl.sessions import report
from elasticdl.sessions.checks.finding import CheckFinding, error, of_error, warning
from elasticdl.sessions.checks.limits import TooLongError, within

if TYPE_CHECKING:
    from elasticdl.dialects.abstractions import Split
    from elasticdl.engines.iterable_data import PipelineReader
    from elasticdl.sessions.checks.batches import Places

_NUM_BATCHES = 3
_NUM_EXAMPLES = 4
# Time limit for reading a split beyond its first batches, to see whether it ends too early.
_READING_S = 2.0
# After its last example, a generator either ends immediately or never.
_END_S = 2.0
_NUM_PARTS = 3


@dataclass
class Read:
    """Result of reading the beginning of an epoch.

    Attributes:
        first: The first few batches, for the rules that inspect arrays.
        rate: Batches read per second, without the first one, which takes longer.
        epoch_s: Estimated time to read the whole epoch, in seconds.
    """

    first: list[Batch] = field(default_factory=list)
    rate: float = 0.0
    epoch_s: float = 0.0


def read_epoch(reading: PipelineReader) -> Generator[CheckFinding, None, Read]:
    """Read the first epoch of a pipeline, up to a time limit, and measure the reading speed.

    Args:
        reading: A pipeline that has not been read from yet.

    Yields:
        Findings if the pipeline ends early or raises.
    """
    read = Read()
    total = reading.epochs.num_batches
    made = reading.batches(0, 0, total)
    started = first_at = time.monotonic()
    number = 0
    while number < total:
        try:
            with within():
                batch = next(made).batch
        except ElasticDLError as problem:
            yield of_error(problem)
            break
        number += 1
        if number == 1:
            first_at = time.monotonic()
        if number <= _NUM_BATCHES:
            read.first.append(batch)
        elif time.monotonic() - started > _READING_S:
            break
    # The first batch may take longer, because a shuffle reads ahead for it.
    since, counted = (first_at, number - 1) if number > 1 else (started, number)
    read.rate = counted / max(time.monotonic() - since, 1e-6)
    read.epoch_s = first_at - started + (total - 1) / max(read.rate, 1e-6)
    return read


def third_parts(split: Split, places: Places) -> Generator[CheckFinding, None, list[Any] | None]:
    """Return the ids of the test data: the third element of each example `(x, y, id)`.

    They are read from the user's generator, before preprocessing. This reads the declared number of
    examples, or fewer if a time limit is reached.

    Args:
        split: The test split.
        places: Locations of the user's methods that produce it, for findings.

    Yields:
        Findings about the examples or their number.

    Returns:
        The ids; None if an example is not a tuple of three.
    """
    found: list[Any] = []
    started = time.monotonic()
    examples = Stream(0).drawn(split.raw)
    while len(found) < split.num_examples:
        with within():
            example = next(examples, None)
        if example is None:
            yield error(
                f"{places.split}: the generator ended after {len(found):,} examples; it was "
                f"declared to have {split.num_examples:,}.",
                places.loader,
                "Return the number that it yields.",
            )
            return found
        if not isinstance(example, (tuple, list)) or len(example) != _NUM_PARTS:
            size = f" of {len(example)}" if isinstance(example, (tuple, list)) else ""
            yield error(
                f"{places.split}: the generator yields a {type(example).__name__}{size}; expected "
                "tuples (x, y, id).",
                places.loader,
                "Yield the id of the example as the third part.",
            )
            return None
        found.append(example[2])
        if time.monotonic() - started > _READING_S:
            return found
    yield from _end(examples, split, places)
    return found


def _end(examples: Any, split: Split, places: Places) -> Generator[CheckFinding, None, None]:
    try:
        with within(_END_S):
            more = next(examples, None) is not None
        what = "continues after"
    except TooLongError:
        more, what = True, "neither ends nor continues after"
    if more:
        yield warning(
            f"{places.split}: the generator {what} the {split.num_examples:,} examples it was "
            "declared to have; only those are evaluated.",
            places.loader,
            "Let it end (no `while True`, no repeat()), or correct the number.",
        )


def first_examples(split: Split, name: str, ids: Sequence[Any] | None) -> report.Examples:
    """Return the first examples of a split, read by the code that later reads them for the reports.

    So the check finds problems, such as an invalid id, that would otherwise end the session after
    training.

    Args:
        split: The split.
        name: `validation` or `test`.
        ids: Ids of validation examples. None: number them from 0. Ignored for test data, whose
            examples contain their ids.

    Raises:
        ElasticDLError: User code raised, or an example or its id is not as required.
        TooLongError: No example came in time.
    """
    few = replace(split, num_examples=min(split.num_examples, _NUM_EXAMPLES))
    with within():
        return next(report.batches(few, name, ids, Silent()))


def digest(batches: Iterable[Batch]) -> int:
    """Return a hash of a sequence of batches, to see whether two readings of a split are equal."""
    found = 0
    for batch in batches:
        found = chained_digest(batch, found)
    return found


def order(split: Split, seed: int) -> list[int]:
    """Return a hash of each example of a split, to see whether a seed changes their order.

    Args:
        split: The split.
        seed: Seeds the random number generators while the split is read.

    Returns:
        The hashes in the order in which the examples come, as far as the time limit allows.
    """
    found = []
    started = time.monotonic()
    examples = Stream(seed).drawn(split.raw)
    for example in itertools.islice(examples, split.num_examples):
        value = 0
        for leaf in leaves(example[:2]):
            array = np.asarray(leaf)
            # Strings are objects: the array holds their addresses, not their content.
            content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            value = zlib.crc32(content, value)
        found.append(value)
        if time.monotonic() - started > _READING_S / 2:
            break
    return found

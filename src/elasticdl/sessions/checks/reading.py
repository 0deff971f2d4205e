"""Reading the beginning of each split, as the training and the evaluation will.

Everything is made anew for each look: a generator that was looked into is not trained on.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, leaves, stack
from elasticdl.engines.feed import chained_digest
from elasticdl.engines.randomness import Stream
from elasticdl.errors import DefinitionError, ElasticDLError
from elasticdl.sessions.checks.finding import Finding, error, of_error, warning
from elasticdl.sessions.checks.limits import TooLongError, within

if TYPE_CHECKING:
    from elasticdl.dialects.abstractions import Split
    from elasticdl.engines.own_batches import Reading
    from elasticdl.sessions.checks.batches import Places

_NUM_BATCHES = 3
_NUM_EXAMPLES = 4
# So long a split is read, beyond the first batches, to see whether it ends where it should.
_READING_S = 2.0
# After its last example a generator ends at once, or never.
_END_S = 2.0
_NUM_PARTS = 3


@dataclass
class Read:
    """What reading the beginning of an epoch came to.

    Attributes:
        first: The first batches.
        rate: Batches a second, after the first one.
        epoch_s: How long it would take to read the whole epoch.
    """

    first: list[Batch] = field(default_factory=list)
    rate: float = 0.0
    epoch_s: float = 0.0


def read_epoch(reading: Reading) -> Generator[Finding, None, Read]:
    """Read the first epoch for as long as there is time.

    Args:
        reading: A pipeline; nothing of it was read.

    Yields:
        That it ends early, or raises.
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
    # The first one may take longer: a shuffle reads ahead for it.
    since, counted = (first_at, number - 1) if number > 1 else (started, number)
    read.rate = counted / max(time.monotonic() - since, 1e-6)
    read.epoch_s = first_at - started + (total - 1) / max(read.rate, 1e-6)
    return read


def third_parts(split: Split, places: Places) -> Generator[Finding, None, list[Any] | None]:
    """Read the single examples of a split, to one more than it was said to have.

    Yields:
        What is wrong with what it yields, and with how many.

    Returns:
        The third part of each that was read; None where they are not as they should be.
    """
    found: list[Any] = []
    started = time.monotonic()
    examples = Stream(0).drawn(split.raw)
    while len(found) < split.num_examples:
        with within():
            example = next(examples, None)
        if example is None:
            yield error(
                f"{places.split}: the generator ended after {len(found):,} examples; it was said "
                f"to have {split.num_examples:,}.",
                places.loader,
                "Return the number it yields.",
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


def _end(examples: Any, split: Split, places: Places) -> Generator[Finding, None, None]:
    try:
        with within(_END_S):
            more = next(examples, None) is not None
        what = "goes on after"
    except TooLongError:
        more, what = True, "neither ends nor goes on after"
    if more:
        yield warning(
            f"{places.split}: the generator {what} the {split.num_examples:,} examples it was "
            "said to have; those are evaluated, and no more.",
            places.loader,
            "Let it end (no `while True`, no repeat()), or correct the number.",
        )


def first_examples(split: Split) -> list[Any]:
    """Return the first examples of a split as the model takes them, one by one.

    Raises:
        ElasticDLError: User code raised.
        TooLongError: Nothing came.
    """
    with within():
        return list(itertools.islice(Stream(0).drawn(split.preprocessed), _NUM_EXAMPLES))


def as_batch(examples: Sequence[Any], places: Places) -> Batch:
    """Return single examples as a batch, with weights of 1.

    Raises:
        DefinitionError: They have different shapes.
    """
    try:
        x, y = (stack([example[part] for example in examples]) for part in (0, 1))
    except (ValueError, KeyError) as problem:
        shapes = [[list(np.shape(leaf)) for leaf in leaves(example[:2])] for example in examples]
        raise DefinitionError(
            f"{places.images}: {places.split}: examples have the shapes {shapes}; expected the "
            "same for all. Resize or pad them in the preprocessing."
        ) from problem
    return Batch(x, (y, np.ones(len(examples), np.float32)), len(examples))


def digest(batches: Iterable[Batch]) -> int:
    """Return a hash of batches, in their order."""
    found = 0
    for batch in batches:
        found = chained_digest(batch, found)
    return found


def order(split: Split, seed: int) -> list[int]:
    """Return a hash of each example of a split, made with a seed, as far as there is time."""
    found = []
    started = time.monotonic()
    examples = Stream(seed).drawn(split.raw)
    for example in itertools.islice(examples, split.num_examples):
        value = 0
        for leaf in leaves(example[:2]):
            array = np.asarray(leaf)
            # Texts are objects: what lies in the array is where they are, not what they say.
            told = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
            value = zlib.crc32(told, value)
        found.append(value)
        if time.monotonic() - started > _READING_S / 2:
            break
    return found

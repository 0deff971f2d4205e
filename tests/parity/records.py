"""The records that all features are trained on: 46 of them, 20 more for validation.

Minibatches of 8 leave a last one of 6. Two workers with minibatches of 4 have one of 4 and one
of 2 at the end, if their halves of each batch lie in shards of their own (`for_two_workers`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.data import recordio
from elasticdl.data.example import encode

NUM_RECORDS, NUM_VALIDATION_RECORDS = 46, 20
BATCH_SIZE, EPOCHS, SEED = 8, 3, 7
STEPS = EPOCHS * -(-NUM_RECORDS // BATCH_SIZE)

_WORDS = ("red", "green", "blue", "small", "large", "old", "new", "round", "flat", "loud")


@dataclass(frozen=True)
class Data:
    """What a plain script trains on.

    Attributes:
        train: Records as an input function gets them.
        validation: Records to evaluate on.
        batch_size: Examples in one update.
        epochs: How often each record is used.
        seed: Of the initial weights.
    """

    train: Sequence[dict[str, Any]]
    validation: Sequence[dict[str, Any]]
    batch_size: int = BATCH_SIZE
    epochs: int = EPOCHS
    seed: int = SEED


def make_data() -> Data:
    """Return the same records every time."""
    random = np.random.default_rng(11)
    return Data(
        [_record(random) for _ in range(NUM_RECORDS)],
        [_record(random) for _ in range(NUM_VALIDATION_RECORDS)],
    )


def _record(random: np.random.Generator) -> dict[str, Any]:
    x = random.normal(size=8).astype(np.float32)
    length = int(random.integers(3, 11))
    tokens = np.zeros(10, np.int64)
    tokens[:length] = random.integers(1, 20, length)
    words = [_WORDS[token % len(_WORDS)] for token in tokens[:length]]
    series = random.normal(size=(6, 3)).astype(np.float32)
    label = int(np.argmax(x[:3]))
    image = random.uniform(size=(8, 8, 2)).astype(np.float32)
    image[..., 0] += np.float32(0.3 * label)
    y = np.float32([np.sin(x[0]) + 0.5 * x[1] + 0.3 * series[:, 0].mean() + 0.1 * (length - 6)])
    return {
        "x": x,
        "y": y,
        "label": np.int64([label]),
        "weight": np.float32([random.uniform(0.2, 2.0)]),
        "image": image,
        "series": series,
        "tokens": tokens,
        "text": np.array([" ".join(words).encode()], object),
    }


def for_two_workers(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first halves of all batches, then the second ones: a shard for each worker."""
    half = BATCH_SIZE // 2
    batches = [records[i : i + BATCH_SIZE] for i in range(0, len(records), BATCH_SIZE)]
    return [r for batch in batches for r in batch[:half]] + [
        r for batch in batches for r in batch[half:]
    ]


def write(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write records as a file of RecordIO."""
    with recordio.Writer(str(path)) as writer:
        for record in records:
            writer.write(encode({name: np.ravel(value) for name, value in record.items()}))

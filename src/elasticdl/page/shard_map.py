"""Map of the shards of an epoch and their states. A shard is a part of the data for one worker.

    queued    no worker has trained on it
    leased    a worker is training on it
    returned  its worker has left or moved to another shard before all its batches were committed
    done      all its batches are committed

Pure. Callers: `view.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

QUEUED, LEASED, RETURNED, DONE = range(4)
_MAX_CELLS = 1200


def shard_states(
    num_committed: Ints,
    leased: Iterable[int],
    *,
    num_shards: int,
    batches_per_shard: int,
    last_shard_batches: int,
) -> Ints:
    """Return the state of each shard of an epoch: QUEUED, LEASED, RETURNED or DONE.

    Args:
        num_committed: Number of committed batches by shard; may be shorter than `num_shards`.
        leased: Shards that workers are training on. One whose batches are all committed is DONE
            nevertheless.
        num_shards: Number of shards.
        batches_per_shard: Batches of each shard except the last; 0 if unknown.
        last_shard_batches: Batches of the last shard.

    Returns:
        int64 [num_shards].

    Example:
        >>> shard_states(
        ...     np.array([4, 2, 1]),
        ...     [1],
        ...     num_shards=4,
        ...     batches_per_shard=4,
        ...     last_shard_batches=4,
        ... ).tolist()
        [3, 1, 2, 0]
    """
    counts = np.zeros(num_shards, np.int64)
    known = num_committed[:num_shards]
    counts[: len(known)] = known
    states = np.where(counts > 0, RETURNED, QUEUED)
    states[[shard for shard in leased if 0 <= shard < num_shards]] = LEASED
    if batches_per_shard:
        lengths = np.full(num_shards, batches_per_shard, np.int64)
        lengths[-1:] = last_shard_batches
        states[counts >= lengths] = DONE
    return states


def cells(states: Ints) -> dict[str, Any]:
    """Convert the states of shards to cells for the page; many shards are drawn as fewer cells.

    Returns:
        `per_cell`: shards per cell; `counts`: number of shards in each state; `cells`: the state of
        each cell as a digit, from 0 (queued) to 3 (done). A cell of several shards is `returned` or
        `leased` if one of its shards is, and `done` only if all are.
    """
    per_cell = max(1, -(-len(states) // _MAX_CELLS))
    if per_cell == 1:
        shown = states
    else:
        padded = np.append(states, np.full(-len(states) % per_cell, DONE, np.int64))
        grouped = padded.reshape(-1, per_cell)
        # Returned and leased shards take precedence; a cell is done only if all its shards are.
        shown = np.where(
            (grouped == RETURNED).any(axis=1),
            RETURNED,
            np.where(
                (grouped == LEASED).any(axis=1),
                LEASED,
                np.where((grouped == DONE).all(axis=1), DONE, QUEUED),
            ),
        )
    counts = np.bincount(states, minlength=4)[:4].tolist()
    return {
        "per_cell": per_cell,
        "counts": dict(zip(("queued", "leased", "returned", "done"), counts, strict=True)),
        "cells": "".join(map(str, shown.tolist())),
    }

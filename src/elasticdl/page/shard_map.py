"""The shards of an epoch as a map: which are queued, leased, done, or came back half done.

    queued    nobody has trained on it
    leased    a worker that is there is on it
    returned  begun, and the worker that had it is gone or on another shard
    done      all its batches are committed

Pure. Callers: `view.py`.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]

QUEUED, LEASED, RETURNED, DONE = range(4)
_MOST_CELLS = 1200


def shard_states(
    shard: Ints,
    slot: Ints,
    num_batches: Ints,
    *,
    present: set[int],
    num_shards: int,
    batches_per_shard: int,
    last_shard_batches: int,
) -> Ints:
    """Return the state of each shard of an epoch.

    Args:
        shard: Of each row of committed batches: its shard.
        slot: ... the worker that trained on them.
        num_batches: ... how many they are.
        present: Slots of workers that are there.
        num_shards: How many shards there are.
        batches_per_shard: Batches of each but the last; 0 if that is not known.
        last_shard_batches: Batches of the last one.

    Returns:
        int64 [num_shards].

    Example:
        >>> shard_states(
        ...     shard=np.array([0, 1]),
        ...     slot=np.array([0, 1]),
        ...     num_batches=np.array([4, 2]),
        ...     present={0},
        ...     num_shards=3,
        ...     batches_per_shard=4,
        ...     last_shard_batches=4,
        ... ).tolist()
        [3, 2, 0]
    """
    inside = (shard >= 0) & (shard < num_shards)
    shard, slot, num_batches = shard[inside], slot[inside], num_batches[inside]
    counts = np.bincount(shard, weights=num_batches, minlength=num_shards)
    states = np.full(num_shards, QUEUED, np.int64)
    states[counts > 0] = RETURNED
    # The shard a worker was last told to have trained on is the one it is at.
    for each in present:
        mine = np.flatnonzero(slot == each)
        if len(mine):
            states[shard[mine[-1]]] = LEASED
    if batches_per_shard:
        lengths = np.full(num_shards, batches_per_shard, np.int64)
        lengths[-1:] = last_shard_batches
        states[counts >= lengths] = DONE
    return states


def cells(states: Ints) -> dict[str, Any]:
    """Return a map for the page: of many shards, several share a cell.

    Returns:
        `per_cell`: shards in a cell; `counts`: how many shards are in each state; `cells`: of each
        cell its state as a digit, of several shards the one that says most.
    """
    per_cell = max(1, -(-len(states) // _MOST_CELLS))
    if per_cell == 1:
        shown = states
    else:
        padded = np.append(states, np.full(-len(states) % per_cell, DONE, np.int64))
        grouped = padded.reshape(-1, per_cell)
        # Who has a returned or a leased one is looked for; done is a cell where all are.
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

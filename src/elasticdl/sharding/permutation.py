"""Pseudo-random permutations of 0 .. size-1, to shuffle records without storing their order.

A permutation is given by a key and a size; its elements are never stored, so a billion records take
no memory. It does not depend on a library's random number generator, so an order is the same on
every machine and in every later version.

`ShardPlan.record_numbers` in `epoch_order.py` uses them for the order of a shard's records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_WORD = 2**64 - 1
_NUM_ROUNDS = 6  # Luby and Rackoff (1988) need 4 for a strong permutation; small domains need more.


def derive_seed(*parts: int) -> int:
    """Return a 63-bit seed that depends on every argument and on their order.

    The mixing step is splitmix64 (Steele et al., 2014, https://doi.org/10.1145/2714064.2660195).

    Example:
        >>> derive_seed(0, 1, 2) == derive_seed(0, 1, 2)
        True
        >>> derive_seed(0, 1, 2) == derive_seed(0, 2, 1)
        False
    """
    state = 0
    for part in parts:
        # Plain ints: this runs in each training step, and arrays take ten times as long.
        state = (state + part + 0x9E3779B97F4A7C15) & _WORD
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _WORD
        state ^= state >> 31
    return state >> 1


def permute(places: npt.NDArray[np.int64] | int, size: int, key: int) -> npt.NDArray[np.int64]:
    """Return the element at each position of a keyed permutation of 0 .. size-1.

    The permutation is a Feistel network over the next power of four; it is applied again to
    results that are not below `size` (cycle walking: Black and Rogaway, 2002, "Ciphers with
    arbitrary finite domains", method 2).

    Args:
        places: Positions to look up, each in 0 .. size-1; any shape.
        size: Number of elements, at least 1.
        key: Seed of the permutation: equal keys and sizes give equal permutations.

    Returns:
        int64, of the shape of `places`.

    Example:
        >>> sorted(permute(np.arange(5), 5, key=7).tolist())
        [0, 1, 2, 3, 4]
    """
    if size == 1:
        # Small data have one shard, whose position is looked up all the time.
        return np.zeros(np.shape(places), np.int64)
    half_bits = np.uint64(max(1, (max(1, (size - 1).bit_length()) + 1) // 2))
    mask = (np.uint64(1) << half_bits) - np.uint64(1)
    round_keys = [np.uint64(derive_seed(key, i)) for i in range(_NUM_ROUNDS)]
    values = np.array(places, dtype=np.uint64)
    shape = values.shape
    values = values.reshape(-1)
    walking = np.ones(values.shape, dtype=bool)
    with np.errstate(over="ignore"):
        while walking.any():
            left = values[walking] >> half_bits
            right = values[walking] & mask
            for round_key in round_keys:
                left, right = right, left ^ (_mix(right ^ round_key) & mask)
            values[walking] = (left << half_bits) | right
            walking = values >= np.uint64(size)
    return values.astype(np.int64).reshape(shape)


def _mix(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))

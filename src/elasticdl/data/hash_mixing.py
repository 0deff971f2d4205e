"""Spreads 64-bit hashes evenly, and maps them to numbers from 0 to 1.

A validation split uses it: a record is held out if its hash, mapped to a number from 0 to 1, is
less than the share to hold out.

Callers: `row_hash.py`, `split.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


def mixed(values: Hashes) -> Hashes:
    """Mix 64-bit hashes: values that differ in one bit then differ in about half of all bits.

    So the hashes of similar inputs, such as consecutive record numbers, are spread evenly. This is
    the finalizer of SplitMix64 (Steele et al., 2014, https://doi.org/10.1145/2714064.2660195).
    """
    with np.errstate(over="ignore"):
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))


def shares(hashes: Hashes) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Map hashes to uniformly distributed numbers from 0 to less than 1."""
    return (hashes >> np.uint64(11)).astype(np.float64) / 2.0**53

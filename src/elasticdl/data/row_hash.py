"""Hashes of rows, to split a table in a way that depends only on its content.

Equal rows have equal hashes, on every machine and in every batch. So duplicates fall on the same
side of a split by hash, and the split does not depend on the order of the rows.

Used by `snapshot.py`.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from elasticdl.data.hash_mixing import mixed

if TYPE_CHECKING:
    from elasticdl.data.hash_mixing import Hashes

# Equal texts have equal hashes, whichever of these types a reader has chosen.
_TEXTS = (
    pa.string(), pa.large_string(), pa.string_view(),
    pa.binary(), pa.large_binary(), pa.binary_view(),
)  # fmt: skip
_EMPTY = np.uint64(0x9E3779B97F4A7C15)
_PRIME = np.uint64(0x100000001B3)
_ZEROS = np.uint64(0xD1B54A32D192ED03)


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """Return a hash of each row, uint64 [rows].

    Example:
        >>> first = pa.record_batch({"a": [1, 2, 1], "b": ["x", None, "x"]})
        >>> hashes = row_hashes(first)
        >>> bool(hashes[0] == hashes[2]), bool(hashes[0] == hashes[1])
        (True, False)
    """
    total = np.zeros(batch.num_rows, np.uint64)
    with np.errstate(over="ignore"):
        for column in batch.columns:
            total = mixed(total * _PRIME + _hashes(column))
    # Mixing maps zero to itself: a row of only zeros, which is common, would be at the very edge
    # of every split.
    return np.where(total == 0, _ZEROS, total)


def _hashes(column: pa.Array) -> Hashes:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _hashes(column.dictionary_decode())
    if pa.types.is_null(kind):
        return np.full(len(column), _EMPTY)
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        hashes = _of_numbers(column)
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        bits = pa.int32() if kind.bit_width == 32 else pa.int64()  # noqa: PLR2004 - bits
        hashes = _of_numbers(column.view(bits))
    else:
        hashes = _of_objects(column)
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _EMPTY
    return hashes


def _of_numbers(column: pa.Array) -> Hashes:
    filled = column.fill_null(False if pa.types.is_boolean(column.type) else 0)
    numbers = filled.to_numpy(zero_copy_only=False)
    if numbers.dtype.kind == "f":
        # One bit pattern for equal numbers: -0.0 is 0.0, and every NaN is the same.
        numbers = numbers.astype(np.float64) + 0.0
        numbers = np.where(np.isnan(numbers), np.nan, numbers)
        bits: Hashes = numbers.view(np.uint64)
        return bits
    wide = numbers.astype(np.uint64 if numbers.dtype.kind == "u" else np.int64)
    hashes: Hashes = wide.view(np.uint64)
    return hashes


def _of_objects(column: pa.Array) -> Hashes:
    """Return a hash, uint64, of each value in a column of strings, decimals or lists."""
    if column.type in _TEXTS:
        encoded = column.cast(pa.large_binary()).dictionary_encode()
        values = encoded.dictionary.to_pylist()
        of_values = np.array([_of_bytes(value) for value in values], np.uint64)
        indices = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return of_values[indices] if len(of_values) else np.zeros(len(column), np.uint64)
    return np.array([_of_bytes(repr(v).encode()) for v in column.to_pylist()], np.uint64)


def _of_bytes(value: bytes) -> int:
    return zlib.crc32(value) | (zlib.adler32(value) << 32)

"""Checks an HDF5 file before Keras reads it: no links to other files, no oversized data.

Callers: `file_format.py`.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path
from typing import Any

import h5py

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import bounds
from elasticdl.saved_models.finite_weights import complex_error

_DEFLATE = 1
# Filters that do not make data larger: shuffling, and checksums.
_SHUFFLE, _FLETCHER32 = 2, 3
_CHECKSUM_BYTES = 4


def num_values(file: Any, path: Path, held_bytes: int) -> int:
    """Return the number of values in an HDF5 file, after checking each dataset.

    Args:
        file: The open file, as an `h5py.File`.
        path: Path, for errors.
        held_bytes: Size on disk of the file, or of the archive that contains it. It limits the
            memory that the datasets may declare (`bounds.py`).

    Raises:
        ModelFileError: The file has a link, values in another file, missing values or complex
            numbers; a chunk unpacks to more than it declares; or the datasets are too large.
    """
    total = claimed_bytes = 0
    groups = [file]
    while groups:
        group = groups.pop()
        for name in group:
            if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                raise ModelFileError(
                    f"{path}: {group.name}/{name} is a link. A link may point to another file on "
                    "this machine; Keras never writes one. The file may be malicious."
                )
            item = group[name]
            if isinstance(item, h5py.Group):
                groups.append(item)
                continue
            if not isinstance(item, h5py.Dataset):
                raise ModelFileError(
                    f"{path}: {item.name} is a {type(item).__name__}, neither an array nor a "
                    "group; Keras never writes one. The file may be malicious."
                )
            if item.external or item.is_virtual:
                raise ModelFileError(
                    f"{path}: the values of {item.name} are stored in another file on this "
                    "machine; Keras never does this. The file may be malicious."
                )
            if item.dtype.kind == "c":
                raise complex_error(path, item.name, int(item.size or 0))
            total += int(item.size or 0)
            # A dataset of one number may have a chunk of millions, which is read as a whole.
            chunk_bytes = math.prod(item.chunks or ()) * item.dtype.itemsize
            claimed_bytes += max(int(item.nbytes or 0), chunk_bytes if item.chunks else 0)
            bounds.check(path, f"{item.name}, with the others,", claimed_bytes, held_bytes)
            _check_filters(item, path, chunk_bytes)
    return total


def _check_filters(item: Any, path: Path, chunk_bytes: int) -> None:
    """Reject chunks of a dataset that decompress to more than `chunk_bytes`.

    HDF5 inflates a chunk completely and checks its size only afterwards.
    """
    properties = item.id.get_create_plist()
    filters = [properties.get_filter(number)[0] for number in range(properties.get_nfilters())]
    if set(filters) <= {_SHUFFLE, _FLETCHER32}:
        return
    if filters.count(_DEFLATE) > 1 or not set(filters) <= {_DEFLATE, _SHUFFLE, _FLETCHER32}:
        raise ModelFileError(
            f"{path}: {item.name} is compressed by a method whose decompressed size cannot be "
            "checked in advance. Save the model again without compression, or with gzip."
        )
    checksum_bytes = _CHECKSUM_BYTES * filters.count(_FLETCHER32)
    for number in range(item.id.get_num_chunks()):
        _, stored = item.id.read_direct_chunk(item.id.get_chunk_info(number).chunk_offset)
        try:
            whole = zlib.decompressobj().decompress(stored, chunk_bytes + checksum_bytes + 1)
        except zlib.error:
            # Either a chunk that is stored uncompressed, because packing it gained nothing, or
            # damage, which HDF5 detects.
            continue
        if len(whole) > chunk_bytes + checksum_bytes:
            raise ModelFileError(
                f"{path}: a chunk of {item.name} decompresses to more than its {chunk_bytes:,} "
                "bytes. The file was built to exhaust memory; nothing was allocated."
            )

"""Limits the memory that PyTorch would allocate for a file, before PyTorch opens the file.

    .pt, TorchScript     a storage is not larger than the member that holds it, and tensors declare
                         no more memory than `bounds.allowed_bytes`
    PyTorch before 1.6   the same limits, for all storages together
    .pt2                 tensors of weights and constants, sizes in the graph, and .pt files in it

A tensor with stride 0 claims any number of values over a storage of one. A few such values are
legitimate (`torch.zeros(1).expand(10)`), so the sum of all claims is limited, as in `bounds.py`.

Callers: `file_format.py`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import archive, bounds, pickle_sizes

MAX_VALUES = 2**31
"""Limit of the numbers that one operation in an exported graph may create."""

# Before the objects: a magic number, the protocol version, the sizes of C integers.
_PICKLES_BEFORE_THE_OBJECTS = 3
# By torch._export.serde.schema.ScalarType; others, of 8 bits or unknown, count as the largest.
_ITEM_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 12: 1, 13: 2}
_ITEM_BYTES |= {28: 2, 29: 1, 30: 1, 31: 1, 32: 1, 33: 1, 34: 4, 35: 8}
_MAX_ITEM_BYTES = 16
_SIZES_IN_A_GRAPH = ("as_ints", "as_sym_ints")


def check_objects(opened: zipfile.ZipFile, path: Path, held_bytes: int) -> None:
    """Check the declared sizes of tensors and layers in a .pt or TorchScript file.

    Args:
        opened: The file as a zip archive.
        path: Path of the file, for errors.
        held_bytes: Size of the file on disk, which limits the memory that it may claim.

    Raises:
        ModelFileError: A storage is larger than its content, tensors declare more memory than
            `bounds.allowed_bytes`, or a layer of arbitrary size would be created.
    """
    names = set(opened.namelist())
    claimed_bytes = 0
    for name in sorted(names):
        folder, _, last = name.rpartition("/")
        if last not in {"data.pkl", "constants.pkl"}:
            continue
        pickled = io.BytesIO(archive.member(opened, name, path))
        contents = pickle_sizes.follow(pickled, str(path))
        held_in = f"{folder}/{'data' if last == 'data.pkl' else 'constants'}"
        for storage in contents.storages.values():
            # TorchScript shares storages between its two pickles.
            places = (f"{held_in}/{storage.key}", f"{folder}/{storage.key}")
            place = next((each for each in places if each in names), None)
            here = opened.getinfo(place).file_size if place else 0
            if storage.num_bytes > here:
                raise ModelFileError(
                    f"{path}: storage {storage.key!r} in it claims {storage.num_bytes:,} bytes and "
                    f"holds {here:,}. The file is damaged or malicious; nothing was allocated. "
                    "Save the model again."
                )
        claimed_bytes = _check_tensors(contents, path, held_bytes, claimed_bytes)


def check_old(path: Path, held_bytes: int) -> None:
    """Check the declared sizes of storages in a file of PyTorch before 1.6.

    Args:
        path: Path of the file.
        held_bytes: Size of the file on disk.

    Raises:
        ModelFileError: The storages declare more bytes than the file has, or the tensors more than
            `bounds.allowed_bytes`.
    """
    with path.open("rb") as file:
        for _ in range(_PICKLES_BEFORE_THE_OBJECTS):
            pickle_sizes.follow(file, str(path))
        contents = pickle_sizes.follow(file, str(path))
    total = sum(storage.num_bytes for storage in contents.storages.values())
    if total > held_bytes:
        raise ModelFileError(
            f"{path}: the storages in it claim {total:,} bytes; the file has {held_bytes:,}. It is "
            "damaged or was built to exhaust memory; nothing was allocated. Save the model again."
        )
    _check_tensors(contents, path, held_bytes, 0)


def _check_tensors(
    contents: pickle_sizes.Contents, path: Path, held_bytes: int, claimed_bytes: int
) -> int:
    """Check the declared sizes of a pickle's tensors; return the total that the file claims so far.

    Args:
        contents: The objects that the pickle would create.
        path: Path of the file, for errors.
        held_bytes: Size of the file on disk.
        claimed_bytes: Total of the file's earlier pickles.
    """
    for tensor in contents.tensors:
        claimed_bytes += tensor.num_bytes
        held = tensor.storage.num_bytes // tensor.storage.item_bytes
        what = (
            f"with the others, the tensor {tensor.name!r} of {tensor.num_values:,} numbers, of "
            f"which {min(held, tensor.num_values):,} are in the file,"
        )
        bounds.check(path, what, claimed_bytes, held_bytes)
    return claimed_bytes


def check_export(opened: zipfile.ZipFile, path: Path, held_bytes: int) -> None:
    """Check the declared sizes of tensors in an exported program.

    Args:
        opened: The file as a zip archive.
        path: Path of the file, for errors.
        held_bytes: Size of the file on disk, which limits the memory that it may claim.

    Raises:
        ModelFileError: Its tensors declare more memory than `bounds.allowed_bytes`, or its graph
            creates a tensor that is too large.
    """
    claimed_bytes = 0
    for info in opened.infolist():
        if info.filename.endswith(".pt") and info.file_size:
            # Example inputs, and the weights of earlier versions.
            content = io.BytesIO(archive.member(opened, info.filename, path))
            if zipfile.is_zipfile(content):
                with archive.opened(path, content) as inner:
                    check_objects(inner, path, held_bytes)
        if not info.filename.endswith(".json") and "/models/" not in info.filename:
            continue
        try:
            described = json.loads(archive.member(opened, info.filename, path))
        except (ValueError, RecursionError):
            # `scan.py` reports the mistake.
            continue
        claimed_bytes = _check_described(described, path, held_bytes, claimed_bytes)


def _check_described(described: Any, path: Path, held_bytes: int, claimed_bytes: int) -> int:
    stack = [("", described)]
    while stack:
        name, value = stack.pop()
        if isinstance(value, list):
            stack += [(name, each) for each in value]
        elif isinstance(value, Mapping):
            meta = value.get("tensor_meta")
            if isinstance(meta, Mapping) and "path_name" in value:
                numbers = bounds.num_values(_ints(meta.get("sizes")))
                dtype = meta.get("dtype")
                item_bytes = _ITEM_BYTES.get(dtype if isinstance(dtype, int) else 0)
                claimed_bytes += numbers * (item_bytes or _MAX_ITEM_BYTES)
                what = f"with the others, the tensor {name!r} of {numbers:,} numbers"
                bounds.check(path, what, claimed_bytes, held_bytes)
            for key in _SIZES_IN_A_GRAPH:
                size = _ints(value.get(key))
                if bounds.num_values(size) > MAX_VALUES:
                    raise ModelFileError(
                        f"{path}: its graph has the size {size[:8]}, more than {MAX_VALUES:,} "
                        "numbers. The file is damaged or was built to exhaust memory; nothing was "
                        "allocated."
                    )
            stack += [(str(key), each) for key, each in value.items()]
    return claimed_bytes


def _ints(sizes: Any) -> list[int]:
    """Return the sizes of a JSON shape as integers; 1 for a size that is known only at run time."""
    found: list[int] = []
    for each in sizes if isinstance(sizes, list) else ():
        plain = each.get("as_int") if isinstance(each, Mapping) else each
        found.append(plain if type(plain) is int else 1)
    return found

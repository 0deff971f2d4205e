"""Named arrays as a safetensors file, for any dtype, shape and memory layout.

The safetensors package ignores the strides of arrays when it writes, and cannot read bfloat16 into
numpy arrays; this module handles both. It never uses pickle, and does not depend on checkpoints or
trained models.

Callers: `checkpoint_files.py`, `trained_model.py`, `engines/elastic/state_transfer.py`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors
import safetensors.numpy

from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NUMPY_DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}
_ML_DTYPES = {
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
_STORABLE = frozenset({*_NUMPY_DTYPES.values(), *_ML_DTYPES.values()})

_SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write named arrays into a new file.

    Args:
        path: The file.
        tensors: Name -> array of any shape, including 0-d and empty ones.

    Raises:
        OutputError: An array's dtype cannot be stored.
        OSError: The file cannot be written.
    """
    try:
        safetensors.numpy.save_file(_storable(tensors), path)
    except safetensors.SafetensorError as error:
        # The package reports a full disk as its own error, with the system's errno in the message.
        number = _SYSTEM_ERROR.search(str(error))
        if number is None:
            raise OutputError(f"{path}: cannot be written: {error}.") from error
        raise OSError(int(number[1]), str(error), str(path)) from error
    # The package creates files that only their owner can read; a model needs normal permissions.
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(0o666 & ~umask)


def encode_tensors(tensors: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Return the bytes of the file that `write_tensors` would write, to send them to a worker.

    Raises:
        OutputError: An array's dtype cannot be stored.
    """
    return safetensors.numpy.save(_storable(tensors))


def _storable(tensors: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    # asarray, not ascontiguousarray: that would turn a scalar into an array of shape [1].
    dense = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    for name, array in dense.items():
        if array.dtype.name not in _STORABLE:
            raise OutputError(
                f"{name!r} has dtype {array.dtype}; expected one of "
                f"{', '.join(sorted(_STORABLE))}. Convert it, or remove it from the model's state."
            )
    return dense


def read_tensors(data: bytes, where: str) -> dict[str, np.ndarray[Any, Any]]:
    """Decode the named arrays in the bytes of a safetensors file, such as `write_tensors` writes.

    Args:
        data: The whole file.
        where: The name of the file in errors.

    Raises:
        OutputError: The bytes are not a safetensors file, or contain a dtype unknown to numpy.
    """
    try:
        found = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise OutputError(f"{where}: not a complete safetensors file: {error}.") from error
    return {
        name: np.frombuffer(tensor["data"], _dtype(tensor["dtype"], where)).reshape(tensor["shape"])
        for name, tensor in found
    }


def _dtype(name: str, where: str) -> np.dtype[Any]:
    if name in _NUMPY_DTYPES:
        return np.dtype(_NUMPY_DTYPES[name])
    if name in _ML_DTYPES:
        import ml_dtypes  # noqa: PLC0415 - only such tensors need it

        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[name]))
        return dtype
    raise OutputError(
        f"{where}: contains a tensor of dtype {name}; expected one of "
        f"{', '.join(sorted({*_NUMPY_DTYPES, *_ML_DTYPES}))}. A newer elasticdl may read it."
    )

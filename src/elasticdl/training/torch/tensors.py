"""Converts arrays to tensors and back, even of dtypes that NumPy lacks, such as bfloat16."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from elasticdl.data.batch import Arrays, describe, map_arrays
from elasticdl.errors import DefinitionError
from elasticdl.training.input_words import has_text, text_label_advice

# numpy lacks these dtypes: their bits are stored as integers of the same size.
_BITS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}


def batch_tensors(
    arrays: Arrays,
    device: torch.device,
    where: object,
    *,
    keeps_float64: bool = False,
    are_labels: bool = False,
    classes: Collection[str] = (),
) -> Any:
    """Copy a batch's features or labels into tensors on a device, keeping their structure.

    The copies share no memory with the arrays, because a module may change its arguments in place.
    Integers keep their dtype.

    Args:
        arrays: The features or labels.
        device: Device of the tensors.
        where: Prefix of the error: `file:line` of the input function.
        keeps_float64: Whether float64, numpy's default for plain numbers, stays float64; otherwise
            it becomes torch's default dtype.
        are_labels: Whether the arrays are labels, for the error.
        classes: The names of the classes in the model file, for the error.

    Raises:
        DefinitionError: An array does not hold numbers.
    """

    def one(array: Any) -> torch.Tensor:
        if array.dtype.kind not in "biufc":
            raise DefinitionError(
                f"{where}: the input function returns {'labels ' if are_labels else ''}"
                f"{describe(arrays)}; PyTorch accepts only numbers."
                + (
                    f"\n  {text_label_advice(arrays, classes=classes)}"
                    if are_labels and has_text(array)
                    else " Convert strings to numbers there."
                )
            )
        # A copy, because a module may change its arguments in place.
        if device.type == "cpu":
            tensor = torch.from_numpy(np.array(array, order="C"))
        else:
            tensor = _on_gpu(array, device)
        if tensor.dtype == torch.float64 and not keeps_float64:
            tensor = tensor.to(torch.get_default_dtype())
        return tensor

    return map_arrays(one, arrays)


def _on_gpu(array: np.ndarray[Any, Any], device: torch.device) -> torch.Tensor:
    """Start copying an array to a GPU, without waiting for the GPU's pending work."""
    dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
    # Only a copy from pinned memory runs in the background. PyTorch reuses that memory, and not
    # before the copy has ended.
    pinned = torch.empty(array.shape, dtype=dtype, pin_memory=True)
    np.copyto(pinned.numpy(), array)
    return pinned.to(device, non_blocking=True)


def to_array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return a copy of a tensor, bit for bit; bfloat16 and similar types as dtypes of ml_dtypes."""
    tensor = tensor.detach()
    # The momentum of sparse gradients is itself sparse, and so may the adjacency of a graph be.
    dense = (tensor if tensor.layout == torch.strided else tensor.to_dense()).cpu().contiguous()
    if dense.dtype not in _BITS:
        return np.array(dense.numpy())
    import ml_dtypes  # noqa: PLC0415 - only such tensors need it

    bits = np.array(dense.view(_BITS[dense.dtype]).numpy())
    dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, str(dense.dtype).removeprefix("torch.")))
    return bits.view(dtype)


def available_device(device: str) -> str:
    """Return the device on which to restore a checkpoint's tensor on this machine.

    Args:
        device: Type of the device that the tensor was on. It is returned as it is, except for a GPU
            on a machine without one: then the result is the CPU.
    """
    return device if device == "cpu" or torch.cuda.is_available() else "cpu"


def to_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return a tensor with a copy of an array that `to_array` returned, bit for bit."""
    for dtype, bits in _BITS.items():
        if array.dtype.name == str(dtype).removeprefix("torch."):
            whole = np.array(array, order="C").view(f"i{array.itemsize}")
            return torch.from_numpy(whole).view(bits).view(dtype)
    return torch.from_numpy(np.array(array, order="C"))


def parts_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return dense tensors that contain all data of a tensor: for a sparse one, indices and values.

    The result is empty for a layout that is not supported.
    """
    if tensor.layout == torch.strided:
        return [tensor]
    if tensor.layout == torch.sparse_coo:
        return [tensor._indices(), tensor._values()]  # noqa: SLF001 - the public ones need coalesce
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return []


def assign_array(tensor: torch.Tensor, array: np.ndarray[Any, Any]) -> None:
    """Set a tensor to the values of an array that `to_array` returned, in the tensor's own layout.

    A sparse tensor that already has these values is left as it is. Setting it could reorder its
    entries and drop those that are 0, because a dense array does not contain this information; sums
    over the entries would then be rounded differently.
    """
    if tensor.layout == torch.strided:
        tensor.copy_(to_tensor(array))
    elif to_array(tensor).tobytes() != array.tobytes():
        sparse = to_tensor(array).to_sparse(layout=tensor.layout)
        # Without it, the compressed layouts accept only as many entries as they have.
        tensor.resize_as_sparse_(sparse.to(tensor)).copy_(sparse)

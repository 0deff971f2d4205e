"""Size limits of model files: declared sizes are bounded by the file's real size before allocation.

Loaders of Keras, TensorFlow and PyTorch allocate what a file declares and compare it with the
file's bytes afterwards, or never: a file of one kilobyte can declare a layer of 14 GB. Therefore,
`check` is called with each declared size first:

    zip archives            sum of the unpacked members
    HDF5                    datasets, their chunks, compressed chunks
    pickles of PyTorch      storages and tensors; pickles that construct layers are rejected
    torch.export            tensors of the weights and constants; sizes in the graph
    SavedModel              constants of the graph, variables of the checkpoint
    Keras                   each weight that a layer creates while the model is built

Trust (`trust.py`) does not lift these bounds. The memory of computations is not bounded here: a
layer that repeats or pads its input may need more memory than is available.

Callers: `archive.py`, `hdf5.py`, `file_format.py`, `pickle_sizes.py`, `saved_model.py`,
`tf_keras.py`, `torch_sizes.py`, `weight_limits.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elasticdl.errors import ModelFileError

MAX_BYTES = 8 * 2**30
"""Size limit of a file that is loaded, and of the memory that its content takes."""

MAX_EXPANSION = 20
"""Maximum ratio of memory to size on disk. Files that the libraries write have 1 to 8."""

FREE_BYTES = 64 * 2**20
"""Memory that any file may claim, whatever its size: zeros compress well, and this is harmless."""


def allowed_bytes(held_bytes: int) -> int:
    """Return how much memory loading a file may allocate, by its size on disk.

    Args:
        held_bytes: Size on disk; for a folder, the size of all its files.
    """
    return min(MAX_BYTES, max(FREE_BYTES, MAX_EXPANSION * held_bytes))


def check(path: Path, what: str, claimed_bytes: int, held_bytes: int) -> None:
    """Reject a file whose declared sizes need more memory than `allowed_bytes`.

    Args:
        path: The file, for the error.
        what: The part that declares the size, as the singular subject of a sentence: "weight_0
            in it".
        claimed_bytes: Memory that this part would take, or the total of all parts so far.
        held_bytes: Size of the file on disk.

    Raises:
        ModelFileError: `claimed_bytes` is more than `allowed_bytes`.
    """
    allowed = allowed_bytes(held_bytes)
    if claimed_bytes <= allowed:
        return
    raise ModelFileError(
        f"{path}: {what} claims {_in_words(claimed_bytes)} bytes of memory; a file of "
        f"{held_bytes:,} bytes may claim {allowed:,}. The file is damaged or was built to exhaust "
        "memory; nothing was allocated. Save the model again."
    )


def num_values(shape: Iterable[int]) -> int:
    """Return the number of values of a tensor, capped at a number that no file can hold.

    Args:
        shape: Shape of the tensor; a negative size, which means an unknown one, counts as 1.
    """
    total = 1
    for size in shape:
        if size == 0:
            return 0
        # Sizes here are integers of any length, and multiplying them takes time.
        total = min(total * min(max(size, 1), _MOST), _MOST)
    return total


_MOST = 2**63


def _in_words(num_bytes: int) -> str:
    return f"{num_bytes:,}" if num_bytes < _MOST else "more than 9 * 10^18"

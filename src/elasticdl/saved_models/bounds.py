"""Sizes of model files: what a file claims is bounded by what it holds, before anything allocates.

Loaders of Keras, TensorFlow and PyTorch allocate what a file declares and compare it with the
file's bytes afterwards, or never: a kilobyte is enough for a layer of 14 GB. Each place where a
size is declared is therefore checked by `check` first:

    zip archives            sum of the unpacked members
    HDF5                    datasets, their chunks, compressed chunks
    pickles of PyTorch      storages and tensors; a layer is never called by a pickle
    torch.export            tensors of the weights and constants; sizes in the graph
    SavedModel              constants of the graph, variables of the checkpoint
    Keras                   each weight that a layer creates while the model is built

Trust (`trust.py`) does not lift these bounds. What a model computes is not bounded here: a layer
that repeats or pads its input may need more memory than there is.

Callers: `archive.py`, `hdf5.py`, `model_file.py`, `pickles.py`, `saved_model.py`, `tf_keras.py`,
`torch_sizes.py`, `weights.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from elasticdl.errors import ModelFileError

MAX_BYTES = 8 * 2**30
"""The largest file that is loaded, and the most it may be in memory."""

MAX_EXPANSION = 20
"""How many times its size on disk a file may be in memory. What the libraries write is 1 to 8."""

FREE_BYTES = 64 * 2**20
"""A small file may claim this in any case: zeros compress well, and harm nobody in this size."""


def allowed_bytes(held_bytes: int) -> int:
    """Return how many bytes a file may claim.

    Args:
        held_bytes: Its size on disk; of a folder, that of all its files.
    """
    return min(MAX_BYTES, max(FREE_BYTES, MAX_EXPANSION * held_bytes))


def check(path: Path, what: str, claimed_bytes: int, held_bytes: int) -> None:
    """Refuse a file that claims more than it may.

    Args:
        path: The file, for the error.
        what: The part that claims, as the subject of a sentence in the singular: "weight_0 in it".
        claimed_bytes: How much memory that would take, or all parts so far.
        held_bytes: Size of the file on disk.

    Raises:
        ModelFileError: It claims more than `allowed_bytes`.
    """
    allowed = allowed_bytes(held_bytes)
    if claimed_bytes <= allowed:
        return
    raise ModelFileError(
        f"{path}: {what} claims {_in_words(claimed_bytes)} bytes of memory; a file of "
        f"{held_bytes:,} bytes may claim {allowed:,}. The file is damaged or was made to fill the "
        "memory; nothing was allocated. Save the model again."
    )


def num_values(shape: Iterable[int]) -> int:
    """Return how many numbers a shape has; stops counting where no file could hold them.

    Args:
        shape: Sizes; negative ones count as 1, as an open dimension does.
    """
    total = 1
    for size in shape:
        if size == 0:
            return 0
        # Sizes are numbers of any length here, and their product costs time.
        total = min(total * min(max(size, 1), _MOST), _MOST)
    return total


_MOST = 2**63


def _in_words(num_bytes: int) -> str:
    return f"{num_bytes:,}" if num_bytes < _MOST else "more than 9 * 10^18"

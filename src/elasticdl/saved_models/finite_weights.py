"""Rejects a model file whose weights are not finite real numbers; the error names the weight.

A job that starts from NaN fails at its first loss, with an error that does not name the file. A
library that reads complex numbers into real weights drops their imaginary parts. Therefore the
weights are checked once, in `loading.py`, through which all weights of model files are loaded. A
job that resumes has the weights of its checkpoint, which are not checked here.

Callers: `loading.py`, `hdf5.py`, `torch.py`. No framework is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.errors import ModelFileError

# Integers, booleans, strings.
_ALWAYS_FINITE = frozenset("biuSUO")


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight of a loaded model.

    Attributes:
        name: Name of the weight in Keras or PyTorch.
        values: Its numbers; they must not be changed.
        may_be_infinite: Whether infinities are allowed, as in the mask of a user's layer. They are
            never allowed in the layers of Keras or PyTorch itself.
    """

    name: str
    values: np.ndarray[Any, Any]
    may_be_infinite: bool = False


def check_finite(path: Path, weights: Iterable[Weight]) -> None:
    """Reject a model whose weights hold NaN, or infinity where it is not allowed.

    Args:
        path: The file that the weights came from, for the error.
        weights: Weights of the loaded model; checked one by one.

    Raises:
        ModelFileError: A weight holds NaN, or an infinity although it may not be infinite.
    """
    for weight in weights:
        if weight.values.dtype.kind in _ALWAYS_FINITE or np.isfinite(weight.values).all():
            continue
        num_nan = int(np.isnan(weight.values).sum())
        num_infinite = 0 if weight.may_be_infinite else int(np.isinf(weight.values).sum())
        found = [f"{num_nan:,} NaN"] if num_nan else []
        if num_infinite:
            found.append(f"{num_infinite:,} infinite number{'s' if num_infinite > 1 else ''}")
        if found:
            raise ModelFileError(
                f"{path}: {weight.name} holds {' and '.join(found)} among "
                f"{weight.values.size:,}. Save the model again from a step at which its loss was "
                "still finite, or replace these numbers."
            )


def complex_error(path: Path, name: str, num_values: int) -> ModelFileError:
    """Return the error for a weight that holds complex numbers where real ones are expected.

    Args:
        path: The file of the weight.
        name: Name of the weight.
        num_values: Number of complex values.
    """
    return ModelFileError(
        f"{path}: {name} holds {num_values:,} complex numbers; expected real ones: their imaginary "
        "parts would be dropped. Save real weights, or pairs of real numbers."
    )

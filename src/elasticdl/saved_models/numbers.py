"""Refuses weights of a file that are no finite real numbers, by name and count.

A training that starts from NaN ends at its first loss without a word of the file, and a library
that reads complex numbers into real weights drops their imaginary parts. So the weights are looked
at once, in `loading.py`, where all weights of files come in. A training that goes on from its own
checkpoint does not load them.

Callers: `loading.py`, `hdf5.py`, `torch.py`. No framework is imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.errors import ModelFileError

# Whole numbers, booleans, texts.
_ALWAYS_FINITE = frozenset("biuSUO")


@dataclass(frozen=True, eq=False)
class Weight:
    """A weight of a loaded model.

    Attributes:
        name: As its library calls it.
        values: Its numbers; not changed.
        may_be_infinite: It is no weight of the library's own layers, but may be a mask.
    """

    name: str
    values: np.ndarray[Any, Any]
    may_be_infinite: bool = False


def check_finite(path: Path, weights: Iterable[Weight]) -> None:
    """Refuse NaN and infinity.

    Args:
        path: The file that the weights came from, for the error.
        weights: Those of the loaded model; looked at one by one.

    Raises:
        ModelFileError: A weight holds NaN, or an infinity that is no mask.
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


def refuse_complex(path: Path, name: str, num_values: int) -> ModelFileError:
    """Return the error for complex numbers where weights are real.

    Args:
        path: The file.
        name: What holds them.
        num_values: How many they are.
    """
    return ModelFileError(
        f"{path}: {name} holds {num_values:,} complex numbers; expected real ones: their imaginary "
        "parts would be dropped. Save real weights, or pairs of real numbers."
    )

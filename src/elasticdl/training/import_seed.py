"""Import seed: seeds the random numbers that a user's file draws at its top level.

    FEATURES = np.random.normal(size=(8, 16))       a matrix that the input function uses

Each process imports the file for itself: after a kill, on a worker, when the trained model is
evaluated. Without a seed, each would draw different values. Frameworks that the file imports are
seeded as soon as they are loaded (`create.quiet_frameworks`). Afterwards the state of Python's and
NumPy's generators is restored.

Callers: `engines/`, around the import of a model file.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

# Keras has no public name for it.
_KERAS_GENERATOR = "global_seed_generator"

_seeds: list[int] = []


@contextlib.contextmanager
def seeded_import(seed: int) -> Iterator[None]:
    """Seed the global random generators for a file that is imported in the block.

    Args:
        seed: The training job's seed; a process that uses its trained model passes the same seed.
    """
    with kept_state(), _seeding_keras():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - users call np.random.*
        _seeds.append(seed)
        try:
            for name in ("tensorflow", "torch"):
                seed_loaded(name)
            yield
        finally:
            _seeds.pop()


@contextlib.contextmanager
def kept_state() -> Iterator[None]:
    """Restore the state of the generators of Python and NumPy after the block.

    Frameworks draw random numbers while they are loaded, and only some processes load them here.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - as above
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - as above


def seed_loaded(framework: str) -> None:
    """Seed a framework that was loaded in the block of `seeded_import`; elsewhere do nothing."""
    module = sys.modules.get(framework)
    if not _seeds or module is None:
        return
    if framework == "torch":
        module.manual_seed(_seeds[-1])
    elif framework == "tensorflow":
        # Another thread may still be loading it.
        with contextlib.suppress(AttributeError):
            module.random.set_seed(_seeds[-1])


@contextlib.contextmanager
def _seeding_keras() -> Iterator[None]:
    """Let Keras recreate its global generator, with a seed drawn from Python's generator."""
    attributes: Any = sys.modules.get("keras.src.backend.common.global_state")
    if attributes is None:
        yield
        return
    before = attributes.get_global_attribute(_KERAS_GENERATOR)
    attributes.set_global_attribute(_KERAS_GENERATOR, None)
    try:
        yield
    finally:
        attributes.set_global_attribute(_KERAS_GENERATOR, before)

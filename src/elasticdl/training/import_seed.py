"""Import seed: seeds the random numbers that a user's file draws at its top level.

    FEATURES = np.random.normal(size=(8, 16))       a matrix that the input function uses

Each process imports the file for itself: each worker, a restart after a kill, an evaluation of
the trained model. Without a seed, each would draw different values. Frameworks that the file
imports are seeded as soon as they are loaded (`create.quiet_frameworks`). After the import, the
state of Python's and NumPy's generators is restored.

Keras counts layers to name them: "dense", "dense_1". The count restarts for the import, and a model
that is created later continues it, so each process gives a layer the same name:

    hidden = keras.layers.Dense(8)              "dense" in each process
    def custom_model(): ... Dense(1)            "dense_1", as in a script

Callers: `engines/`, around the import of a model file; `keras/process_settings.py`
and `dialects/keras_class.py` for the layer names; `dialects/framework_seeds.py` for the seed.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

# Keras has no public names for them.
_KERAS_STATE = "keras.src.backend.common.global_state"
_KERAS_GENERATOR = "global_seed_generator"
_KERAS_NAMES = "object_name_uids"

_seeds: list[int] = []
# Names that Keras gave to the layers at the top level of the last file: prefix -> how many.
_names: dict[str, int] = {}


@contextlib.contextmanager
def seeded_import(seed: int) -> Iterator[None]:
    """Context manager that seeds the global random generators for importing a file in its block.

    Args:
        seed: The training job's seed; a process that uses its trained model passes the same seed.
    """
    with kept_state(), _seeding_keras(), _naming_layers():
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 - users call np.random.*
        _seeds.append(seed)
        try:
            for name in ("tensorflow", "torch"):
                seed_loaded(name)
            yield
        finally:
            _seeds.pop()


def seed_of_import() -> int | None:
    """Return the seed of the block of `seeded_import` that is being run; None outside of it."""
    return _seeds[-1] if _seeds else None


@contextlib.contextmanager
def kept_state() -> Iterator[None]:
    """Context manager that restores the random generators of Python and NumPy after its block.

    Import a framework in the block. Frameworks draw random numbers while they are imported, which
    would change all later draws of a process that imports one at another time.
    """
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - as above
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002 - as above


def seed_loaded(framework: str) -> None:
    """Seed a framework that has just been imported in the block of `seeded_import`.

    Outside of such a block, it does nothing.
    """
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
    """Context manager in whose block Keras has a new global generator, seeded from `random`.

    Afterwards it has its own generator again.
    """
    attributes: Any = sys.modules.get(_KERAS_STATE)
    if attributes is None:
        yield
        return
    before = attributes.get_global_attribute(_KERAS_GENERATOR)
    attributes.set_global_attribute(_KERAS_GENERATOR, None)
    try:
        yield
    finally:
        attributes.set_global_attribute(_KERAS_GENERATOR, before)


@contextlib.contextmanager
def _naming_layers() -> Iterator[None]:
    """Context manager that restarts Keras' automatic layer names, and records the counters used."""
    attributes: Any = sys.modules.get(_KERAS_STATE)
    before = None if attributes is None else attributes.get_global_attribute(_KERAS_NAMES)
    if attributes is not None:
        attributes.set_global_attribute(_KERAS_NAMES, None)
    _names.clear()
    try:
        yield
    finally:
        # The file may have imported Keras.
        attributes = sys.modules.get(_KERAS_STATE)
        if attributes is not None:
            _names.update(attributes.get_global_attribute(_KERAS_NAMES) or {})
            attributes.set_global_attribute(_KERAS_NAMES, before)


@contextlib.contextmanager
def without_counting_layers() -> Iterator[None]:
    """Context manager that restores Keras' counters for automatic layer names after its block.

    For a model that is created only for inspection, so that the model to be trained, created
    later, gets the same layer names.
    """
    attributes: Any = sys.modules[_KERAS_STATE]
    before = dict(attributes.get_global_attribute(_KERAS_NAMES) or {})
    try:
        yield
    finally:
        attributes.set_global_attribute(_KERAS_NAMES, defaultdict(int, before))


def continue_layer_names() -> None:
    """Set Keras' counters for automatic layer names to their values after the user's file ran.

    A model that is created next gets the names that it would get in a script with the file's code.
    """
    attributes: Any = sys.modules[_KERAS_STATE]
    attributes.set_global_attribute(_KERAS_NAMES, defaultdict(int, _names))

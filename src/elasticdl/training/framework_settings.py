"""Restores a framework's process-wide settings and global random number generators after a job.

A trainer makes its framework deterministic for the whole process. In a user's script or notebook
that would outlive the job: TensorFlow, for example, then refuses `tf.random.uniform` without a
seed. A job also seeds the generators of Python, NumPy and the frameworks, and draws from them; a
script that creates its own models after it would draw the same numbers in each run, without
having set a seed.

    with framework_settings.restored():
        ...  # create and use trainers
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_lock = threading.Lock()
_num_jobs = 0
_generators: tuple[Any, ...] = ()


@contextmanager
def restored() -> Iterator[None]:
    """Context manager that undoes process-wide settings of jobs, and restores random generators.

    If such blocks overlap in several threads, it does so at the end of the last one. A framework
    that was first loaded in a block is then seeded at random.
    """
    global _num_jobs, _generators  # noqa: PLW0603 - as global as the settings
    with _lock:
        if not _num_jobs:
            _generators = _random_state()
        _num_jobs += 1
    # Keras has generators for each thread.
    kerases = _keras_state()
    try:
        yield
    finally:
        _restore_keras(kerases)
        with _lock:
            _num_jobs -= 1
            if not _num_jobs:
                _restore_settings()
                _restore_generators(*_generators)


def _restore_settings() -> None:
    for framework in ("keras", "torch"):
        # A module that was never imported has set nothing, and its import takes seconds.
        module = sys.modules.get(f"elasticdl.training.{framework}.determinism")
        if module is not None:
            module.restore()


def _random_state() -> tuple[Any, ...]:
    tensorflows = torchs = None
    if "tensorflow" in sys.modules:
        from elasticdl.data import tensorflow  # noqa: PLC0415 - only where it is loaded

        tensorflows = tensorflow.random_state()
    if "torch" in sys.modules:
        from elasticdl.data import torch_random  # noqa: PLC0415 - only where it is loaded

        torchs = torch_random.random_state()
    numpys = np.random.get_state()  # noqa: NPY002 - users call np.random.*
    return random.getstate(), numpys, tensorflows, torchs


def _restore_generators(pythons: Any, numpys: Any, tensorflows: Any, torchs: Any) -> None:
    if "tensorflow" in sys.modules:
        from elasticdl.data import tensorflow  # noqa: PLC0415 - only where it is loaded

        tensorflow.set_random_state(tensorflows or (None, None))
        tensorflow.forget_kernels()
    if "torch" in sys.modules:
        from elasticdl.data import torch_random  # noqa: PLC0415 - only where it is loaded

        torch_random.set_random_state(torchs)
    # Last, because an import may draw.
    random.setstate(pythons)
    np.random.set_state(numpys)  # noqa: NPY002 - as above


def _keras_state() -> Any:
    if not {"keras", "tensorflow"} <= sys.modules.keys():
        return None
    from elasticdl.data import keras_random  # noqa: PLC0415 - only where it is loaded

    return keras_random.random_state()


def _restore_keras(state: Any) -> None:
    if {"keras", "tensorflow"} <= sys.modules.keys():
        from elasticdl.data import keras_random  # noqa: PLC0415 - only where it is loaded

        keras_random.set_random_state(state or (None, None, None))

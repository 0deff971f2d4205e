"""Restores a framework's process-wide settings after a job.

A trainer makes its framework deterministic for the whole process. In a user's script or notebook
that would outlive the job: TensorFlow, for example, then refuses `tf.random.uniform` without a
seed.

    with framework_settings.restored():
        ...  # create and use trainers
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_num_jobs = 0


@contextmanager
def restored() -> Iterator[None]:
    """Undo on exit what trainers have set for the whole process.

    While jobs run in several threads, the exit of the last one undoes it.
    """
    global _num_jobs  # noqa: PLW0603 - as global as the settings
    with _lock:
        _num_jobs += 1
    try:
        yield
    finally:
        with _lock:
            _num_jobs -= 1
            if not _num_jobs:
                _restore()


def _restore() -> None:
    for framework in ("keras", "torch"):
        # A module that was never imported has set nothing, and its import takes seconds.
        module = sys.modules.get(f"elasticdl.training.{framework}.determinism")
        if module is not None:
            module.restore()

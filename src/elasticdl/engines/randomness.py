"""Seeds the random numbers that user code draws, so that other threads do not affect them.

User code that prepares batches draws from the global generators of Python, NumPy and TensorFlow,
and batches for training and for evaluation are prepared in different threads. So a thread locks
these generators while it prepares a batch. `seeded` seeds them for one block of code. `Stream`
continues one sequence over several blocks: it restores the state at the end of its last block.

PyTorch's global generator and the generators of Keras' layers cannot be locked, because the model
draws from them at the same time. Within a block, user code draws from separate PyTorch and Keras
generators instead.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from elasticdl.training.generators import making_batch

T = TypeVar("T")

# Reentrant, because code that draws may call other code that does.
_one_at_a_time = threading.RLock()
# Recurring seeds with which TensorFlow's eager operations have drawn in this process.
_drawn: set[int] = set()


def reseed(seed: int) -> None:
    """Seed the global random number generators of Python, NumPy and TensorFlow."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - users call np.random.*
    if "tensorflow" in sys.modules:
        from elasticdl.data import tensorflow  # noqa: PLC0415 - already imported if needed

        tensorflow.reseed(seed)


def forget_kernels() -> None:
    """Discard TensorFlow's compiled kernels, which keep their positions in their random sequences.

    After that, the same seed gives the same random numbers again.
    """
    if "tensorflow" in sys.modules:
        from elasticdl.data import tensorflow  # noqa: PLC0415 - already imported if needed

        tensorflow.forget_kernels()


@contextlib.contextmanager
def seeded(seed: int, *, recurs: bool = False) -> Iterator[None]:
    """Context manager that seeds the global random number generators and locks them for its block.

    Other threads that use this context manager or a `Stream` wait until the block ends.

    Args:
        seed: The seed.
        recurs: Whether several blocks use this seed and must draw the same numbers, such as one
            block in each evaluation.
    """
    with _one_at_a_time:
        if seed in _drawn:
            forget_kernels()
        reseed(seed)
        before = _tensorflows() if recurs else None
        try:
            with _drawing_from(_torchs(seed), _keras(seed)), making_batch():
                yield
        finally:
            if recurs and _tensorflows() != before:
                _drawn.add(seed)


class Stream:
    """A sequence of pseudo-random numbers that several separate blocks of code continue.

    Use it as `stream = Stream(seed)`, then `with stream(): ...`. Each block continues where the
    last one ended, even if other code used the global generators in between.

    Args:
        seed: Seed of the sequence.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._state: Any = None
        self._torchs: Any = None
        self._keras: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Context manager whose block draws the next numbers of the sequence.

        It locks the global random number generators for this thread during the block.
        """
        with _one_at_a_time:
            if self._state is None:
                reseed(self._seed)
            else:
                _restore(self._state)
            # The pipeline itself may import a framework.
            self._torchs = self._torchs or _torchs(self._seed)
            self._keras = self._keras or _keras(self._seed)
            try:
                with _drawing_from(self._torchs, self._keras), making_batch():
                    yield
            finally:
                self._state = _state()

    def drawn(self, begin: Callable[[], Iterator[T]]) -> Iterator[T]:
        """Yield the items of `begin()`, whose code draws its random numbers from this sequence.

        The global generators are locked only while an item is created, not while the caller uses
        it.

        Args:
            begin: Function that returns an iterator, such as a user's data pipeline.
        """
        with self():
            items = begin()
        while True:
            with self():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item


def _torchs(seed: int) -> Any:
    if "torch" not in sys.modules:
        return None
    from elasticdl.data import torch_random  # noqa: PLC0415 - already imported if needed

    return torch_random.generator_from(seed)


def _keras(seed: int) -> Any:
    if "keras" not in sys.modules:
        return None
    from elasticdl.data import keras_random  # noqa: PLC0415 - already imported if needed

    return keras_random.Substitutes(seed)


@contextlib.contextmanager
def _drawing_from(torchs: Any, kerases: Any) -> Iterator[None]:
    """Context manager that makes PyTorch and Keras draw from the given generators in this thread.

    Args:
        torchs: The PyTorch generator; None if PyTorch is not imported.
        kerases: The generators that replace those of Keras' layers; None if Keras is not imported.
    """
    with contextlib.ExitStack() as stack:
        if torchs is not None:
            from elasticdl.data import torch_random  # noqa: PLC0415 - already imported

            stack.enter_context(torch_random.UseGenerator(torchs))
        if kerases is not None:
            from elasticdl.data import keras_random  # noqa: PLC0415 - already imported

            stack.enter_context(keras_random.substituted(kerases))
        yield


def _state() -> Any:
    numpys = np.random.get_state()  # noqa: NPY002 - users call np.random.*
    return random.getstate(), numpys, _tensorflows()


def _restore(state: Any) -> None:
    pythons, numpys, tensorflows = state
    random.setstate(pythons)
    np.random.set_state(numpys)  # noqa: NPY002 - as above
    if tensorflows is not None:
        from elasticdl.data import tensorflow  # noqa: PLC0415 - already imported

        tensorflow.set_random_state(tensorflows)


def _tensorflows() -> Any:
    if "tensorflow" not in sys.modules:
        return None
    from elasticdl.data import tensorflow  # noqa: PLC0415 - already imported if needed

    return tensorflow.random_state()

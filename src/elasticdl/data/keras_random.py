"""Random numbers of Keras in users' input functions, drawn from substitutes of its generators.

Everything in Keras that draws, `keras.random.normal` as well as a layer such as `RandomFlip` or
`MixUp`, takes its seeds from a `SeedGenerator`, which counts on from one batch to the next: one
that belongs to a layer, one that the user's file creates, or one of the thread. Their counts are
in no checkpoint, and a model may use the same layer in another thread. So in the thread that
prepares batches, and only there, a substitute gives the seeds in place of each generator. Each
batch or pipeline has its own substitutes.

Callers: `engines/randomness.py`, where Keras is loaded anyway.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf


class _Thread(threading.local):
    substitutes: Substitutes | None = None


_thread = _Thread()


class Substitutes:
    """Generators that replace those of Keras while a batch is prepared, or a pipeline read.

    Args:
        seed: Determines their numbers. Generators that the user gave the same seed draw the same,
            as in Keras: an image and its mask are flipped alike.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        # The generators are kept, so that no id is used again.
        self._found: dict[int, tuple[Any, keras.random.SeedGenerator]] = {}
        self._num_unseeded = 0

    def of(self, generator: Any) -> keras.random.SeedGenerator:
        """Return the generator that draws in place of another one."""
        if id(generator) not in self._found:
            self._found[id(generator)] = generator, self._new(generator.get_config()["seed"])
        return self._found[id(generator)][1]

    def _new(self, users: int | None) -> keras.random.SeedGenerator:
        if users is None:
            # Counted, because the seed that Keras chose may be another one in each process.
            self._num_unseeded += 1
        key = (self._num_unseeded, 0) if users is None else (users % 2**64, 1)
        entropy = np.random.SeedSequence([self._seed % 2**64, *key])
        # A pipeline's functions may be traced, and a variable created in a graph would be lost.
        with tf.init_scope():
            return keras.random.SeedGenerator(int(entropy.generate_state(1)[0] % 2**31))


@contextlib.contextmanager
def substituted(substitutes: Substitutes) -> Iterator[None]:
    """Let the generators of Keras be replaced in this thread while the block runs."""
    _install()
    before, _thread.substitutes = _thread.substitutes, substitutes
    try:
        yield
    finally:
        _thread.substitutes = before


@functools.cache
def _install() -> None:
    """Make each thread ask for substitutes when a generator is asked for its next seed."""
    kind = keras.random.SeedGenerator
    own_next = kind.next

    @functools.wraps(own_next)
    def next_seed(self: Any, *args: Any, **named: Any) -> Any:
        substitutes = _thread.substitutes
        return own_next(self if substitutes is None else substitutes.of(self), *args, **named)

    kind.next = next_seed

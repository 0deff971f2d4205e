"""Makes Keras's random numbers in users' input functions depend only on a given seed.

Everything in Keras that draws random numbers, such as `keras.random.normal` or a `RandomFlip`
layer, takes its seeds from a `SeedGenerator`. That generator belongs to a layer, to the user's
model file or to the thread, and its state advances from batch to batch. No checkpoint contains this
state, so a batch that is made again after a restart would have other random numbers. A model may
also use the same layer in another thread. So in the thread that prepares batches, and only there, a
substitute replaces each generator. Each batch or pipeline has its own substitutes.

Callers: `engines/randomness.py` and `training/framework_settings.py`, where Keras is loaded anyway.
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

# Keras has no public names for the seed and the generator of a thread.
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED


class _Thread(threading.local):
    substitutes: Substitutes | None = None


_thread = _Thread()


class Substitutes:
    """Creates the generators that replace those of Keras for one batch or one pipeline.

    Args:
        seed: Determines the numbers that the new generators draw. If the user gave two Keras
            generators the same seed, their substitutes draw the same numbers, as in Keras: an image
            and its mask are flipped alike.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        # The generators are kept, so that no id is used again.
        self._found: dict[int, tuple[Any, keras.random.SeedGenerator]] = {}
        self._num_unseeded = 0

    def of(self, generator: Any) -> keras.random.SeedGenerator:
        """Return the substitute for a Keras generator, creating it at the first call."""
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
    """Context manager in which Keras draws from `substitutes` instead of its own generators.

    It affects only the current thread.
    """
    _install()
    before, _thread.substitutes = _thread.substitutes, substitutes
    try:
        yield
    finally:
        _thread.substitutes = before


@functools.cache
def _install() -> None:
    """Patch `SeedGenerator.next` to use the substitutes of the calling thread, if it has any."""
    kind = keras.random.SeedGenerator
    own_next = kind.next

    @functools.wraps(own_next)
    def next_seed(self: Any, *args: Any, **named: Any) -> Any:
        substitutes = _thread.substitutes
        return own_next(self if substitutes is None else substitutes.of(self), *args, **named)

    kind.next = next_seed


def random_state() -> Any:
    """Return what determines Keras's random numbers in this thread, to restore it later.

    Returns:
        For `set_random_state`: the global seed, the global `SeedGenerator`, and its state.
    """
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    count = generator and keras.ops.convert_to_numpy(generator.state)
    return global_state.get_global_attribute(GLOBAL_RANDOM_SEED), generator, count


def set_random_state(state: Any) -> None:
    """Restore the state that `random_state` returned.

    `(None, None, None)` restores the state of a new process.
    """
    seed, generator, count = state
    global_state.set_global_attribute(GLOBAL_RANDOM_SEED, seed)
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
    if generator is not None:
        generator.state.assign(count)

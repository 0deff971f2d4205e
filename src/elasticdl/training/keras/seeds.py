"""Seeds steps, so that all randomness of a step is a function of (seed, step, rank) only.

    layers, and draws outside layers       seed variables, set within the compiled step
    NumPy and Python in uncompiled code    `training/generators.py`, seeded before it is called

Callers: `trainer.py`.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from elasticdl.sharding.permutation import derive_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.training.generators import Generators

_UPDATE = zlib.crc32(b"update")


class StepSeeder:
    """Seeds all random generators that a model uses.

    Args:
        seed: Seed of the job.
        variables: The variables that determine the next draws, in a fixed order; the last one is
            for draws outside layers.
        generators: The random number generators that Python code draws from.
    """

    def __init__(self, seed: int, variables: Sequence[Any], generators: Generators) -> None:
        self._seed, self.variables, self._generators = seed, variables, generators
        # The number that a step's seed is derived from, for each variable.
        self._numbers = list(range(len(variables)))
        self._initial = [tuple(np.ravel(variable.numpy()).tolist()) for variable in variables]

    def share(self, call: Callable[[], None]) -> None:
        """Let generators draw alike whose states are equal now, as layers with the same seed do.

        In Keras, two such generators draw the same numbers as long as they are used equally often.
        Here, they do if they are used equally often in a step; otherwise they remain different.

        Args:
            call: Function () that calls the model in training mode, uncompiled. It is called only
                if there are such generators.
        """
        # The last variable is not a generator of the model.
        states = self._initial[:-1]
        if len(set(states)) == len(states):
            return
        for variable in self.variables[:-1]:
            variable.assign(tf.zeros_like(variable))
        call()
        # Each use changes the state.
        used = [tuple(np.ravel(variable.numpy()).tolist()) for variable in self.variables[:-1]]
        keys = list(zip(states, used, strict=True))
        self._numbers[:-1] = [keys.index(key) for key in keys]

    def set(self, at: tf.Tensor) -> None:
        """Seed a step from the job's seed, the step's number and the rank.

        Sets the seed variables; outside of compiled code, also the generators of Python code.

        Args:
            at: Step and rank, int64 [2].
        """
        step, rank = at[0], at[1]
        if tf.executing_eagerly():
            self._generators.seed(derive_seed(self._seed, int(step), int(rank)))
        for number, variable in zip(self._numbers, self.variables, strict=True):
            values = tf.random.stateless_uniform(
                variable.shape,
                seed=tf.stack(
                    [step, rank * 2**32 + tf.constant(self._seed + (number << 48), tf.int64)]
                ),
                maxval=2**31 - 1,
                dtype=tf.int32,
            )
            variable.assign(tf.cast(values, variable.dtype))

    def set_for_update(self, step: tf.Tensor) -> None:
        """Seed the draws of an update, as a function of its number only: the same on all workers.

        Only optimizers and constraints may draw during an update. These do not belong to a layer,
        so only the last of the seed variables is set: the one for draws outside layers.

        Args:
            step: Number of the update, int64.
        """
        if tf.executing_eagerly():
            self._generators.seed(derive_seed(self._seed, _UPDATE, int(step)))
        variable = self.variables[-1]
        # Negative, because the steps of batches are not.
        seed = tf.stack([-1 - step, tf.constant(self._seed, tf.int64)])
        values = tf.random.stateless_uniform(
            variable.shape, seed=seed, maxval=2**31 - 1, dtype=tf.int32
        )
        variable.assign(tf.cast(values, variable.dtype))

    def of_moment(self, step: int, moment: str, number: int = 0) -> int:
        """Return a seed derived from the job's seed and the arguments; `drawing` explains these."""
        return derive_seed(self._seed, step, zlib.crc32(moment.encode()), number)

    @contextlib.contextmanager
    def drawing(self, step: int, moment: str, number: int = 0) -> Iterator[None]:
        """Context manager that seeds the random numbers which Python code draws in its block.

        The seed is derived from the job's seed and the arguments.

        Args:
            step: Number of the step.
            moment: The code that runs, such as the name of a callback's method.
            number: Number of the batch, if callbacks are called for a batch of an evaluation;
                otherwise 0.
        """
        self._generators.seed(self.of_moment(step, moment, number))
        with self._generators.used():
            yield

    def for_tracing(self) -> None:
        """Seed what Python code draws while a step is traced, identically on all workers.

        The seed leaves out the step, because workers do not all trace at the same step.
        """
        self._generators.seed(self._seed)

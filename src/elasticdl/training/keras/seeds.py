"""All randomness of a step as a function of (seed, step, slot), and of nothing before it.

    layers, and draws of no layer      seed variables, set within the compiled step
    NumPy and Python in uncompiled code    `training/generators.py`, seeded before it is called

Callers: `trainer.py`.
"""

from __future__ import annotations

import contextlib
import zlib
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from elasticdl.sharding.permutation import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elasticdl.training.generators import Generators

_UPDATE = zlib.crc32(b"update")


class Seeds:
    """Sets what a model draws from.

    Args:
        seed: Of the training.
        variables: Those that decide what is drawn next; their order is fixed, and the last one is
            that of draws of no layer.
        generators: What Python code draws from.
    """

    def __init__(self, seed: int, variables: Sequence[Any], generators: Generators) -> None:
        self._seed, self.variables, self._generators = seed, variables, generators

    def set(self, at: tf.Tensor) -> None:
        """Make all randomness of a step follow from its number.

        Args:
            at: Step and slot, int64 [2].
        """
        step, slot = at[0], at[1]
        if tf.executing_eagerly():
            self._generators.seed(derive_seed(self._seed, int(step), int(slot)))
        for number, variable in enumerate(self.variables):
            values = tf.random.stateless_uniform(
                variable.shape,
                seed=tf.stack(
                    [step, slot * 2**32 + tf.constant(self._seed + (number << 48), tf.int64)]
                ),
                maxval=2**31 - 1,
                dtype=tf.int32,
            )
            variable.assign(tf.cast(values, variable.dtype))

    def set_for_update(self, step: tf.Tensor) -> None:
        """Make what an update draws follow from its number alone, since all workers make the same.

        Optimizers and constraints draw in it. They are in no layer, so what is set is the last
        variable, that of draws of no layer.

        Args:
            step: Its number, int64.
        """
        if tf.executing_eagerly():
            self._generators.seed(derive_seed(self._seed, _UPDATE, int(step)))
        variable = self.variables[-1]
        # No step of a batch has a number below zero.
        seed = tf.stack([-1 - step, tf.constant(self._seed, tf.int64)])
        values = tf.random.stateless_uniform(
            variable.shape, seed=seed, maxval=2**31 - 1, dtype=tf.int32
        )
        variable.assign(tf.cast(values, variable.dtype))

    def of_moment(self, step: int, moment: str, number: int = 0) -> int:
        """Return a seed that is a function of the training's, the step and the moment.

        Args:
            step: See `drawing`, as the others.
            moment: See `drawing`.
            number: See `drawing`.
        """
        return derive_seed(self._seed, step, zlib.crc32(moment.encode()), number)

    @contextlib.contextmanager
    def drawing(self, step: int, moment: str, number: int = 0) -> Iterator[None]:
        """Make what Python code draws meanwhile a function of the seed, the step and the moment.

        Args:
            step: Number of the step.
            moment: What is done, such as the name of a callback's method.
            number: Which one of its kind.
        """
        self._generators.seed(self.of_moment(step, moment, number))
        with self._generators.used():
            yield

    def for_tracing(self) -> None:
        """Seed what Python code draws while a step is traced: the same on all workers.

        It is not the same step that is traced in each of them.
        """
        self._generators.seed(self._seed)

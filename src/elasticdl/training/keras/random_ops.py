"""Makes random numbers that user code draws outside layers reproducible after a resume.

These are calls of `tf.random.*`, and of `keras.random.*` without a seed. TensorFlow's operations
draw from states that cannot be read or set. Keras' functions without a seed draw from one generator
per thread. Steps would then draw different numbers after a resume, and the same on every worker.
While a step is traced, both are made to draw from a generator of the trainer instead. The trainer
sets the generator's state for every step, as it does for dropout layers. Draws that cannot be
replaced are rejected.

Callers: `trainer.py`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sysconfig
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

# Keras has no public name for the generator behind `seed=None`, nor TensorFlow for the hook by
# which its debugger observes operations.
from keras.src.backend.common import global_state
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR
from tensorflow.core.framework import attr_value_pb2
from tensorflow.python.framework import op_callbacks

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from elasticdl.definition import Origin

_log = logging.getLogger("elasticdl")

_LIBRARIES = (os.fspath(Path(__file__).parents[2]), sysconfig.get_path("stdlib"))
_SEED_VARIABLE = "seed_generator_state"
_REPLACED = "_elasticdl_replaced"
_ADVICE = (
    "Steps could not be reproduced after a resume, and all workers would draw the same numbers. "
    "Use keras.random, seeded by a keras.random.SeedGenerator that is an attribute of the layer; "
    "in an optimizer or a constraint, use it without a seed."
)

# Operation -> the same distribution, as a function of a seed.
_STATELESS: Mapping[str, Callable[[Sequence[Any], Any, Any], Any]] = {
    "RandomStandardNormal": lambda inputs, dtype, seed: tf.random.stateless_normal(
        inputs[0], seed, dtype=dtype
    ),
    "TruncatedNormal": lambda inputs, dtype, seed: tf.random.stateless_truncated_normal(
        inputs[0], seed, dtype=dtype
    ),
    "RandomUniform": lambda inputs, dtype, seed: tf.random.stateless_uniform(
        inputs[0], seed, dtype=dtype
    ),
    "RandomUniformInt": lambda inputs, dtype, seed: tf.random.stateless_uniform(
        inputs[0], seed, minval=inputs[1], maxval=inputs[2], dtype=dtype
    ),
    "RandomGamma": lambda inputs, dtype, seed: tf.random.stateless_gamma(
        tf.concat([inputs[0], tf.shape(inputs[1], inputs[0].dtype)], 0),
        seed,
        alpha=inputs[1],
        dtype=dtype,
    ),
    "RandomPoissonV2": lambda inputs, dtype, seed: tf.random.stateless_poisson(
        tf.concat([inputs[0], tf.shape(inputs[1], inputs[0].dtype)], 0),
        seed,
        lam=inputs[1],
        dtype=dtype,
    ),
    "Multinomial": lambda inputs, dtype, seed: tf.random.stateless_categorical(
        inputs[0], inputs[1], seed, dtype=dtype
    ),
    "RandomShuffle": lambda inputs, _dtype, seed: tf.random.experimental.stateless_shuffle(
        inputs[0], seed
    ),
}
# These draw too, from a state of their own or from a `tf.random.Generator`.
_REFUSED = frozenset(
    [
        "ParameterizedTruncatedNormal",
        "RandomPoisson",
        "SampleDistortedBoundingBox",
        "SampleDistortedBoundingBoxV2",
        "NonDeterministicInts",
        "LogUniformCandidateSampler",
        "UniformCandidateSampler",
        "LearnedUnigramCandidateSampler",
        "FixedUnigramCandidateSampler",
        "ThreadUnsafeUnigramCandidateSampler",
        "RngReadAndSkip",
        "RngSkip",
        "StatefulStandardNormal",
        "StatefulStandardNormalV2",
        "StatefulTruncatedNormal",
        "StatefulUniform",
        "StatefulUniformFullInt",
        "StatefulUniformInt",
        "StatefulRandomBinomial",
    ]
)


class RandomOpReplacer:
    """Makes one seedable generator the source of all random numbers drawn outside layers.

    Args:
        origin: Prefix for error messages.
        is_strict: Whether to reject draws that cannot be replaced. False for a model loaded by
            tf_keras, in which they are looked for when it is loaded (`saved_models/tf_keras.py`).
    """

    def __init__(self, origin: Origin, *, is_strict: bool = True) -> None:
        self._origin = origin
        self._is_strict = is_strict
        self._generator = keras.random.SeedGenerator(0, name="draws")
        self._replaced_first: str | None = None
        self._warned_of_callback = False

    @property
    def state(self) -> Any:
        """The variable with the generator's state, which determines the next random number."""
        return self._generator.state

    @contextlib.contextmanager
    def replaced(self) -> Iterator[None]:
        """Context manager that makes code traced in its block draw from this object's generator.

        This covers TensorFlow's operations and `keras.random` without a seed, in this thread. For
        code that runs without being traced, it covers `keras.random` only.

        Raises:
            DefinitionError: An operation that draws cannot be replaced.
        """
        before = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, self._generator)
        # Only while a function is traced: the hook cannot replace an operation that has already
        # run.
        is_tracing = tf.inside_function()
        if is_tracing:
            op_callbacks.add_op_callback(self._replace)
        try:
            yield
        finally:
            if is_tracing:
                op_callbacks.remove_op_callback(self._replace)
            global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, before)

    @contextlib.contextmanager
    def in_callbacks(self, seed: int) -> Iterator[None]:
        """Context manager for calling callbacks: seeds what they draw by `keras.random`.

        In the block, calls of `keras.random` without a seed in this thread draw from this object's
        generator. Draws by TensorFlow's own operations cannot be seeded; the first one is logged as
        a warning.

        Args:
            seed: Seed of the generator from the start of the block.
        """
        self.state.assign(np.array([seed % 2**32, 0], np.uint32))
        with self.replaced():
            op_callbacks.add_op_callback(self._warn_of_callback)
            try:
                yield
            finally:
                op_callbacks.remove_op_callback(self._warn_of_callback)

    def check_uncompiled(self) -> None:
        """Reject random draws by TensorFlow operations, which uncompiled steps cannot seed.

        Raises:
            DefinitionError: A step draws by an operation such as `tf.random.uniform`.
        """
        if self._is_strict and self._replaced_first is not None:
            raise self._refusal(
                f"{self._replaced_first}, and steps cannot be compiled, because a function takes "
                "labels as numpy arrays"
            )

    def check(self, traced: Any, known: Sequence[Any]) -> None:
        """Check that a traced step draws random numbers only from generators that are seeded.

        Args:
            traced: A concrete function that was traced while draws were replaced.
            known: State variables of the generators that are seeded for every step, in addition
                to this object's own.

        Raises:
            DefinitionError: The step draws otherwise: by a function that was traced earlier, or
                from a generator that belongs to no layer.
        """
        if not self._is_strict:
            return
        graph = traced.graph.as_graph_def()
        nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
        for node in nodes:
            drawing = node.op in _STATELESS and _REPLACED not in node.attr
            if drawing or node.op in _REFUSED:
                raise self._refusal(f"{node.name!r} draws by {node.op}")
        handles = {id(handle(variable)) for variable in (*known, self.state)}
        for variable in traced.graph.variables:
            if _SEED_VARIABLE in variable.name and id(variable.handle) not in handles:
                raise self._refusal(f"it draws from {variable.name!r}, which is not in any layer")

    def _replace(  # noqa: PLR0917 - TensorFlow gives the name by its place or by its name
        self,
        op_type: str,
        inputs: Sequence[Any],
        attrs: Any,
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> Sequence[Any] | None:
        """Replace a random operation by a seeded one; TensorFlow calls this for each operation.

        Returns:
            The outputs to use in place of the operation's, or None to keep those of the operation.

        Raises:
            DefinitionError: The operation draws random numbers and cannot be replaced.
        """
        del attrs
        if graph is None or (op_type not in _STATELESS and op_type not in _REFUSED):
            return None
        if op_type in _REFUSED:
            if not self._is_strict:
                return None
            raise self._refusal(f"{users_line()}{op_name!r} draws by {op_type}")
        if self._replaced_first is None:
            self._replaced_first = f"{users_line()}{op_name!r} draws by {op_type}"
        seed = tf.cast(self._generator.next() % (2**31 - 1), tf.int32)
        drawn = _STATELESS[op_type](inputs, outputs[0].dtype, seed)
        drawn.set_shape(outputs[0].shape)
        # The replaced operation stays in the graph, where nothing uses it.
        outputs[0].op._set_attr(_REPLACED, attr_value_pb2.AttrValue(b=True))  # noqa: SLF001
        return [drawn]

    def _warn_of_callback(  # noqa: PLR0917 - as `_replace`
        self,
        op_type: str,
        inputs: Sequence[Any],
        attrs: Any,
        outputs: Sequence[Any],
        op_name: str | None = None,
        graph: Any = None,
    ) -> None:
        """Warn, the first time only, if an operation draws random numbers in a callback.

        TensorFlow calls this for each operation that a callback runs.
        """
        del inputs, attrs, outputs, op_name, graph
        if (op_type in _STATELESS or op_type in _REFUSED) and not self._warned_of_callback:
            self._warned_of_callback = True
            _log.warning(
                "%sa callback draws random numbers with TensorFlow's %s, which cannot be seeded: "
                "they differ in a resumed training and on each worker. Draw from numpy.random, or "
                "from keras.random without a seed.",
                users_line() or f"{self._origin}: ",
                op_type,
            )

    def _refusal(self, what: str) -> DefinitionError:
        return DefinitionError(
            f"{self._origin}: the model or its optimizer draws random numbers that cannot be "
            f"seeded for each step: {what}.\n"
            f"  {_ADVICE}"
        )


def handle(variable: Any) -> Any:
    """Return TensorFlow's handle of a variable, by which variables are compared.

    It is the same for a Keras variable and the TensorFlow variable in it.
    """
    inner = getattr(variable, "_value", variable)
    return getattr(inner, "handle", inner)


def users_line() -> str:
    """Return `file:line: ` of the user's code being executed, for a message; empty if none is."""
    for frame in reversed(traceback.extract_stack()):
        library = "site-packages" in frame.filename or frame.filename.startswith(_LIBRARIES)
        if not library and not frame.filename.startswith("<"):
            return f"{frame.filename}:{frame.lineno}: "
    return ""

"""Rejects random numbers that Python code draws in a compiled step and that cannot be seeded.

    x * np.random.rand()                         drawn once, when the step is traced
    tf.numpy_function(noise, [x], tf.float32)    drawn in each step, in a thread of TensorFlow's

The first number is a constant of the compiled step, here as in `fit`. The trainer seeds it for each
trace, so that it is the same after a resume. It is rejected if the model requests
`run_eagerly=True`, because `fit` would then draw a new number in each step. The second is always
rejected, because TensorFlow does not pass the number of the step to such functions, so they cannot
be seeded. Functions that do not draw are not affected.

Callers: `trainer.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

# TensorFlow has no public name for the registry of Python functions that its operations call.
from tensorflow.python.ops import script_ops

from elasticdl.errors import DefinitionError
from elasticdl.training.generators import Generators
from elasticdl.training.keras.random_ops import users_line

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_CALLING = frozenset(["PyFunc", "PyFuncStateless", "EagerPyFunc"])
_ADVICE = "Draw with tf.random or with keras.random, which are seeded for each step."


class PythonRandomGuard:
    """Rejects random numbers that Python code draws from `numpy.random` or `random` in a step.

    Args:
        origin: Prefix of the error.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._refused: DefinitionError | None = None
        self._called = Generators(self._refuse_called)
        self.eager_only = Generators(self._refuse_traced)
        """Generators to use while tracing a step of a model that requests to run eagerly."""
        # TensorFlow holds only weak references to functions.
        self._watched: dict[bytes, Any] = {}

    def watch(self, traced: Any) -> None:
        """Watch a traced function: Python functions that it calls may not draw random numbers.

        Args:
            traced: A concrete function of TensorFlow.
        """
        graph = traced.graph.as_graph_def()
        nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
        for node in nodes:
            token = node.attr["token"].s if node.op in _CALLING else b""
            if token and token not in self._watched:
                self._watched[token] = self._watch(token.decode())

    def check(self) -> None:
        """Raise the error about a rejected draw, if there was one; called when a step has failed.

        The error that TensorFlow itself raises for the failed step does not tell the reason.

        Raises:
            DefinitionError: A Python function has drawn a random number in a step.
        """
        if self._refused is not None:
            raise self._refused

    def _watch(self, token: str) -> Any:
        functions = script_ops._py_funcs  # noqa: SLF001 - no public name
        function = functions.get(token)
        if isinstance(function, script_ops.EagerFunc):
            function._func = self._not_drawing(function._func)  # noqa: SLF001 - as above
            return function
        functions._funcs[token] = watched = self._not_drawing(function)  # noqa: SLF001 - as above
        return watched

    def _not_drawing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self._called.used():
                return function(*args)

        return call

    def _refuse_called(self) -> DefinitionError:
        self._refused = DefinitionError(
            f"{self._origin}: {users_line()}the model draws from numpy.random or random in Python "
            "code that TensorFlow calls (tf.numpy_function, tf.py_function), without a seed for "
            "each step. Steps could not be reproduced after a resume.\n"
            f"  {_ADVICE}"
        )
        return self._refused

    def _refuse_traced(self) -> DefinitionError:
        return DefinitionError(
            f"{self._origin}: {users_line()}the model draws from numpy.random or random, and was "
            "compiled with run_eagerly=True. Steps are compiled here, so it would draw only once "
            "for the whole training.\n"
            f"  {_ADVICE}"
        )

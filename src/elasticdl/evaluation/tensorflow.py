"""Traces a user's TensorFlow function of one example, to compute whole blocks of examples at once.

Such functions often end in `.numpy()`, which a symbolic tensor does not have. During tracing,
`.numpy()` of a symbolic tensor returns the tensor itself, so the function returns the traced
result. Any use that needs a value (`float(...)`, `if`, numpy functions) raises; then the function
is called once per example. `functions.py` checks that a traced function returns the same numbers.

No other file of this folder imports TensorFlow. This file is imported only if the user's code has
imported TensorFlow.

Callers: `functions.py`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from elasticdl.data.batch import leaves, map_arrays

if TYPE_CHECKING:
    import numpy as np

# Tracing temporarily changes an attribute of a TensorFlow class.
_tracing = threading.Lock()


class NotOneNumberError(TypeError):
    """Raised when the traced function does not return a tensor with a single number."""


def traced(
    function: Callable[[Any, Any], Any], labels: Any, outputs: Any
) -> Callable[[Any, Any], tuple[np.ndarray[Any, Any], str]]:
    """Return a TensorFlow version of a per-example function, for blocks of any number of rows.

    Args:
        function: Function (label, prediction) of one example -> number.
        labels: The labels of a block of examples: an array or a nesting of arrays. Only their
            structure, shapes and dtypes are used.
        outputs: The model's outputs for the block, in the same form.

    Returns:
        A function that takes a block's labels and outputs, and returns the value for each row as
        float64, and the name of the dtype in which the values were computed.

    Raises:
        Exception: The function, or TensorFlow, raised during tracing.
    """
    dtypes: list[str] = []

    def one(example: tuple[Any, Any]) -> tf.Tensor:
        with _with_numpy(leaves(example)):
            value = function(*example)
        if not tf.is_tensor(value) or value.shape.num_elements() != 1:
            raise NotOneNumberError(type(value).__name__)
        dtypes.append(value.dtype.name)
        return tf.cast(tf.reshape(value, []), tf.float64)

    def block(labels: Any, outputs: Any) -> tf.Tensor:
        return tf.vectorized_map(one, (labels, outputs), fallback_to_while_loop=False)

    specs = map_arrays(lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), (labels, outputs))
    compiled = tf.function(block, input_signature=specs, autograph=False).get_concrete_function()

    def column(labels: Any, outputs: Any) -> tuple[np.ndarray[Any, Any], str]:
        tensors = map_arrays(tf.convert_to_tensor, (labels, outputs))
        return compiled(*tensors).numpy(), dtypes[-1]

    return column


def as_tensors(tree: Any) -> Any:
    """Convert an example's arrays to tensors, for functions that call `.numpy()` on them."""
    return map_arrays(tf.convert_to_tensor, tree)


@contextlib.contextmanager
def _with_numpy(symbols: list[Any]) -> Iterator[None]:
    """Context manager in which `.numpy()` of a symbolic tensor returns the tensor itself."""
    kinds = {type(symbol) for symbol in symbols}
    with _tracing:
        changed = [kind for kind in kinds if not hasattr(kind, "numpy")]
        for kind in changed:
            kind.numpy = _itself
        try:
            yield
        finally:
            for kind in changed:
                del kind.numpy


def _itself(symbol: Any) -> Any:
    return symbol

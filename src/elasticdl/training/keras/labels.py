"""Wraps label tensors so that the user's functions can use them as numpy arrays.

Model files with `input_fn(records)` may call `labels.flatten()`, because their labels were always
numpy arrays. In a compiled step labels are symbolic tensors, which lack numpy's methods. The
wrapper implements these with TensorFlow's numpy API, and converts to its tensor wherever TensorFlow
or Keras takes one (`__tf_tensor__`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.experimental.numpy as tnp

from elasticdl.data.batch import Arrays, map_arrays

_METHODS = {
    # numpy method -> its implementation; the array is the first argument.
    "astype": tf.cast,
    "copy": tf.identity,
    "ravel": lambda tensor: tf.reshape(tensor, [-1]),
    "flatten": lambda tensor: tf.reshape(tensor, [-1]),
    "reshape": lambda tensor, *shape, **_: tf.reshape(
        tensor, shape[0] if isinstance(shape[0], (tuple, list)) else shape
    ),
    "squeeze": lambda tensor, axis=None: tf.squeeze(tensor, axis=axis),
    **{
        name: getattr(tnp, name)
        for name in ("all", "any", "argmax", "argmin", "clip", "cumsum", "max", "mean", "min")
    },
    **{name: getattr(tnp, name) for name in ("prod", "repeat", "std", "sum", "transpose", "var")},
}


class NumpyLabels:
    """A symbolic tensor with the methods of a numpy array.

    Raises:
        NotANumpyFunctionError: On a numpy method or function that TensorFlow cannot perform on a
            symbolic tensor; the trainer then runs the step uncompiled.
    """

    # Otherwise numpy's own operators would try to convert this to an array.
    __array_priority__ = 1000

    def __init__(self, tensor: tf.Tensor) -> None:
        self._tensor = tensor

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        """Return the tensor; TensorFlow calls this method to convert an object."""
        del name
        return self._tensor if dtype is None else tf.cast(self._tensor, dtype)

    def __getattr__(self, name: str) -> Any:
        if name in _METHODS:
            return lambda *args, **kwargs: wrap(
                _METHODS[name](self._tensor, *unwrap(args), **unwrap(kwargs))
            )
        if name == "T":
            return wrap(tf.transpose(self._tensor))
        if name == "ndim":
            return self._tensor.shape.rank
        if name == "size":
            return tf.size(self._tensor)
        if name == "dtype":
            return self._tensor.dtype
        if name == "shape":
            return self._tensor.shape
        if name.startswith("__") or not hasattr(np.ndarray, name):
            # TensorFlow and Keras test for attributes like `is_tensor_like`.
            raise AttributeError(f"a numpy array has no attribute {name!r}")
        raise NotANumpyFunctionError(f"labels.{name}")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotANumpyFunctionError("numpy.asarray(labels)")

    def __array_function__(
        self, func: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        del types
        counterpart = getattr(tnp, func.__name__, None)
        if counterpart is None:
            raise NotANumpyFunctionError(f"numpy.{func.__name__}(labels)")
        return wrap(counterpart(*unwrap(args), **unwrap(kwargs)))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        counterpart = getattr(tnp, ufunc.__name__, None)
        if counterpart is None or method != "__call__":
            raise NotANumpyFunctionError(f"numpy.{ufunc.__name__}(labels)")
        return wrap(counterpart(*unwrap(inputs), **unwrap(kwargs)))

    def __getitem__(self, key: Any) -> Any:
        return wrap(self._tensor[unwrap(key)])

    def __len__(self) -> int:
        if self._tensor.shape[0] is None:
            raise NotANumpyFunctionError("len(labels)")
        return int(self._tensor.shape[0])

    def __eq__(self, other: object) -> Any:
        return wrap(tf.equal(self._tensor, tf.cast(unwrap(other), self._tensor.dtype)))

    def __ne__(self, other: object) -> Any:
        return wrap(tf.not_equal(self._tensor, tf.cast(unwrap(other), self._tensor.dtype)))

    def __matmul__(self, other: Any) -> Any:
        return wrap(tnp.matmul(self._tensor, unwrap(other)))

    def __rmatmul__(self, other: Any) -> Any:
        return wrap(tnp.matmul(unwrap(other), self._tensor))

    def __neg__(self) -> Any:
        return wrap(-self._tensor)

    def __abs__(self) -> Any:
        return wrap(abs(self._tensor))

    def __invert__(self) -> Any:
        return wrap(~self._tensor)

    def __index__(self) -> int:
        raise NotANumpyFunctionError("array[labels]")

    # Arrays are compared element by element, so they have no hash, as in numpy.
    __hash__ = None  # type: ignore[assignment]


class NotANumpyFunctionError(TypeError):
    """Raised for a numpy operation of user code on labels that TensorFlow cannot compile.

    The trainer then runs its steps uncompiled; in these, labels are numpy arrays.
    """


def _binary(name: str) -> Callable[[NumpyLabels, Any], Any]:
    def operator(self: NumpyLabels, other: Any) -> Any:
        other = unwrap(other)
        if not tf.is_tensor(other):
            # numpy would promote; here a Python or numpy number takes the labels' type.
            other = tf.convert_to_tensor(other, dtype_hint=self._tensor.dtype)
            if other.dtype != self._tensor.dtype:
                return wrap(getattr(tf.cast(self._tensor, other.dtype), name)(other))
        return wrap(getattr(self._tensor, name)(other))

    operator.__name__ = name
    return operator


for _name in [
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "truediv",
    "rtruediv",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "pow",
    "rpow",
    "and",
    "rand",
    "or",
    "ror",
    "xor",
    "rxor",
    "lt",
    "le",
    "gt",
    "ge",
]:
    setattr(NumpyLabels, f"__{_name}__", _binary(f"__{_name}__"))


def wrap(value: Any) -> Any:
    """Wrap a tensor as a numpy-like array; return anything else unchanged."""
    return NumpyLabels(value) if isinstance(value, tf.Tensor) else value


def unwrap(value: Any) -> Any:
    """Replace each `NumpyLabels` in a value, at any depth, by the tensor that it wraps."""
    if isinstance(value, NumpyLabels):
        return value._tensor  # noqa: SLF001 - the same file
    if isinstance(value, tuple):
        return tuple(unwrap(item) for item in value)
    if isinstance(value, list):
        return [unwrap(item) for item in value]
    if isinstance(value, Mapping):
        return {name: unwrap(item) for name, item in value.items()}
    return value


def as_numpy(labels: Arrays) -> Arrays:
    """Convert labels to the form that the user's functions expect: numpy arrays or a wrapper."""
    if tf.inside_function():
        return map_arrays(wrap, labels)
    return map_arrays(np.asarray, labels)

"""Converts the state of Keras callbacks to JSON values and arrays for a checkpoint, and back.

Extends `training/callback_state.py` with variables, tensors, metrics, seed generators, callbacks
within callbacks, and activations, regularizers, constraints and schedules of Keras.

Callers: `hooks.py`.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.training.callback_state import (
    Arrays,
    CallbackValues,
    CannotKeepError,
    arguments_of,
    pack_array,
)

__all__ = [
    "CONFIGURED", "CannotKeepError", "arguments_of", "attributes_of", "decode", "digest", "encode",
    "is_code",
]  # fmt: skip

# Attributes that Keras' own callbacks recreate: open files and their writers.
_REMADE: dict[str, set[str]] = {
    "CSVLogger": {"csv_file", "writer"},
    "ProgbarLogger": {"progbar"},
    "TensorBoard": {
        "_writers",
        "_summary_module",
        "_prev_summary_state",
        "_batch_trace_context",
        # These folders differ between workers.
        "_log_write_dir",
        "_train_dir",
        "_val_dir",
    },
    # Keras changes the sign of `min_delta` together with the comparison function.
    "MonitorCallback": {"min_delta", "monitor_op"},
}
_OF_KERAS = {"_model", "params"}
CONFIGURED: dict[type[Any], Any] = {
    keras.regularizers.Regularizer: keras.regularizers,
    keras.constraints.Constraint: keras.constraints,
    keras.optimizers.schedules.LearningRateSchedule: keras.optimizers.schedules,
}
"""Classes of Keras' objects without variables, which their config describes -> their module."""


def attributes_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return name -> value of a callback's attributes, without those that Keras recreates."""
    kinds = [kind.__name__ for kind in inspect.getmro(type(callback))]
    left = {*_OF_KERAS, *(name for kind in kinds for name in _REMADE.get(kind, ()))}
    return {name: value for name, value in vars(callback).items() if name not in left}


def is_code(value: Any) -> bool:
    """Return whether checkpoints leave a value out because the user's code creates it again.

    Such values are functions, classes, modules, compiled patterns, models, optimizers and loggers.
    """
    return (
        isinstance(value, (type, keras.Model, keras.optimizers.Optimizer))
        or inspect.isroutine(value)
        or inspect.ismodule(value)
        or isinstance(value, (np.ufunc, re.Pattern))
        or type(value).__module__ == "logging"
    )


class KerasValues(CallbackValues):
    """Converts attribute values of Keras callbacks to JSON and arrays for a checkpoint, and back.

    Besides plain values, these are variables, tensors, metrics and callbacks of Keras.
    """

    def encode_other(  # noqa: PLR0911 - one line a type
        self, value: Any, path: str, arrays: Arrays
    ) -> Any:
        """Convert a Keras or TensorFlow object to JSON; see `CallbackValues.encode`."""
        match value:
            case keras.metrics.Metric():
                return {"$metric": self.encode([v.value for v in value.variables], path, arrays)}
            case keras.callbacks.Callback():
                return {
                    "$callback": [
                        [name, self.encode(each, f"{path}/{name}", arrays)]
                        for name, each in attributes_of(value).items()
                        if not is_code(each)
                    ]
                }
            case keras.Variable():
                return pack_array("$variable", value.value, path, arrays)
            case tf.Variable():
                return pack_array("$variable", value, path, arrays)
            case keras.random.SeedGenerator():
                return pack_array("$seeds", value.state.value, path, arrays)
            case tf.Tensor():
                return pack_array("$tensor", value, path, arrays)
            case types.FunctionType() if _activation(value.__name__) is value:
                return {"$activation": value.__name__}
            case _ if _configured(type(value).__name__) is type(value):
                described = [type(value).__name__, value.get_config()]
                return {"$configured": json.dumps(described, default=float)}
            case _:
                return super().encode_other(value, path, arrays)

    def decode_other(  # noqa: C901 - one line a type
        self, tag: str, content: Any, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> Any:
        """Restore a tensor, or change a Keras object in place and return it.

        `CallbackValues.decode_other` describes the arguments.
        """
        match tag:
            case "$tensor":
                return tf.constant(np.array(arrays[content]))
            case "$activation":
                return _activation(content)
            case "$configured":
                name, config = json.loads(content)
                kind = _configured(name)
                return current if kind is None else kind.from_config(config)
            case "$variable":
                array = np.array(arrays[content])
                if not isinstance(current, (tf.Variable, keras.Variable)):
                    return keras.Variable(array, dtype=array.dtype.name, trainable=False)
                current.assign(array)
            case "$seeds":
                if not isinstance(current, keras.random.SeedGenerator):
                    current = keras.random.SeedGenerator(0)
                current.state.assign(np.array(arrays[content]))
            case "$metric" if isinstance(current, keras.metrics.Metric):
                values = self.decode(content, None, arrays)
                for variable, value in zip(current.variables, values, strict=True):
                    variable.assign(value)
            case "$callback" if isinstance(current, keras.callbacks.Callback):
                for name, each in content:
                    vars(current)[name] = self.decode(each, vars(current).get(name), arrays)
        return current


# Only what Keras has under these names is created from a checkpoint, never other code.


def _activation(name: str) -> Any:
    found = getattr(keras.activations, name, None)
    return found if isinstance(found, types.FunctionType) else None


def _configured(name: str) -> Any:
    for kind, module in CONFIGURED.items():
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, kind):
            return found
    return None


_VALUES = KerasValues()
encode, decode, digest = _VALUES.encode, _VALUES.decode, _VALUES.digest

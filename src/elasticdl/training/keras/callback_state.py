"""Converts the state of Keras callbacks to JSON values and arrays for a checkpoint, and back.

Extends `training/callback_state.py` with variables, tensors, metrics, seed generators, callbacks
within callbacks, and activations, regularizers, constraints and schedules of Keras. Of an object of
the training, such as a weight of the model, the place is stored (`callback_references.py`).

Callers: `callback_checkpoint.py`, `callback_memory.py`.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.training.callback_state import (
    Arrays,
    CallbackValues,
    CannotKeepError,
    arguments_of,
    name_of,
    pack_array,
)
from elasticdl.training.keras.callback_references import References, code_named, name_of_code

__all__ = [
    "CONFIGURED", "CannotKeepError", "KerasValues", "arguments_of", "attributes_of", "decode",
    "digest", "encode", "is_code",
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
_OBJECTS = keras.metrics.Metric, keras.callbacks.Callback, keras.Variable, tf.Variable
# Callbacks may hold each other.
_DEPTH = 5
_REFERENCES = {"$reference", "$id", "$method", "$code"}
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

    Args:
        references: Knows the places of the training's objects. None: store copies of variables, and
            no functions; for digests.
    """

    def __init__(self, references: References | None = None) -> None:
        self._references = references
        self._existing: dict[int, Any] | None = None

    def begin(self, values: Iterable[Any]) -> list[Any]:
        """Record the metrics, variables and callbacks that exist as training begins.

        The user's code creates them again, unlike others.

        Args:
            values: The values of the callbacks' attributes.

        Returns:
            The metrics and variables.
        """
        self._existing = {id(each): each for value in values for each in _objects_in(value)}
        callback = keras.callbacks.Callback
        return [each for each in self._existing.values() if not isinstance(each, callback)]

    def encode(self, value: Any, path: str, arrays: Arrays) -> Any:
        """Convert a value to JSON; see `CallbackValues.encode`."""
        if self._references is not None and type(value) is int:
            place = self._references.place_of_id(value)
            return value if place is None else {"$id": place}
        return super().encode(value, path, arrays)

    def _encode_reference(self, value: Any) -> Any:
        """Return JSON for an object, method, function or class by its place; None for others."""
        if self._references is None:
            return None
        if place := self._references.place(value):
            return {"$reference": place}
        if isinstance(value, types.MethodType) and (method := self._references.method(value)):
            return {"$method": method}
        if isinstance(value, (types.FunctionType, type)) and (code := name_of_code(value)):
            return {"$code": code}
        return None

    def _is_created_later(self, value: Any) -> bool:
        return self._existing is not None and id(value) not in self._existing

    def encode_other(  # noqa: C901, PLR0911 - one line a type
        self, value: Any, path: str, arrays: Arrays
    ) -> Any:
        """Convert a Keras or TensorFlow object to JSON; see `CallbackValues.encode`."""
        if reference := self._encode_reference(value):
            return reference
        match value:
            case keras.metrics.Metric():
                states = self.encode([v.value for v in value.variables], path, arrays)
                if self._is_created_later(value):
                    return {"$new_metric": [*_described(value), states]}
                return {"$metric": states}
            case keras.callbacks.Callback() if not self._is_created_later(value):
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

    def decode_other(  # noqa: C901, PLR0912 - one line a type
        self, tag: str, content: Any, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> Any:
        """Restore a tensor, or change a Keras object in place and return it.

        `CallbackValues.decode_other` describes the arguments.
        """
        if tag in _REFERENCES and self._references is not None:
            return self._decode_reference(tag, content)
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
                _set(current, self.decode(content, None, arrays))
            case "$new_metric":
                name, config, states = content
                current = _metric_described(name, config)
                _set(current, self.decode(states, None, arrays))
            case "$callback" if isinstance(current, keras.callbacks.Callback):
                for name, each in content:
                    vars(current)[name] = self.decode(each, vars(current).get(name), arrays)
            case "$metric" | "$callback":
                raise CannotKeepError("a " + tag.removeprefix("$"))
        return current

    def _decode_reference(self, tag: str, content: Any) -> Any:
        references = self._references
        assert references is not None  # noqa: S101
        match tag:
            case "$reference":
                return references.at(content)
            case "$id":
                return id(references.at(content))
            case "$method":
                return references.method_at(content)
            case _:
                return code_named(*content)


def _objects_in(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield metrics, variables and callbacks in a value, also in containers and in callbacks."""
    inner: Iterable[Any] = ()
    if isinstance(value, _OBJECTS):
        yield value
    if isinstance(value, keras.callbacks.Callback):
        inner = attributes_of(value).values()
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        inner = value
    elif isinstance(value, dict):
        inner = value.values()
    for each in inner if depth else ():
        yield from _objects_in(each, depth - 1)


# Only what Keras has under these names is created from a checkpoint, never other code.


def _activation(name: str) -> Any:
    found = getattr(keras.activations, name, None)
    return found if isinstance(found, types.FunctionType) else None


def _metric_described(name: str, config: str) -> keras.metrics.Metric:
    found: keras.metrics.Metric = getattr(keras.metrics, name).from_config(json.loads(config))
    return found


def _set(metric: keras.metrics.Metric, states: Sequence[Any]) -> None:
    for variable, value in zip(metric.variables, states, strict=True):
        variable.assign(value)


def _described(metric: keras.metrics.Metric) -> tuple[str, str]:
    """Return the name and the configuration of a metric of Keras, as JSON.

    Raises:
        CannotKeepError: A metric of the same state cannot be created from them.
    """
    name = type(metric).__name__
    if getattr(keras.metrics, name, None) is type(metric):
        # The configuration of a metric may be anything.
        with contextlib.suppress(Exception):
            config = json.dumps(metric.get_config())
            copy = _metric_described(name, config)
            if [v.shape for v in copy.variables] == [v.shape for v in metric.variables]:
                return name, config
    raise CannotKeepError(name_of(metric))


def _configured(name: str) -> Any:
    for kind, module in CONFIGURED.items():
        found = getattr(module, name, None)
        if isinstance(found, type) and issubclass(found, kind):
            return found
    return None


_VALUES = KerasValues()
encode, decode, digest = _VALUES.encode, _VALUES.decode, _VALUES.digest

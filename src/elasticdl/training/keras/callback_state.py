"""What a Keras callback remembers, as JSON values and arrays, and back.

Keras has no protocol for the state of callbacks, so it is taken from their attributes. Plain values
and containers of them become JSON, arrays become tensors of the checkpoint, and the JSON says where
each one belongs:

    best_weights = [kernel, bias]
        JSON     {"$list": [{"$array": "0/EarlyStopping/best_weights/0"}, ...]}
        arrays   0/EarlyStopping/best_weights/0 -> kernel, ...

Nothing that is read back can run: objects are restored into the ones that the user's code has made.

Callers: `hooks.py`.
"""

from __future__ import annotations

import inspect
import random
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import keras
import numpy as np
import tensorflow as tf

Arrays = dict[str, np.ndarray[Any, Any]]

# What Keras' own callbacks make again by themselves: open files and what writes into them.
_REMADE: dict[str, set[str]] = {
    "CSVLogger": {"csv_file", "writer"},
    "ProgbarLogger": {"progbar"},
    "TensorBoard": {
        "_writers",
        "_summary_module",
        "_prev_summary_state",
        "_batch_trace_context",
        # Other folders on each worker.
        "_log_write_dir",
        "_train_dir",
        "_val_dir",
    },
    # They turn the sign of an argument together with the function that compares.
    "MonitorCallback": {"min_delta", "monitor_op"},
}
_OF_KERAS = {"_model", "params"}
_STORABLE_KINDS = "biufc"


class CannotKeepError(Exception):
    """A value has no form in a checkpoint; says of which type it is."""


def attributes_of(callback: keras.callbacks.Callback) -> dict[str, Any]:
    """Return the attributes of a callback that may be state."""
    kinds = [kind.__name__ for kind in inspect.getmro(type(callback))]
    left = {*_OF_KERAS, *(name for kind in kinds for name in _REMADE.get(kind, ()))}
    return {name: value for name, value in vars(callback).items() if name not in left}


def arguments_of(callback: keras.callbacks.Callback) -> set[str]:
    """Return the names of the constructor's arguments."""
    return {
        name
        for kind in inspect.getmro(type(callback))
        if "__init__" in vars(kind)
        for name in inspect.signature(vars(kind)["__init__"]).parameters
    }


def is_code(value: Any) -> bool:
    """Whether a value comes from the user's code again and has no state of its own."""
    return (
        isinstance(value, (type, keras.Model, keras.optimizers.Optimizer))
        or inspect.isroutine(value)
        or inspect.ismodule(value)
        or type(value).__module__ == "logging"
    )


def encode(  # noqa: C901, PLR0911 - one line a type
    value: Any, path: str, arrays: Arrays
) -> Any:
    """Return a value as JSON, its arrays put aside.

    Args:
        value: What to keep.
        path: Names it among the arrays.
        arrays: Takes its arrays.

    Raises:
        CannotKeepError: It, or something in it, has no form here.
    """
    if value is None or type(value) in {bool, int, float, str}:
        return value
    match value:
        case list() | tuple() | set() | frozenset() | deque():
            return _pack_list(value, path, arrays)
        case dict():
            return _pack_dict(value, path, arrays)
        case bytes():
            return {"$bytes": value.hex()}
        case PurePath():
            return {"$path": str(value)}
        case np.random.Generator():
            return {"$generator": encode(value.bit_generator.state, path, arrays)}
        case random.Random():
            return {"$random": encode(value.getstate(), path, arrays)}
        case keras.metrics.Metric():
            return {"$metric": encode([v.value for v in value.variables], path, arrays)}
        case keras.callbacks.Callback():
            return _pack_callback(value, path, arrays)
        case np.ndarray() | np.generic() | tf.Tensor() | tf.Variable() | keras.Variable():
            return _pack_array(value, path, arrays)
        case _:
            raise CannotKeepError(_name_of(value))


def decode(  # noqa: PLR0911 - one line a type
    kept: Any, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
) -> Any:
    """Return the value `encode` was given.

    Args:
        kept: What `encode` returned.
        current: What is there now; variables, metrics, generators and callbacks are changed in
            place and returned.
        arrays: At least those that `encode` put aside.
    """
    if isinstance(kept, list):
        return [decode(each, None, arrays) for each in kept]
    if not isinstance(kept, dict):
        return kept
    tag, content = next(iter(kept.items()))
    if tag in {"$array", "$number", "$tensor", "$variable"}:
        return _unpack_array(tag, arrays[content], current)
    if tag in _CONTAINERS:
        return _CONTAINERS[tag](decode(each, None, arrays) for each in content)
    match tag:
        case "$deque":
            return deque(decode(content, None, arrays), maxlen=kept["maxlen"])
        case "$dict":
            return _unpack_dict(content, current, arrays)
        case "$bytes":
            return bytes.fromhex(content)
        case "$path":
            return type(current)(content) if isinstance(current, PurePath) else PurePath(content)
        case "$texts":
            return np.array(content)
        case _:
            return _unpack_object(tag, content, current, arrays)


def digest(value: Any) -> int | None:
    """Return a hash of a value; None if it cannot be kept."""
    arrays: Arrays = {}
    try:
        text = repr(encode(value, "", arrays))
    except CannotKeepError:
        return None
    found = zlib.crc32(text.encode())
    for array in arrays.values():
        found = zlib.crc32(array.tobytes(), found)
    return found


# --- each kind ----------------------------------------------------------------------------------


def _pack_list(value: Any, path: str, arrays: Arrays) -> Any:
    # Sets have another order in each process.
    ordered = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    items = [encode(each, f"{path}/{i}", arrays) for i, each in enumerate(ordered)]
    if type(value) is list:
        return items
    names: dict[type, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
    if isinstance(value, deque):
        return {"$deque": items, "maxlen": value.maxlen}
    if type(value) in names:
        return {names[type(value)]: items}
    raise CannotKeepError(_name_of(value))


def _pack_dict(value: Any, path: str, arrays: Arrays) -> Any:
    if type(value) not in {dict, OrderedDict, Counter, defaultdict}:
        raise CannotKeepError(_name_of(value))
    return {
        "$dict": [
            [encode(key, f"{path}/key{i}", arrays), encode(each, f"{path}/{i}", arrays)]
            for i, (key, each) in enumerate(value.items())
        ]
    }


def _pack_array(value: Any, path: str, arrays: Arrays) -> Any:
    array = np.asarray(value.value if isinstance(value, keras.Variable) else value)
    if array.dtype.kind not in _STORABLE_KINDS and array.dtype.name != "bfloat16":
        if array.dtype.kind == "U":
            return {"$texts": array.tolist()}
        raise CannotKeepError(f"an array of {array.dtype}")
    tag = "$array"
    if isinstance(value, np.generic):
        tag = "$number"
    elif isinstance(value, (tf.Variable, keras.Variable)):
        tag = "$variable"
    elif isinstance(value, tf.Tensor):
        tag = "$tensor"
    # A copy: what is kept in the background must not move with what the callback does next.
    arrays[path] = np.array(array)
    return {tag: path}


def _pack_callback(value: Any, path: str, arrays: Arrays) -> Any:
    return {
        "$callback": [
            [name, encode(each, f"{path}/{name}", arrays)]
            for name, each in attributes_of(value).items()
            if not is_code(each)
        ]
    }


_CONTAINERS: dict[str, Any] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}


def _unpack_dict(content: Any, current: Any, arrays: Mapping[str, Any]) -> Any:
    found = {decode(key, None, arrays): decode(each, None, arrays) for key, each in content}
    if isinstance(current, (OrderedDict, Counter, defaultdict)):
        current.clear()
        current.update(found)
        return current
    return found


def _unpack_array(tag: str, kept: np.ndarray[Any, Any], current: Any) -> Any:
    # A copy: the arrays of a checkpoint that was read cannot be written to.
    array = np.array(kept)
    if tag == "$number":
        return array[()]
    if tag == "$tensor":
        return tf.constant(array)
    if tag == "$variable":
        if not isinstance(current, (tf.Variable, keras.Variable)):
            return keras.Variable(array, dtype=array.dtype.name, trainable=False)
        current.assign(array)
        return current
    return array


def _unpack_object(tag: str, content: Any, current: Any, arrays: Mapping[str, Any]) -> Any:
    """Put a state into the object that the user's code has made."""
    match tag:
        case "$metric" if isinstance(current, keras.metrics.Metric):
            values = decode(content, None, arrays)
            for variable, value in zip(current.variables, values, strict=True):
                variable.assign(value)
        case "$callback" if isinstance(current, keras.callbacks.Callback):
            for name, each in content:
                vars(current)[name] = decode(each, vars(current).get(name), arrays)
        case "$generator":
            state = decode(content, None, arrays)
            if not isinstance(current, np.random.Generator):
                current = np.random.Generator(getattr(np.random, state["bit_generator"])())
            current.bit_generator.state = state
        case "$random":
            current = current if isinstance(current, random.Random) else random.Random()  # noqa: S311
            current.setstate(decode(content, None, arrays))
    return current


def _name_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__}"

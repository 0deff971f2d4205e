"""Converts attributes of callbacks to JSON values and arrays for a checkpoint, and back.

Callbacks have no protocol for their state, so it is read from their attributes. Plain values and
containers of them become JSON. Arrays become tensors of the checkpoint, which the JSON refers to by
name:

    best_weights = [kernel, bias]
        JSON     {"$list": [{"$array": "0/EarlyStopping/best_weights/0"}, ...]}
        arrays   0/EarlyStopping/best_weights/0 -> kernel, ...

Reading state back executes no stored code: state is restored into the objects that the user's code
has created. Subclasses add the types of a framework, such as tensors and modules.

Callers: `keras/callback_state.py` and `torch/callback_state.py`.
"""

from __future__ import annotations

import inspect
import random
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from pathlib import PurePath
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

_STORABLE_KINDS = "biufc"
_SEQUENCES: dict[str, Any] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset}
_DICTS: dict[str, Any] = {"OrderedDict": OrderedDict, "Counter": Counter, "defaultdict": dict}
_TIMES: dict[str, Any] = {"date": date, "datetime": datetime, "time": time}
_SHARED = "$shared"


class CannotKeepError(Exception):
    """Raised for a value that cannot be stored in a checkpoint.

    Args:
        what: The type of the value.
        way_out: Advice to the user for this type of value; empty if there is none.
    """

    def __init__(self, what: str, way_out: str = "") -> None:
        super().__init__(what)
        self.way_out = way_out


class CallbackValues:
    """Converts attribute values of callbacks to JSON and arrays for a checkpoint, and back."""

    def encode(  # noqa: C901, PLR0911 - one line a type
        self, value: Any, path: str, arrays: Arrays
    ) -> Any:
        """Convert a value to JSON; its arrays are stored separately.

        Args:
            value: The value to store.
            path: Prefix of the keys in `arrays` under which its arrays are stored.
            arrays: Receives the arrays in the value, by key.

        Raises:
            CannotKeepError: The value, or a value in it, cannot be stored.
        """
        if value is None or type(value) in {bool, int, float, str}:
            return value
        match value:
            case list() | tuple() | set() | frozenset() | deque():
                return self._pack_sequence(value, path, arrays)
            case dict():
                return self._pack_dict(value, path, arrays)
            case bytes():
                return {"$bytes": value.hex()}
            case PurePath():
                return {"$path": str(value)}
            case date() | time() if type(value) in _TIMES.values():
                return {"$time": value.isoformat(), "type": type(value).__name__}
            case timedelta():
                return {"$timedelta": [value.days, value.seconds, value.microseconds]}
            case range():
                return {"$range": [value.start, value.stop, value.step]}
            case np.random.Generator():
                return {"$generator": self.encode(value.bit_generator.state, path, arrays)}
            case random.Random():
                return {"$random": self.encode(value.getstate(), path, arrays)}
            case np.ndarray() | np.generic():
                tag = "$number" if isinstance(value, np.generic) else "$array"
                return pack_array(tag, value, path, arrays)
            case _:
                return self.encode_other(value, path, arrays)

    def encode_other(self, value: Any, path: str, arrays: Arrays) -> Any:
        """Convert a value to JSON if its type is not among those that `encode` converts itself.

        Subclasses override this for the types of a framework.

        Args:
            value: The value to store.
            path: Prefix of the keys in `arrays` under which its arrays are stored.
            arrays: Receives the arrays in the value, by key.

        Raises:
            CannotKeepError: The value cannot be stored.
        """
        del path, arrays
        raise CannotKeepError(name_of(value))

    def decode(  # noqa: C901, PLR0911, PLR0912 - one line a type
        self, kept: Any, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> Any:
        """Restore a value from the result of `encode`.

        Args:
            kept: The JSON that `encode` returned.
            current: The present value; generators, and objects created by a framework or the user,
                are changed in place and returned.
            arrays: The arrays that `encode` stored, by key; may contain others.
        """
        if isinstance(kept, list):
            return self._decode_each(kept, current, arrays)
        if not isinstance(kept, dict):
            return kept
        tag, content = next(iter(kept.items()))
        if tag in _SEQUENCES:
            return _SEQUENCES[tag](self._decode_each(content, current, arrays))
        match tag:
            case "$deque":
                return deque(self._decode_each(content, current, arrays), maxlen=kept["maxlen"])
            case "$dict":
                return self._unpack_dict(content, kept.get("type", "dict"), current, arrays)
            case "$bytes":
                return bytes.fromhex(content)
            case "$path":
                is_path = isinstance(current, PurePath)
                return type(current)(content) if is_path else PurePath(content)
            case "$time":
                return _TIMES[kept["type"]].fromisoformat(content)
            case "$timedelta":
                return timedelta(*content)
            case "$range":
                return range(*content)
            case "$texts":
                return np.array(content)
            case "$array":
                # A copy, because the arrays of a loaded checkpoint are read-only.
                return np.array(arrays[content])
            case "$number":
                return np.array(arrays[content])[()]
            case "$generator":
                return _with_state(current, self.decode(content, None, arrays))
            case "$random":
                current = current if isinstance(current, random.Random) else random.Random()  # noqa: S311
                current.setstate(self.decode(content, None, arrays))
                return current
            case _:
                return self.decode_other(tag, content, current, arrays)

    def decode_other(
        self, tag: str, content: Any, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> Any:
        """Restore a value that `encode_other` converted.

        Subclasses override this together with `encode_other`.

        Args:
            tag: First key of the JSON that `encode_other` returned, which states the kind of the
                value.
            content: Value of that key.
            current: The present value, which may be changed in place and returned.
            arrays: The arrays that `encode` stored, by key; may contain others.

        Raises:
            ValueError: The tag is unknown.
        """
        del content, current, arrays
        raise ValueError(tag)

    def digest(self, value: Any) -> int | None:
        """Return a hash of a value, to detect changes; None if the value cannot be stored."""
        arrays: Arrays = {}
        try:
            text = repr(self.encode(value, "", arrays))
        except CannotKeepError:
            return None
        found = zlib.crc32(text.encode())
        for array in arrays.values():
            found = zlib.crc32(array.tobytes(), found)
        return found

    # --- containers -----------------------------------------------------------------------------

    def _pack_sequence(self, value: Any, path: str, arrays: Arrays) -> Any:
        # The order of a set differs between processes.
        ordered = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        items = [self.encode(each, f"{path}/{i}", arrays) for i, each in enumerate(ordered)]
        if type(value) is list:
            return items
        if isinstance(value, deque):
            return {"$deque": items, "maxlen": value.maxlen}
        tag = next((tag for tag, kind in _SEQUENCES.items() if type(value) is kind), None)
        return self.encode_other(value, path, arrays) if tag is None else {tag: items}

    def _pack_dict(self, value: Any, path: str, arrays: Arrays) -> Any:
        if type(value) not in {dict, OrderedDict, Counter, defaultdict}:
            raise CannotKeepError(name_of(value))
        items = [
            [self.encode(key, f"{path}/key{i}", arrays), self.encode(each, f"{path}/{i}", arrays)]
            for i, (key, each) in enumerate(value.items())
        ]
        return {"$dict": items} | ({} if type(value) is dict else {"type": type(value).__name__})

    def _decode_each(
        self, kept: Sequence[Any], current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> list[Any]:
        now = list(current) if isinstance(current, (list, tuple, deque)) else []
        now = now if len(now) == len(kept) else [None] * len(kept)
        return [self.decode(each, old, arrays) for each, old in zip(kept, now, strict=True)]

    def _unpack_dict(
        self, content: Any, kind: str, current: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> Any:
        now = current if isinstance(current, dict) else {}
        found = {}
        for key, each in content:
            name = self.decode(key, None, arrays)
            found[name] = self.decode(each, now.get(name), arrays)
        if isinstance(current, (OrderedDict, Counter, defaultdict)):
            current.clear()
            current.update(found)
            return current
        return _DICTS.get(kind, dict)(found)


class ContainerRestorer:
    """Restores lists, dicts, sets and arrays in place, so that other code sees their new content.

    For example, a loss may use the same list as a callback's attribute. A resumed training
    therefore refills the list that the attribute had when training began. If another object was
    assigned to the attribute before the checkpoint was written, it is replaced instead.

    Args:
        values: Key of an attribute -> its value when training begins.
    """

    def __init__(self, values: Mapping[Any, Any]) -> None:
        kinds = (list, deque, dict, set, np.ndarray)
        self._first = {key: value for key, value in values.items() if isinstance(value, kinds)}

    def mark(self, key: Hashable, value: Any, kept: Any) -> Any:
        """Mark an attribute's JSON for `restored`, if the value is to be restored in place.

        That is so if the attribute still has the object from when training began, such as a list
        that was appended to since: other code may refer to the same list.

        Args:
            key: Key of the attribute.
            value: Its present value.
            kept: The JSON of the value.

        Returns:
            A dict with a marker key, whose value is `kept`; or `kept` itself if another object was
            assigned to the attribute since.
        """
        return {_SHARED: kept} if self._first.get(key, self) is value else kept

    def restored(self, key: Hashable, kept: Any, decode: Callable[[Any], Any]) -> Any:
        """Decode an attribute's value; if its JSON is marked, restore it in place.

        In place means that the object that the attribute had when training began is refilled.

        Args:
            key: Key of the attribute.
            kept: The JSON that `mark` returned.
            decode: Function (JSON without the mark) -> a value.
        """
        if not isinstance(kept, dict) or _SHARED not in kept:
            return decode(kept)
        value = decode(kept[_SHARED])
        return _filled(self._first.get(key), value)


def _filled(container: Any, value: Any) -> Any:
    """Replace the content of a container by that of `value`, in place, and return the container.

    If the types, or the shapes or dtypes of arrays, differ, change nothing and return `value`.
    """
    if value is container:
        return container
    match container:
        case list() | deque() if isinstance(value, type(container)):
            container.clear()
            container.extend(value)
        case dict() | set() if isinstance(value, (dict if isinstance(container, dict) else set)):
            container.clear()
            container.update(value)
        case np.ndarray() if _is_like(container, value):
            container[...] = value
        case _:
            return value
    return container


def _is_like(array: np.ndarray[Any, Any], value: Any) -> bool:
    of_value = (getattr(value, "shape", None), getattr(value, "dtype", None))
    return array.flags.writeable and of_value == (array.shape, array.dtype)


def arguments_of(callback: object) -> set[str]:
    """Return the names of the arguments of a callback's `__init__`, and of its base classes'."""
    return {
        name
        for kind in inspect.getmro(type(callback))
        if "__init__" in vars(kind) and kind is not object
        for name in inspect.signature(vars(kind)["__init__"]).parameters
    }


def pack_array(tag: str, value: Any, path: str, arrays: Arrays) -> Any:
    """Store a copy of an array under a key, and return the JSON that refers to it.

    Args:
        tag: States the kind of the value in the JSON, such as `$array`.
        value: The array, or a value that NumPy converts to one.
        path: Key under which the copy is stored in `arrays`.
        arrays: Receives the copy.

    Returns:
        `{tag: path}`. An array of strings is not stored; the JSON contains its values instead:
        `{"$texts": [...]}`.

    Raises:
        CannotKeepError: The values are not numbers, booleans or strings.
    """
    array = np.asarray(value)
    if array.dtype.kind not in _STORABLE_KINDS and array.dtype.name != "bfloat16":
        if array.dtype.kind == "U":
            return {"$texts": array.tolist()}
        raise CannotKeepError(f"an array of {array.dtype}")
    # A copy, because the callback may change the array while a checkpoint is written in the
    # background.
    arrays[path] = np.array(array)
    return {tag: path}


def name_of(value: object) -> str:
    """Return the module and name of a value's type, such as "collections.Counter", for an error."""
    return f"{type(value).__module__}.{type(value).__name__}"


def _with_state(generator: Any, state: Any) -> np.random.Generator:
    if not isinstance(generator, np.random.Generator):
        generator = np.random.Generator(getattr(np.random, state["bit_generator"])())
    made: np.random.Generator = generator
    made.bit_generator.state = state
    return made

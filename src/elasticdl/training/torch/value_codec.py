"""Converts values that a user's functions keep to arrays that a checkpoint can store, and back.

    {"calls": 3, "norms": deque([0.5, tensor(0.2)])}    JSON as an array of bytes, and one array for
                                                        each tensor in it

Parameters are stored by name, not copied. An id of a parameter, `id(parameter)`, is stored as the
parameter's name too, even within a string, because ids differ in each process.

Callers: `function_memory.py`, `hook_memory.py`, `optimizer.py` and `schedulers.py`.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from elasticdl.training.torch.tensors import available_device, to_array, to_tensor

_JSON = "values"
# At least as many digits as ids have; `hex(id(parameter))` begins with 0x.
_DIGITS = re.compile(r"(0x[0-9a-f]{6,16}|\d{6,20})")
NUMBERS = (bool, int, float, str, type(None))


class UnkeepableValueError(Exception):
    """Raised for a value that cannot be stored in a checkpoint; the message describes the value."""


class Codec:
    """Converts values to arrays that a checkpoint can store, and back.

    It accepts numbers, strings, tensors, arrays, and standard containers of them.

    Args:
        parameters: The model's parameters, which are stored by name and not copied.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = dict(parameters)
        self._names = {id(p): name for name, p in parameters.items()}

    def to_arrays(self, value: Any) -> dict[str, np.ndarray[Any, Any]]:
        """Convert a value to named arrays: JSON as an array of bytes, and each array in the value.

        Raises:
            UnkeepableValueError: The value contains an object of another kind.
        """
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        text = json.dumps(self._encoded(value, arrays))
        return {_JSON: np.frombuffer(text.encode(), np.uint8).copy(), **arrays}

    def to_values(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> Any:
        """Restore the value that was passed to `to_arrays`."""
        return self._decoded(json.loads(arrays[_JSON].tobytes().decode()), arrays)

    def _encoded(  # noqa: C901, PLR0911, PLR0912 - one line a type
        self, value: Any, arrays: dict[str, np.ndarray[Any, Any]]
    ) -> Any:
        if type(value) is int and value in self._names:
            # Each process has another id.
            return {"id of": self._names[value]}
        if type(value) is str and any(self._names_of_ids(value)):
            return {"text": [self._encoded_part(part) for part in _DIGITS.split(value)]}
        if type(value) in NUMBERS:
            return value
        if isinstance(value, np.generic):
            if value.dtype.kind not in "biuf":
                return self._encoded(value.item(), arrays)
            # float32 arithmetic rounds differently from Python's float64.
            arrays[name := str(len(arrays))] = np.array(value)
            return {"number": name}
        if id(value) in self._names:
            return {"parameter": self._names[id(value)]}
        if isinstance(value, (torch.Tensor, np.ndarray)):
            name = str(len(arrays))
            if isinstance(value, torch.Tensor):
                arrays[name] = to_array(value)
                return {"tensor": name, "device": value.device.type}
            arrays[name] = value.copy()
            return {"array": name}
        kind = next((k for k, t in CONTAINERS.items() if type(value) is t), None)
        if kind is None:
            raise UnkeepableValueError(f"a {type(value).__module__}.{type(value).__name__}")
        if isinstance(value, Mapping):
            items = [
                [self._encoded(key, arrays), self._encoded(inner, arrays)]
                for key, inner in value.items()
            ]
        else:
            items = [self._encoded(item, arrays) for item in value]
        if kind == "deque":
            return {kind: items, "maxlen": value.maxlen}
        if kind == "defaultdict":
            factory = next((k for k, f in _FACTORIES.items() if f is value.default_factory), None)
            if factory is None:
                raise UnkeepableValueError("a collections.defaultdict with a function of its own")
            return {kind: items, "factory": factory}
        return {kind: items}

    def _names_of_ids(self, text: str) -> list[str]:
        found = (self._names.get(_number(part)) for part in _DIGITS.findall(text))
        return [name for name in found if name is not None]

    def _encoded_part(self, part: str) -> Any:
        """Encode a part of a string: a parameter's id as the parameter's name, others unchanged.

        An id, such as 140213 or 0x223b5, differs in each process.
        """
        if not _DIGITS.fullmatch(part) or _number(part) not in self._names:
            return part
        return {"hex id of" if part.startswith("0x") else "id of": self._names[_number(part)]}

    def _decoded(  # noqa: C901, PLR0911 - one line a type
        self, made: Any, arrays: Mapping[str, np.ndarray[Any, Any]]
    ) -> Any:
        if not isinstance(made, dict):
            return made
        (kind, inner), *more = made.items()
        if kind == "parameter":
            return self._parameters[inner]
        if kind == "id of":
            return id(self._parameters[inner])
        if kind == "hex id of":
            return hex(id(self._parameters[inner]))
        if kind == "text":
            return "".join(str(self._decoded(part, arrays)) for part in inner)
        if kind == "tensor":
            return to_tensor(arrays[inner]).to(available_device(made["device"]))
        if kind == "array":
            return np.array(arrays[inner])
        if kind == "number":
            return np.array(arrays[inner])[()]
        container: Any = CONTAINERS[kind]
        if issubclass(container, Mapping):
            pairs = [[self._decoded(x, arrays) for x in item] for item in inner]
            if kind == "defaultdict":
                return collections.defaultdict(_FACTORIES[made["factory"]], dict(pairs))
            return container(dict(pairs))
        items = [self._decoded(item, arrays) for item in inner]
        return container(items, *(value for _, value in more))


def _number(digits: str) -> int:
    return int(digits, 16 if digits.startswith("0x") else 10)


CONTAINERS: Mapping[str, type[Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "deque": collections.deque,
    "dict": dict,
    "ordered": collections.OrderedDict,
    "counter": collections.Counter,
    "defaultdict": collections.defaultdict,
}
_FACTORIES: Mapping[str, Any] = {
    "none": None,
    **{kind.__name__: kind for kind in (int, float, bool, str, list, dict, set)},
}

"""Nested outputs of models: tensors in tuples, dicts, namedtuples, dataclasses and the like.

The user's functions receive the type that their model returned. An output class such as
`ModelOutput` of transformers is both a dict and a dataclass, and is rebuilt as both.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from elasticdl.data.batch import rebuilt


def map_tensors(function: Callable[[torch.Tensor], torch.Tensor], outputs: Any) -> Any:
    """Return the same nested structure with `function` applied to every tensor in it."""
    if isinstance(outputs, torch.Tensor):
        return function(outputs)
    if isinstance(outputs, Mapping):
        entries = {name: map_tensors(function, value) for name, value in outputs.items()}
        return _with_entries(outputs, entries)
    if isinstance(outputs, (list, tuple)):
        return rebuilt(outputs, [map_tensors(function, value) for value in outputs])
    if _is_dataclass(outputs):
        made = copy.copy(outputs)
        for name, value in _fields(outputs).items():
            # Bypasses __setattr__, which a frozen dataclass rejects.
            object.__setattr__(made, name, map_tensors(function, value))
        return made
    return outputs


def detached(outputs: Any) -> Any:
    """Return the same nested structure with its tensors detached from their graph."""
    return map_tensors(torch.Tensor.detach, outputs)


def copied(outputs: Any) -> Any:
    """Return the same nested structure with copies of its tensors, detached from their graph."""
    return map_tensors(lambda tensor: tensor.detach().clone(), outputs)


def as_plain_containers(outputs: Any) -> Any:
    """Convert nested outputs to the plain containers that `data.batch.leaves` can traverse.

    Mappings and dataclasses become dicts; fields of dataclasses that are None are left out. Tensors
    and other values are returned as they are.
    """
    if isinstance(outputs, Mapping):
        return {name: as_plain_containers(value) for name, value in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        return rebuilt(outputs, [as_plain_containers(value) for value in outputs])
    if _is_dataclass(outputs):
        return {
            name: as_plain_containers(value)
            for name, value in _fields(outputs).items()
            if value is not None
        }
    return outputs


def _with_entries(like: Mapping[Any, Any], entries: dict[Any, Any]) -> Any:
    if type(like) is dict:
        return entries
    made: Any = copy.copy(like)
    for name, value in entries.items():
        made[name] = value
    return made


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}

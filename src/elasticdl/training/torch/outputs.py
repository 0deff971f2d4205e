"""Converts nested outputs of models: tensors in tuples, dicts, namedtuples, dataclasses and so on.

The user's functions receive the type that their model returned. An output class such as
`ModelOutput` of transformers is both a dict and a dataclass, and is rebuilt as both.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from elasticdl.data.batch import map_arrays, rebuilt
from elasticdl.errors import DefinitionError
from elasticdl.training.torch.tensors import to_array

if TYPE_CHECKING:
    import numpy as np

    from elasticdl.data.batch import Arrays


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


def to_rows(outputs: Any, where: object) -> Arrays:
    """Convert nested outputs to numpy arrays in plain containers, for predictions and reports.

    Args:
        outputs: What the model returned.
        where: Prefix of the error: `file:line` of the model.

    Raises:
        DefinitionError: An output is not a tensor.
    """
    plain = as_plain_containers(outputs)
    for name, value in named_leaves(plain):
        if not isinstance(value, torch.Tensor) and value is not None:
            kind = type(value)
            module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
            raise DefinitionError(
                f"{where}: the model's output{f' {name!r}' if name else ''} is of the type "
                f"{module}{kind.__name__}. Loss and metrics receive it as it is, but predictions "
                "and reports are written from tensors, or from tuples, lists, dicts and "
                "dataclasses of tensors.\n"
                f"  {_instead_of(value)}"
            )
    return map_arrays(_to_rows, plain)


def named_leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Return (name, value) for each value in plain containers, with its name in predictions.

    Args:
        tree: Nested dicts, lists and tuples; see `as_plain_containers`.
        prefix: Beginning of each name. Without it, the name of a single value is empty.
    """
    if isinstance(tree, Mapping):
        items = [(f"{prefix}{name}", value) for name, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        items = [(f"{prefix or 'output_'}{i}", value) for i, value in enumerate(tree)]
    else:
        return [(prefix.removesuffix("_"), tree)]
    return [leaf for name, value in items for leaf in named_leaves(value, f"{name}_")]


def _instead_of(value: object) -> str:
    """Return advice on what `forward` should return in place of `value`, which is not a tensor."""
    if isinstance(value, torch.distributions.Distribution):
        return (
            "Let forward return the distribution's parameters as a tuple of tensors, with its mean "
            "if that is to be predicted, and create the distribution from them in the loss and the "
            "metrics. A LightningModule may return the mean from predict_step instead."
        )
    if type(value).__module__.startswith("transformers."):
        return (
            "Set use_cache=False in the model's configuration if it is a cache; otherwise let "
            "forward return only what is to be predicted."
        )
    return "Let forward return tensors only, or convert the value: torch.as_tensor(value)."


def _to_rows(output: torch.Tensor) -> np.ndarray[Any, Any]:
    # NumPy and the file formats of predictions do not support bfloat16.
    return to_array(output.float() if output.dtype == torch.bfloat16 else output)


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

"""Finds tensors whose initial values a module computes from the first batch it receives.

These are lazy parameters and buffers, and buffers that are registered as None. PyTorch's own lazy
modules take only shapes from the batch. A module of the user's that takes its mean or variance
would get other values here, where the first batch is not a whole minibatch.

Callers: `trainer.py`.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, is_lazy

from elasticdl.data.batch import Batch, map_arrays
from elasticdl.training.torch.buffers import is_kept


def computed_from_data(
    model: nn.Module, example: Batch, run: Callable[[nn.Module, Batch], Any]
) -> list[str]:
    """Return the names of lazy or missing tensors whose initial values depend on the data.

    Initializes two copies of the module: with the example, and with its first record only.

    Args:
        model: The module, whose lazy parameters and buffers have no values yet.
        example: Different examples, at least two.
        run: Function (module, batch) that seeds all random generators and calls the module on the
            batch.

    Returns:
        The names; empty if there are none, or if the module cannot be copied.
    """
    lazy = [
        name
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers())
        if is_lazy(tensor)
    ]
    lazy += missing_buffers(model)
    # The training itself reports what is wrong with the model.
    with suppress(Exception):
        if lazy:
            first = map_arrays(lambda array: array[[0] * len(array)], example.features)
            batches = example, replace(example, features=first)
            whole, repeated = (_initialized(model, batch, run, lazy) for batch in batches)
            return [
                name
                for name in lazy
                if name in whole
                and (name not in repeated or not torch.equal(whole[name], repeated[name]))
            ]
    return []


def missing_buffers(model: nn.Module) -> list[str]:
    """Return the names of the persistent buffers that are None, except those of PyTorch's modules.

    The latter stay None, as those of a BatchNorm without running statistics.
    """
    return [
        f"{prefix}.{leaf}".lstrip(".")
        for prefix, module in model.named_modules()
        if not type(module).__module__.startswith("torch.")
        for leaf, buffer in module._buffers.items()  # noqa: SLF001 - see `buffers.is_kept`
        if buffer is None and is_kept(module, leaf)
    ]


def tensor_names(model: nn.Module, *, all_buffers: bool = False) -> set[str]:
    """Return the names of a module's parameters and persistent buffers, or of all its buffers.

    `state_dict()` is not called, because the user's hooks may change the module there.
    """
    return {
        f"{prefix}.{leaf}"
        for prefix, module in model.named_modules()
        for own in (module._parameters, module._buffers)  # noqa: SLF001 - also what it overrides
        for leaf, tensor in own.items()
        if tensor is not None and (all_buffers or is_kept(module, leaf))
    }


def _initialized(
    model: nn.Module, batch: Batch, run: Callable[[nn.Module, Batch], Any], names: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Return some parameters and buffers of a copy of a module after its first batch."""
    # Lazy parameters can be copied, lazy buffers cannot.
    make: Any = UninitializedBuffer
    buffers: dict[int, Any] = {
        id(each): make(device=each.device, dtype=each.dtype)
        for each in model.buffers()
        if is_lazy(each)
    }
    copied = copy.deepcopy(model, buffers)
    run(copied, batch)
    tensors = itertools.chain(copied.named_parameters(), copied.named_buffers())
    return {name: tensor for name, tensor in tensors if name in names}

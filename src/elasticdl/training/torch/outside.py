"""What a module remembers outside of its parameters and persistent buffers, found by trying.

A copy of the module runs the same two examples twice in training mode, with the same seed and the
same parameters and buffers. What is different after the second run than after the first is memory
that no checkpoint holds: a counter in an attribute, a hidden state, a buffer that is not
persistent, a random generator of its own. A resumed training would go on differently, so it is
refused by name. What is computed again from the same inputs (a cache) is the same after both runs,
and is allowed.

Callers: `trainer.py`, when it is made.
"""

from __future__ import annotations

import copy
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from elasticdl.errors import DefinitionError
from elasticdl.training.torch.buffers import Buffers, is_kept
from elasticdl.training.torch.tensors import to_array

if TYPE_CHECKING:
    from elasticdl.definition import Origin

# Nested values deeper than this are not looked at.
_DEPTH = 4
_DRAW = (random.Random, np.random.Generator, np.random.RandomState)
_OF_MODULES = vars(nn.Module()).keys()


def check_nothing_outside(
    model: nn.Module, run: Callable[[nn.Module], object], origin: Origin
) -> None:
    """Make sure that a checkpoint holds all that a model remembers of a training.

    Args:
        model: The module; it stays as it is.
        run: Calls a module on the same examples in training mode, with the same seed.
        origin: For errors.

    Raises:
        DefinitionError: It remembers something else.
    """
    try:
        tried = copy.deepcopy(model)
    except Exception:  # noqa: BLE001 - a module may hold what cannot be copied, a tensor of a graph say
        return
    kept = {name: tensor.detach().clone() for name, tensor in _kept(tried)}
    try:
        tried.train()
        run(tried)
        _restore(tried, kept)
        first = dict(_remembered(tried))
        run(tried)
        second = dict(_remembered(tried))
    except Exception:  # noqa: BLE001 - the first step will say what is wrong, on a batch of the data
        return
    changed = [name for name, digest in second.items() if first.get(name) != digest]
    if changed:
        raise DefinitionError(
            f"{origin}: {changed[0]} of the model changes with every call of `forward` in "
            "training, and is in no checkpoint, so a resumed training would go on differently. "
            "Keep it in a buffer: self.register_buffer(name, torch.tensor(value))."
        )


def _restore(model: nn.Module, kept: Mapping[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in _kept(model):
            if name in kept and tensor.shape == kept[name].shape:
                tensor.copy_(kept[name])


def _kept(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a checkpoint holds of a model."""
    yield from nn.Module.named_parameters(model, remove_duplicate=False)
    yield from Buffers(model).tensors().items()


def _remembered(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield what lies outside of the state dict: where, and a digest of the value."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - see `buffers.is_kept`
            if buffer is not None and not is_kept(module, name):
                where = ".".join(part for part in (prefix, name) if part)
                yield f"the buffer {where}, which is not persistent,", digest(buffer)
        for name, value in vars(module).items():
            if name not in _OF_MODULES:
                where = ".".join(part for part in (prefix, name) if part)
                yield f"the attribute {where}", digest(value)


def digest(value: Any) -> str:
    """Return a digest of what a value holds: numbers, text, tensors, and containers of them."""
    hasher = hashlib.blake2b(digest_size=16)
    _feed(hasher, value, _DEPTH)
    return hasher.hexdigest()


def _feed(hasher: Any, value: Any, depth: int) -> None:
    if isinstance(value, (bool, int, float, str, type(None))):
        hasher.update(repr(value).encode())
    elif isinstance(value, torch.Tensor):
        array = value.detach().cpu()
        hasher.update(repr((array.dtype, tuple(array.shape))).encode())
        if array.layout is torch.strided and not array.is_quantized:
            hasher.update(to_array(array).tobytes())
    elif isinstance(value, (np.ndarray, torch.Generator, *_DRAW)):
        hasher.update(_bytes_of(value))
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            hasher.update(repr(key).encode() if isinstance(key, (str, int)) else b"?")
            _feed(hasher, item, depth - 1)
    elif depth and hasattr(value, "__iter__") and hasattr(value, "__len__"):
        for item in value:
            _feed(hasher, item, depth - 1)


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return repr(value.getstate()).encode()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state).encode()
    return repr(value.get_state(legacy=False)).encode()

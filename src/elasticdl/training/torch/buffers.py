"""Persistent buffers: the state of a module, besides its parameters, that training changes.

Examples are BatchNorm's running mean and variance and its count of batches, and a user's own
(`register_buffer`). Buffers that are not persistent are not state: their module recreates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from elasticdl.training.torch.tensors import to_array


def is_kept(module: nn.Module, name: str) -> bool:
    """Return whether a buffer of a module is persistent.

    `state_dict()` and `named_buffers()` are not called, because a module may override them to save
    only a part of its buffers, and a resumed run needs all of them.
    """
    return name not in module._non_persistent_buffers_set  # noqa: SLF001 - no public name


def differs(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors differ in any bit; NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return True
    # PyTorch does not compare sparse tensors.
    is_equal = one.layout == other.layout == torch.strided and torch.equal(one, other)
    return not is_equal and to_array(one).tobytes() != to_array(other).tobytes()


class Buffers:
    """Gives access to the persistent buffers of a module, in a fixed order.

    A module may write into a buffer or replace it by another tensor, so buffers are looked up each
    time.

    Args:
        model: The module. Lazy buffers, whose shape is not yet known, are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places: dict[str, tuple[nn.Module, str]] = {}
        seen: set[int] = set()
        for prefix, module in model.named_modules():
            for leaf, buffer in module._buffers.items():  # noqa: SLF001 - see `is_kept`
                if buffer is None or not is_kept(module, leaf) or is_lazy(buffer):
                    continue
                name = f"{prefix}.{leaf}" if prefix else leaf
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._places[name] = (module, leaf)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the buffers by name."""
        return {name: getattr(module, leaf) for name, (module, leaf) in self._places.items()}

    def owner(self, name: str) -> nn.Module:
        """Return the module that owns a buffer."""
        return self._places[name][0]

    @contextmanager
    def restored(self) -> Iterator[dict[str, torch.Tensor]]:
        """Context manager that yields copies of the buffers, and restores them at its end."""
        before = self.tensors()
        copies = {name: tensor.detach().clone() for name, tensor in before.items()}
        try:
            yield copies
        finally:
            with torch.no_grad():
                for name, (module, leaf) in self._places.items():
                    setattr(module, leaf, before[name].copy_(copies[name]))

    def set(self, values: Mapping[str, torch.Tensor]) -> None:
        """Copy values into the buffers, in place."""
        with torch.no_grad():
            for name, (module, leaf) in self._places.items():
                getattr(module, leaf).copy_(values[name])

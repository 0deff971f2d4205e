"""What a module keeps beside its parameters and a training moves: its persistent buffers.

BatchNorm's running mean and variance and its count of batches are such; so are a user's own
(`register_buffer`). Buffers that are not persistent are no state: their module makes them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy


class Buffers:
    """The persistent buffers of a module, in a fixed order.

    A module may write into a buffer or put another tensor in its place, so they are looked up
    each time.

    Args:
        model: Its lazy buffers, whose shape is not known yet, are left out.
    """

    def __init__(self, model: nn.Module) -> None:
        persistent = model.state_dict(keep_vars=True)
        self._places: dict[str, tuple[nn.Module, str]] = {}
        seen: set[int] = set()
        for prefix, module in model.named_modules():
            for name, buffer in module.named_buffers(prefix, recurse=False):
                if name in persistent and not is_lazy(buffer) and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._places[name] = (module, name.rpartition(".")[2])

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the buffers by name."""
        return {name: getattr(module, leaf) for name, (module, leaf) in self._places.items()}

    @contextmanager
    def restored(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yield copies of the buffers; afterwards they are as they were, the same tensors."""
        before = self.tensors()
        copies = {name: tensor.detach().clone() for name, tensor in before.items()}
        try:
            yield copies
        finally:
            with torch.no_grad():
                for name, (module, leaf) in self._places.items():
                    setattr(module, leaf, before[name].copy_(copies[name]))

    def changes(self, before: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return by how much each buffer differs from its copy, as float32."""
        return [
            tensor.detach().float() - before[name].float()
            for name, tensor in self.tensors().items()
        ]

    def add(self, changes: Sequence[torch.Tensor]) -> None:
        """Add a change to each buffer; a whole number changes by a whole number.

        Args:
            changes: float32, on the buffers' device, as `changes` returns them.
        """
        with torch.no_grad():
            for tensor, change in zip(self.tensors().values(), changes, strict=True):
                if tensor.is_floating_point():
                    tensor.add_(change.view_as(tensor).to(tensor.dtype))
                else:
                    # A counter: every worker added the same.
                    whole = change.view_as(tensor).round().to(torch.int64)
                    tensor.copy_(tensor.to(torch.int64) + whole)

"""Detects writes of `forward` into parameters, which would then differ between workers.

Callers: `trainer.py`, around the gradients of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from elasticdl.training.torch.buffers import differs

if TYPE_CHECKING:
    from torch import nn


class ParameterMoves:
    """Takes a snapshot of a model's parameters, to find which of them change later.

    Args:
        parameters: The parameters, by name.
        with_values: Whether to compare values too, which detects writes through
            `parameter.data`. This copies all parameters, so it is too slow for every step.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, with_values: bool) -> None:
        self._parameters = parameters
        self._versions = {n: p._version for n, p in parameters.items()}  # noqa: SLF001 - no public name
        self._values = {n: p.detach().clone() for n, p in parameters.items()} if with_values else {}

    def found(self) -> list[str]:
        """Return the names of the parameters that have changed since the snapshot."""
        return [
            name
            for name, parameter in self._parameters.items()
            if parameter._version != self._versions[name]  # noqa: SLF001 - no public name
            or (name in self._values and differs(self._values[name], parameter.detach()))
        ]

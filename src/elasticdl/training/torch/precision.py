"""Mixed precision: autocast, and loss scaling for float16.

In bfloat16 a step needs only `torch.autocast`. Gradients are often too small for float16, so the
loss is multiplied by a large number, the scale, and gradients are divided by it. An update whose
gradients overflow is skipped, and the scale is reduced. `torch.amp.GradScaler` does the same, with
the same settings. Here gradients are divided in the step that computed them, so that workers sum
and clip the gradients of the loss itself. The sum decides whether to update, so all workers make
the same decision.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from elasticdl.definition import Precision

_FORMATS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# The defaults of torch.amp.GradScaler.
_FIRST_SCALE = 65536.0
_GROWTH, _BACKOFF, _GROWTH_INTERVAL = 2.0, 0.5, 2000


class MixedPrecision:
    """Applies autocast, and loss scaling for float16, to the steps of one trainer.

    Args:
        precision: The definition's precision.
        device: The device of the computation.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self._format = _FORMATS.get(precision)
        self._device = device
        self._scale: float | None = _FIRST_SCALE if precision == "fp16" else None
        self._since_growth = 0

    def autocast(self) -> AbstractContextManager[Any]:
        """Return a context manager in which model and loss are computed in the chosen precision."""
        if self._format is None:
            return nullcontext()
        return torch.autocast(self._device.type, self._format)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss multiplied by the scale, if any, for the backward pass."""
        return loss if self._scale is None else loss * self._scale

    def unscale(self, gradients: Iterable[torch.Tensor]) -> None:
        """Divide the gradients of a scaled loss by the scale, in place."""
        if self._scale is not None:
            inverse = torch.tensor(self._scale, dtype=torch.float64).reciprocal().float()
            for gradient in gradients:
                gradient.mul_(inverse.to(gradient.device, gradient.dtype))

    def accepts(self, gradients: Iterable[torch.Tensor]) -> bool:
        """Return whether to apply an update with these gradients, and adjust the scale afterwards.

        With loss scaling, an update with gradients that are not finite is skipped.

        Args:
            gradients: The gradients of the update, divided by the scale already.
        """
        if self._scale is None:
            return True
        if not all(
            bool(torch.isfinite(g.coalesce().values() if g.is_sparse else g).all())
            for g in gradients
        ):
            self._scale, self._since_growth = self._scale * _BACKOFF, 0
            return False
        self._since_growth += 1
        if self._since_growth == _GROWTH_INTERVAL:
            self._scale, self._since_growth = self._scale * _GROWTH, 0
        return True

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the loss scale and the count of updates with it; empty without loss scaling."""
        if self._scale is None:
            return {}
        return {
            "scale": np.array(self._scale, np.float32),
            "growth_tracker": np.array(self._since_growth, np.int64),
        }

    def load(self, state: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Restore a state; if it does not match, change nothing and return a line per mismatch."""
        if state.keys() != self.state().keys():
            has = "a scale of the loss" if state else "no scale of the loss"
            return [f"{has} in the checkpoint; the model file has another precision"]
        if state:
            self._scale = float(state["scale"])
            self._since_growth = int(state["growth_tracker"])
        return []

"""Labels of one number per example in the shape that a PyTorch loss or metric needs.

If ElasticDL chose the shape, because the model file has no input function, the labels are reshaped
for a function that needs it. Labels of the user's own keep their shape, as in a plain script, with
a warning.

Callers: `losses.py`, `metrics.py`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elasticdl.training.label_shapes import differ_by_an_axis, needs_other_shape

if TYPE_CHECKING:
    from collections.abc import Callable

# A number of rows that no other axis of a tensor has in a loss.
_ROWS = 61
_PAIR = 2


class TorchLabelShape:
    """The shape in which one loss or metric gets labels.

    Args:
        where: `file:line` of the function, for the warning.
        what: What the function is, such as "the loss".
        may_reshape: Whether labels may be reshaped; otherwise there is only a warning.
    """

    def __init__(self, where: str, what: str, *, may_reshape: bool) -> None:
        self._where, self._what, self._may_reshape = where, what, may_reshape
        self._reshapes = False

    def find(self, function: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> None:
        """Determine from an example batch whether to give labels the shape of the outputs.

        Args:
            function: Function (outputs, labels) -> loss or metric.
            outputs: The model's outputs for the example batch.
            labels: Its labels.
        """
        if not _differ(outputs, labels):
            return
        rows = torch.arange(_ROWS, device=outputs.device) % len(outputs)
        outputs, labels = outputs[rows], labels[rows]

        def is_per_example(reshaped: bool) -> bool | None:
            given = labels.reshape(outputs.shape) if reshaped else labels
            return _makes_no_pairs(function, outputs, given)

        self._reshapes = needs_other_shape(
            is_per_example,
            outputs.ndim,
            where=self._where,
            what=self._what,
            may_reshape=self._may_reshape,
        )

    def __call__(self, outputs: Any, labels: Any) -> Any:
        """Return labels in the shape that the function needs for these outputs."""
        if self._reshapes and _differ(outputs, labels):
            return labels.reshape(outputs.shape)
        return labels


def _differ(outputs: Any, labels: Any) -> bool:
    are_tensors = isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor)
    return are_tensors and differ_by_an_axis(outputs.shape, labels.shape)


def _makes_no_pairs(function: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> bool | None:
    """Return whether a function makes no tensor of all pairs of examples; None if it raises."""
    watch = _Shapes()
    try:
        with torch.no_grad(), warnings.catch_warnings(), watch:
            # Losses of PyTorch warn about shapes that they broadcast.
            warnings.simplefilter("ignore")
            function(outputs, labels)
    except Exception:  # noqa: BLE001 - the first step raises it again, on a batch of the data
        return None
    return not watch.has_pairs


class _Shapes(TorchDispatchMode):
    """Records whether an operation in its block makes a tensor of all pairs of rows."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.has_pairs = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, torch.Tensor) and list(each.shape).count(_ROWS) >= _PAIR:
                self.has_pairs = True
        return made

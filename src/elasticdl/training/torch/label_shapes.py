"""Finds losses and metrics that compare each output with the labels of all examples by mistake.

    outputs [n, 1], labels [n]      outputs - labels has the shape [n, n], so its mean is wrong
    outputs [n], labels [n, 1]      the same

PyTorch broadcasts here without an error. Both shapes of labels are common: a loss of class numbers
needs [n], a difference needs the shape of the outputs. If ElasticDL chose the shape, because the
model file has no input function, the labels are reshaped for a function that needs it. Labels of
the user's own keep their shape, as in a plain script, with a warning.

Callers: `losses.py`, `metrics.py`.
"""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("elasticdl")

# A number of rows that no other axis of a tensor has in a loss.
_ROWS = 61
_PAIR = 2


class TorchLabelShape:
    """The shape in which one loss or metric gets labels of one number per example.

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

        The answer is yes if the function raises or compares all pairs of examples, and does not
        with reshaped labels. A loss that compares pairs on purpose does so with both shapes.

        Args:
            function: Function (outputs, labels) -> loss or metric.
            outputs: The model's outputs for the example batch.
            labels: Its labels.
        """
        if not _differ_by_an_axis(outputs, labels):
            return
        rows = torch.arange(_ROWS, device=outputs.device) % len(outputs)
        outputs, labels = outputs[rows], labels[rows]
        is_per_example = _is_per_example(function, outputs, labels)
        if is_per_example or not _is_per_example(function, outputs, labels.reshape(outputs.shape)):
            return
        if self._may_reshape:
            self._reshapes = True
        elif is_per_example is False:
            _log.warning(
                "%s: the model's outputs have the shape %s and the labels %s, so %s broadcasts "
                "them to [n, n]: each output is compared with the labels of all examples. Give "
                "the labels the shape of the outputs: labels.reshape(outputs.shape).",
                self._where,
                "[n, 1]" if outputs.ndim == _PAIR else "[n]",
                "[n, 1]" if labels.ndim == _PAIR else "[n]",
                self._what,
            )

    def __call__(self, outputs: Any, labels: Any) -> Any:
        """Return labels in the shape that the function needs for these outputs."""
        if self._reshapes and _differ_by_an_axis(outputs, labels):
            return labels.reshape(outputs.shape)
        return labels


def _differ_by_an_axis(outputs: Any, labels: Any) -> bool:
    """Return whether these are tensors of one number per example, one [n] and one [n, 1]."""
    if not (isinstance(outputs, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return False
    fewer, more = sorted((tuple(outputs.shape), tuple(labels.shape)), key=len)
    return len(fewer) == 1 and more == (*fewer, 1)


def _is_per_example(function: Callable[[Any, Any], Any], outputs: Any, labels: Any) -> bool | None:
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

"""Determines the shape that a loss needs for labels of one number per example: [n] or [n, 1].

    outputs [n, 1], labels [n]      outputs - labels has the shape [n, n], so its mean is wrong
    outputs [n], labels [n, 1]      the same
    outputs ([n], [n])              the same for an output in a tuple or dict

Frameworks broadcast here without an error. Both shapes of labels are common: a loss of class
indices needs [n], a difference needs the shape of the outputs. The loss is therefore tried with
both shapes. If it creates a tensor of all pairs of examples, [n, n], with the given shape but not
with the other, it needs the other. A loss that compares pairs on purpose creates one with both.
Metrics are treated likewise.

Callers: `keras/label_shapes.py` and `torch/label_shapes.py`, which find these tensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("elasticdl")


def needs_other_shape(
    is_per_example: Callable[[bool], bool | None],
    num_axes: int,
    *,
    where: str,
    what: str,
    may_reshape: bool,
) -> bool:
    """Return whether to reshape labels, from [n] to [n, 1] or from [n, 1] to [n].

    If the loss or metric needs this but labels may not be reshaped, log a warning; return False.

    Args:
        is_per_example: Function (whether to reshape labels) -> whether the loss or metric then
            compares examples one by one: creates no tensor of all pairs. None if it raises.
        num_axes: Number of axes of the labels, 1 or 2.
        where: `file:line` of the function, for the warning.
        what: What the function is, such as "the loss".
        may_reshape: Whether labels may be reshaped.
    """
    is_right = is_per_example(False)
    if is_right or not is_per_example(True):
        return False
    if not may_reshape and is_right is False:
        shape, other = ("[n]", "[n, 1]") if num_axes == 1 else ("[n, 1]", "[n]")
        _log.warning(
            "%s: the labels have the shape %s, and %s broadcasts them with the model's outputs to "
            "[n, n]: each output is compared with the labels of all examples. Give the labels the "
            "shape %s.",
            where,
            shape,
            what,
            other,
        )
    return may_reshape

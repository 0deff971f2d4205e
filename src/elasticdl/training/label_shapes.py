"""Determines the shape that a loss needs for labels of one number per example: [n] or [n, 1].

    outputs [n, 1], labels [n]      outputs - labels has the shape [n, n], so its mean is wrong
    outputs [n], labels [n, 1]      the same
    outputs ([n], [n])              the same for an output in a tuple or dict

Frameworks broadcast the two to [n, n] without an error. Both shapes of labels are common: a loss of
class indices needs [n], a difference needs the shape of the outputs. The loss is therefore called
with both shapes, on an example batch. A tensor of shape [n, n], all pairs of examples, shows that
the two were broadcast. If it appears with the given shape only, the loss needs the other shape. If
it appears with both, the loss compares pairs on purpose. Metrics are treated likewise.

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
    """Return whether to reshape labels for a loss or metric: [n] to [n, 1], or the reverse.

    That is so if the function works with the other shape only. With the given shape, it raises or
    compares each output with the labels of all examples, a silent error. If labels may not be
    reshaped, the result is False, and the silent error is reported by a warning.

    Args:
        is_per_example: Function (flag), which calls the loss or metric on an example batch: with
            reshaped labels if the flag is True, else with the given ones. It returns True if each
            output was compared with the label of its own example only, False if a tensor of all
            pairs [n, n] was created, and None if the loss or metric raised.
        num_axes: Number of axes of the given labels, 1 or 2.
        where: `file:line` of the loss or metric, for the warning.
        what: Its description in the warning, such as "the loss".
        may_reshape: Whether labels may be reshaped. Those that the user's input function returns
            may not.
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


def warn_of_several_outputs(where: object, what: str, num_outputs: int) -> None:
    """Warn that a loss or metric compares each label [n, 1] with several outputs [n, k].

    Args:
        where: Place in the user's file.
        what: The loss or metric, as the subject of a sentence.
        num_outputs: Outputs of an example.
    """
    _log.warning(
        "%s: %s compares each label with all %d outputs of its example: the labels have the shape "
        "[batch, 1], the outputs [batch, %d]. If that is not meant, let the model return one "
        "output per label; or, if an example has several labels, write input_fn(records) that "
        "returns all of them.",
        where,
        what,
        num_outputs,
        num_outputs,
    )

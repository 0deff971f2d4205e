"""Gradient clipping: bounds the gradients of an update before the optimizer receives them.

Callers: `trainer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from elasticdl.definition import GradientClipping
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.training.torch.untracked_state import digest

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition

# Deep enough to include the values in functions that a clipping function calls.
_DEPTH = 7


def clipping_of(
    definition: ModelDefinition, callbacks: Sequence[Any]
) -> Callable[[Sequence[nn.Parameter]], None] | None:
    """Return a function that clips the `.grad` of parameters in place; None without clipping.

    It is called once per update; with several workers, after their gradients were summed.

    Args:
        definition: The model definition.
        callbacks: The callbacks of the model file. The user's function may keep state in their
            attributes, which checkpoints contain.

    Raises:
        DefinitionError: Raised by the returned function if the user's function keeps state outside
            the callbacks; checked at the calls 1, 2, 4, 8 and so on.
    """
    clipping = definition.gradient_clipping
    if clipping is None:
        return None
    if isinstance(clipping, GradientClipping):
        limit, by_norm = clipping.limit, clipping.by == "norm"

        def clip(parameters: Sequence[nn.Parameter]) -> None:
            if by_norm:
                nn.utils.clip_grad_norm_(parameters, limit)
            else:
                nn.utils.clip_grad_value_(parameters, limit)

        return clip
    function, where = clipping, definition.where("gradient_clipping")
    num_calls = 0

    def call(parameters: Sequence[nn.Parameter]) -> None:
        nonlocal num_calls
        num_calls += 1
        is_checked = num_calls & (num_calls - 1) == 0
        before = digest(function, _DEPTH, callbacks) if is_checked else ""
        try:
            function(parameters)
        except ElasticDLError:
            raise
        except Exception as error:
            raise UserCodeError(
                f"{raised_at(error, where)}: gradient_clipping() raised:\n{users_traceback(error)}"
            ) from error
        if is_checked and digest(function, _DEPTH, callbacks) != before:
            raise DefinitionError(
                f"{where}: gradient_clipping() keeps state that changes with every call (an "
                "attribute, or a variable that it uses), but no checkpoint stores it, so a resumed "
                "training would continue differently. Keep it in an attribute of a callback that "
                "callbacks() returns, and use that object here."
            )

    return call

"""Gradient clipping: bounds the gradients of an update before the optimizer receives them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import nn

from elasticdl.definition import GradientClipping
from elasticdl.errors import ElasticDLError, UserCodeError, raised_at, users_traceback

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition


def clipping_of(definition: ModelDefinition) -> Callable[[Sequence[nn.Parameter]], None] | None:
    """Return a function that clips the `.grad` of parameters in place; None without clipping.

    It is called with the gradients of an update: on several workers, with their sum.
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
    function = clipping

    def call(parameters: Sequence[nn.Parameter]) -> None:
        try:
            function(parameters)
        except ElasticDLError:
            raise
        except Exception as error:
            where = definition.where("gradient_clipping")
            raise UserCodeError(
                f"{raised_at(error, where)}: gradient_clipping() raised:\n{users_traceback(error)}"
            ) from error

    return call

"""Converts a user's model to `ModelDefinition.create_model`, a function that creates a new model.

The returned function calls the user's function or class, with those of the job's params
(`--params`) that it declares as arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.dialect_reader import DialectReader, call
from elasticdl.dialects.params import described

if TYPE_CHECKING:
    from elasticdl.dialects.model_code import Symbol


def as_model_factory(
    symbol: Symbol, reading: DialectReader, *, before: Callable[[], None] = lambda: None
) -> Callable[[], Any]:
    """Return a function that creates a new model.

    Args:
        symbol: The function or class.
        reading: Reader of the user's code, which provides the params and builds error messages.
        before: Called before each creation of a model.

    Raises:
        UsageError: The user's function or class needs a param that has no value.
    """
    params = reading.params.declare(symbol)

    def create_model() -> Any:
        before()
        made = call(symbol, **params, **reading.params.rest(symbol))
        if inspect.isclass(made):
            raise reading.error(
                symbol,
                f"{symbol.name}() returned {described(made)}, not a model.",
                f"Call it: return {made.__name__}(...)",
            )
        if not callable(made):
            raise reading.error(
                symbol,
                f"{symbol.name}() returned {described(made)}, not a model.",
                "Return the model that it creates.",
            )
        return made

    return create_model

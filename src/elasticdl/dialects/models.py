"""What makes a user's model: a function or a class, called with the params it declares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.params import described
from elasticdl.dialects.reading import Reading, call

if TYPE_CHECKING:
    from elasticdl.dialects.reference import Symbol


def as_model_factory(
    symbol: Symbol, reading: Reading, *, before: Callable[[], None] = lambda: None
) -> Callable[[], Any]:
    """Return what makes a new model.

    Args:
        symbol: The function or class.
        reading: For params and errors.
        before: Called before each model.

    Raises:
        UsageError: It needs a param that is not given.
    """
    params = reading.params.declare(symbol)

    def create_model() -> Any:
        before()
        made = call(symbol, **params, **reading.params.rest(symbol))
        if not callable(made):
            raise reading.error(
                symbol,
                f"{symbol.name}() returned {described(made)}, not a model.",
                "Return the model it makes.",
            )
        return made

    return create_model

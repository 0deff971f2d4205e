"""A user's optimizer, as the definition has it: a function that returns a new one each time.

It may be a function or class, called with the params it declares, a Keras optimizer, of which
a new one is made with the same settings, or the name of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.dialects import keras_objects
from elasticdl.dialects.params import described
from elasticdl.dialects.reading import Reading, call, mro_has

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.dialects.reference import Symbol


def as_optimizer_factory(symbol: Symbol, reading: Reading) -> Callable[[], Any]:
    """Return what makes a new optimizer.

    Raises:
        DefinitionError: It is no optimizer and makes none.
        UsageError: It needs a param that is not given.
    """
    value = symbol.value
    if isinstance(value, str):
        # Looked up now, so that a misspelt name is told before any data is read.
        keras_objects.optimizer(value, symbol)
        return lambda: keras_objects.optimizer(value, symbol)
    if mro_has(value, "Optimizer") and not isinstance(value, type):
        return lambda: keras_objects.copied(value, symbol)
    if not callable(value):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(value)}, not an optimizer.",
            "Expected a function that returns an optimizer, or a Keras optimizer or its name.",
        )
    given = reading.params.declare(symbol)

    def create_optimizer() -> Any:
        made = call(symbol, **given)
        if made is None:
            raise reading.error(
                symbol, f"{symbol.name}() returned None.", "Return the optimizer it makes."
            )
        return keras_objects.optimizer(made, symbol) if isinstance(made, str) else made

    return create_optimizer

"""Converts a model file's `callbacks`, a list or function, to a function that creates new ones.

The result becomes `create_callbacks` of the `ModelDefinition`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.dialect_reader import DialectReader, call
from elasticdl.dialects.params import described

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.dialects.model_code import Symbol


def as_callbacks(symbol: Symbol | None, reading: DialectReader) -> Callable[[], Sequence[Any]]:
    """Return a function that creates new callbacks at each call, as the model file defines them.

    Args:
        symbol: The user function, or a list of callbacks; None if there are none.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Raises:
        UsageError: The function needs a param that has no value.
    """
    if symbol is None:
        return list
    given = {} if not callable(symbol.value) else reading.params.declare(symbol)

    def create() -> Sequence[Any]:
        made = symbol.value
        if callable(made):
            made = call(symbol, **given)
        elif reading.framework == "torch":
            # Callbacks have state, which must not be shared between runs.
            made = copy.deepcopy(made)
        if made is None:
            return []
        if not isinstance(made, Iterable):
            raise reading.error(
                symbol,
                f"{symbol.name} {'returned' if callable(symbol.value) else 'is'} "
                f"{described(made)}.",
                f"Expected a list of callbacks: [{type(made).__name__}(...)].",
            )
        return list(made)

    return create

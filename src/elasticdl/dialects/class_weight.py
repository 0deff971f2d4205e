"""Converts a user's class weights, a dict `{class: weight}` or a function that returns one.

The result becomes `class_weight` of the `ModelDefinition`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.data.class_weights import checked
from elasticdl.dialects.dialect_reader import DialectReader, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elasticdl.dialects.model_code import Symbol


def as_class_weight(
    symbol: Symbol | None, reading: DialectReader
) -> Callable[[], Mapping[int, float] | None] | None:
    """Return a function that returns the class weights; None if the user defines none.

    It runs the user's code only once, when the first batch is prepared.

    Args:
        symbol: The user's dict or function; None if there is none.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Raises:
        DefinitionError: A dict does not map classes to weights.
        UsageError: The function needs a param that has no value.
    """
    if symbol is None:
        return None
    if not callable(symbol.value):
        if symbol.value is None:
            return None
        weights = checked(symbol.value, str(symbol))
        return lambda: weights
    given = reading.params.declare(symbol)
    returned: list[Mapping[int, float] | None] = []

    def class_weight() -> Mapping[int, float] | None:
        if not returned:
            value = call(symbol, **given)
            returned.append(None if value is None else checked(value, str(symbol)))
        return returned[0]

    return class_weight

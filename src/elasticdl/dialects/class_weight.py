"""A user's class weights, as the definition has them: a dict, or a function that returns one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.data.class_weights import checked
from elasticdl.dialects.reading import Reading, call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elasticdl.dialects.reference import Symbol


def as_class_weight(
    symbol: Symbol | None, reading: Reading
) -> Callable[[], Mapping[int, float] | None] | None:
    """Return what returns the class weights; asked once, when the first batch is made.

    Raises:
        DefinitionError: A dict is not one of classes and weights.
        UsageError: The function needs a param that is not given.
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

"""Reads the names of the classes that a model predicts, in the order of its outputs.

    classes = ["cat", "dog"]                          in any model file
    def default_classes(self): return ["cat", "dog"]  in a Keras class; also an attribute

A file may use the name `classes` for another purpose, so values other than lists of distinct
strings are ignored there; `default_classes` has no other meaning.

Callers: `dialects/__init__.py` for every dialect, `keras_class.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasticdl.dialects.dialect_reader import call
from elasticdl.dialects.params import described

if TYPE_CHECKING:
    from elasticdl.dialects.dialect_reader import DialectReader
    from elasticdl.dialects.model_code import Symbol

_FEWEST = 2


def named_in_file(symbol: Symbol | None) -> tuple[str, ...]:
    """Return the class names in `classes` of a model file; empty for a value of another kind."""
    value: Any = None if symbol is None else symbol.value
    are_texts = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    return tuple(map(str, value or ())) if are_texts and _are_distinct(value) else ()


def as_classes(symbol: Symbol, reading: DialectReader) -> tuple[str, ...]:
    """Return the names of the classes in `default_classes`; empty for None.

    Raises:
        DefinitionError: They are not at least two different strings, numbers or booleans.
        UserCodeError: The user's function raised.
    """
    value = symbol.value
    if callable(value):
        value = call(symbol)
    if value is None:
        return ()
    plain = isinstance(value, (list, tuple)) and all(
        isinstance(each, (str, int, float)) for each in value
    )
    names = [str(each) for each in value] if plain else None
    if not _are_distinct(names):
        raise reading.error(
            symbol,
            f"{symbol.name} is {described(value) if names is None else repr(value)}.",
            "Expected a list of at least two different names, in the order of the model's outputs.",
        )
    return tuple(names or ())


def _are_distinct(names: Any) -> bool:
    return names is not None and len(names) >= _FEWEST and len(set(names)) == len(names)

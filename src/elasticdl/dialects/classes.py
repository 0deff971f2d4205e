"""Reads the names of the classes that a model predicts, in the order of its outputs.

    classes = ["cat", "dog"]                          in any model file
    def default_classes(self): return ["cat", "dog"]  in a Keras class; also an attribute

A file may use the name `classes` for another purpose, such as a number, a function, a dict or a
list of numbers; such values are ignored there. `default_classes` has no other meaning. Strings that
cannot be the names of classes are refused in both.

Callers: `dialects/__init__.py` for every dialect, `keras_class.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.wording import listed, shown
from elasticdl.dialects.dialect_reader import call
from elasticdl.dialects.params import described
from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.dialects.dialect_reader import DialectReader
    from elasticdl.dialects.model_code import ModelCode, Symbol

_EXPECTED = "a list of at least two different names, in the order of the model's outputs"
_FEWEST = 2


def with_names_in_file(definition: ModelDefinition, model_code: ModelCode) -> ModelDefinition:
    """Return a definition with the class names in `classes` of the model file, and their location.

    It is returned unchanged if the file has no `classes`, or a value of another kind.

    Raises:
        DefinitionError: The value has strings, but is not a list of at least two different ones.
    """
    symbol = model_code.find("classes")
    value: Any = None if symbol is None else symbol.value
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "OSU"
    parts = np.ravel(value) if is_array else value if isinstance(value, (list, tuple)) else [value]
    if symbol is None or not any(isinstance(each, str) for each in parts):
        return definition
    if not isinstance(value, (list, tuple)):
        found = f"is {described(value)}, {shown(value)}"
    elif others := [each for each in value if not isinstance(each, str)]:
        found = f"has {shown(others[0])}"
    elif _are_distinct(value):
        places = {**definition.places, "classes": (symbol.file, symbol.line)}
        return replace(definition, classes=tuple(map(str, value)), places=places)
    else:
        twice = sorted({each for each in value if value.count(each) > 1})
        found = f"has {listed(twice)} more than once" if twice else f"has only {value[0]!r}"
    raise DefinitionError(
        f"{symbol}: `classes` {found}; expected {_EXPECTED}, such as "
        'classes = ["cat", "dog"]. If it means something else here, rename it.'
    )


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
            f"Expected {_EXPECTED}.",
        )
    return tuple(names or ())


def _are_distinct(names: Any) -> bool:
    return names is not None and len(names) >= _FEWEST and len(set(names)) == len(names)

"""Converts a model file's `callbacks`, a list or function, to a function that returns a list.

The result becomes `create_callbacks` of the `ModelDefinition`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.dialect_reader import DialectReader, call
from elasticdl.dialects.params import described
from elasticdl.dialects.unread_names import is_used

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.dialects.model_code import Symbol


def callbacks_beside(owner: Symbol | None, reading: DialectReader) -> Symbol | None:
    """Return the callbacks that a model class defines, else those named `callbacks` in its file.

    Args:
        owner: Callbacks that the class defines; None if it has none.
        reading: Reader of the user's code, which builds error messages.

    Raises:
        DefinitionError: The file has other callbacks than the class. They would be ignored, and no
            code of the file uses them either.
    """
    in_file = reading.model_code.find("callbacks")
    if owner is None or in_file is None:
        return owner or in_file
    if in_file.value is not owner.value and not is_used("callbacks", reading.model_code):
        raise reading.error(
            in_file,
            f"{in_file.name} would be ignored, because {owner.name} ({owner}) is used.",
            "Keep one of them.",
        )
    return owner


def as_callbacks(symbol: Symbol | None, reading: DialectReader) -> Callable[[], Sequence[Any]]:
    """Return a function that returns the callbacks that a model file defines.

    Each call runs the user's function, or copies the user's list of PyTorch callbacks, because
    callbacks have state. Keras callbacks in a list are returned as they are.

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

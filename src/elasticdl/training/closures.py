"""What the code of a user's function does with the variables of the enclosing function."""

from __future__ import annotations

import dis
from types import FunctionType


def assigned_variables(function: FunctionType) -> set[str]:
    """Return the variables of the enclosing function that a function assigns (`nonlocal`).

    Example:
        >>> def counter():
        ...     n = 0
        ...
        ...     def count():
        ...         nonlocal n
        ...         n += 1
        ...
        ...     return count
        >>> assigned_variables(counter())
        {'n'}
    """
    instructions = dis.get_instructions(function)
    return {each.argval for each in instructions if each.opname == "STORE_DEREF"}

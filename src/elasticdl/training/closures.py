"""What the code of a user's function changes outside its local variables, as far as it shows.

The code is searched for single instructions; its values are not followed. So it shows `n += 1` of
a `nonlocal` n and `seen.append(1)`, but not the change of `seen` in `add(seen)`.

Callers: `keras/callback_memory.py`; `assigned_variables` also in `torch/`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType

_MUTATING = {
    "add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "fill", "insert",
    "pop", "popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "update",
}  # fmt: skip


@dataclass
class Changes:
    """What a function may change.

    Attributes:
        variables: Variables of the module and of the enclosing function that it assigns.
        attributes: Names of attributes that it assigns, of any object.
        methods: Name of a variable or an attribute -> names in it that are used, such as `append`.
        assigns_items: Whether it assigns items (`x[0] = 1`) other than those of local variables.
        advances: Whether it calls `next`.
        names: All names of global variables and attributes in it.
    """

    variables: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    methods: dict[str, set[str]] = field(default_factory=dict)
    assigns_items: bool = False
    advances: bool = False
    names: set[str] = field(default_factory=set)

    def mutates(self, name: str) -> bool:
        """Return whether a method that changes a container is used of a variable or attribute."""
        return not _MUTATING.isdisjoint(self.methods.get(name, ()))


def changes_in(*functions: FunctionType) -> Changes:
    """Return what the code of functions, and of functions within them, may change."""
    found = Changes()
    for function in functions:
        for code in _codes(function.__code__):
            _add(found, code, function.__code__.co_freevars)
    return found


def _add(found: Changes, code: CodeType, outer: tuple[str, ...]) -> None:
    before: object = None
    # A function with local variables may assign items of these.
    instructions = list(dis.get_instructions(code))
    has_locals = any("STORE_FAST" in each.opname for each in instructions)
    for each in instructions:
        kind, _, what = each.opname.partition("_")
        if kind in {"STORE", "DELETE"}:
            if what == "GLOBAL" or (what == "DEREF" and each.argval in outer):
                found.variables.add(each.argval)
            elif what == "ATTR":
                found.attributes.add(each.argval)
            elif what in {"SUBSCR", "SLICE"} and not has_locals:
                found.assigns_items = True
        elif what in {"ATTR", "METHOD"} and isinstance(before, str):
            found.methods.setdefault(before, set()).add(each.argval)
        before = each.argval
    found.names.update(code.co_names)
    found.advances |= "next" in code.co_names


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


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

"""Finds what a user's function may change outside its local variables, by reading its bytecode.

It reads one instruction at a time, and does not follow values through calls. So it finds `n += 1`
for a `nonlocal` n, and `seen.append(1)`, but not the change of `seen` in `add(seen)`.

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
    """What some functions may change outside their local variables.

    Attributes:
        variables: Variables of the module and of the enclosing function that they assign.
        attributes: Names of the attributes, of any object, that they assign.
        methods: Name of a variable or an attribute -> the methods and attributes of it that they
            use: `seen.append(1)` gives "seen" -> {"append"}.
        assigns_items: Whether they assign an item (`x[0] = 1`) of an object that is not in a local
            variable.
        advances: Whether they call `next`, which advances an iterator.
        names: All names of global variables and attributes in their code.
    """

    variables: set[str] = field(default_factory=set)
    attributes: set[str] = field(default_factory=set)
    methods: dict[str, set[str]] = field(default_factory=dict)
    assigns_items: bool = False
    advances: bool = False
    names: set[str] = field(default_factory=set)

    def mutates(self, name: str) -> bool:
        """Return whether a mutating method, such as `append`, is used on a variable or attribute.

        Args:
            name: Name of the variable or attribute.
        """
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

"""Which variables a user's function uses and changes that outlive its call, read from its code.

    nonlocal n; n += 1              a variable of the enclosing function
    global N; N += 1                a variable of the file
    def f(epoch, seen=[]):          a default argument, as an argument of functools.partial
    self.n += 1; S.n += 1; f.n = 1  an attribute of an object, a class, a function
    next(rates)                     an iterator
    rng.normal()                    a random generator

The code is not run. Its instructions are followed with the objects that it would find now, through
functions and methods that it calls. What depends on the arguments of a call is unknown, so a change
may be missed; `object_digest.py` detects it when it has happened.

Callers: `keras/callback_memory.py`.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import random
import types
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from elasticdl.training.object_digest import PLAIN, content_of, is_users, is_users_object

_CONTAINERS = (list, dict, set, deque, bytearray, np.ndarray)
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
_COLLECTS = {"append", "appendleft", "add", "extend", "insert"}
_CHANGES = _COLLECTS | {
    "clear", "difference_update", "discard", "extendleft", "fill", "intersection_update",
    "itemset", "partition", "pop", "popitem", "popleft", "put", "remove", "resize", "reverse",
    "rotate", "setdefault", "sort", "symmetric_difference_update", "update",
}  # fmt: skip
_JUMPS = {*dis.hasjrel, *dis.hasjabs}
_ENDS = (
    "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "RAISE_VARARGS", "RERAISE",
    "RETURN_CONST", "RETURN_VALUE",
)  # fmt: skip
# Instructions that push no result, so that what is on the stack remains known.
_WITHOUT_RESULT = (
    "CACHE", "COPY_FREE_VARS", "DELETE_", "DICT_", "END_FOR", "EXTENDED_ARG", "JUMP_", "KW_NAMES",
    "LIST_APPEND", "LIST_EXTEND", "MAKE_CELL", "MAP_ADD", "NOP", "NOT_TAKEN", "POP_",
    "RESUME", "SET_ADD", "SET_UPDATE", "STORE_",
)  # fmt: skip
_MAX_FUNCTIONS = 100


@dataclass(frozen=True)
class Variable:
    """A place for a value that outlives a call.

    Attributes:
        owner: What holds it: a cell, the variables of a module, a function, an object or a class.
        attribute: Its name there; empty if the owner is the value.
        name: Its name for messages, such as `S.n`.
        value: The present value.
        function: Name of the function that uses it, for messages.
        is_stored: Whether a checkpoint contains the value.
    """

    owner: Any
    attribute: str
    name: str
    value: Any
    function: str
    is_stored: bool = False

    @property
    def key(self) -> tuple[int, str]:
        """What is equal for two variables in the same place."""
        return id(self.owner), self.attribute

    @property
    def is_of_file(self) -> bool:
        """Whether it is a top-level variable of a file."""
        return bool(self.attribute) and isinstance(self.owner, dict)

    def now(self) -> Any:
        """Return the value that is there now; None if there is none."""
        if not self.attribute:
            return self.value
        if isinstance(self.owner, types.CellType):
            return content_of(self.owner)
        names = self.owner if self.is_of_file else vars(self.owner)
        return names.get(self.attribute, self.value)


class ChangedVariables:
    """Follows the code of functions.

    Args:
        is_left_out: Function (value) -> whether it is not followed, because checkpoints contain it
            or because it does not change.
        is_stored: Function (object, name of an attribute) -> whether checkpoints contain the
            attribute.

    Attributes:
        used: Variables that the functions use. Lists and dicts at the top level of a file to which
            they only add are left out.
        changed: Variables that they change. Items of lists and dicts at the top level of a file are
            left out.
    """

    def __init__(
        self,
        is_left_out: Callable[[Any], bool] = lambda _: False,
        is_stored: Callable[[Any, str], bool] = lambda *_: False,
    ) -> None:
        self._is_left_out, self._is_stored = is_left_out, is_stored
        self._used: dict[tuple[int, str], Variable] = {}
        self._changed: dict[tuple[int, str], Variable] = {}
        self._num_uses: Counter[tuple[int, str]] = Counter()
        self._num_collected: Counter[tuple[int, str]] = Counter()
        self._seen: set[tuple[int, ...]] = set()

    @property
    def used(self) -> list[Variable]:  # noqa: D102 - see the class, here and below
        return [
            each
            for key, each in self._used.items()
            if not self._num_collected[key] or self._num_collected[key] < self._num_uses[key]
        ]

    @property
    def changed(self) -> list[Variable]:  # noqa: D102
        return list(self._changed.values())

    def follow(
        self,
        function: Any,
        name: str,
        arguments: Sequence[Variable | None] = (),
        named: Mapping[str, Variable] | None = None,
        *,
        is_complete: bool = True,
    ) -> None:
        """Follow a function, a method, a partial or an object that can be called.

        Args:
            function: What is called; anything else is ignored.
            name: Name of the function for messages.
            arguments: Its first arguments; None for those that do not outlive the call.
            named: Arguments by name.
            is_complete: Whether the others have their default values.
        """
        named = named or {}
        if isinstance(function, functools.partial):
            # `_function` names them after its parameters.
            bound = [Variable(each, "", "", each, name) for each in function.args]
            more = {
                key: Variable(each, "", "", each, name) for key, each in function.keywords.items()
            }
            arguments, named = [*bound, *arguments], {**more, **named}
            self.follow(function.func, name, arguments, named, is_complete=is_complete)
        elif isinstance(function, types.MethodType):
            owner = function.__self__
            itself = self._use(owner, "", _name_of(owner), owner, name)
            arguments = [itself, *arguments]
            self.follow(function.__func__, name, arguments, named, is_complete=is_complete)
        elif isinstance(function, types.FunctionType):
            if is_users(function):
                self._function(function, name, arguments, named, is_complete=is_complete)
        elif is_users_object(function) and not self._is_left_out(function):
            # `callable()` would not say whose method it is.
            called = inspect.getattr_static(type(function), "__call__", None)
            if isinstance(called, types.FunctionType):
                method = types.MethodType(called, function)
                self.follow(method, name, arguments, named, is_complete=is_complete)

    def _function(
        self,
        function: types.FunctionType,
        name: str,
        arguments: Sequence[Variable | None],
        named: Mapping[str, Variable],
        *,
        is_complete: bool,
    ) -> None:
        code = function.__code__
        known = [*arguments, *named.values()]
        seen = (id(function), *(id(each.value) for each in known if each))
        if seen in self._seen or len(self._seen) >= _MAX_FUNCTIONS:
            return
        self._seen.add(seen)
        positional = code.co_varnames[: code.co_argcount]
        given = {**dict(zip(positional, arguments, strict=False)), **named}
        for parameter, each in given.items():
            if each and not each.name:
                given[parameter] = self._use(each.value, "", parameter, each.value, name)
        last = reversed(positional), reversed(function.__defaults__ or ())
        defaults = dict(zip(*last, strict=False)) | (function.__kwdefaults__ or {})
        for parameter, value in defaults.items():
            # A default argument stays the same object.
            if parameter not in given and not isinstance(value, PLAIN):
                default = self._use(value, "", parameter, value, name)
                given[parameter] = default if is_complete else None
        free = {
            variable: self._use(cell, variable, variable, content_of(cell), name)
            for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
            if variable != "__class__"
        }
        for attribute, value in vars(function).items():
            if attribute != "__wrapped__":
                self._use(function, attribute, f"{function.__name__}.{attribute}", value, name)
        self._code(code, function.__globals__, free, given, name)

    def _follow_inner(
        self, function: Any, name: str, arguments: Sequence[Variable | None] = ()
    ) -> None:
        """Follow what a function uses; with which arguments it calls it is unknown."""
        self.follow(function, name, arguments, is_complete=False)

    def _use(
        self, owner: Any, attribute: str, name: str, value: Any, function: str
    ) -> Variable | None:
        """Record that a function uses a variable; None if what it holds is not followed."""
        if isinstance(value, types.ModuleType):
            return Variable(owner, attribute, name, value, function)
        if self._is_left_out(value):
            return None
        variable = Variable(owner, attribute, name, value, function)
        self._used.setdefault(variable.key, variable)
        self._num_uses[variable.key] += 1
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._follow_inner(value, function)
        return variable

    def _change(self, variable: Variable | None, *, collects: bool = False) -> None:
        if variable is None or variable.is_stored:
            return
        if collects and variable.is_of_file:
            self._num_collected[variable.key] += 1
            return
        self._changed.setdefault(variable.key, variable)

    def _attribute(self, of: Variable | None, name: str, function: str) -> Variable | None:
        """Return the variable that is an attribute of another one, and follow a method."""
        if of is None:
            return None
        value, full = of.value, f"{of.name}.{name}"
        names = getattr(value, "__dict__", {})
        if name == "__class__":
            return Variable(type(value), "", type(value).__name__, type(value), function)
        if name == "__dict__":
            return of
        if isinstance(value, types.ModuleType):
            return (
                self._use(names, name, full, names.get(name), function) if is_users(value) else None
            )
        if isinstance(value, types.FunctionType):
            return self._use(value, name, full, names.get(name), function)
        if name in names and not isinstance(value, type):
            return self._of_object(of, name, names[name], function)
        kind = value if isinstance(value, type) else type(value)
        base = next((each for each in kind.__mro__ if name in vars(each)), object)
        return self._of_class(of, base, name, function) if is_users(base) else None

    def _of_object(self, of: Variable, name: str, value: Any, function: str) -> Variable | None:
        if self._is_left_out(value):
            return None
        if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._follow_inner(value, function)
        is_stored = self._is_stored(of.value, name)
        return Variable(of.value, name, f"{of.name}.{name}", value, function, is_stored)

    def _of_class(self, of: Variable, base: type, name: str, function: str) -> Variable | None:
        found = vars(base)[name]
        is_class = isinstance(of.value, type)
        match found:
            case types.FunctionType():
                self._follow_inner(found, function, [] if is_class else [of])
            case property():
                self._follow_inner(found.fget, function, [of])
            case classmethod():
                of_class = Variable(base, "", base.__name__, base, function)
                self._follow_inner(found.__func__, function, [of_class])
            case staticmethod():
                self._follow_inner(found.__func__, function)
            case _ if is_class or name not in _assigned_by_methods(type(of.value)):
                return self._use(base, name, f"{base.__name__}.{name}", found, function)
        return None

    # --- instructions -----------------------------------------------------------------------

    def _code(
        self,
        code: types.CodeType,
        variables: dict[str, Any],
        free: Mapping[str, Variable | None],
        given: Mapping[str, Variable | None],
        name: str,
    ) -> None:
        frame = _Frame(dict(given), [])
        at: dict[int, list[Variable | None]] = {}
        has_ended = False
        for each in dis.get_instructions(code):
            if has_ended:
                frame.stack, has_ended = at.get(each.offset, []), False
            self._step(each, frame, variables, free, name)
            if each.opcode in _JUMPS and each.argval not in at:
                depth = dis.stack_effect(each.opcode, each.arg, jump=True)
                depth -= dis.stack_effect(each.opcode, each.arg, jump=False)
                stack = [*frame.stack, *[None] * depth]
                at[each.argval] = stack[: len(frame.stack) + depth]
            has_ended = each.opname in _ENDS
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                shared = {key: given[key] for key in inner.co_freevars if key in given}
                self._code(inner, variables, free, shared, name)

    def _step(  # noqa: C901, PLR0912 - one line an instruction
        self,
        each: dis.Instruction,
        frame: _Frame,
        variables: dict[str, Any],
        free: Mapping[str, Variable | None],
        name: str,
    ) -> None:
        effect = dis.stack_effect(each.opcode, each.arg, jump=False)
        match each.opname:
            case "LOAD_GLOBAL":
                found = self._global(variables, each.argval, name)
                frame.push(found, *[None] * (effect - 1))
            case "LOAD_DEREF" | "LOAD_CLASSDEREF":
                frame.push(free.get(each.argval) or frame.local.get(each.argval))
            case "STORE_GLOBAL" | "DELETE_GLOBAL":
                value = variables.get(each.argval)
                self._use(variables, each.argval, each.argval, value, name)
                self._change(Variable(variables, each.argval, each.argval, value, name))
                frame.pop(-effect)
            case "STORE_DEREF" | "DELETE_DEREF":
                self._change(free.get(each.argval))
                frame.pop(-effect)
            case "LOAD_ATTR" | "LOAD_METHOD":
                (of,) = frame.pop(1)
                self._method(of, each.argval)
                frame.push(self._attribute(of, each.argval, name), *[None] * effect)
            case "STORE_ATTR" | "DELETE_ATTR":
                self._assign(frame.pop(-effect)[-1], each.argval, name)
            case "LOAD_CONST":
                frame.push(_CONSTANT)
            case "STORE_SUBSCR" | "DELETE_SUBSCR":
                *_, of, key = frame.pop(-effect)
                self._set_item(of, key)
            case "STORE_SLICE":
                self._change(frame.pop(-effect)[1])
            case "BINARY_SUBSCR" | "BINARY_OP" if effect == -1:
                of, _ = frame.pop(2)
                frame.push(self._combined(of, each.argrepr or "[]"))
            case "GET_ITER":
                self._advance(frame.stack[-1] if frame.stack else None)
            case "PRECALL":
                # Python 3.11: CALL follows, with the same argument.
                pass
            case "CALL" | "CALL_KW":
                number = (each.arg or 0) + (3 if each.opname == "CALL_KW" else 2)
                frame.push(self._call(frame.pop(number), name))
            case "COPY":
                frame.push(frame.peek(each.arg or 1))
            case "SWAP":
                frame.swap(each.arg or 1)
            case opname if "_FAST" in opname and opname.startswith(("LOAD", "STORE")):
                frame.move_local(opname, each.argval)
            case opname:
                frame.pop(max(0, -effect))
                frame.push(*[None] * max(0, effect))
                if effect <= 0 and not opname.startswith(_WITHOUT_RESULT):
                    frame.pop(1)
                    frame.push(None)

    def _global(self, variables: dict[str, Any], key: str, function: str) -> Variable | None:
        if key not in variables:
            value = getattr(builtins, key, None)
            return Variable(builtins, key, key, value, function) if value in _BUILTINS else None
        value = variables[key]
        if isinstance(value, type) and not is_users(value):
            return None
        return self._use(variables, key, key, value, function)

    def _method(self, of: Variable | None, name: str) -> None:
        """Record the change that a method makes to a container or a random generator."""
        if of is None:
            return
        if name in _CHANGES and isinstance(of.value, _CONTAINERS):
            self._change(of, collects=name in _COLLECTS)
        elif isinstance(of.value, _GENERATORS) and not name.startswith("_"):
            self._change(of)

    def _combined(self, of: Variable | None, operator: str) -> Variable | None:
        """Return the result of a subscript, or of `+=` and the like, which change a container."""
        if operator == "[]":
            return _item(of)
        if of and operator.endswith("=") and isinstance(of.value, _CONTAINERS):
            self._change(of)
            return of
        return None

    def _set_item(self, of: Variable | None, key: Variable | None) -> None:
        # A constant key of a dict of the file is a setting; a change shows if it happens.
        if not (of and of.is_of_file and key is _CONSTANT):
            self._change(of, collects=True)

    def _assign(self, of: Variable | None, name: str, function: str) -> None:
        """Record that an attribute is assigned."""
        if of is None or of.value is None or of.is_stored or self._is_left_out(of.value):
            return
        owner = vars(of.value) if isinstance(of.value, types.ModuleType) else of.value
        if isinstance(of.value, (type, types.ModuleType)) and not is_users(of.value):
            return
        value = getattr(of.value, "__dict__", {}).get(name)
        variable = Variable(owner, name, f"{of.name}.{name}", value, function)
        self._change(variable)
        if isinstance(of.value, type):
            self._used.setdefault(variable.key, variable)

    def _advance(self, variable: Variable | None) -> None:
        if variable is not None and isinstance(variable.value, Iterator):
            self._change(variable)

    def _call(self, popped: Sequence[Variable | None], function: str) -> Variable | None:
        """Record what calls of builtins change; `popped` is the function and its arguments."""
        called, rest = next(
            ((each.value, popped[i + 1 :]) for i, each in enumerate(popped[:2]) if each),
            (None, ()),
        )
        if is_users_object(called):
            self._follow_inner(called, function)
        first = next((each for each in rest[:2] if each), None)
        if first is None:
            return None
        if called is next:
            self._advance(first)
        elif called is type:
            return Variable(
                type(first.value), "", type(first.value).__name__, type(first.value), function
            )
        return None


_BUILTINS = (next, type)
_CONSTANT = Variable(None, "", "", None, "", is_stored=True)


@dataclass
class _Frame:
    """The local variables and the stack of a function whose code is followed."""

    local: dict[str, Variable | None]
    stack: list[Variable | None]

    def push(self, *values: Variable | None) -> None:
        self.stack += values

    def pop(self, number: int) -> list[Variable | None]:
        values = self.stack[-number:] if number else []
        del self.stack[len(self.stack) - len(values) :]
        return [None] * (number - len(values)) + values

    def peek(self, depth: int) -> Variable | None:
        return self.stack[-depth] if depth <= len(self.stack) else None

    def swap(self, depth: int) -> None:
        if depth <= len(self.stack):
            self.stack[-1], self.stack[-depth] = self.stack[-depth], self.stack[-1]

    def move_local(self, opname: str, argval: Any) -> None:
        """Carry out LOAD_FAST, STORE_FAST, or an instruction that combines two of them."""
        names = argval if isinstance(argval, tuple) else (argval,)
        kinds = [part for part in opname.split("_") if part in {"LOAD", "STORE"}]
        for kind, name in zip(kinds, names, strict=False):
            if kind == "STORE":
                (self.local[name],) = self.pop(1)
            else:
                self.push(self.local.get(name))


def _item(of: Variable | None) -> Variable | None:
    """Return a variable for an item of a container: the first one, because the key is unknown."""
    if of is None or not of.value or not isinstance(of.value, (list, dict, tuple, deque)):
        return None
    items = of.value.values() if isinstance(of.value, dict) else of.value
    first = next(iter(items), None)
    return Variable(of.owner, of.attribute, of.name, first, of.function, of.is_stored)


def _assigned_by_methods(kind: type) -> set[str]:
    """Return the attributes that methods of a class assign, which objects then have themselves."""
    return {
        each.argval
        for base in kind.__mro__
        if is_users(base)
        for method in vars(base).values()
        if isinstance(method, types.FunctionType)
        for each in dis.get_instructions(method)
        if each.opname == "STORE_ATTR"
    }


def _name_of(owner: Any) -> str:
    return owner.__name__ if isinstance(owner, type) else type(owner).__name__

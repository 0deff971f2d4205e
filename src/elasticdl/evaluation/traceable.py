"""Decides from the code of a user's metric function whether TensorFlow may trace the function.

A traced function is called once, on symbolic tensors, which have no values. The result is the same
as that of one call per example only if the function depends only on its two arguments, and uses
them only in ways in which a tensor behaves like an array. Everything that could break this is
rejected here, even where it would do no harm: catching errors (a symbolic tensor raises where a
value does not), keeping state, drawing random numbers, inspecting types. `functions.py` then
compares the numbers.

The code that is inspected is the user's: the function, everything it refers to, and so on.
Installed libraries are trusted.

Callers: `functions.py`.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sysconfig
import types
from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

# Names that inspect an argument, read the clock, write somewhere, or change the state of
# frameworks.
_TELLING_NAMES = frozenset(
    "isinstance issubclass type hasattr getattr setattr delattr callable globals locals vars dir "  # noqa: SIM905 - readable as words
    "eval exec compile open print input id hash repr str format next iter __class__ __dict__ "
    "executing_eagerly inside_function is_tensor is_symbolic_tensor is_keras_tensor py_function "
    "numpy_function py_func assign assign_add assign_sub update_state Variable add_weight random "
    "rand randn randint uniform normal shuffle choice sample secrets uuid uuid4 time time_ns "
    "perf_counter monotonic now today environ lru_cache cache __import__ import_module".split()
)
_STORES = frozenset(
    {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR"}
)
_CHANGES = frozenset(
    "append extend insert pop popitem clear update setdefault appendleft popleft remove discard "  # noqa: SIM905
    "add sort reverse".split()
)
# Shapes and dtypes are other classes for tensors: an empty TensorFlow shape is truthy.
_FACTS_THAT_DIFFER = frozenset({"shape", "dtype"})
_PATHS = [sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")]
_INSTALLED = (*_PATHS, str(Path(__file__).parents[1]), "<frozen")
# Packages whose classes do not call methods of a derived class on their own.
_OURS = frozenset({"abc", "abstractions", "builtins", "elasticdl", "typing"})


def why_not_traceable(function: Any) -> str:
    """Return why a function must be called once per example; empty if it may be traced.

    Example:
        >>> why_not_traceable(lambda y_true, y_pred: abs(y_true - y_pred))
        ''
        >>> why_not_traceable(lambda y_true, y_pred: isinstance(y_true, int))
        "it uses 'isinstance'"
    """
    return _TraceChecker().why_not(function)


class _TraceChecker:
    def __init__(self) -> None:
        self._seen: set[int] = set()
        # Keeps visited objects alive, because the id of a dead object may be reused.
        self._kept: list[Any] = []

    def why_not(self, value: Any, names: AbstractSet[str] = frozenset()) -> str:
        """Return the reason why a value must not be used in a traced function; empty if it may be.

        Args:
            value: The value to check, of any type: a function, a module, an object, ...
            names: Names of the attributes that the code using the value reads. Of a module or an
                object, only the attributes with these names are checked.
        """
        if id(value) in self._seen:
            return ""
        self._seen.add(id(value))
        self._kept.append(value)
        if isinstance(value, functools.partial):
            return self._first([value.func, *value.args, *value.keywords.values()], names)
        if isinstance(value, types.MethodType):
            return self._first([value.__func__, value.__self__], _names_in(value.__func__))
        if isinstance(value, types.FunctionType):
            return self._of_function(value)
        if hasattr(value, "python_function"):
            return self.why_not(value.python_function)
        if isinstance(value, types.ModuleType):
            return self._of_module(value, names)
        if isinstance(value, type):
            return self._of_class(value, names)
        return self._of_object(value, names)

    def _of_module(self, module: types.ModuleType, names: AbstractSet[str]) -> str:
        file = getattr(module, "__file__", None)
        if file is None or file.startswith(_INSTALLED):
            return ""
        return self._first([vars(module)[name] for name in names & set(vars(module))], names)

    def _of_object(self, value: Any, names: AbstractSet[str]) -> str:
        kind = type(value)
        if hasattr(value, "update_state") or hasattr(value, "__next__"):
            return f"a {kind.__name__} keeps state"
        if "random" in kind.__module__.split("."):
            return f"a {kind.__name__} draws random numbers"
        held = getattr(value, "__dict__", {})
        used = [held[name] for name in names & set(held)]
        return self._of_class(kind, names) or self._first(used, names)

    def _first(self, values: Iterable[Any], names: AbstractSet[str]) -> str:
        return next((why for why in (self.why_not(v, names) for v in values) if why), "")

    def _of_class(self, cls: type, names: AbstractSet[str]) -> str:
        """Return why an object's class prevents tracing; empty if it does not.

        Checks the class's special methods and those in `names`. If a base class belongs to a
        library, checks all methods, because the library may call any of them.

        Args:
            cls: The class of an object that the traced function uses.
            names: Names of the attributes that the traced code reads.
        """
        # A library may call methods of a class derived from its own that no code names.
        any_name = any(owner.__module__.partition(".")[0] not in _OURS for owner in cls.__mro__[1:])
        for owner in cls.__mro__:
            for name, member in vars(owner).items():
                inner = getattr(member, "__func__", getattr(member, "fget", member))
                # The constructor of an existing object has already run.
                if not isinstance(inner, types.FunctionType) or name == "__init__":
                    continue
                if any_name or name in names or name.startswith("__"):
                    # `self` is the object that it is called on.
                    why = self.why_not(inner) or self._of_class_again(cls, inner, names)
                    if why:
                        return why
        return ""

    def _of_class_again(
        self, cls: type, method: types.FunctionType, names: AbstractSet[str]
    ) -> str:
        """Check a class again, with the names of the attributes that one of its methods reads.

        The method may call other methods of the class by these names.

        Args:
            cls: The class.
            method: The method whose code is searched for names.
            names: Names of attributes that are already being checked.

        Returns:
            Why one of these methods prevents tracing; empty if none does.
        """
        if method.__code__.co_filename.startswith(_INSTALLED):
            return ""
        more = _names_in(method) - names
        return self._of_class(cls, names | more) if more & set(dir(cls)) else ""

    def _of_function(self, function: types.FunctionType) -> str:
        if function.__code__.co_filename.startswith(_INSTALLED):
            return ""
        if hasattr(function, "__wrapped__"):
            why = self.why_not(function.__wrapped__)
            if why:
                return why
        used = list(_used_by(function))
        holds_containers = any(isinstance(value, (list, dict, set)) for value in used)
        why = _of_code(function.__code__, holds_containers=holds_containers)
        return why or self._first(used, _names_in(function))


def _names_in(function: Any) -> AbstractSet[str]:
    return {name for code in _codes(function.__code__) for name in code.co_names}


def _used_by(function: types.FunctionType) -> Iterator[Any]:
    """Yield the objects that a function's code can use: its globals, closure and defaults."""
    for code in _codes(function.__code__):
        for name in code.co_names:
            if name in function.__globals__:
                yield function.__globals__[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not yet assigned
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _of_code(top: types.CodeType, *, holds_containers: bool) -> str:
    for code in _codes(top):
        if code.co_exceptiontable:
            return "it handles errors"
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
            return "it is a generator"
        branches = False
        for instruction in dis.get_instructions(code):
            outer = instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars
            if instruction.opname in _STORES or outer:
                return f"it assigns to {instruction.argval or 'an item'!r}"
            branches |= "JUMP_IF" in instruction.opname or "JUMP_FORWARD_IF" in instruction.opname
        names = set(code.co_names)
        found = sorted(names & _TELLING_NAMES)
        if found:
            return f"it uses {found[0]!r}"
        changed = sorted(names & _CHANGES)
        if changed and holds_containers:
            return f"it calls {changed[0]!r} and refers to a list or dict"
        differing = sorted(names & _FACTS_THAT_DIFFER)
        if branches and differing:
            return f"it has branches and uses {differing[0]!r}"
    return ""

"""Params of a job: passed by name to the user functions that declare them, and type-checked.

A param is passed to every function that declares it. The arguments that ElasticDL itself passes to
a function (`labels`, `records`, ...) are not params. A param that no function declares is rejected,
with a suggestion of a similar name. A value is checked against the annotation, or else against the
type of the default. Annotations that cannot be checked (a user class) are accepted: the function
itself will raise.

Callers: the dialects.
"""

from __future__ import annotations

import collections.abc
import contextlib
import inspect
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.did_you_mean import nearest
from elasticdl.errors import DefinitionError, UsageError

if typing.TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from elasticdl.dialects.model_code import Symbol

_NO_ARGUMENTS = inspect.Signature()
# Params that name columns. A name may be a number, as in a DataFrame without names.
_OF_COLUMNS = {"label", "ignore"}
_SEQUENCES = (
    list,
    tuple,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
# Maximum characters of a default in a message.
_MAX_SHOWN = 40
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, eq=False)
class Declared:
    """The params that one function accepts by name.

    Attributes:
        function: The function.
        parameters: The function's parameters that take values from `--params`, by name.
        takes_rest: Whether it has `**kwargs`.
    """

    function: Symbol
    parameters: Mapping[str, inspect.Parameter]
    takes_rest: bool = False


def signature_of(symbol: Symbol) -> inspect.Signature:
    """Return the signature of a user's function, class or object, without `self`.

    Raises:
        DefinitionError: The object cannot be called.
    """
    value = symbol.value
    if inspect.isclass(value):
        # Keras classes have a `__new__` that accepts any arguments and would hide the constructor.
        constructor = value.__init__
        if constructor is object.__init__:
            return _NO_ARGUMENTS
        signature = inspect.signature(constructor)
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    try:
        return inspect.signature(value)
    except (TypeError, ValueError):
        raise DefinitionError(
            f"{symbol}: {symbol.name} is {described(value)}, which cannot be called. "
            "Expected a function."
        ) from None


def article(noun: str) -> str:
    """Return a noun with `a` or `an` before it."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def described(value: Any) -> str:
    """Return the type of a value for messages: `a list`, `None`, `the class Adam`."""
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return "None" if value is None else article(type(value).__name__)


class Params:
    """The params of one job, passed to the functions that declare them.

    Declare every function first, then call `check`, then the user's code, so that a mistake in a
    param is reported before any user code runs.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._declared: list[Declared] = []

    def has(self, name: str) -> bool:
        """Return whether the job has a value for the param of this name."""
        return name in self._values

    def declare(
        self, symbol: Symbol, contract: Collection[str] = (), *, takes_all: bool = False
    ) -> dict[str, Any]:
        """Register a function, and return the values of the params that it declares.

        Args:
            symbol: The function.
            contract: Names of the parameters that ElasticDL itself passes; they are not params.
            takes_all: Whether a function with `**kwargs` gets all params, and not only those that
                it names, as for a spec's constructor.

        Raises:
            UsageError: A param has neither a value nor a default.
        """
        signature = signature_of(symbol)
        parameters = {
            name: parameter
            for name, parameter in signature.parameters.items()
            if name not in contract
            and parameter.kind not in (*_VARIABLE, inspect.Parameter.POSITIONAL_ONLY)
        }
        has_rest = any(
            p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values()
        )
        self._declared.append(Declared(symbol, parameters, has_rest))
        missing = [
            name
            for name, parameter in parameters.items()
            if parameter.default is parameter.empty and name not in self._values
        ]
        if missing:
            if inspect.isclass(symbol.value) and symbol.short_name != symbol.value.__name__:
                raise _not_called(symbol, contract, missing)
            raise UsageError(
                f"--params: {', '.join(missing)} missing. {symbol}: "
                f"{symbol.short_name}{signature} needs {'it' if len(missing) == 1 else 'them'}.\n"
                f'  Give a value: --params="{", ".join(f"{name}=..." for name in missing)}"'
            )
        wanted = self._values if takes_all and has_rest else parameters
        return {
            name: value
            for name, value in self._values.items()
            if name in wanted and name not in contract
        }

    def rest(self, symbol: Symbol) -> dict[str, Any]:
        """Return the params to pass to the `**kwargs` of a function.

        These are the params that no declared function has by name, so call this method after all
        functions were declared.

        Args:
            symbol: A declared function. If it has no `**kwargs`, the result is empty.
        """
        if not any(d.takes_rest and d.function is symbol for d in self._declared):
            return {}
        known = {name for declared in self._declared for name in declared.parameters}
        return {name: value for name, value in self._values.items() if name not in known}

    def check(self) -> None:
        """Check all values against all functions that were declared.

        Raises:
            UsageError: No function declares a param, or a value has the wrong type.
        """
        check_params(self._values, self._declared)

    def check_declared(self) -> None:
        """Check the values of the params that were declared so far, before user code gets them.

        Unlike `check`, it accepts other names, because later functions may declare them.

        Raises:
            UsageError: A value has the wrong type.
        """
        known = {name for declared in self._declared for name in declared.parameters}
        check_params({n: v for n, v in self._values.items() if n in known}, self._declared)


def check_params(values: Mapping[str, Any], accepted: Sequence[Declared]) -> None:
    """Reject a param that no function declares, or whose value has the wrong type.

    Raises:
        UsageError: A name is unknown or a value has the wrong type; one message lists all of them.
    """
    problems = []
    for name, value in values.items():
        takers = [declared for declared in accepted if name in declared.parameters]
        if not takers:
            if not any(declared.takes_rest for declared in accepted):
                problems.append(_unknown(name, accepted))
            continue
        for declared in takers:
            expected = _misfit(value, declared.parameters[name], declared.function)
            if expected:
                problems.append(
                    f"{name}={value!r} is not valid: {expected}.\n"
                    f"  {_shown(declared.function, _call_of(declared, name))}"
                )
                break
    if problems:
        raise UsageError("\n".join(f"--params: {problem}" for problem in problems))


def _unknown(name: str, accepted: Sequence[Declared]) -> str:
    known: dict[str, Symbol] = {}
    for declared in accepted:
        for parameter in declared.parameters:
            known.setdefault(parameter, declared.function)
    near = nearest(name, known)
    suggestion = "" if near is None else f" Did you mean {near!r}?"
    of_functions: dict[Symbol, list[str]] = {}
    for parameter, function in known.items():
        of_functions.setdefault(function, []).append(parameter)
    listed = "\n".join(
        "    " + _shown(function, f"{function.short_name}({', '.join(names)})")
        for function, names in of_functions.items()
    )
    takes = f"The model takes:\n{listed}" if listed else "The model takes no params."
    return f"no function of the model has a parameter {name!r}.{suggestion}\n  {takes}"


def _shown(function: Symbol, call: str) -> str:
    """Return a call of a function, with its place; for a prebuilt model, with the model's name."""
    file = Path(function.file)
    is_prebuilt = file.parts[-4:-1] == ("elasticdl", "zoo", "prebuilt")
    return f"{file.stem}.{call}" if is_prebuilt else f"{function}: {call}"


def _call_of(declared: Declared, name: str) -> str:
    """Describe a function with one of its parameters, such as `optimizer(lr=0.1, ...)`."""
    parameter = declared.parameters[name]
    if parameter.default is not parameter.empty and len(repr(parameter.default)) >= _MAX_SHOWN:
        parameter = parameter.replace(default=...)
    written = parameter.annotation
    text = str(parameter.replace(annotation=parameter.empty))
    if written is not parameter.empty:
        shown = written if isinstance(written, str) else inspect.formatannotation(written)
        text = text.replace("=", " = ", 1)
        text = text.replace(name, f"{name}: {shown}", 1)
    more = ", ..." if len(declared.parameters) > 1 else ""
    return f"{declared.function.short_name}({text}{more})"


def _not_called(symbol: Symbol, contract: Collection[str], missing: Sequence[str]) -> UsageError:
    """Return the error for a class given in place of a function that creates an object of it.

    For example, `lr_scheduler = StepLR`, where `StepLR` needs arguments that have no value.
    """
    options = ", ".join(f"{name}=..." for name in missing)
    passed = ", ".join(sorted(contract))
    arguments = ", ".join(filter(None, [passed, options]))
    return UsageError(
        f"{symbol}: {symbol.short_name} is {described(symbol.value)}, which needs "
        f"{', '.join(missing)}.\n  Write a function that calls it and returns the result: def "
        f"{symbol.short_name}({passed}): return {symbol.value.__name__}({arguments})\n  Or give "
        f'the values: --params="{options}"'
    )


def _misfit(value: Any, parameter: inspect.Parameter, function: Symbol) -> str:
    """Return an error message if a param's value has the wrong type, else an empty string."""
    if parameter.annotation is not parameter.empty:
        hint = _hint(parameter, function)
        if fits(value, hint):
            return ""
        written = parameter.annotation
        text = written if isinstance(written, str) else inspect.formatannotation(written)
        if isinstance(value, str) and fits([value], hint):
            names = [part.strip() for part in value.split(",")]
            example = json.dumps(names, ensure_ascii=False)
            return f"it is a str; expected a list of strings, such as {parameter.name}={example}"
        if parameter.name in _OF_COLUMNS and type(value) is int and fits(str(value), hint):
            return f'it is an int; expected a string, such as {parameter.name}="{value}"'
        if wanted := _list_in_words(value, parameter, hint):
            return f"it is {described(value)}; expected {wanted}"
        return f"it is {described(value)}; expected {text}"
    if parameter.default is parameter.empty or _like(value, parameter.default):
        return ""
    wanted = type(parameter.default).__name__
    if isinstance(value, (list, tuple)) and isinstance(parameter.default, (list, tuple)):
        return f"expected values like those of its default, {parameter.default!r}"
    return (
        f"it is {described(value)}; expected {article(wanted)}, as its default "
        f"is {parameter.default!r}"
    )


def _list_in_words(value: Any, parameter: inspect.Parameter, hint: Any) -> str:
    """Return "a list of whole numbers, such as units=[64]" if a param is a list; else ""."""
    kinds = ((0.5, "numbers"), (1, "whole numbers"), ("a", "strings"))
    named = [kind for item, kind in kinds if fits([item], hint) and not fits(item, hint)]
    is_mixed = "strings" in named[1:]
    if not named or is_mixed or fits([None], hint):
        return ""
    default = parameter.default if isinstance(parameter.default, (list, tuple)) else ()
    example = ""
    # A default may hold anything.
    with contextlib.suppress(TypeError, ValueError):
        items = [value] if fits([value], hint) else [*default]
        if (
            parameter.name in _OF_COLUMNS
            and isinstance(value, (list, tuple))
            and all(type(each) in (int, str) for each in value)
            and fits(texts := [*map(str, value)], hint)
        ):
            items = texts
        example = json.dumps(items, ensure_ascii=False) if items else ""
    such_as = f", such as {parameter.name}={example}" if 0 < len(example) < _MAX_SHOWN else ""
    return f"a list of {named[0]}{such_as}"


def _hint(parameter: inspect.Parameter, function: Symbol) -> Any:
    """Return the type that an annotation names, also if the annotation is a string.

    Returns `Any` if its names cannot be resolved.
    """
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    owner = function.value.__init__ if inspect.isclass(function.value) else function.value
    owner = inspect.unwrap(getattr(owner, "__func__", owner))
    # Names imported for type checkers only do not exist at run time; these are the usual ones.
    usual = {**vars(collections.abc), **vars(typing), "collections": collections}
    carrier = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        return typing.get_type_hints(
            carrier, globalns={**usual, **getattr(owner, "__globals__", {})}
        )["it"]
    except Exception:  # noqa: BLE001 - an annotation may say anything
        return Any


def fits(value: Any, hint: Any) -> bool:  # noqa: PLR0911 - one line a kind of annotation
    """Return whether a literal fits an annotation; True for annotations that cannot be checked.

    Example:
        >>> fits(1, float), fits(0.5, int), fits([8, "a"], list[int]), fits(None, int | None)
        (True, False, False, True)
    """
    origin = typing.get_origin(hint) or hint
    arguments = typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, choice) for choice in arguments)
    if origin is typing.Annotated:
        return fits(value, arguments[0])
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if hint in (None, type(None)):
        return value is None
    if origin in (bool, str):
        return isinstance(value, origin)
    if origin is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if origin is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if origin in _SEQUENCES:
        return isinstance(value, (list, tuple)) and _items_fit(value, origin, arguments)
    if origin in _MAPPINGS:
        return isinstance(value, dict) and (
            not arguments
            or all(fits(k, arguments[0]) and fits(v, arguments[1]) for k, v in value.items())
        )
    return True


def _items_fit(value: Sequence[Any], origin: Any, arguments: tuple[Any, ...]) -> bool:
    if not arguments:
        return True
    if origin is tuple and arguments[-1] is not ...:
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    return all(fits(item, arguments[0]) for item in value)


def _like(value: Any, default: Any) -> bool:
    """Return whether a literal has the type of a default; every literal fits a default of None."""
    if value is None or default is None:
        return True
    if isinstance(default, (bool, int, float, str)):
        return fits(value, type(default))
    if isinstance(default, (list, tuple)):
        if not isinstance(value, (list, tuple)):
            return False
        kinds = {type(item) for item in default}
        if kinds == {int, float}:
            kinds = {float}
        return len(kinds) != 1 or all(fits(item, next(iter(kinds))) for item in value)
    if isinstance(default, dict):
        return isinstance(value, dict)
    return True

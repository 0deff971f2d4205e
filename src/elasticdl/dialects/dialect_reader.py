"""Tools for reading model files: error messages, calls of user code, late-bound functions.

A dialect is a style of writing a model file. The module of a dialect uses these tools to convert
such a file to a `ModelDefinition`.

Callers: the modules of the dialects, and those that convert one part of a model file each, such as
its loss (`losses.py`) or its metrics (`metrics.py`).
"""

from __future__ import annotations

import inspect
import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from elasticdl.definition import Origin
from elasticdl.dialects.params import Params
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    missing_framework,
    raised_at,
    users_traceback,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasticdl.dialects.frameworks import Framework
    from elasticdl.dialects.model_code import ModelCode, Symbol


@dataclass(frozen=True, eq=False)
class DialectReader:
    """What a dialect needs to read one model file: its code, its params and the form of errors.

    Attributes:
        dialect: Name of the dialect.
        title: Name of a model in this dialect, with its article: `an ElasticDL module`.
        model_code: The code being read.
        found: Names of the functions that were recognised in the file, for errors.
        params: The job's params.
        framework: Framework of the model; its losses, metrics and optimizers must be of the same.
    """

    dialect: str
    title: str
    model_code: ModelCode
    found: Sequence[str] = ()
    params: Params = field(default_factory=lambda: Params({}))
    framework: Framework = "keras"

    @property
    def origin(self) -> Origin:
        """Origin of the definition: dialect, file, line, symbol and zoo."""
        model_code = self.model_code
        return Origin(
            dialect=self.dialect,
            file=model_code.symbol.file,
            line=model_code.symbol.line,
            symbol=model_code.model_def,
            zoo=model_code.zoo,
            zoo_commit=model_code.zoo_commit,
        )

    def error(self, where: object, problem: str, way_out: str) -> DefinitionError:
        """Return an error that states the problem, the dialect of the file and a way to fix it.

        Args:
            where: `file:line`, or an object that prints as that.
            problem: The problem, as a sentence.
            way_out: The change to make, as a sentence.
        """
        has = f" (it has {', '.join(self.found)})" if self.found else ""
        return DefinitionError(
            f"{where}: {problem}\n  The file was read as {self.title}{has}.\n  {way_out}"
        )


def call(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
    """Call a user function and return its result.

    Raises:
        UserCodeError: The function raised; the message has the user's part of the traceback.
        MissingExtraError: The function imports a framework that is not installed.
    """
    try:
        return symbol.value(*args, **kwargs)
    except ElasticDLError:
        raise
    except Exception as error:
        missing = missing_framework(error, f"{symbol}: {symbol.name}()")
        if missing is not None:
            raise missing from error
        raise UserCodeError(
            f"{raised_at(error, symbol)}: {symbol.name}() raised:\n"
            f"{textwrap.indent(users_traceback(error), '  ')}"
        ) from error


def locations_of(**symbols: Symbol | None) -> Mapping[str, tuple[str, int]]:
    """Return the `places` of a `ModelDefinition`: part -> file and line of the user's function.

    Args:
        symbols: Part of the definition -> the user's function for it; None if there is none.
    """
    return {
        part: (symbol.file, symbol.line) for part, symbol in symbols.items() if symbol is not None
    }


class LateBoundFunction:
    """Callable that looks a function up at each call, so that the newest version is called.

    Importing a file again creates new functions, and a new object has new methods; code that holds
    a `LateBoundFunction` then needs no update. It shows the signature of `function`.

    Args:
        function: The function as it is now; provides name and signature.
        fetch: Function () -> function to call; called at each call of this object.
        signature: Signature to show instead of the one of `function`. None: show the signature of
            `function`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        fetch: Callable[[], Callable[..., Any]],
        signature: inspect.Signature | None = None,
    ) -> None:
        self.__wrapped__ = function
        self.__name__ = getattr(function, "__name__", "function")
        self.__signature__ = signature or inspect.signature(function)
        self._fetch = fetch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that `fetch` returns now, and return its result."""
        return self._fetch()(*args, **kwargs)


def without_self(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a method without its first parameter, `self`."""
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def mro_has(value: Any, name: str) -> bool:
    """Return whether a class, or an object's class, descends from the Keras class of a given name.

    Classes are compared by name, because `isinstance` would require importing the framework.

    Args:
        value: A class or an object.
        name: Name of the Keras class: `Model`, `Loss`, `Metric`, `Optimizer`, ...
    """
    kind = value if inspect.isclass(value) else type(value)
    return any(
        ancestor.__name__ == name
        and ancestor.__module__.partition(".")[0] in {"keras", "tf_keras", "tensorflow"}
        for ancestor in inspect.getmro(kind)
    )

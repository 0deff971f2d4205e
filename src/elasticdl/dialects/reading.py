"""How one dialect reads one reference: its words for errors, and its calls into user code.

Callers: the dialects, and the files that read one function each (`losses.py`, `metrics.py`, ...).
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
    raised_at,
    users_traceback,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasticdl.dialects.frameworks import Framework
    from elasticdl.dialects.reference import Reference, Symbol


@dataclass(frozen=True, eq=False)
class Reading:
    """A reference, read as one dialect.

    Attributes:
        dialect: The dialect's name.
        title: What it calls a model, with its article: `an ElasticDL module`.
        reference: What is read.
        found: Names of the contract's functions that are there, for errors.
        params: The job's params, handed out by name.
        framework: Whose model it is; what belongs to it is read accordingly.
    """

    dialect: str
    title: str
    reference: Reference
    found: Sequence[str] = ()
    params: Params = field(default_factory=lambda: Params({}))
    framework: Framework = "keras"

    @property
    def origin(self) -> Origin:
        """Where the definition comes from."""
        reference = self.reference
        return Origin(
            dialect=self.dialect,
            file=reference.symbol.file,
            line=reference.symbol.line,
            symbol=reference.model_def,
            zoo=reference.zoo,
            zoo_commit=reference.zoo_commit,
        )

    def error(self, where: object, problem: str, way_out: str) -> DefinitionError:
        """Return an error that says how the file was read and what to do.

        Args:
            where: `file:line`, or what prints as that.
            problem: What is wrong, as a sentence.
            way_out: What to change.
        """
        has = f" (it has {', '.join(self.found)})" if self.found else ""
        return DefinitionError(
            f"{where}: {problem}\n  The file was read as {self.title}{has}.\n  {way_out}"
        )


def call(symbol: Symbol, *args: Any, **kwargs: Any) -> Any:
    """Call a function of the user's and return what it returns.

    Raises:
        UserCodeError: It raised; the message has the user's part of the traceback.
    """
    try:
        return symbol.value(*args, **kwargs)
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, symbol)}: {symbol.name}() raised:\n"
            f"{textwrap.indent(users_traceback(error), '  ')}"
        ) from error


def places_of(**symbols: Symbol | None) -> Mapping[str, tuple[str, int]]:
    """Return where the parts of a definition are in the user's files, for errors.

    Args:
        symbols: Part of the definition -> the user's function for it, if there is one.
    """
    return {
        part: (symbol.file, symbol.line) for part, symbol in symbols.items() if symbol is not None
    }


class Late:
    """A function that is looked up when it is called, so that it is always the newest one.

    Importing a file again gives new functions, and a new object new methods; whoever holds a
    `Late` need not know. It shows the signature of the function it was made for.

    Args:
        function: What it is now.
        fetch: Returns what it is at the time of a call.
        signature: How it is called, if not as `function` is.
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
        """Call the newest function."""
        return self._fetch()(*args, **kwargs)


def without_self(function: Callable[..., Any]) -> inspect.Signature:
    """Return how a method is called on an object."""
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def mro_has(value: Any, name: str) -> bool:
    """Return whether a class, or an object's class, descends from a class of Keras.

    Asked by name, because asking with `isinstance` would import the framework.

    Args:
        value: A class or an object.
        name: `Model`, `Loss`, `Metric`, `Optimizer`, ...
    """
    kind = value if inspect.isclass(value) else type(value)
    return any(
        ancestor.__name__ == name
        and ancestor.__module__.partition(".")[0] in {"keras", "tf_keras", "tensorflow"}
        for ancestor in inspect.getmro(kind)
    )

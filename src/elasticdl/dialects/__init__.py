"""The ways users describe a model; each becomes a `ModelDefinition`.

A dialect is one file: a name, what it needs, `matches(reference)` and `define(reference)`. The
dialects do not know each other; here is the only place that knows all of them.
"""

from __future__ import annotations

import difflib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from elasticdl.dialects import (
    abstractions,
    elasticdl_module,
    elasticdl_spec,
    ibmfl_spec,
    keras_class,
    lightning_module,
)
from elasticdl.errors import DefinitionError, UsageError

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.dialects.reference import Reference


class Dialect(Protocol):
    """One way to describe a model.

    Attributes:
        NAME: What `--dialect` calls it.
        TITLE: What a person calls a model of it, with its article.
        NEEDS: What it needs to be there.
    """

    NAME: str
    TITLE: str
    NEEDS: str

    def matches(self, reference: Reference) -> bool:
        """Return whether this is how the model is described."""
        ...

    def define(self, reference: Reference) -> ModelDefinition:
        """Return what to train.

        Raises:
            DefinitionError: Something is missing or cannot be called as the dialect says.
            UsageError: A param is unknown, missing or ill-typed.
            UserCodeError: A function of the user's raised.
        """
        ...


DIALECTS: tuple[Dialect, ...] = (
    elasticdl_module,
    elasticdl_spec,
    keras_class,
    lightning_module,
    abstractions,
    ibmfl_spec,
)


def resolve(reference: Reference, dialect: str | None = None) -> ModelDefinition:
    """Return the definition of what was named.

    Args:
        reference: What `model_def` names, loaded.
        dialect: How to read it; None lets the file decide.

    Raises:
        DefinitionError: No dialect fits, or more than one does, or the one that fits finds
            something missing.
        UsageError: There is no such dialect, or a param does not fit.
        UserCodeError: A function of the user's raised.
    """
    if dialect is not None:
        return _named(dialect).define(reference)
    fitting = [each for each in DIALECTS if each.matches(reference)]
    if len(fitting) == 1:
        return fitting[0].define(reference)
    if fitting:
        titles = " and as ".join(each.TITLE for each in fitting)
        flags = " or ".join(f"--dialect={each.NAME}" for each in fitting)
        raise DefinitionError(
            f"{reference.symbol}: {reference.model_def} can be read as {titles}.\n"
            f"  Say which is meant: {flags}"
        )
    needs = "\n".join(f"    {each.NAME}: {each.NEEDS}" for each in DIALECTS)
    raise DefinitionError(
        f"{reference.symbol}: {_described(reference)}; that is no model of a known dialect.\n"
        f"  They need:\n{needs}\n"
        "  Add what is missing; --dialect=NAME says what one dialect finds missing."
    )


def _named(name: str) -> Dialect:
    by_name = {each.NAME: each for each in DIALECTS}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1)
        suggestion = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"--dialect={name}: expected one of {', '.join(by_name)}.{suggestion}")
    return by_name[name]


def _described(reference: Reference) -> str:
    value = reference.symbol.value
    if isinstance(value, ModuleType):
        names = [
            name
            for name, item in vars(value).items()
            if not name.startswith("_") and not isinstance(item, ModuleType)
        ]
        return f"the file has {', '.join(names) or 'no names'}"
    if inspect.isclass(value):
        names = [name for name in vars(value) if not name.startswith("_")]
        return f"{reference.symbol.name} is a class with {', '.join(names) or 'nothing of its own'}"
    return f"{reference.symbol.name} is of type {type(value).__name__}"

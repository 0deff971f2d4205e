"""Dialects: the styles in which users describe a model; each is converted to a `ModelDefinition`.

A dialect is a module with a name, its requirements, `matches(model_code)` and `define(model_code)`.
Dialects do not import each other; only this module refers to all of them. Dialects of plugins are
tried if no built-in dialect matches, or if `--dialect` names one.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from elasticdl import plugins
from elasticdl.dialects import (
    abstractions,
    elasticdl_module,
    elasticdl_spec,
    ibmfl_spec,
    keras_class,
    lightning_module,
)
from elasticdl.dialects.alternative_names import misspelled
from elasticdl.dialects.classes import with_names_in_file
from elasticdl.dialects.framework_seeds import note_on_seeds
from elasticdl.dialects.model_code import CONTRACT_FUNCTIONS
from elasticdl.dialects.other_trainers import notes_on_other_trainers
from elasticdl.errors import DefinitionError, UsageError

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.dialects.model_code import ModelCode


class Dialect(Protocol):
    """Interface of a dialect: recognises models written in one style, and converts them.

    Attributes:
        NAME: Name of the dialect on the command line, as in `--dialect=NAME`.
        TITLE: What a model in this dialect is called in messages, with its article: `an ElasticDL
            module`.
        NEEDS: What a model's file must contain to match this dialect, for messages.
    """

    NAME: str
    TITLE: str
    NEEDS: str

    def matches(self, model_code: ModelCode) -> bool:
        """Return whether the model is described in this dialect."""
        ...

    def define(self, model_code: ModelCode) -> ModelDefinition:
        """Convert the model to a `ModelDefinition`.

        Raises:
            DefinitionError: A part is missing or cannot be called as the dialect requires.
            UsageError: A param is unknown, missing or has the wrong type.
            UserCodeError: A user function raised.
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


def resolve(model_code: ModelCode, dialect: str | None = None) -> ModelDefinition:
    """Find the dialect in which a model is described, and convert it to a `ModelDefinition`.

    Args:
        model_code: The loaded object that `model_def` names.
        dialect: Name of the dialect to use. None: the only dialect that matches the code.

    Raises:
        DefinitionError: No dialect matches, several match, or the matching one finds that a part
            is missing.
        UsageError: There is no such dialect, or a param does not fit.
        UserCodeError: A user function raised.
    """
    if dialect is not None:
        return _completed(_named(dialect).define(model_code), model_code)
    fitting = [each for each in DIALECTS if each.matches(model_code)]
    others: list[Dialect] = []
    if not fitting:
        others = [plugins.load("dialects", name) for name in plugins.names("dialects")]
        fitting = [each for each in others if each.matches(model_code)]
    if len(fitting) == 1:
        return _completed(fitting[0].define(model_code), model_code)
    if fitting:
        titles = " and as ".join(each.TITLE for each in fitting)
        flags = " or ".join(f"--dialect={each.NAME}" for each in fitting)
        raise DefinitionError(
            f"{model_code.symbol}: {model_code.model_def} can be read as {titles}.\n"
            f"  Choose one: {flags}"
        )
    needs = "\n".join(f"    {each.NAME}: {each.NEEDS}" for each in (*DIALECTS, *others))
    parts = [*CONTRACT_FUNCTIONS, *elasticdl_module.MODELS]
    near = misspelled(model_code, [name for name in parts if model_code.find(name) is None])
    raise DefinitionError(
        f"{model_code.symbol}: {_described(model_code)}; this does not match any dialect.\n"
        "  The dialects need:\n"
        f"{needs}\n"
        f"  Add what is missing; use --dialect=NAME to see what one dialect is missing.{near}"
    )


def _completed(definition: ModelDefinition, model_code: ModelCode) -> ModelDefinition:
    """Add to a definition what is read in the same way for every dialect.

    These are the class names in `classes` of the model file, and notes on calls and settings
    without effect here: a framework's seed at the top level of the file, and, in a PyTorch file,
    settings that are meant for another library's trainer.

    Raises:
        DefinitionError: `classes` are not names of classes; or such a setting would change the
            trained weights or the validation results.
    """
    more = note_on_seeds(model_code)
    if definition.framework == "torch":
        more += notes_on_other_trainers(model_code)
    if more:
        own = definition.notes
        definition = dataclasses.replace(definition, notes=lambda: [*own(), *more])
    return definition if definition.classes else with_names_in_file(definition, model_code)


def _named(name: str) -> Dialect:
    by_name = {each.NAME: each for each in DIALECTS}
    if name in by_name:
        return by_name[name]
    others = plugins.names("dialects")
    if name in others:
        plugin: Dialect = plugins.load("dialects", name)
        return plugin
    expected = [*by_name, *others]
    near = difflib.get_close_matches(name, expected, n=1)
    suggestion = f" Did you mean {near[0]!r}?" if near else ""
    raise UsageError(f"--dialect={name}: expected one of {', '.join(expected)}.{suggestion}")


def _described(model_code: ModelCode) -> str:
    value = model_code.symbol.value
    if isinstance(value, ModuleType):
        names = [
            name
            for name, item in vars(value).items()
            if not name.startswith("_") and not isinstance(item, ModuleType)
        ]
        return f"the file has {', '.join(names) or 'no names'}"
    if inspect.isclass(value):
        names = [name for name in vars(value) if not name.startswith("_")]
        contents = ", ".join(names) or "nothing of its own"
        return f"{model_code.symbol.name} is a class with {contents}"
    return f"{model_code.symbol.name} is of type {type(value).__name__}"

"""What `model_def` names, loaded: all that a dialect looks at.

A `Reference` is made by `zoo/reference.py`, which knows where user code comes from; a dialect
knows only what it is. Nothing here judges what a name is good for.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.source_lines import definition_line, shown_path

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INPUT_FUNCTIONS = ("input_fn", "feed", "dataset_fn")
"""A file's functions that make batches, in the words of every generation."""

CONTRACT_FUNCTIONS = (*INPUT_FUNCTIONS, "loss", "optimizer")
"""The functions that make a file a model file."""

DEFAULTS = (
    "default_input",
    "default_loss",
    "default_optimizer",
    "default_metrics",
    "default_weighted_metrics",
    "default_class_weight",
    "default_predictions",
)
"""What a class says of itself instead."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """Something of the user's, and where it stands.

    Attributes:
        name: What the user calls it: `loss`, `fintech.credit_data`, `DNN.default_loss`.
        value: The function, class or object itself.
        file: The file, as a person would write it.
        line: Where it is defined.
    """

    name: str
    value: Any
    file: str
    line: int

    def __str__(self) -> str:
        """Return `file:line`, as an editor takes it."""
        return f"{self.file}:{self.line}"

    @property
    def short_name(self) -> str:
        """The last part of its name."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class Reference:
    """What `model_def` names, loaded.

    Attributes:
        model_def: As the user wrote it.
        symbol: What it names; a module where it names a file.
        modules: Where the model's functions are looked for, in this order: the file that was
            named, then the file the symbol came from, if that is another one.
        zoo: The folder or URL, as the user wrote it.
        zoo_commit: Commit of the zoo, where it is a git repository.
        params: Values by name.
        overrides: Contract function -> what replaces it.
        context: What a spec's constructor is told: worker_id, world_size, job_id, mode,
            num_epochs.
        config_file: Where params and overrides stand; None is the command line.
        objects: What a saved model's file calls by name -> the user's code for it.
        reload: Imports the zoo's files again and returns the same reference to the new ones.
    """

    model_def: str
    symbol: Symbol
    modules: tuple[ModuleType, ...]
    zoo: str
    reload: Callable[[], Reference]
    zoo_commit: str | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    overrides: Mapping[str, Symbol] = dataclasses.field(default_factory=dict)
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_file: str | None = None
    objects: Mapping[str, Symbol] = dataclasses.field(default_factory=dict)

    @property
    def names_a_file(self) -> bool:
        """Whether `model_def` names a file and nothing in it."""
        return isinstance(self.symbol.value, ModuleType)

    def find(self, name: str) -> Symbol | None:
        """Return what the model's files call by this name, None if nothing.

        A module is none of it: `from torch.optim import lr_scheduler` is an import.
        """
        for module in self.modules:
            value = getattr(module, name, None)
            if hasattr(module, name) and not isinstance(value, ModuleType):
                return symbol_of(name, value, module)
        return None

    def classes(self) -> list[Symbol]:
        """Return the classes the model's files define themselves, in their order."""
        return [
            symbol_of(name, value, module)
            for module in self.modules
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__
        ]

    def with_symbol(self, symbol: Symbol) -> Reference:
        """Return the same reference to something else of the same files."""
        return dataclasses.replace(self, symbol=symbol)


def symbol_of(name: str, value: Any, module: ModuleType) -> Symbol:
    """Return a symbol with the place it is defined at.

    Args:
        name: As the user would write it; the last part is its name in the file.
        value: The thing itself.
        module: Where it was found.
    """
    # A module in C has no file at all.
    file = getattr(module, "__file__", None) or module.__name__
    short = name.rpartition(".")[2]
    if isinstance(value, ModuleType):
        return Symbol(
            name, value, shown_path(getattr(value, "__file__", None) or value.__name__), 1
        )
    if where := place_of(value):
        return Symbol(name, value, *where)
    if inspect.isclass(value):
        try:
            file = inspect.getfile(value)
        except (OSError, TypeError):
            # A class made by C code or at run time has no file: the file that has it stands in.
            return Symbol(name, value, shown_path(file), definition_line(file, short))
        return Symbol(name, value, shown_path(file), definition_line(file, value.__name__))
    return Symbol(name, value, shown_path(file), definition_line(file, short))


def place_of(function: Any) -> tuple[str, int] | None:
    """Return file and line of a function's definition, None if it is no function of Python."""
    code = getattr(function_of(function), "__code__", None)
    if code is None:
        return None
    line = definition_line(code.co_filename, code.co_name, code.co_firstlineno)
    return shown_path(code.co_filename), line


def function_of(value: Any) -> Any:
    """Return the plain function behind a decorated or bound one; anything else as it is."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    # A compiled function of TensorFlow keeps the function it was made of.
    value = getattr(value, "python_function", value)
    if inspect.isroutine(value):
        value = inspect.unwrap(value)
        return getattr(value, "__func__", value)
    return value

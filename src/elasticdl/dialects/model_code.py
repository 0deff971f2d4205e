"""`ModelCode`: the object that `model_def` names, loaded with its files; the input of a dialect.

`zoo/load_model_code.py` locates the user's code and creates a `ModelCode`; a dialect sees only the
result. Dialects decide what the names in the files mean.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.source_lines import definition_line, shown_path
from elasticdl.tracebacks import is_of_the_user

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

INPUT_FUNCTIONS = ("input_fn", "feed", "dataset_fn")
"""Names of the input functions, from all generations of the contract."""

LOADER = "train_dataloader"
"""Name of the function that returns a loader of batches, in PyTorch files."""

CONTRACT_FUNCTIONS = (*INPUT_FUNCTIONS, "loss", "optimizer")
"""Names of the functions that identify a model file."""

DEFAULTS = (
    "default_input",
    "default_loss",
    "default_optimizer",
    "default_metrics",
    "default_weighted_metrics",
    "default_class_weight",
    "default_callbacks",
    "default_predictions",
    "default_classes",
)
"""Class attributes or methods that replace the contract functions."""


@dataclass(frozen=True, eq=False)
class Symbol:
    """An object from the user's code, with the location of its definition.

    Attributes:
        name: Name as the user writes it: `loss`, `fintech.credit_data`, `DNN.default_loss`.
        value: The function, class or object itself.
        file: The file, as shown to users (`source_lines.shown_path`).
        line: Line of its definition.
    """

    name: str
    value: Any
    file: str
    line: int

    def __str__(self) -> str:
        """Return `file:line`, a format that editors accept."""
        return f"{self.file}:{self.line}"

    @property
    def short_name(self) -> str:
        """The last part of the dotted name."""
        return self.name.rpartition(".")[2]


@dataclass(frozen=True, eq=False)
class ModelCode:
    """The loaded object that `model_def` names, with its files and options.

    Attributes:
        model_def: The option as the user wrote it.
        symbol: The object it names; a module if it names a file.
        modules: Modules to search for the model's functions, in this order: the file that was
            named, then the file that defines the symbol, if different.
        zoo: The folder or URL, as the user wrote it.
        zoo_commit: Commit of the zoo, if it is a git repository.
        params: Values of the params, by name.
        overrides: Name of a model file's function, such as `loss` -> the function that the user
            named to use in its place. For a session: key of the config -> component class.
        context: Values for a spec's constructor: worker_id, world_size, job_id, mode, num_epochs.
        config_file: File that contains `params` and `overrides`; None means the command line.
        objects: Name of a custom object in a saved model's file -> the user's class or function
            for it.
        reload: Function () -> new code of the same model, after importing the zoo's files again.
    """

    model_def: str
    symbol: Symbol
    modules: tuple[ModuleType, ...]
    zoo: str
    reload: Callable[[], ModelCode]
    zoo_commit: str | None = None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    overrides: Mapping[str, Symbol] = dataclasses.field(default_factory=dict)
    context: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_file: str | None = None
    objects: Mapping[str, Symbol] = dataclasses.field(default_factory=dict)

    @property
    def names_a_file(self) -> bool:
        """Whether `model_def` names a file rather than an object in it."""
        return isinstance(self.symbol.value, ModuleType)

    def find(self, name: str) -> Symbol | None:
        """Return the object of this name in the model's files; None if there is none.

        Modules are skipped: `from torch.optim import lr_scheduler` is an import, not a definition.
        """
        for module in self.modules:
            value = getattr(module, name, None)
            if hasattr(module, name) and not isinstance(value, ModuleType):
                return symbol_of(name, value, module)
        return None

    def classes(self) -> list[Symbol]:
        """Return the classes that the model's files define themselves, in file order."""
        return [
            symbol_of(name, value, module)
            for module in self.modules
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ == module.__name__
        ]

    def imported_classes(self) -> list[Symbol]:
        """Return the classes that the model's files import from other files, in file order."""
        return [
            symbol_of(name, value, module)
            for module in self.modules
            for name, value in vars(module).items()
            if inspect.isclass(value) and value.__module__ != module.__name__
        ]

    def with_symbol(self, symbol: Symbol) -> ModelCode:
        """Return a copy with another `symbol`, such as the model class found in the named file."""
        return dataclasses.replace(self, symbol=symbol)


def symbol_of(name: str, value: Any, module: ModuleType) -> Symbol:
    """Return a symbol with the location of its definition.

    Args:
        name: Name as the user would write it; its last part is the name in the file.
        value: The object itself.
        module: The module it was found in.
    """
    # An extension module in C may have no file at all.
    file = getattr(module, "__file__", None) or module.__name__
    short = name.rpartition(".")[2]
    if isinstance(value, ModuleType):
        return Symbol(
            name, value, shown_path(getattr(value, "__file__", None) or value.__name__), 1
        )
    where = location_of(value)
    if where and is_of_the_user(where[0]):
        return Symbol(name, value, *where)
    if inspect.isclass(value):
        # A class made by C code or at run time has no file.
        with contextlib.suppress(OSError, TypeError):
            of_class = inspect.getfile(value)
            # For a class of a library, the line that the user wrote is in the module.
            if is_of_the_user(of_class):
                line = definition_line(of_class, value.__name__)
                return Symbol(name, value, shown_path(of_class), line)
    return Symbol(name, value, shown_path(file), definition_line(file, short))


def location_of(function: Any) -> tuple[str, int] | None:
    """Return file and line of a function's definition; None if it is not a Python function."""
    code = getattr(function_of(function), "__code__", None)
    if code is None:
        return None
    line = definition_line(code.co_filename, code.co_name, code.co_firstlineno)
    return shown_path(code.co_filename), line


def function_of(value: Any) -> Any:
    """Return the plain function behind a decorated or bound one; other values unchanged."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    # A compiled function of TensorFlow keeps the original Python function.
    value = getattr(value, "python_function", value)
    if inspect.isroutine(value):
        value = inspect.unwrap(value)
        return getattr(value, "__func__", value)
    return value

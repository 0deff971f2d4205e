"""Finds functions and settings that would be ignored in the file of a model class.

In a model file without such a class, functions such as `loss` describe the model. In a file with
one, they are not called:

    class Net(keras.Model): ...        the class that describes the model
    def eval_metrics_fn(): ...         nothing calls it: refused
    def loss(...): ...                 the class has its own: noted
    default_callback = [...]           in the class: noted, since it may be a setting of the user

A name is not ignored if other code in its file uses it, or if a flag such as `--loss` names it. If
the file has another model besides the class (`custom_model`), the functions belong to that model.

Callers: the dialects in which a class describes the model.
"""

from __future__ import annotations

import difflib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.dialects.model_code import CONTRACT_FUNCTIONS, Symbol, location_of, symbol_of
from elasticdl.dialects.source_lines import names_used, variables_used

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import ModuleType

    from elasticdl.dialects.dialect_reader import DialectReader
    from elasticdl.dialects.model_code import ModelCode

_MODELS = ("model", "custom_model", "CustomModel")
_WITHOUT_REPLACEMENT = ("PredictionOutputsProcessor", "custom_data_reader")


def check_unread(owner: Symbol, replacements: Mapping[str, str], reading: DialectReader) -> None:
    """Check that no function or value in the file, such as `eval_metrics_fn`, would be ignored.

    Args:
        owner: The class that describes the model.
        replacements: Name of such a function or value -> name of its replacement in the class.
        reading: Reader of the user's code, which builds error messages.

    Raises:
        DefinitionError: The file has one of them, and nothing uses it.
    """
    for name, new in {**replacements, **dict.fromkeys(_WITHOUT_REPLACEMENT, "")}.items():
        if found := _unread(name, reading.model_code):
            raise reading.error(
                found,
                f"{name} would be ignored, because {owner.short_name} describes the whole model.",
                (f"Move it into the class as {new}" if new else "Remove it")
                + ", or give it another name.",
            )


def unread_functions(owner: Symbol, reading: DialectReader) -> list[str]:
    """Return a note for each unused input function, loss or optimizer that the class replaces."""
    return [
        f"{found}: {name} is not used: nothing in the file uses it, and {owner.short_name} has its "
        "own."
        for name in CONTRACT_FUNCTIONS
        if (found := _unread(name, reading.model_code))
    ]


def unread_settings(
    owner: Symbol, prefix: str, settings: Sequence[str], reading: DialectReader
) -> list[str]:
    """Return a note for each attribute of a class that resembles a setting but is not used.

    Args:
        owner: The class that describes the model.
        prefix: What the names of all settings begin with, such as `default_`.
        settings: Names of the settings.
        reading: Reader of the user's code.
    """
    own = {module.__name__: module for module in reading.model_code.modules}
    used = frozenset().union(*(names_used(_file(module)) for module in own.values()))
    notes = []
    for kind in inspect.getmro(owner.value):
        module = own.get(kind.__module__)
        if module is None:
            continue
        for name, value in vars(kind).items():
            if not name.startswith(prefix) or name in settings or name in used:
                continue
            place = symbol_of(kind.__name__, kind, module)
            file, line = location_of(value) or (place.file, place.line)
            near = difflib.get_close_matches(name, settings, n=1)
            meant = near[0] if near else ", ".join(settings)
            notes.append(
                f"{file}:{line}: {kind.__name__}.{name} is not used: nothing in the file uses it, "
                f"and ElasticDL looks for {meant}. If you meant that, rename it."
            )
    return notes


def _unread(name: str, model_code: ModelCode) -> Symbol | None:
    """Return the object of this name in the model's files if nothing uses it; otherwise None."""
    if any(model_code.find(model) and not is_used(model, model_code) for model in _MODELS):
        # The functions belong to that model.
        return None
    found = model_code.find(name)
    if found is None or any(found.value is each.value for each in model_code.overrides.values()):
        return None
    return None if is_used(name, model_code) else found


def is_used(name: str, model_code: ModelCode) -> bool:
    """Return whether code in the model's files uses a name that they define at the top level."""
    return any(name in variables_used(_file(module)) for module in model_code.modules)


def _file(module: ModuleType) -> Path:
    return Path(getattr(module, "__file__", None) or "")

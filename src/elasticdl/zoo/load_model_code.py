"""Imports the code that a `ModelReference` names, as a `ModelCode`.

A dialect, the reader for one style of model files, converts it into a `ModelDefinition`.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from elasticdl.definition import Mode
from elasticdl.dialects.component_classes import COMPONENTS, lines_in
from elasticdl.dialects.model_code import (
    INPUT_FUNCTIONS,
    LOADER,
    ModelCode,
    Symbol,
    symbol_of,
)
from elasticdl.dialects.source_lines import names_imported, top_level_names
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import UsageError
from elasticdl.training.create import quiet_frameworks
from elasticdl.zoo import imports, specs
from elasticdl.zoo.folder import (
    Zoo,
    ZooLocation,
    find,
    open_zoo,
    prebuilt_hint,
    public_names,
)
from elasticdl.zoo.git import is_git_url

if TYPE_CHECKING:
    from elasticdl.job import ModelReference

OVERRIDES = ("input_fn", "loss", "optimizer", "eval_metrics_fn")
"""Functions that a flag can replace, by the dotted name of another function."""

CONTEXT: Mapping[str, Any] = {
    "worker_id": 0,
    "world_size": 1,
    "job_id": "local",
    "mode": Mode.TRAINING,
}
"""Values for a spec's constructor in a single process."""


def load(
    model: ModelReference,
    context: Mapping[str, Any] | None = None,
    opened: Zoo | None = None,
) -> ModelCode:
    """Import the object that a model reference names, and the functions that override the file's.

    Args:
        model: Zoo, dotted name and params of the model, and the names of functions to use in place
            of the model file's own (`overrides`).
        context: Arguments for the constructor of an `ElasticDLSpec`; those left out get the
            values of a single process (`CONTEXT`).
        opened: The model's zoo, if it is already open.

    Raises:
        UsageError: The zoo, a file or a symbol is missing.
        UserCodeError: A file raised while it was imported.
    """
    return _load(opened or open_zoo(model.zoo), model, {**CONTEXT, **(context or {})})


def reads_own_data(model: ModelReference) -> bool:
    """Return whether a model's code reads its training data itself, with a PyTorch loader.

    Such a model would ignore data that the user passes in memory. The file is parsed, but not
    imported. A saved model, and a model in a git repository, which would have to be fetched, are
    not looked at: the result is False.

    Args:
        model: The reference to the model.

    Returns:
        True if the reference names a PyTorch file with a `train_dataloader` and no input function.
        False is not certain: a class in the file may have a loader too.

    Raises:
        UsageError: The zoo or the file is missing.
    """
    if specs.is_spec(model.model_def) or (model.zoo is not None and is_git_url(model.zoo)):
        return False
    place = find(open_zoo(model.zoo), model.model_def, _flag(model, "model_def"))
    if place.symbol is not None or "input_fn" in model.overrides:
        return False
    names, imported = top_level_names(place.file), names_imported(place.file)
    # In a file for Keras, the name means nothing.
    is_torch = "torch" in imported and not imported & {"keras", "tensorflow"}
    return is_torch and LOADER in names and not any(name in names for name in INPUT_FUNCTIONS)


def load_symbol(zoo: str | None, dotted: str) -> Symbol:
    """Import the object of a dotted name: from the zoo, or from an installed package.

    Args:
        zoo: A folder, a git URL, or None for the prebuilt models, as for `open_zoo`.
        dotted: The name, such as `fintech.credit_data` or `keras.losses.Huber`.

    Raises:
        UsageError: Neither the zoo nor an installed package contains the name.
        UserCodeError: A file raised while it was imported.
    """
    opened = open_zoo(zoo)
    imports.forget(opened)
    return _symbol(opened, dotted, "symbol", ())


def _load(zoo: Zoo, model: ModelReference, context: Mapping[str, Any]) -> ModelCode:
    imports.forget(zoo)
    if specs.is_spec(model.model_def):
        return _load_spec(zoo, model, context)
    place = find(zoo, model.model_def, _flag(model, "model_def"))
    module = imports.import_file(zoo, place)
    symbol = _in_module(zoo, module, place, _flag(model, "model_def"), model.model_def)
    modules = [module]
    home = sys.modules.get(getattr(symbol.value, "__module__", None) or module.__name__)
    if home is not None and home is not module and imports.is_of(zoo, home):
        modules.append(home)
    _check_overrides(model.overrides)
    return ModelCode(
        model_def=model.model_def,
        symbol=symbol,
        modules=tuple(modules),
        zoo=zoo.name,
        zoo_commit=zoo.commit,
        params=dict(model.params),
        overrides={
            name: _symbol(zoo, dotted, _flag(model, name), modules)
            for name, dotted in model.overrides.items()
        },
        context=context,
        config_file=model.config_file,
        reload=lambda: _load(zoo, model, context),
    )


def _load_spec(zoo: Zoo, model: ModelReference, context: Mapping[str, Any]) -> ModelCode:
    quiet_frameworks()
    spec = specs.open_spec(zoo, model.model_def)
    file, _, line = spec.where.rpartition(":")
    _check_overrides(model.overrides)
    return ModelCode(
        model_def=model.model_def,
        symbol=Symbol(model.model_def, spec, file or spec.where, int(line) if file else 1),
        modules=(),
        zoo=zoo.name,
        zoo_commit=zoo.commit,
        params=dict(model.params),
        overrides={
            name: _symbol(zoo, dotted, _flag(model, name), ())
            for name, dotted in model.overrides.items()
        },
        context=context,
        objects={
            each.key: _symbol(zoo, specs.dotted_name(zoo, model.model_def, each), each.where, ())
            for each in spec.custom_objects
        },
        reload=lambda: _load(zoo, model, context),
    )


def _flag(model: ModelReference, name: str) -> str:
    """Return the name of an option for errors: its flag, or its line and key in the config file."""
    if model.config_file is None:
        return f"--{name}"
    key = "model_builder_class" if name == "model_def" else name
    line = lines_in(model.config_file).get(key)
    return f"{model.config_file}{'' if line is None else f':{line}'}: {key}"


def _check_overrides(overrides: Mapping[str, str]) -> None:
    for name in overrides:
        if name not in {*OVERRIDES, *COMPONENTS}:
            raise UsageError(f"{name} cannot be replaced; only {', '.join(OVERRIDES)} can.")


def _symbol(
    zoo: Zoo, dotted: str, flag: str, modules: tuple[ModuleType, ...] | list[ModuleType]
) -> Symbol:
    """Import the object that a flag names.

    Args:
        zoo: The model's zoo, which is searched before installed packages.
        dotted: The name that the user gave.
        flag: The flag that has `dotted` as its value, for errors.
        modules: The model's files, which are searched first for a name without dots.

    Raises:
        UsageError: The object is found nowhere.
        UserCodeError: A file raised while it was imported.
    """
    if "." not in dotted:
        for module in modules:
            if hasattr(module, dotted):
                return symbol_of(dotted, getattr(module, dotted), module)
    try:
        place = find(zoo, dotted, flag)
    except UsageError as not_in_zoo:
        if (symbol := _installed(dotted)) is not None:
            return symbol
        raise not_in_zoo from None
    return _in_module(zoo, imports.import_file(zoo, place), place, flag, dotted)


def _in_module(zoo: Zoo, module: ModuleType, place: ZooLocation, flag: str, dotted: str) -> Symbol:
    if place.symbol is None:
        return symbol_of(dotted, module, module)
    if not hasattr(module, place.symbol):
        names = public_names(place.file) or [n for n in vars(module) if not n.startswith("_")]
        raise UsageError(
            f"{flag}={dotted}: {symbol_of(dotted, module, module).file} has no {place.symbol!r}; "
            f"it defines {', '.join(names) or 'nothing'}{did_you_mean(place.symbol, names)}"
            f"{prebuilt_hint(zoo, dotted)}"
        )
    return symbol_of(place.symbol, getattr(module, place.symbol), module)


def _installed(dotted: str) -> Symbol | None:
    """Import an object of an installed package by its dotted name; None if there is none."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:length])
        try:
            value: Any = importlib.import_module(name)
        except ImportError:
            continue
        for attribute in parts[length:]:
            if not hasattr(value, attribute):
                return None
            value = getattr(value, attribute)
        owner = inspect.getmodule(value)
        return symbol_of(dotted, value, owner if owner is not None else sys.modules[name])
    return None

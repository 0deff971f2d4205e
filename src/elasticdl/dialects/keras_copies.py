"""Copies Keras metrics and optimizers that a user's file creates at its top level.

A copy is created from the config, so that it has a state of its own. A config may lack settings:
arguments of a user's class without a `get_config()`, or what `exclude_from_weight_decay()` has set.
Numbers, strings and containers of them are added to the copy; any other difference is an error.

Callers: `keras_objects.py`, when Keras is imported.
"""

from __future__ import annotations

import copy
import functools
import re
import sys
import types
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError

_PLAIN = (type(None), bool, int, float, str, bytes, re.Pattern, np.generic, np.ndarray, type)
_CONTAINERS = (list, tuple, set, frozenset, Mapping)
_LIBRARIES = {"keras", "tensorflow", "numpy", *sys.stdlib_module_names}
# Objects of Keras that have settings.
_CONFIGURED = (
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.losses.Loss,
)
# Attributes that TensorFlow adds, to find variables.
_OF_TENSORFLOW = ("_self_", "_obj_reference_counts")
# Attributes that Keras sets when it creates variables, at the first use; the copy has none yet.
_OF_BUILD = {"built", "_built", "_trainable_variables_indices"}
_MISSING = object()


def copied(value: Any, where: object) -> Any:
    """Create a metric or optimizer with the settings of an existing one, but with new state.

    Args:
        value: The existing metric or optimizer.
        where: `file:line` of its definition, for errors.

    Raises:
        DefinitionError: It cannot be created from its config, or differs in more than plain values.
    """
    kind = type(value).__name__
    try:
        made = type(value).from_config(value.get_config())
    except Exception as error:
        raise DefinitionError(
            f"{where}: {kind} cannot be recreated from its config: {error}\n"
            "  Create it in a function, so that each run has its own."
        ) from error
    if name := _difference(value, made, "", {}):
        raise DefinitionError(
            f"{where}: each run gets a copy of this {kind}, and its get_config() lacks what the "
            f"attribute {name.removeprefix('.')} depends on. Create the {kind} in a function, so "
            "that each run has its own, or return the setting from get_config()."
        )
    if isinstance(value, keras.optimizers.Optimizer) and not value.built:
        # Values that the file has assigned, such as that of `iterations`.
        for variable, other in zip(value.variables, made.variables, strict=False):
            other.assign(variable)
    return made


def _difference(  # noqa: C901, PLR0911 - one line a type
    one: Any, other: Any, name: str, copies: dict[int, Any]
) -> str:
    """Add plain settings of an object to its copy, and return the name of another difference.

    Args:
        one: An object, or the value of an attribute.
        other: Its copy; `_MISSING` if there is none.
        name: Its name.
        copies: Id of each object that was compared -> its copy; added to.

    Returns:
        The name of the first difference, such as ".settings[0].scale"; empty if there is none.
    """
    if one is other or (id(one) in copies and copies[id(one)] is other):
        return ""
    if isinstance(one, keras.Variable):
        # Some are created at the first use only, so they may be missing.
        is_other = isinstance(other, keras.Variable) and tuple(one.shape) != tuple(other.shape)
        return name if is_other else ""
    if type(one) is not type(other):
        return name
    match one:
        case _ if _is_plain(one):
            return "" if _same(one, other) else name
        case list() | tuple() | Mapping():
            items, others = _items(one), _items(other)
            if items.keys() != others.keys() and not _all_variables([one, other]):
                return name
            compared = [(key, others[key]) for key in items if key in others]
            found = (_difference(items[k], each, f"{name}[{k!r}]", copies) for k, each in compared)
            return next(filter(None, found), "")
        case types.BuiltinFunctionType() | np.ufunc():
            return name
        case types.FunctionType():
            if one.__code__ is not other.__code__:
                return name
            cells, those = (
                [each.cell_contents for each in function.__closure__ or ()]
                for function in (one, other)
            )
            return name if _difference(cells, those, name, copies) else ""
        case types.MethodType():
            mine, those = ([each.__func__, each.__self__] for each in (one, other))
            return name if _difference(mine, those, name, copies) else ""
        case functools.partial():
            mine, those = ([each.func, each.args, each.keywords] for each in (one, other))
            return name if _difference(mine, those, name, copies) else ""
        case _ if isinstance(one, _CONFIGURED) or _is_of_user(one):
            copies[id(one)] = other
            return _completed(one, other, name, copies)
    return ""


def _completed(one: Any, other: Any, name: str, copies: dict[int, Any]) -> str:
    """Add plain settings of an object to its copy; the arguments are those of `_difference`."""
    for attribute, value in list(vars(one).items()):
        if attribute.startswith(_OF_TENSORFLOW) or attribute in _OF_BUILD:
            continue
        current = vars(other).get(attribute, _MISSING)
        if current is _MISSING and _has_variables(value):
            continue
        found = _difference(value, current, f"{name}.{attribute}", copies)
        if found and _is_plain(value) and (current is _MISSING or _is_plain(current)):
            setattr(other, attribute, _plain(value))
        elif found:
            return found
    return ""


def _has_variables(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(v, keras.Variable) for v in value)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, text, array, or a container of these alone."""
    if isinstance(value, _CONTAINERS):
        inner = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        return all(map(_is_plain, inner))
    is_tensor = tf.is_tensor(value) and not isinstance(value, (tf.Variable, keras.Variable))
    return isinstance(value, (*_PLAIN, tf.DType)) or is_tensor


def _plain(value: Any) -> Any:
    """Return a copy of a plain value, without the containers in which Keras tracks variables."""
    if isinstance(value, dict):
        return dict(copy.deepcopy(list(value.items())))
    kind = next((each for each in (list, set) if isinstance(value, each)), None)
    return copy.deepcopy(value) if kind is None else kind(copy.deepcopy(list(value)))


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(np.all(one == other)) or repr(one) == repr(other)
    except Exception:  # noqa: BLE001 - arrays of different shapes
        return False


def _items(value: Any) -> dict[Any, Any]:
    return dict(value if isinstance(value, Mapping) else enumerate(value))


def _all_variables(values: list[Any]) -> bool:
    return all(isinstance(each, keras.Variable) for value in values for each in value)


def _is_of_user(value: Any) -> bool:
    top = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and top not in _LIBRARIES

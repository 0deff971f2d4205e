"""Checks of the values in received messages: strict, because the sender may be malicious.

This module has the rules for values; `messages.py` lists the fields and the rule of each.

Callers: `messages.py`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from elasticdl.data.wording import shown
from elasticdl.engines.federated.config.section import is_real
from elasticdl.errors import MessageError

Rules: TypeAlias = Mapping[str, Callable[[object], bool]]
"""Field -> predicate: whether the field may have a value."""

# A longer string is not a real name, and would fill logs.
_LONGEST_NAME = 200
_MAX_COUNTS = 1000
_MAX_EXAMPLE_BYTES = 2**30
_DEEPEST_EXAMPLE = 20
_MAX_AXES = 32


def is_text(value: object) -> bool:
    """Return whether a value can be a name: a string of limited length."""
    return isinstance(value, str) and len(value) <= _LONGEST_NAME


def is_printable(value: object) -> bool:
    """Return whether a value can be a name and is safe to print, without control characters."""
    return isinstance(value, str) and len(value) <= _LONGEST_NAME and value.isprintable()


def is_long_text(value: object) -> bool:
    """Return whether a value is a string of any length."""
    return isinstance(value, str)


def is_count(value: object) -> bool:
    """Return whether a value is an integer, 0 or greater."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_whole(value: object) -> bool:
    """Return whether a value is an integer and not a boolean."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_amount(value: object) -> bool:
    """Return whether a value is a finite number, 0 or greater."""
    return is_real(value) and value >= 0  # type: ignore[operator]


def is_flag(value: object) -> bool:
    """Return whether a value is a boolean."""
    return isinstance(value, bool)


def is_mapping(value: object) -> bool:
    """Return whether a value is a mapping whose keys are strings."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def is_counts(value: object) -> bool:
    """Return whether a value is a mapping from printable names to counts, of limited size."""
    return (
        isinstance(value, Mapping)
        and len(value) <= _MAX_COUNTS
        and all(map(is_printable, value))
        and all(map(is_count, value.values()))
    )


def is_architecture(value: object) -> bool:
    """Return whether a value is a mapping from names of arrays to (dtype, shape)."""
    return is_mapping(value) and all(_is_form(form) for form in value.values())  # type: ignore[attr-defined]


def _is_form(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:  # noqa: PLR2004 - dtype and shape
        return False
    dtype, shape = value
    return is_text(dtype) and isinstance(shape, list | tuple) and all(map(is_count, shape))


def is_example(value: object) -> bool:
    """Return whether a value describes an example by its shapes and dtypes, or is empty.

    The example must have at most 1 GiB, because the aggregator allocates arrays of this size. Only
    a party that joins describes an example; in all other replies the value is {}.

    Example:
        >>> is_example({"features": {"dtype": "float32", "shape": [28, 28]}, "labels": None})
        True
        >>> is_example({"features": {"dtype": "float32", "shape": [10**12]}, "labels": None})
        False
    """
    if not isinstance(value, Mapping):
        return False
    if not value:
        # Only a reply to `join` has an example.
        return True
    sizes = [_example_bytes(tree, _DEEPEST_EXAMPLE) for tree in value.values()]
    return value.keys() == {"features", "labels"} and sum(sizes) <= _MAX_EXAMPLE_BYTES


def _example_bytes(tree: Any, depth: int) -> float:
    """Return the size of an example in bytes; infinite if the shapes are not valid."""
    if tree is None:
        return 0
    if isinstance(tree, Mapping) and depth:
        if tree.keys() == {"dtype", "shape"}:
            return _array_bytes(tree["dtype"], tree["shape"])
        if len(tree) == 1:
            ((kind, inner),) = tree.items()
            if kind == "dict" and is_mapping(inner):
                return sum(_example_bytes(each, depth - 1) for each in inner.values())
            if kind in {"list", "tuple"} and isinstance(inner, list | tuple):
                return sum(_example_bytes(each, depth - 1) for each in inner)
    return math.inf


def _array_bytes(dtype: Any, shape: Any) -> float:
    if not (_is_form((dtype, shape)) and len(shape) < _MAX_AXES):
        return math.inf
    try:
        return float(math.prod(shape) * np.dtype(str(dtype)).itemsize)
    except (TypeError, ValueError, OverflowError):
        return math.inf


def or_none(rule: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a check that accepts None and everything that `rule` accepts."""
    return lambda value: value is None or rule(value)


def check_fields(values: Mapping[str, Any], rules: Rules, where: str) -> None:
    """Check the fields of a message against its rules.

    Args:
        values: The fields, by name.
        rules: Name of each field that the message must have -> function (value) -> whether the
            value is valid.
        where: Name of the message for errors, such as "a reply".

    Raises:
        MessageError: A field is unknown or missing, or has an invalid value.
    """
    for name in values:
        if name not in rules:
            near = difflib.get_close_matches(name, rules, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            raise MessageError(f"The field {shown(name)} is unknown in {where}.{meant}")
    for name, rule in rules.items():
        if name not in values:
            raise MessageError(f"The field {name} is missing in {where}.")
        if not rule(values[name]):
            raise MessageError(
                f"The field {name} of {where} has an invalid value: {shown(values[name])}."
            )

"""Checks of the values of the table models' params, without importing a framework.

    hidden_units=[-3]   expected a list of whole numbers from 1 to 1,000,000, ...

The check of an SQL statement uses them too: a wrong value is reported with its position in the
statement, before any row is read.

Not a model: `elasticdl zoo list` skips this file. Used by `tables.py` and
`sql/check.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

MAX_UNITS = 1_000_000
MAX_WEIGHTS = 1_000_000_000
"""Limit of the weights between two layers; Adam needs 16 bytes for each during training."""

_FEWEST_CLASSES = 2
_MAX_ROWS = 2**63 - 1


def problem_with(name: str, value: Any) -> str:
    """Return what is expected in place of an invalid value of a param; empty if it is valid.

    Args:
        name: Name of the param; an unknown one accepts any value.
        value: Its value; None, for the model's default, is valid.

    Example:
        >>> problem_with("hidden_units", [64, 32]), problem_with("learning_rate", 0)
        ('', 'expected a number above 0, such as 0.001')
    """
    limit = _LIMITS.get(name)
    if limit is None or value is None:
        return ""
    fits, expected = limit
    return "" if fits(value) else f"expected {expected}"


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _layers(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and all(_whole(each, 1, MAX_UNITS) for each in value)
        and sum(wide * next_ for wide, next_ in pairwise(value)) <= MAX_WEIGHTS
    )


def _texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


_LIMITS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "hidden_units": (
        _layers,
        (
            f"a list of whole numbers from 1 to {MAX_UNITS:,}, such as [64, 32], with at most "
            f"{MAX_WEIGHTS:,} weights between them ([] is a linear model)"
        ),
    ),
    "learning_rate": (
        lambda value: _number(value) and value > 0,
        "a number above 0, such as 0.001",
    ),
    "embedding_size": (
        lambda value: _whole(value, 1, MAX_UNITS),
        f"a whole number from 1 to {MAX_UNITS:,}, such as 8",
    ),
    "num_classes": (
        lambda value: _whole(value, _FEWEST_CLASSES, MAX_UNITS),
        f"a whole number from {_FEWEST_CLASSES} to {MAX_UNITS:,}",
    ),
    "class_counts": (
        lambda value: (
            isinstance(value, (list, tuple))
            and all(_whole(each, 0, _MAX_ROWS) for each in value)
            and any(value)
        ),
        "the number of rows of each class, such as [195, 5]",
    ),
    "label": (lambda value: isinstance(value, str) and bool(value), "the name of a field"),
    "ignore": (_texts, 'names of fields, such as ["id"]'),
    "label_mean": (_number, "a number, such as the mean of the label"),
    "label_scale": (
        lambda value: _number(value) and value > 0,
        "a number above 0, such as the standard deviation of the label",
    ),
    "dropout": (
        lambda value: _number(value) and 0 <= value < 1,
        "a number from 0 to less than 1, such as 0.2",
    ),
}

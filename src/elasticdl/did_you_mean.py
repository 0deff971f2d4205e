"""Suggests the known name that a mistyped one probably means, for error messages.

    lable    -> label          few letters differ
    AGE      -> age            only case or underscores differ
    val_acc  -> val_accuracy   an abbreviation
    2019     -> nothing        another number is another value

Callers: every module that reports an unknown name.
"""

from __future__ import annotations

import difflib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

# Similarity of names, as a ratio of difflib.
_LIKENESS = 0.6
_LABEL_LIKENESS = 0.8
_MAX_LONGER = 2
# From how many letters on a name counts as an abbreviation of one that begins with it.
_FEWEST_LETTERS = 3


def did_you_mean(name: str, known: Iterable[str], *, is_label: bool = False) -> str:
    """Return a suggestion to end an error message with, or a period if no known name is similar.

    Args:
        name: The name that does not exist.
        known: The existing names.
        is_label: Whether it may be the name of a label. Then only a very similar name is suggested,
            because a column of predictions (`will_default`) is often named like its label
            (`defaulted`), and evaluating on it would measure nothing.

    Example:
        >>> did_you_mean("lable", ["image", "label"]), did_you_mean("x", ["image", "label"])
        ("; did you mean 'label'?", '.')
        >>> did_you_mean("val_acc", ["val_ce", "val_accuracy"])
        "; did you mean 'val_accuracy'?"
        >>> did_you_mean("AGE", ["wage", "age"]), did_you_mean("2019", ["2018"])
        ("; did you mean 'age'?", '.')
        >>> (
        ...     did_you_mean("label", ["new_label"]),
        ...     did_you_mean("label", ["new_label"], is_label=True),
        ... )
        ("; did you mean 'new_label'?", '.')
    """
    near = nearest(name, known, is_label=is_label)
    return "." if near is None else f"; did you mean {near!r}?"


def nearest(name: str, known: Iterable[str], *, is_label: bool = False) -> str | None:
    """Return the most similar name, as `did_you_mean` suggests it; None if none is similar.

    For a number, no other number is suggested: a similar one is another value.
    """
    names = list(known)
    for each in names:
        if _letters(each) == _letters(name):
            return each
    if is_number(name):
        return None
    if is_label:
        # A typing mistake, unlike a prefix, hardly changes the length.
        names = [each for each in names if abs(len(each) - len(name)) <= _MAX_LONGER]
    elif len(name) >= _FEWEST_LETTERS:
        # An abbreviation: `val_acc` is one of `val_accuracy`, though `val_ce` has fewer other
        # letters.
        longer = [each for each in names if each.startswith(name) and each != name]
        if longer:
            return min(longer, key=len)
    cutoff = _LABEL_LIKENESS if is_label else _LIKENESS
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=cutoff)), None)


def is_number(value: str | float) -> bool:
    """Return whether a value is a finite number, or the text of one.

    Example:
        >>> is_number("1e3"), is_number("nan"), is_number("inf")
        (True, False, False)
    """
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _letters(name: str) -> str:
    return str(name).replace("_", "").casefold()

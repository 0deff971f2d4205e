"""Formatting of values and names in messages."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_CHARACTERS = 60


def shown(value: Any) -> str:
    """Return the `repr` of a value, shortened if it is long.

    Example:
        >>> shown("a" * 100)[-9:]
        'aaaaa ...'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 4] + " ..."


def listed(names: Iterable[Any]) -> str:
    """Return names in quotes, separated by commas.

    Example:
        >>> listed(["image", "label"])
        "'image', 'label'"
    """
    return ", ".join(repr(name) for name in names)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun.

    Example:
        >>> counted(1, "field"), counted(2000, "field")
        ('1 field', '2,000 fields')
    """
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def record_range(first: int, last: int) -> str:
    """Return a description of the records from one to another, or of a single one.

    Example:
        >>> record_range(0, 0), record_range(0, 3999)
        ('record 0', 'records 0 to 3,999')
    """
    return f"record {first:,}" if first == last else f"records {first:,} to {last:,}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence: `; did you mean ...?` for a name near a known one, else `.`.

    Example:
        >>> did_you_mean("lable", ["image", "label"]), did_you_mean("x", ["image", "label"])
        ("; did you mean 'label'?", '.')
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."

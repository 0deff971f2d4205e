"""How values and names are put into the messages of this folder, the same everywhere."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_CHARACTERS = 60


def shown(value: Any) -> str:
    """Return how Python writes a value, cut where it is long.

    Example:
        >>> shown("a" * 100)[-9:]
        'aaaaa ...'
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 4] + " ..."


def listed(names: Iterable[Any]) -> str:
    """Return names in quotes, separated by commas.

    Example:
        >>> listed(["image", "label"])
        "'image', 'label'"
    """
    return ", ".join(repr(name) for name in names)


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts.

    Example:
        >>> counted(1, "field"), counted(2, "field")
        ('1 field', '2 fields')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` for a name that is near a known one, else nothing.

    Example:
        >>> did_you_mean("lable", ["image", "label"])
        "; did you mean 'label'?"
    """
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""

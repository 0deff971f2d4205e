"""Formatting of values and names in messages."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

from elasticdl.did_you_mean import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAX_CHARACTERS = 60
_MAX_GROUPS = 3


def shown(value: Any) -> str:
    """Return the `repr` of a value, shortened if it is long.

    Example:
        >>> shown("a" * 100)[-9:]
        'aaaaa ...'
    """
    return shortened(repr(value))


def shortened(text: str) -> str:
    """Return a text in one line, which ends with "..." if the text is long.

    Example:
        >>> shortened("seed(0" + "0" * 80)[-5:]
        '0 ...'
    """
    text = " ".join(text.split())
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 4] + " ..."


def listed(names: Iterable[Any]) -> str:
    """Return names in quotes, separated by commas.

    Example:
        >>> listed(["image", "label"])
        "'image', 'label'"
    """
    return ", ".join(repr(name) for name in names)


def as_option(name: str, value: Any, **more: Any) -> str:
    """Return the option that gives params of the model, quoted for a shell.

    Args:
        name: Name of the param.
        value: Its value, of strings, numbers, lists and dicts.
        **more: Further params.

    Example:
        >>> print(as_option("label", "pay"))
        --params='label="pay"'
    """
    params = {name: value, **more}
    text = ", ".join(f"{each}={json.dumps(params[each], ensure_ascii=False)}" for each in params)
    return f"--params={shlex.quote(text)}"


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, with an `s` for the plural.

    Example:
        >>> counted(1, "field"), counted(2000, "field")
        ('1 field', '2,000 fields')
    """
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def record_range(first: int, last: int) -> str:
    """Return words for the records `first` to `last` (inclusive).

    Example:
        >>> record_range(0, 0), record_range(0, 3999)
        ('record 0', 'records 0 to 3,999')
    """
    return f"record {first:,}" if first == last else f"records {first:,} to {last:,}"


def near_classes(classes: Iterable[Any]) -> str:
    """Return a warning that names classes which differ only by case or surrounding spaces.

    They are probably one class, written in different ways. The result is empty without such
    classes.

    Example:
        >>> near_classes(["cat", "Cat ", "dog"])[:33]
        "'cat' and 'Cat ' are 2 classes, b"
    """
    alike: dict[str, list[str]] = {}
    for name in classes:
        if isinstance(name, str):
            alike.setdefault(name.strip().casefold(), []).append(name)
    groups = [names for names in alike.values() if len(names) > 1]
    if not groups:
        return ""
    named = "; ".join(
        f"{listed(names[:-1])} and {names[-1]!r} are {len(names)} classes"
        for names in groups[:_MAX_GROUPS]
    )
    more = f"; and {len(groups) - _MAX_GROUPS:,} more such groups" if groups[_MAX_GROUPS:] else ""
    return (
        f"{named}{more}, but differ only by case or surrounding space. If that is a mistake, write "
        "them alike in the data."
    )


def rename_or_add(missing: Sequence[str], present: Iterable[str], needed: Iterable[str]) -> str:
    """Return advice for data that lacks fields of the model, without a final period.

    Args:
        missing: Names of the fields that the data lacks.
        present: Names of the fields of the data.
        needed: Names of all fields of the model. A field of the data with one of these names is not
            suggested for renaming.

    Example:
        >>> rename_or_add(["label"], ["image", "lable"], ["image", "label"])
        "Rename 'lable' to 'label' in the data"
        >>> rename_or_add(["label"], ["labels"], ["labels", "label"])
        "Add 'label' to the data"
        >>> rename_or_add(["lines", "label"], ["lable"], [])
        "Rename 'lable' to 'label' in the data, and add 'lines'"
    """
    renamed = to_rename(missing, present, needed)
    to_add = all_of(repr(name) for name in missing if name not in renamed)
    if not renamed:
        return f"Add {to_add} to the data"
    pairs = all_of(f"{near!r} to {name!r}" for name, near in renamed.items())
    return f"Rename {pairs} in the data" + (f", and add {to_add}" if to_add else "")


def to_rename(
    missing: Sequence[str], present: Iterable[str], needed: Iterable[str]
) -> dict[str, str]:
    """Return missing field -> the similarly named field of the data that can be renamed to it.

    The arguments are those of `rename_or_add`.

    Example:
        >>> to_rename(["lines", "label"], ["lable"], [])
        {'label': 'lable'}
    """
    free = set(present) - set(needed)
    renamed: dict[str, str] = {}
    for name in missing:
        near = nearest(name, sorted(free), is_label=False)
        if near is not None:
            renamed[name] = near
            free.remove(near)
    return renamed


def all_of(phrases: Iterable[str]) -> str:
    """Return phrases separated by commas, with `and` before the last one.

    Example:
        >>> all_of(["'a'"]), all_of(["'a'", "'b'", "'c'"])
        ("'a'", "'a', 'b' and 'c'")
    """
    *first, last = [*phrases] or [""]
    return f"{', '.join(first)} and {last}" if first else last

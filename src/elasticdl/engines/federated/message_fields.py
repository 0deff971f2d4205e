"""The fields of a message, each with what it can be: strict, because they come from outside.

Which fields there are is not known here. Callers: `messages.py`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from elasticdl.errors import MessageError

Rules: TypeAlias = Mapping[str, Callable[[object], bool]]
"""Field -> whether a value can be its."""

_SHOWN_TEXT = 60
# Longer ones are nobody's name, and would fill logs.
_LONGEST_NAME = 200


def is_text(value: object) -> bool:
    """Whether it can be somebody's name."""
    return isinstance(value, str) and len(value) <= _LONGEST_NAME


def is_long_text(value: object) -> bool:
    """Whether it is a text of any length."""
    return isinstance(value, str)


def is_count(value: object) -> bool:
    """Whether it is a whole number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_whole(value: object) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_amount(value: object) -> bool:
    """Whether it is a finite number from 0 on."""
    real = isinstance(value, int | float) and not isinstance(value, bool)
    return real and math.isfinite(value) and value >= 0  # type: ignore[arg-type, operator]


def is_flag(value: object) -> bool:
    """Whether it is true or false."""
    return isinstance(value, bool)


def is_mapping(value: object) -> bool:
    """Whether it is values by name."""
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def is_counts(value: object) -> bool:
    """Whether it is counts by name."""
    return is_mapping(value) and all(is_count(count) for count in value.values())  # type: ignore[attr-defined]


def is_architecture(value: object) -> bool:
    """Whether it is dtypes and shapes by name."""
    return is_mapping(value) and all(_is_form(form) for form in value.values())  # type: ignore[attr-defined]


def _is_form(value: object) -> bool:
    if not isinstance(value, list | tuple) or len(value) != 2:  # noqa: PLR2004 - dtype and shape
        return False
    dtype, shape = value
    return is_text(dtype) and isinstance(shape, list | tuple) and all(map(is_count, shape))


def or_none(rule: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the rule that allows None as well."""
    return lambda value: value is None or rule(value)


def check_fields(values: Mapping[str, Any], rules: Rules, where: str) -> None:
    """Look at the fields of a message.

    Args:
        values: The fields, by name.
        rules: Those there are.
        where: What they are of, for errors.

    Raises:
        MessageError: One is unknown, missing, or cannot be what it is.
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
                f"The field {name} of {where} is {shown(values[name])}, which it cannot be."
            )


def shown(value: object) -> str:
    """Return a value for a message: what came from outside may be long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_TEXT else f"{text[: _SHOWN_TEXT - 1]}…"

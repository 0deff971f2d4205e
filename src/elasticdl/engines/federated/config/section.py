"""Reader for one section of a user's config, key by key.

Each key is read once, with its allowed values. An invalid value is recorded with its line and the
expected values, and reading continues, so that the user sees all mistakes at once. A key that was
never read is a mistake too, because the user expects it to have an effect.

This module does not know the keys. Callers: `reading.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl.config_file import ConfigStruct
from elasticdl.data.wording import shown
from elasticdl.did_you_mean import nearest
from elasticdl.errors import DefinitionError

# A larger count is a typing error, and does not fit the integers of many libraries.
_MOST = 2**31 - 1
_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass
class Notes:
    """Problems and warnings found while reading a file.

    Attributes:
        problems: Mistakes that make the file unusable, each with its line.
        warnings: Warnings, each with its line.
    """

    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def raise_problems(self) -> None:
        """Raise all problems as one error, in the order they were found.

        Raises:
            DefinitionError: There is a problem.
        """
        if len(self.problems) == 1:
            raise DefinitionError(self.problems[0])
        if self.problems:
            listed = "\n".join(f"- {problem}" for problem in self.problems)
            raise DefinitionError(f"{len(self.problems)} problems:\n{listed}")


class Section:
    """A section of a config, read key by key, so that all mistakes are reported together.

    If a value is invalid, a problem is recorded and the caller gets the same result as for a
    missing key. At the end, `close` records a problem for each key that was not read.

    Args:
        values: The section's values in the file; None if the file has no such section.
        path: The section's dotted key; empty for the whole file.
        notes: Collects the problems and warnings.
        where: `file:line` of the section. If the file has no such section: of the outer section.
    """

    def __init__(self, values: ConfigStruct | None, path: str, notes: Notes, where: str) -> None:
        self._values = values if values is not None else ConfigStruct()
        self._path = path
        self._notes = notes
        self._where = where
        self._known: list[str] = []
        self.there = values is not None

    def __contains__(self, key: str) -> bool:
        # A key without a value counts as missing.
        return self._values.get(key) is not None

    def is_bare(self, key: str) -> bool:
        """Return whether the section contains this key without a value (`key:`).

        Other methods treat such a key as missing.
        """
        return key in list(self._values) and key not in self

    def __bool__(self) -> bool:
        return self.there

    def where(self, key: str = "") -> str:
        """Return `file:line` of a key; that of the section if it has no such key."""
        return self._values.where(key) if self.there else self._where

    def problem(self, key: str, text: str) -> None:
        """Record a problem with a key.

        Args:
            key: The key; empty for the section itself.
            text: What is wrong, what was expected and what to do; it follows the key's name.
        """
        self._notes.problems.append(f"{self.where(key)}: {self._name(key)}: {_sentence(text)}")

    def warning(self, key: str, text: str) -> None:
        """Record a warning about a key: `file:line`, the key's name and the text.

        `problem` describes the arguments.
        """
        self._notes.warnings.append(f"{self.where(key)}: {self._name(key)}: {_sentence(text)}")

    def missing(self, key: str, what: str) -> None:
        """Record as a problem that a required key is missing.

        Args:
            key: The key.
            what: Advice for the message, such as "set the number of rounds to train".
        """
        self.problem(key, f"is missing; {what}")

    def section(self, key: str) -> Section:
        """Return an inner section, to read its keys.

        The result is an empty section if the key is missing, or if its value is not a section. The
        latter is recorded as a problem.
        """
        value = self._asked(key)
        if value is not None and not isinstance(value, ConfigStruct):
            self._wrong(key, value, "a section of `key: value` lines")
            value = None
        return Section(value, self._name(key), self._notes, self.where(key))

    def text(self, key: str, expected: str = "a string") -> str | None:
        """Read a string that is not blank.

        Args:
            key: The key.
            expected: Description of the expected value, for errors.

        Returns:
            The string. None if the key is missing, or if its value is wrong, which is recorded as
            a problem.
        """
        value = self._asked(key)
        if value is None or (isinstance(value, str) and value.strip()):
            return value
        self._wrong(key, value, expected)
        return None

    def flag(self, key: str, *, default: bool) -> bool:
        """Read a boolean.

        Words such as "yes" are accepted too, because templates produce them.

        Args:
            key: The key.
            default: Returned if the key is missing, or if its value is wrong, which is recorded as
                a problem.
        """
        value = self._asked(key)
        if isinstance(value, str):
            value = _FLAGS.get(value.strip().lower(), value)
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self._wrong(key, value, "true or false")
        return default

    def whole(self, key: str, *, low: int = 1, high: int = _MOST) -> int | None:
        """Read an integer.

        Args:
            key: The key.
            low: The lowest allowed value.
            high: The highest allowed value.

        Returns:
            The integer. None if the key is missing, or if its value is not an integer in this
            range, which is recorded as a problem.
        """
        value = self._asked(key)
        if value is None:
            return None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if is_whole and low <= value <= high:
            return int(value)
        most = f" and at most {high}" if high < _MOST or (is_whole and value > high) else ""
        self._wrong(key, value, f"a whole number, at least {low}{most}")
        return None

    def number(
        self, key: str, expected: str, *, high: float = math.inf, zero: bool = False
    ) -> float | None:
        """Read a number above 0.

        Args:
            key: The key.
            expected: Description of the expected value, for errors.
            high: The highest allowed value.
            zero: Whether 0 is also allowed.

        Returns:
            The number. None if the key is missing, or if its value is not such a number, which is
            recorded as a problem.
        """
        value = self._asked(key)
        if value is None:
            return None
        if is_real(value) and (0 < value <= high or (zero and value == 0)):
            return float(value)
        self._wrong(key, value, expected)
        return None

    def values(self, key: str) -> dict[str, Any]:
        """Return an inner section as a dict, {} if it is missing.

        For sections with keys of the user's choice: `close` does not check them.
        """
        value = self._asked(key)
        if value is None or isinstance(value, ConfigStruct):
            return {} if value is None else value.to_dict()
        self._wrong(key, value, "a section of `key: value` lines")
        return {}

    def everything(self) -> dict[str, Any]:
        """Return the whole section as a dict, and mark all its keys as read for `close`."""
        self._known.extend(key for key in self._values if key not in self._known)
        return self._values.to_dict()

    def others(self) -> dict[str, Any]:
        """Return the keys that have not been read, with their values; they stay unread."""
        plain = self._values.to_dict()
        return {key: value for key, value in plain.items() if key not in self._known}

    def close(self, refused: Mapping[str, str] | None = None, more: Collection[str] = ()) -> None:
        """Record a problem for each key in the section that has not been read.

        Args:
            refused: Key that is known but not supported, such as one of IBM FL -> the reason, and
                what to do, for the message.
            more: Names to suggest for unknown keys, besides the keys that were read.
        """
        for key in self._values:
            if key in self._known:
                continue
            if key in (refused or {}):
                self.problem(key, f"is not supported: {(refused or {})[key]}")
                continue
            self.unknown(key, more)

    def unknown(self, key: str, more: Collection[str] = ()) -> None:
        """Record a problem with an unknown key, suggesting a similar one.

        Args:
            key: The key.
            more: Names to suggest, besides the keys that were read.
        """
        known = [name for name in dict.fromkeys([*self._known, *more]) if name != key]
        near = nearest(key, known)
        meant = "leave it out" if near is None else f"did you mean {near}?"
        self.problem(key, f"is not a key of this section; expected {', '.join(known)}; {meant}")

    def _asked(self, key: str) -> Any:
        if key not in self._known:
            self._known.append(key)
        return self._values.get(key)

    def _wrong(self, key: str, value: object, expected: str) -> None:
        found = value.to_dict() if isinstance(value, ConfigStruct) else value
        self.problem(key, f"is {shown(found)}; expected {expected}")

    def _name(self, key: str) -> str:
        return ".".join(part for part in (self._path, key) if part)


def is_real(value: object) -> bool:
    """Return whether a value is a number, not a boolean, and finite as a float64.

    Example:
        >>> is_real(1.5), is_real(True), is_real(float("nan")), is_real(10**400)
        (True, False, False, False)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?")) else f"{text}."

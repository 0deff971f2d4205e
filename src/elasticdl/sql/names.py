"""Names of tables and columns, quoted so that a name is never executed as SQL.

From the parser on, the name of a table is a tuple of parts, such as `("sales", "2024.q1")`, because
only the parser knows which dots were quoted. A plain string is split at its dots.

Used by the files of the databases and by `prediction.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_CASELESS = {"duckdb", "mysql", "sqlite", "tsql"}
_PART = re.compile(r'"((?:[^"]|"")+)"|`((?:[^`]|``)+)`|([^."`]+)')

Name: TypeAlias = "str | Sequence[str]"


def parts(name: Name) -> tuple[str, ...]:
    """Split a name into its parts; a string is split at its dots.

    Raises:
        UsageError: A part is empty or contains a null character, which no database accepts.

    Example:
        >>> parts("sales.t"), parts(("sales.t",))
        (('sales', 't'), ('sales.t',))
    """
    found = tuple(name.split(".") if isinstance(name, str) else name)
    if not found or not all(found) or any("\0" in part for part in found):
        shown_name = name if isinstance(name, str) else ".".join(found)
        raise UsageError(f"{shown_name!r} is not a name: expected table, or schema.table.")
    return found


def shown(name: Name) -> str:
    """Format a name for messages: parts joined by dots, and a part with a dot in quotes.

    Example:
        >>> shown(("sales", "t")), shown(("sales", "2024.q1"))
        ('sales.t', 'sales."2024.q1"')
    """
    return ".".join(column_name(part) if "." in part else part for part in parts(name))


def typed(text: str) -> tuple[str, ...]:
    """Parse a name as typed by a user into its parts; dots in quotes do not separate parts.

    Example:
        >>> typed('sales."2024.q1"'), typed("sales.t")
        (('sales', '2024.q1'), ('sales', 't'))
    """
    found: list[str] = []
    at = 0
    while (match := _PART.match(text, at)) is not None:
        double, back, plain = match.groups()
        found.append(
            double.replace('""', '"') if double else back.replace("``", "`") if back else plain
        )
        at = match.end() + 1
        if match.end() == len(text):
            return tuple(found)
        if text[match.end()] != ".":
            break
    return parts(text)


def quoted(name: Name, mark: str = '"') -> str:
    """Quote the name of a table for SQL.

    Args:
        name: The name.
        mark: The database's quotation mark for names.

    Raises:
        UsageError: A part is empty or contains a null character.

    Example:
        >>> quoted("main.employee"), quoted("odd`name", "`")
        ('"main"."employee"', '`odd``name`')
    """
    return ".".join(mark + part.replace(mark, mark * 2) + mark for part in parts(name))


def column_name(name: str, mark: str = '"') -> str:
    """Quote the name of a column for SQL; a dot in it is part of the name.

    Example:
        >>> column_name("price.net")
        '"price.net"'
    """
    if not name or "\0" in name:
        raise UsageError(f"{name!r} is not a valid column name.")
    return mark + name.replace(mark, mark * 2) + mark


def matching(name: str, names: Iterable[str]) -> str | None:
    """Find a table's or column's name as the database spells it, ignoring case if necessary.

    Databases differ in how they treat a name without quotes: PostgreSQL converts it to lower case,
    others ignore case. So an equal name is looked for first, then one that differs only in case.

    Args:
        name: The name as the user wrote it.
        names: The names in the database.

    Returns:
        The equal name if there is one; else the only name that is equal apart from case. None if no
        name or several names are equal apart from case.

    Example:
        >>> matching("Salary", ["name", "salary"]), matching("a", ["A", "á"]), matching("x", ["y"])
        ('salary', 'A', None)
    """
    known = list(names)
    if name in known:
        return name
    folded = [each for each in known if each.casefold() == name.casefold()]
    return folded[0] if len(folded) == 1 else None


def written_like(names: Sequence[str], known: Collection[str], dialect: str) -> list[str]:
    """Spell column names as in `known`, if the database ignores case.

    A model must get its columns under the names of its training rows. In MySQL and SQLite, however,
    a result's column is spelled as in the SELECT: it may be `ROLE` here and `role` there. For
    PostgreSQL and unknown databases, names that differ in case are different names.

    Args:
        names: The names.
        known: Names of the same columns as spelled elsewhere, such as in the training rows.
        dialect: Name of the database's dialect in sqlglot.

    Example:
        >>> written_like(["ROLE", "pay"], ["Role", "Years"], "mysql")
        ['Role', 'pay']
    """
    if dialect not in _CASELESS:
        return list(names)
    folded = [name.casefold() for name in names]
    return [
        (folded.count(name.casefold()) == 1 and matching(name, known)) or name for name in names
    ]


def literal(text: str) -> str:
    """Format a string as a standard SQL literal.

    Example:
        >>> literal("it's")
        "'it''s'"
    """
    return "'" + text.replace("\0", "").replace("'", "''") + "'"

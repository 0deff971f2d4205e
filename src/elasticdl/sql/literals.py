"""Substitution of `${VAR}` in a program: inserts variables as SQL literals, never as SQL text.

    SELECT * FROM employee WHERE role = ${role}     role = "x'; DROP TABLE employee; --"
    SELECT * FROM employee WHERE role =  'x''; DROP TABLE employee; --'

A `${VAR}` is allowed wherever a literal is. Inside quotes it is rejected, because a value cannot be
quoted a second time there; `$${VAR}` means `${VAR}` itself. Comments stay unchanged. Each string
literal is tokenized in the database's dialect, to check that the result is the same string.

Used by `notebook.py`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import re
from typing import TYPE_CHECKING, Any

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType

from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import UsageError
from elasticdl.sql.parse import parse
from elasticdl.sql.statements import Query, Span, StatementError

if TYPE_CHECKING:
    from collections.abc import Mapping

_VARIABLE = re.compile(r"(?P<escape>\$)?\$\{(?P<name>[^{}\n]*)\}")
# Replaces a variable while the program is tokenized: a name that no program contains.
_PLACE = "elasticdl_value_{}_place"


def with_values(program: str, variables: Mapping[str, Any], dialect: str = "duckdb") -> str:
    """Replace each `${VAR}` in a program by a literal.

    Args:
        program: The program.
        variables: Values by name: None, numbers, strings, dates, times; a list becomes `[a, b]`
            (for WITH), a tuple `(a, b)` (for IN).
        dialect: Name of the database's dialect in sqlglot.

    Raises:
        StatementError: A variable is missing, has an unsupported type, or is inside quotes.

    Example:
        >>> with_values("SELECT * FROM t WHERE name = ${name}", {"name": "O'Neil"})
        "SELECT * FROM t WHERE name =  'O''Neil' "
    """
    found = list(_VARIABLE.finditer(program))
    if not found:
        return program
    standing = _standing(program, found, dialect)
    parts, stop = [], 0
    for match, stands in zip(found, standing, strict=True):
        span = Span(match.start(), match.end())
        parts.append(program[stop : match.start()])
        stop = match.end()
        if match["escape"]:
            parts.append(match[0][1:])
        elif stands == "comment":
            parts.append(match[0])
        elif stands == "within":
            raise StatementError(
                "A ${VAR} is replaced by a whole value, including its quotes: write it without "
                "quotes, separate from other words. $${VAR} is the text ${VAR}.",
                program,
                span,
            )
        else:
            # With spaces around it: `-${x}` must not become the comment `--1`.
            parts.append(f" {_value(match['name'].strip(), variables, dialect, program, span)} ")
    parts.append(program[stop:])
    expanded = "".join(parts)
    used = {match["name"].strip() for match in found}
    _check_backslashes({name: variables.get(name) for name in used}, program, expanded, dialect)
    return expanded


def _check_backslashes(
    values: Mapping[str, Any], program: str, expanded: str, dialect: str
) -> None:
    """Raise an error if a value contains a backslash that is ambiguous in this program.

    Some databases treat a backslash in a string as an escape, but the clauses of TRAIN, PREDICT and
    similar statements do not, so no replacement text is right for both.

    Args:
        values: The value of each variable that the program uses.
        program: The program before replacement, for the error's position.
        expanded: The program with all variables replaced by their values.
        dialect: SQL dialect of the database, as sqlglot names it.

    Raises:
        StatementError: A value contains a backslash, the dialect uses it as an escape, and the
            program has a statement other than a query.
    """
    if "\\" not in Dialect.get_or_raise(dialect).tokenizer_class.STRING_ESCAPES:
        return
    for name, value in values.items():
        if "\\" in str(value) and any(
            not isinstance(statement, Query) for statement in parse(expanded, dialect)
        ):
            raise StatementError(
                f"{name} contains a backslash, which {dialect} and the clauses of TRAIN, PREDICT "
                "and similar statements read differently. Use such values in separate statements.",
                program,
                Span(program.index("${"), program.index("${") + 2),
            )


def _standing(program: str, found: list[re.Match[str]], dialect: str) -> list[str]:
    """Classify where each variable occurs, which decides whether it can be replaced.

    Args:
        program: The program.
        found: Where the program has a `${VAR}`, in order.
        dialect: Name of the database's dialect in sqlglot.

    Returns:
        One of three words for each match: "alone" if a literal is allowed there; "within" if it is
        in quotes or part of a longer token, so that it is rejected; "comment" if it is in a
        comment, so that it stays.
    """
    parts, stop = [], 0
    places = [_PLACE.format(number) for number in range(len(found))]
    for match, place in zip(found, places, strict=True):
        parts += [program[stop : match.start()], place]
        stop = match.end()
    parts.append(program[stop:])
    try:
        tokens = Dialect.get_or_raise(dialect).tokenize("".join(parts))
    except TokenError:
        # `parse` will report the mistake and its position.
        return ["comment"] * len(found)
    bare = {
        token.text
        for token in tokens
        if token.token_type not in {TokenType.STRING, TokenType.IDENTIFIER}
    }
    texts = " ".join(token.text for token in tokens)
    return [
        "alone" if place in bare else "within" if place in texts else "comment" for place in places
    ]


def _value(name: str, variables: Mapping[str, Any], dialect: str, program: str, span: Span) -> str:
    if name not in variables:
        names = [each for each in variables if not each.startswith("_")]
        raise StatementError(
            f"There is no variable {name!r}{did_you_mean(name, names)}", program, span
        )
    try:
        return literal(variables[name], dialect)
    except UsageError as error:
        raise StatementError(f"{name}: {error}", program, span) from error


def literal(value: Any, dialect: str = "duckdb") -> str:  # noqa: C901, PLR0911, PLR0912 - types
    """Format a value as a literal of a SQL dialect.

    Raises:
        UsageError: SQL has no literal for this value.

    Example:
        >>> literal("it's"), literal(None), literal([1, 2.5]), literal(("a", "b"))
        ("'it''s'", 'NULL', '[1, 2.5]', "('a', 'b')")
    """
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:
        value = value.item()  # a NumPy scalar
    match value:
        case None:
            return "NULL"
        case bool():
            return "TRUE" if value else "FALSE"
        case int():
            return str(int(value))
        case float():
            if not math.isfinite(value):
                raise UsageError(f"{value} has no literal in SQL.")
            return repr(float(value))
        case decimal.Decimal():
            if not value.is_finite():
                raise UsageError(f"{value} has no literal in SQL.")
            return format(value, "f")
        case str():
            return _text(value, dialect)
        case dt.datetime():
            return _text(value.isoformat(" "), dialect)
        case dt.date() | dt.time():
            return _text(value.isoformat(), dialect)
        case list():
            return f"[{', '.join(literal(each, dialect) for each in value)}]"
        case tuple() if value:
            return f"({', '.join(literal(each, dialect) for each in value)})"
    raise UsageError(
        f"a {type(value).__name__} cannot be written as an SQL literal. Expected None, a number, a "
        "string, a date or time, a list or a tuple of these with at least one member."
    )


def _text(value: str, dialect: str) -> str:
    known = Dialect.get_or_raise(dialect)
    escapes = known.tokenizer_class.STRING_ESCAPES
    # Doubled backslashes and quotes cannot end the string in any mode of MySQL.
    text = value.replace("\\", "\\\\") if "\\" in escapes else value
    text = "'" + text.replace("'", "''" if "'" in escapes else "\\'") + "'"
    try:
        tokens = known.tokenize(text)
    except TokenError:
        tokens = []
    if "\0" in value or [(each.token_type, each.text) for each in tokens] != [
        (TokenType.STRING, value)
    ]:
        raise UsageError("this string cannot be quoted in SQL.")
    return text

"""Finds the part of a program that a database's error message is about.

    Table with name employe does not exist!    SELECT * FROM employe TO TRAIN ...
                                                             ^^^^^^^

Each database has its own error wording. If none of the patterns below matches, the error points
at the statement's first word.

Used by `execute.py`, and by `training.py`, `prediction.py` and `evaluation.py` for errors while the
rows are read.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import DataError, UsageError
from elasticdl.sql.database_interface import DatabaseError
from elasticdl.sql.statements import Span, pointed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elasticdl.sql.database_interface import Database

_NAME = r"""["'`]?(?P<name>[^"'`\n]+?)["'`]?"""
_TABLE = re.compile(
    rf"Table with name {_NAME} does not exist|relation {_NAME.replace('name', 'name2')} does not "
    rf"exist|Table {_NAME.replace('name', 'name3')} doesn't exist|no such table: (?P<name4>\S+)"
)
_OTHER = re.compile(
    r"""(?:[Cc]olumn|function|Function with name|near)\s+["'`]?(?P<name>[^"'`\s;,]+)"""
    r"""|no such (?:column|function): (?P<name2>\S+)"""
)
# Patterns for an unknown name or a syntax error.
_MISTAKE = re.compile(
    r"(?i)does not exist|doesn't exist|no such (table|column|function)|not found|"
    r"unknown (column|table)|referenced column|syntax"
)
# DuckDB and PostgreSQL repeat the statement with a caret of their own.
_REPEATED = re.compile(r"\s*^LINE \d+:.*", re.MULTILINE | re.DOTALL)


class MistakeError(DatabaseError, UsageError):
    """A `DatabaseError` that the user caused: a name is unknown, or the syntax is wrong.

    It has the exit code of a usage error, like mistakes that are found without the database.
    """

    # Same code as for names that are checked here, such as those of LABEL.
    exit_code = UsageError.exit_code


@contextlib.contextmanager
def located(database: Database, program: str, span: Span) -> Iterator[None]:
    """Context manager that adds the position in the program to database errors.

    Args:
        database: Queried for its tables, to suggest a similar name.
        program: The whole program.
        span: The statement.

    Raises:
        DatabaseError: With line, column and a caret; a `MistakeError` for an unknown name or a
            syntax error.
    """
    try:
        yield
    except DatabaseError as error:
        problem = _REPEATED.sub("", str(error))
        table, other = _name(_TABLE, problem), _name(_OTHER, problem)
        if table and "did you mean" not in problem.lower():
            with contextlib.suppress(DatabaseError):
                near = did_you_mean(table, database.tables())
                problem += "" if near == "." else near.replace("; d", ". D")
        place = location_of(table or other, program, span)
        is_mistake = (table or other) and _MISTAKE.search(problem)
        kind = MistakeError if is_mistake else type(error)
        raise kind(pointed(problem, program, place)[0]) from error


def _name(wording: re.Pattern[str], problem: str) -> str:
    """Return the name that an error message is about, without its schema; "" if it names none.

    Args:
        wording: Pattern of the message, with groups for the name.
        problem: The message.
    """
    found = wording.search(problem)
    if found is None:
        return ""
    return next(name for name in found.groups() if name).rpartition(".")[2]


def location_of(name: str, program: str, span: Span) -> Span:
    """Return the position of a name in a statement, to point an error at it.

    Args:
        name: The name; may be empty.
        program: The whole program.
        span: The statement, or a part of it to search.

    Returns:
        The first occurrence of the name, ignoring case; without one, the first word of `span`.
    """
    if name:
        word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
        found = word.search(program, span.start, span.stop)
        if found is not None:
            return Span(*found.span())
    first = re.compile(r"\w*").match(program, span.start)
    return Span(*first.span()) if first is not None else span


def pointed_in(problem: str, statement: str, begins_at: tuple[int, int], span: Span) -> str:
    """Format an error message with its position in the program and a caret below it.

    Args:
        problem: What is wrong, as sentences.
        statement: The statement's text.
        begins_at: Line and column of the statement in its program.
        span: The part of the statement that is wrong.
    """
    line, column = begins_at
    before = "\n" * (line - 1) + " " * (column - 1)
    place = Span(len(before) + span.start, len(before) + span.stop)
    return pointed(problem, before + statement, place)[0]


def check_distinct(
    names: Sequence[str], statement: str, begins_at: tuple[int, int], at: str = ""
) -> None:
    """Raise a `DataError` if two columns of a query have the same name.

    The checks before a query run it as a subquery, in which DuckDB and SQLite silently rename such
    columns. So they are found only here, when the query itself has been run.

    Args:
        names: Columns of the query, with the names that they had in training.
        statement: The statement's text; empty if it is unknown.
        begins_at: Line and column of the statement in its program.
        at: Word of the statement that the error points at. If empty, the second of the two columns.
    """
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is None:
        return
    problem = f"Two columns are called {twice!r}. Give one another name: SELECT ... AS other_name."
    if not statement:
        raise DataError(problem)
    whole = Span(0, len(statement))
    place = location_of(at or twice, statement, whole)
    if not at:
        place = location_of(twice, statement, Span(place.stop, whole.stop))
    raise DataError(pointed_in(problem, statement, begins_at, place))

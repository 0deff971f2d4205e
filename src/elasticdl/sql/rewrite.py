"""Adds a table's key to a SELECT, so that predictions can be matched with their rows.

    SELECT name, role FROM testdata t WHERE ...
    SELECT name, role, t."id" AS elasticdl_key_0 FROM testdata t WHERE ...

The rest of the SELECT is not changed; the key is inserted after the selected columns. This requires
that each row of the result is one row of the table: one table in FROM, no grouping, no set
operation.

Used by `prediction.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from elasticdl.sql.names import parts, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from elasticdl.sql.names import Name

KEY_PREFIX = "elasticdl_key_"

_GROUPING = {"group": "GROUP BY", "having": "HAVING", "distinct": "DISTINCT"}
_OTHER_SOURCES = ("joins", "laterals", "pivots")
_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
# A subquery directly within one of these is a value or a list of values, not a source of rows.
_AROUND_VALUES = (exp.Alias, exp.Select, exp.Binary, exp.In, exp.Ordered)


def tables_of(select: str, dialect: str, *, with_ctes: bool = False) -> list[tuple[str, ...]]:
    """Return the tables that a SELECT reads, as written; empty if it cannot be parsed.

    Args:
        select: The SELECT.
        dialect: Name of its dialect in sqlglot.
        with_ctes: Whether to include the names of common table expressions (WITH name AS ...).
    """
    try:
        tree = sqlglot.parse_one(select, dialect=dialect)
    except SqlglotError:
        return []
    tables = [_name(table) for table in tree.find_all(exp.Table)]
    ctes = set() if with_ctes else {(cte.alias,) for cte in tree.find_all(exp.CTE)}
    return [name for name in tables if name not in ctes]


def sources_of(select: str, dialect: str) -> list[tuple[str, ...]]:
    """Return the tables that provide the rows of a SELECT, or of a view's definition.

    Tables of subqueries in FROM are included. Tables in a condition (WHERE, HAVING) are not,
    because they only decide which rows there are, nor are those of a subquery that is one value.

    Args:
        select: The SELECT, or the CREATE VIEW statement.
        dialect: Name of its dialect in sqlglot.

    Returns:
        The names as written, split into their parts; empty if the SQL cannot be parsed.
    """
    try:
        tree = sqlglot.parse_one(select, dialect=dialect)
    except SqlglotError:
        return []
    ctes = {(cte.alias,) for cte in tree.find_all(exp.CTE)}
    # In a definition, the view's own name comes before AS.
    query = tree.expression if isinstance(tree, exp.Create) else tree
    if query is None:
        return []
    tables = [
        _name(table)
        for table in query.find_all(exp.Table)
        if table.find_ancestor(exp.From, exp.Join)
        and not table.find_ancestor(exp.Where, exp.Having)
        and not _is_in_value(table)
    ]
    return [name for name in tables if name not in ctes]


def _is_in_value(table: exp.Table) -> bool:
    """Return whether a table is in a subquery that is one value, such as (SELECT max(a) FROM t)."""
    query = table.find_ancestor(exp.Subquery)
    while query is not None:
        if isinstance(query.parent, _AROUND_VALUES):
            # unnest() makes rows of a value.
            return query.find_ancestor(exp.Explode, exp.Unnest) is None
        query = query.find_ancestor(exp.Subquery)
    return False


def with_key(
    select: str,
    dialect: str,
    table: Name,
    key: Sequence[str],
    quote: Callable[[str], str],
    *,
    casts: Mapping[str, str] | None = None,
) -> tuple[str, str]:
    """Add the key of a table to a SELECT that reads the table, as additional columns.

    Args:
        select: The SELECT.
        dialect: Name of its dialect in sqlglot.
        table: The table whose rows are to be identified.
        key: Columns of the table that identify a row.
        quote: Function (name) -> name quoted as SQL.
        casts: Column of the key -> type to convert it to.

    Returns:
        The extended SELECT and ""; or "" and the reason why the key cannot be added.

    Example:
        >>> with_key("SELECT a FROM t", "duckdb", "t", ["rowid"], lambda name: f'"{name}"')[0]
        'SELECT a, t."rowid" AS elasticdl_key_0 FROM t'
    """
    try:
        tree = sqlglot.parse_one(select, dialect=dialect)
    except SqlglotError as error:
        return "", f"the SELECT cannot be read: {str(error).splitlines()[0]}"
    if not isinstance(tree, exp.Select):
        return "", "the SELECT is a set operation (UNION, ...)"
    for part, words in _GROUPING.items():
        if tree.args.get(part):
            rows = f"its rows do not match single rows of {shown(table)}"
            return "", f"the SELECT has {words}, so {rows}"
    selected = [node for column in tree.expressions for node in column.find_all(exp.AggFunc)]
    if any(node.find_ancestor(exp.Window, exp.Select) is tree for node in selected):
        return "", f"the SELECT aggregates, so its rows do not match single rows of {shown(table)}"
    source = tree.args.get("from_") or tree.args.get("from")
    target = source.this if source is not None else None
    if (
        any(tree.args.get(part) for part in _OTHER_SOURCES)
        or not isinstance(target, exp.Table)
        or any(target.args.get(part) for part in _OTHER_SOURCES)
        or not is_same_table(_name(target), table)
        or any(is_same_table((cte.alias,), table) for cte in tree.find_all(exp.CTE))
    ):
        return "", f"the SELECT reads more than the table {shown(table)}"
    alias = target.args.get("alias")
    if alias is not None and alias.args.get("columns"):
        return (
            "",
            f"the SELECT gives the columns of {shown(table)} other names: {alias.sql(dialect)}",
        )
    # As the user wrote it: with its quotes, or in the database's default case.
    name = (alias or target).this.sql(dialect=dialect, comments=False)
    columns = ", ".join(
        f"{_key(f'{name}.{quote(column)}', (casts or {}).get(column))} AS {KEY_PREFIX}{i}"
        for i, column in enumerate(key)
    )
    at = _end_of_columns(select, dialect)
    return f"{select[:at]}, {columns}{select[at:]}", ""


def is_same_table(one: Name, other: Name) -> bool:
    """Return whether two names may refer to the same table: one may lack the schema.

    Example:
        >>> is_same_table("testdata", "main.TestData"), is_same_table("a.t", "b.t")
        (True, False)
    """
    first, second = sorted(
        ([part.casefold() for part in parts(name)] for name in (one, other)), key=len
    )
    return second[len(second) - len(first) :] == first


def _key(column: str, type_: str | None) -> str:
    return column if type_ is None else f"CAST({column} AS {type_})"


def _end_of_columns(select: str, dialect: str) -> int:
    """Return the offset at which the list of columns in a SELECT ends, before FROM."""
    depth = 0
    last = len(select)
    selecting = is_distinct = False
    for token in Dialect.get_or_raise(dialect).tokenize(select):
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
        elif depth == 0 and token.token_type == TokenType.SELECT:
            selecting = True
        elif depth == 0 and selecting and token.token_type == TokenType.FROM and not is_distinct:
            return last
        # The FROM of `a IS DISTINCT FROM b` does not count.
        is_distinct = token.token_type == TokenType.DISTINCT
        last = token.end + 1
    return last


def _name(table: exp.Table) -> tuple[str, ...]:
    # A table function may have no name of its own.
    return tuple(part.name for part in table.parts if part.name) or (table.sql(comments=False),)

"""Tab completion of SQL: keywords, tables, columns and models.

Used by `shell.py` and the notebook.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from elasticdl.errors import ElasticDLError
from elasticdl.zoo.catalogue import entries
from elasticdl.zoo.folder import PREBUILT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from elasticdl.sql.execute import Connection
    from elasticdl.sql.models import Models

KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON",
    "AND", "OR", "NOT", "NULL", "IS", "IN", "LIKE", "BETWEEN", "AS", "DISTINCT", "CASE", "WHEN",
    "THEN", "ELSE", "END", "UNION ALL", "CREATE TABLE", "INSERT INTO", "VALUES", "UPDATE", "SET",
    "DELETE FROM", "DESCRIBE", "TO TRAIN", "TO PREDICT", "TO EVALUATE", "TO EXPLAIN", "SHOW TRAIN",
    "WITH", "COLUMN", "LABEL", "USING", "INTO",
)  # fmt: skip
_VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN")
_COMMANDS = ("\\d", "\\models", "\\zoo", "\\?", "\\q")
_WORD = re.compile(r"[\w.\\?]*$")
_ANY_WORD = re.compile(r"\w[\w.]*")
_TABLE_FOLLOWS = {"FROM", "JOIN", "INTO", "UPDATE", "TABLE", "DESCRIBE", "\\D", "PREDICT"}
_TRAINED_FOLLOWS = {"USING", "EVALUATE", "EXPLAIN"}


class CompletionNames:
    """Names that completion offers: tables and columns (cached), and models.

    Args:
        connection: Connection to the database.
        models: The trained models.
        zoo_folder: A folder of model files; None is the prebuilt zoo.
    """

    def __init__(self, connection: Connection, models: Models, zoo_folder: Path | None) -> None:
        self._connection, self._models, self._zoo_folder = connection, models, zoo_folder
        self._tables: Sequence[str] | None = None
        self._columns: dict[str, Sequence[str]] = {}
        self._zoo: Sequence[str] | None = None

    def forget(self) -> None:
        """Clear the cached names of tables and columns, which a statement may have changed."""
        self._tables, self._columns = None, {}

    def tables(self) -> Sequence[str]:
        """Return the names of the tables.

        Raises:
            DatabaseError: The database cannot be queried.
        """
        if self._tables is None:
            with self._connection.opened() as database:
                self._tables = list(database.tables())
        return self._tables

    def columns(self, table: str) -> Sequence[str]:
        """Return the names of a table's columns; empty if there is no such table."""
        if table not in self._columns:
            with self._connection.opened() as database:
                found = database.table(table)
            self._columns[table] = [] if found is None else list(found.columns)
        return self._columns[table]

    def zoo(self) -> Sequence[str]:
        """Return the names of the zoo's models, which can follow TO TRAIN."""
        if self._zoo is None:
            self._zoo = [entry.name for entry in entries(self._zoo_folder or PREBUILT)]
        return self._zoo

    def trained(self) -> Sequence[str]:
        """Return the names of the trained models, which can follow USING, for example."""
        return self._models.names()


def word_before(text: str) -> str:
    """Return the word at the end of the input; empty if it does not end with a word.

    Example:
        >>> word_before("SELECT a FROM main.emp")
        'main.emp'
    """
    found = _WORD.search(text)
    return found[0] if found else ""


def words_for(before: str, text: str, names: CompletionNames) -> list[str]:
    """Return words that start with the word before the cursor and can replace it.

    Args:
        before: The text before the cursor.
        text: The whole input; the columns of the tables it names are candidates.
        names: Names of the database and the models.
    """
    word = word_before(before)
    # Only the statement that the cursor is in.
    words = _ANY_WORD.findall(before[: len(before) - len(word)].upper().rpartition(";")[2])
    previous = words[-1] if words else before.strip().upper()
    if before.lstrip().startswith("\\") and not words:
        candidates: Iterable[str] = names.tables() if " " in before else _COMMANDS
    else:
        # A database that fails, or is busy with another statement, must not block typing.
        with contextlib.suppress(ElasticDLError):
            return _starting(word, _following(previous, words, text, names))
        candidates = KEYWORDS
    return _starting(word, candidates)


def _following(previous: str, words: Sequence[str], text: str, names: CompletionNames) -> list[str]:
    if previous == "TRAIN":
        return [*(names.trained() if words[-2:-1] == ["SHOW"] else names.zoo())]
    if previous in _TRAINED_FOLLOWS:
        return [*names.trained()]
    if previous == "TO":
        return [*_VERBS]
    tables = names.tables()
    if previous in _TABLE_FOLLOWS:
        return [*tables]
    typed = {each.casefold() for each in _ANY_WORD.findall(text)}
    mentioned = [table for table in tables if table.casefold() in typed]
    columns = [column for table in mentioned for column in names.columns(table)]
    return [*dict.fromkeys(columns), *KEYWORDS, *tables]


def _starting(word: str, candidates: Iterable[str]) -> list[str]:
    return [each for each in candidates if each.casefold().startswith(word.casefold())]

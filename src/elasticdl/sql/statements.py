"""Data classes for the statements of extended SQL.

    SELECT name, role, salary FROM employee
    TO TRAIN regressor.DNN WITH hidden_units=[64, 32] LABEL salary INTO my_model;

Each statement keeps its SELECT as a string: it is meant for the database and never parsed here.
`Word` and `Value` keep their position in the program, so that every error can point at it.

Used by `parse.py`, which creates statements, and by `execute.py`, which runs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from elasticdl.errors import UsageError


@dataclass(frozen=True)
class Span:
    """A range of a program's text.

    Attributes:
        start: Offset of its first character.
        stop: Offset one past its last character.
    """

    start: int
    stop: int


@dataclass(frozen=True)
class Word:
    """A name in a statement.

    Attributes:
        text: The name, without quotes.
        span: Position in the program.
        parts: The parts of a qualified name, unquoted. If empty, they are the parts between the
            dots of `text`. A quoted part may contain a dot.
    """

    text: str
    span: Span = field(compare=False)
    parts: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> tuple[str, ...]:
        """Parts of the name, such as schema and table, unquoted."""
        return self.parts or tuple(self.text.split("."))


@dataclass(frozen=True)
class Value:
    """A literal in a WITH clause.

    Attributes:
        value: A number, string, boolean, None, or a list of these.
        span: Position in the program.
    """

    value: Any
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Call:
    """A function of a COLUMN clause with its arguments, such as `EMBEDDING(role, 8)`.

    Attributes:
        function: Its name in upper case.
        arguments: Names, literals, further calls, and lists of these.
        span: Position in the program.
    """

    function: str
    arguments: Sequence[Argument]
    span: Span = field(compare=False)


Argument: TypeAlias = "Word | Value | Call | Sequence[Argument]"
Attributes: TypeAlias = Mapping[Word, Value]


@dataclass(frozen=True)
class Query:
    """A statement that goes to the database unchanged."""

    text: str
    span: Span = field(compare=False)


@dataclass(frozen=True)
class Train:
    """TRAIN: `SELECT ... TO TRAIN model WITH ... COLUMN ... LABEL ... USING ... INTO name`.

    Attributes:
        select: The query whose rows are trained on.
        model: Name of a model of the zoo.
        into: Name of the trained model.
        attributes: The WITH clause.
        columns: The COLUMN clause. If empty, the features are derived from the table.
        label: The column to predict; None means the last selected column.
        using: Name of a trained model to start from. None: start from new weights.
        text: The whole statement.
        span: Position in the program.
    """

    select: str
    model: Word
    into: Word
    attributes: Attributes = field(default_factory=dict)
    columns: Sequence[Argument] = ()
    label: Word | None = None
    using: Word | None = None
    text: str = field(default="", compare=False)
    span: Span = field(default=Span(0, 0), compare=False)


@dataclass(frozen=True)
class Predict:
    """PREDICT: `SELECT ... TO PREDICT table.column WITH ... USING name`.

    Attributes:
        select: The query whose rows are predicted.
        table: The table to fill, as the database names it.
        column: The column to fill in that table.
        using: Name of the trained model.
        attributes: The WITH clause.
        text: The whole statement.
        span: Position in the program.
    """

    select: str
    table: Word
    column: Word
    using: Word
    attributes: Attributes = field(default_factory=dict)
    text: str = field(default="", compare=False)
    span: Span = field(default=Span(0, 0), compare=False)


@dataclass(frozen=True)
class Evaluate:
    """EVALUATE: `SELECT ... TO EVALUATE name WITH ... LABEL column INTO table`.

    Attributes:
        select: The query whose rows are evaluated on.
        model: Name of the trained model.
        attributes: The WITH clause.
        label: The column with the true values; None means the column that the model was trained to
            predict.
        into: The table for the metrics. None: only display them.
        text: The whole statement.
        span: Position in the program.
    """

    select: str
    model: Word
    attributes: Attributes = field(default_factory=dict)
    label: Word | None = None
    into: Word | None = None
    text: str = field(default="", compare=False)
    span: Span = field(default=Span(0, 0), compare=False)


@dataclass(frozen=True)
class Explain:
    """EXPLAIN: `SELECT ... TO EXPLAIN name WITH ... INTO table`.

    Attributes:
        select: The query whose rows are explained.
        model: Name of the trained model.
        attributes: The WITH clause.
        into: The table for the importances. None: only display them.
        text: The whole statement.
        span: Position in the program.
    """

    select: str
    model: Word
    attributes: Attributes = field(default_factory=dict)
    into: Word | None = None
    text: str = field(default="", compare=False)
    span: Span = field(default=Span(0, 0), compare=False)


@dataclass(frozen=True)
class ShowTrain:
    """`SHOW TRAIN name`: how a model was trained.

    Attributes:
        model: Name of the trained model.
        text: The whole statement.
        span: Position in the program.
    """

    model: Word
    text: str = field(default="", compare=False)
    span: Span = field(default=Span(0, 0), compare=False)


Statement: TypeAlias = Query | Train | Predict | Evaluate | Explain | ShowTrain


class StatementError(UsageError):
    r"""A statement is invalid; the message shows the line, with a caret below the position.

    Args:
        problem: What is wrong and what was expected, as sentences.
        program: The whole program.
        span: The invalid part.

    Attributes:
        line: Number of the line, from 1.
        column: Number of the character in the line, from 1.

    Example:
        >>> print(StatementError("There is no 'TRIAN'.", "SELECT 1\nTO TRIAN x", Span(12, 17)))
        line 2, column 4: There is no 'TRIAN'.
          TO TRIAN x
             ^^^^^
    """

    def __init__(self, problem: str, program: str, span: Span) -> None:
        message, self.line, self.column = pointed(problem, program, span)
        super().__init__(message)


def pointed(problem: str, program: str, span: Span) -> tuple[str, int, int]:
    """Format an error message, with the program's line and a caret below the invalid part.

    Args:
        problem: What is wrong, as sentences.
        program: The whole program.
        span: The invalid part.

    Returns:
        The message, and the line and column at which the invalid part starts, from 1.
    """
    start = min(span.start, len(program))
    first = program.rfind("\n", 0, start) + 1
    last = program.find("\n", first)
    line = program[first : last if last >= 0 else len(program)]
    number, column = program.count("\n", 0, first) + 1, start - first + 1
    width = max(1, min(span.stop, first + len(line)) - start)
    # A tab is kept, otherwise the caret would be in the wrong column.
    indent = "".join("\t" if letter == "\t" else " " for letter in line[: start - first])
    message = (
        f"line {number}, column {column}: {problem}\n  {line.rstrip()}\n  {indent}{'^' * width}"
    )
    return message, number, column

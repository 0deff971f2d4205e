"""Parser of the clauses that extended SQL adds after a SELECT.

    TO TRAIN    model [WITH name=value, ...] [COLUMN feature, ...] [LABEL column] [USING name]
                INTO name
    TO PREDICT  table.column [WITH ...] USING name
    TO EVALUATE name [WITH ...] [LABEL column] [INTO table]
    TO EXPLAIN  name [WITH ...] [INTO table]
    SHOW TRAIN  name

TO may be left out, and clauses may be in any order. Names may be in double quotes or backticks.
Values are numbers, strings in single or double quotes, TRUE, FALSE, NULL, words without quotes, and
lists of these in square brackets. A quote within a string is doubled. The syntax follows SQLFlow
(https://github.com/sql-machine-learning/sqlflow/blob/develop/doc/language_guide.md).

Used by `parse.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sqlglot.errors import TokenError
from sqlglot.tokens import Token, Tokenizer, TokenType

from elasticdl.did_you_mean import did_you_mean
from elasticdl.sql.statements import (
    Argument,
    Attributes,
    Call,
    Evaluate,
    Explain,
    Predict,
    ShowTrain,
    Span,
    Statement,
    StatementError,
    Train,
    Value,
    Word,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN")
CLAUSES = ("WITH", "COLUMN", "LABEL", "USING", "INTO")

_TAKES = {
    "TRAIN": ("WITH", "COLUMN", "LABEL", "USING", "INTO"),
    "PREDICT": ("WITH", "USING"),
    "EVALUATE": ("WITH", "LABEL", "INTO"),
    "EXPLAIN": ("WITH", "INTO"),
}
_NEEDS = {"TRAIN": "INTO", "PREDICT": "USING"}
_NEEDED_NAMES = {
    "INTO": "a name for the trained model, such as INTO my_model",
    "USING": "the name of a trained model",
}
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None, "NONE": None}
# Names that need no quotes; databases and models do not accept others either.
_NAME = re.compile(r"[^\W\d][\w-]*(?:[./:][\w-]+)*")
_MODEL_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*")
_MAX_LETTERS = 100


class _Clauses(NamedTuple):
    """The parsed clauses of a statement.

    Attributes:
        attributes: The WITH clause.
        columns: The COLUMN clause.
        words: Keyword of any other clause, such as LABEL or INTO -> the name after it.
    """

    attributes: Attributes
    columns: Sequence[Argument]
    words: dict[str, Word]


def parse_extension(program: str, select: str, extension: Span, span: Span) -> Statement:
    """Parse what follows a SELECT (`TO TRAIN ...`) and return the whole statement.

    Args:
        program: The whole program.
        select: The SELECT.
        extension: Position of the extension in the program.
        span: Position of the whole statement.

    Raises:
        StatementError: The extension is invalid.
    """
    tokens = _Tokens(program, extension)
    verb = tokens.take().text.upper()
    if verb == "TO":
        verb = tokens.take().text.upper()
    subject = tokens.name(_SUBJECTS[verb])
    clauses = _clauses(tokens, verb)
    needed = _NEEDS.get(verb)
    if needed is not None and needed not in clauses.words:
        raise tokens.error_at_end(f"{verb} needs {needed} and {_NEEDED_NAMES[needed]}.")
    text = program[span.start : span.stop]
    words, attributes = clauses.words, clauses.attributes
    if verb == "TRAIN":
        return Train(
            select,
            subject,
            words["INTO"],
            attributes,
            clauses.columns,
            words.get("LABEL"),
            words.get("USING"),
            text,
            span,
        )
    if verb == "PREDICT":
        table, column = _target(program, subject)
        return Predict(select, table, column, words["USING"], attributes, text, span)
    _check_model_name(program, subject)
    if verb == "EVALUATE":
        label, into = words.get("LABEL"), words.get("INTO")
        return Evaluate(select, subject, attributes, label, into, text, span)
    return Explain(select, subject, attributes, words.get("INTO"), text, span)


def parse_show(program: str, span: Span) -> ShowTrain | None:
    """Parse `SHOW TRAIN name`; return None for any other SHOW, which the database runs.

    Args:
        program: The whole program.
        span: Position of the statement, which begins with SHOW.

    Raises:
        StatementError: The name is missing, or something follows it.
    """
    words = program[span.start : span.stop].split(maxsplit=2)
    if len(words) < 2 or words[1].upper() != "TRAIN":  # noqa: PLR2004 - SHOW and TRAIN
        return None
    begin = program.index(words[1], span.start + len(words[0]))
    tokens = _Tokens(program, Span(begin, span.stop))
    tokens.take()
    model = tokens.name("the name of a trained model")
    _check_model_name(program, model)
    if not tokens.is_done:
        raise tokens.error("SHOW TRAIN takes one name and nothing else.")
    return ShowTrain(model, program[span.start : span.stop], span)


_SUBJECTS = {
    "TRAIN": "the name of a model, such as regressor.DNN",
    "PREDICT": "the column to fill, as TABLE.COLUMN",
    "EVALUATE": "the name of a trained model",
    "EXPLAIN": "the name of a trained model",
}


def _clauses(tokens: _Tokens, verb: str) -> _Clauses:
    attributes: dict[Word, Value] = {}
    columns: list[Argument] = []
    words: dict[str, Word] = {}
    seen: list[str] = []
    while not tokens.is_done:
        clause = tokens.peek().text.upper()
        if clause not in _TAKES[verb]:
            token, hint = tokens.peek(), _hint(clause, verb, seen)
            if hint == "." and seen[-1:] == ["LABEL"]:
                hint = _take_label_and_advise(tokens, words["LABEL"].span.start)
            raise tokens.error_of(
                token,
                f"{verb} takes the clauses {', '.join(_TAKES[verb])}; found {token.text!r}{hint}",
            )
        if clause in seen:
            join = "Merge the two." if clause in _LISTS else "Leave one of them out."
            raise tokens.error(f"{clause} is given twice. {join}")
        seen.append(clause)
        tokens.take()
        if clause == "WITH":
            attributes = _attributes(tokens)
        elif clause == "COLUMN":
            columns = tokens.separated(lambda: _argument(tokens))
        else:
            words[clause] = tokens.name(_CLAUSE_NAMES[clause])
            if clause == "USING" or (clause == "INTO" and verb == "TRAIN"):
                _check_model_name(tokens.program, words[clause])
    return _Clauses(attributes, columns, words)


def _hint(found: str, verb: str, seen: Sequence[str]) -> str:
    """Return advice about an unexpected token where a clause should start.

    Args:
        found: The token.
        verb: TRAIN, PREDICT, EVALUATE or EXPLAIN.
        seen: Keywords of the clauses before it.

    Returns:
        Text that completes an error message, such as ". LABEL takes one name." or "; did you mean
        'LABEL'?"; a full stop if there is no advice.
    """
    near = did_you_mean(found, _TAKES[verb])
    if near != "." or not seen:
        return near
    if found == ",":
        return f". {seen[-1]} takes one name."
    return (
        f". In {seen[-1]}, the next entry needs a comma before it." if seen[-1] in _LISTS else "."
    )


def _take_label_and_advise(tokens: _Tokens, begin: int) -> str:
    """Skip the rest of a LABEL clause that has more than one word, and return advice for the error.

    For example, a user wrote `LABEL net price`, where `LABEL "net price"` was meant.

    Args:
        tokens: The reader, after the first word of the clause; moved to the end of the clause.
        begin: Offset in the program at which the label begins.

    Returns:
        Text that completes the error message, such as '. A name with blanks needs to be in double
        quotes: LABEL "net price"'; a full stop if the words cannot be a name.
    """
    while not tokens.is_done and tokens.peek().text.upper() not in CLAUSES:
        tokens.take()
    span = tokens.since(begin)
    name = tokens.program[span.start : span.stop]
    if not name.replace(" ", "").isidentifier():
        return "."
    return f'. A name with blanks needs to be in double quotes: LABEL "{name}"'


_LISTS = ("WITH", "COLUMN")
_CLAUSE_NAMES = {
    "LABEL": "the name of a column",
    "USING": "the name of a trained model",
    "INTO": "a name for the result",
}


def _attributes(tokens: _Tokens) -> dict[Word, Value]:
    attributes: dict[Word, Value] = {}

    def attribute() -> None:
        name = tokens.name("NAME=VALUE")
        if name in attributes:
            raise StatementError(
                f"{name.text} is given twice. Leave one of them out.", tokens.program, name.span
            )
        tokens.expect(TokenType.EQ, f"'=' and a value after {name.text}")
        attributes[name] = _value(tokens)

    tokens.separated(attribute)
    return attributes


def _value(tokens: _Tokens) -> Value:
    begin = tokens.here
    if tokens.accept(TokenType.L_BRACKET):
        items: list[Any] = []
        if not tokens.accept(TokenType.R_BRACKET):
            items = [value.value for value in tokens.separated(lambda: _value(tokens))]
            tokens.expect(TokenType.R_BRACKET, "',' or ']'")
        return Value(items, tokens.since(begin))
    negative = False
    while tokens.peek_type() in {TokenType.DASH, TokenType.PLUS}:
        negative ^= tokens.take().token_type == TokenType.DASH
    token = tokens.take_or("a value: a number, a quoted string, TRUE, FALSE, NULL or a list")
    if token.token_type == TokenType.NUMBER:
        number = _number(tokens, token)
        return Value(-number if negative else number, tokens.since(begin))
    if negative:
        raise tokens.error_of(token, f"Expected a number after '-'; found {token.text!r}.")
    if token.token_type in {TokenType.STRING, TokenType.IDENTIFIER}:
        return Value(token.text, tokens.since(begin))
    if token.text.upper() in _CONSTANTS:
        return Value(_CONSTANTS[token.text.upper()], tokens.since(begin))
    tokens.back()
    word = tokens.name("a value: a number, a quoted string, TRUE, FALSE, NULL or a list")
    return Value(word.text, word.span)


def _number(tokens: _Tokens, token: Token) -> int | float:
    try:
        return int(token.text)
    except ValueError:
        pass
    try:
        return float(token.text)
    except ValueError:
        raise tokens.error_of(token, f"{token.text!r} is not a number.") from None


def _argument(tokens: _Tokens) -> Argument:
    """Parse an entry of COLUMN: a column, a literal, a list, or a function with such arguments."""
    begin = tokens.here
    kind = tokens.peek_type()
    if kind == TokenType.L_BRACKET:
        tokens.take()
        items = tokens.separated(lambda: _argument(tokens))
        tokens.expect(TokenType.R_BRACKET, "',' or ']'")
        return items
    if kind in {TokenType.NUMBER, TokenType.DASH, TokenType.PLUS, TokenType.STRING}:
        return _value(tokens)
    word = tokens.name("a column, or a function of one such as EMBEDDING(role, 8)")
    if not tokens.accept(TokenType.L_PAREN):
        return word
    arguments: list[Argument] = []
    if not tokens.accept(TokenType.R_PAREN):
        arguments = tokens.separated(lambda: _argument(tokens))
        tokens.expect(TokenType.R_PAREN, "',' or ')'")
    return Call(word.text.upper(), arguments, tokens.since(begin))


def _target(program: str, target: Word) -> tuple[Word, Word]:
    *table, column = target.name
    if not table or not all(target.name):
        dotted = ' A dot in quotes is part of a name: write "TABLE"."COLUMN".' * ("." in column)
        raise StatementError(
            f"PREDICT needs the column to fill, as TABLE.COLUMN; found {target.text!r}.{dotted}",
            program,
            target.span,
        )
    return (
        Word(".".join(table), target.span, tuple(table)),
        Word(column, target.span, (column,)),
    )


def _check_model_name(program: str, name: Word) -> None:
    if len(name.text) > _MAX_LETTERS or not _MODEL_NAME.fullmatch(name.text):
        raise StatementError(
            f"{name.text[:_MAX_LETTERS]!r} is not a valid name for a trained model: expected a "
            f"letter, then letters, digits, '_', '-' and single dots, at most {_MAX_LETTERS}.",
            program,
            name.span,
        )


class _Tokenizer(Tokenizer):
    """Tokenizer for the clauses; accepts names in double quotes and in backticks, as in MySQL."""

    IDENTIFIERS: ClassVar = ['"', "`"]


class _Tokens:
    """Token reader for `TO TRAIN ...` and similar extensions, from left to right."""

    def __init__(self, program: str, extension: Span) -> None:
        self.program = program
        # At the start of its input, sqlglot reads EXPLAIN as a command with one string as argument.
        before = "SELECT "
        self._offset = extension.start - len(before)
        self._stop = extension.stop
        text = before + program[extension.start : extension.stop]
        try:
            self._tokens: list[Token] = list(_Tokenizer().tokenize(text))[1:]
        except TokenError as error:
            raise StatementError(
                "Unterminated string or comment. To use a quote inside a string, double it.",
                program,
                extension,
            ) from error
        self._next = 0

    @property
    def is_done(self) -> bool:
        """Whether all tokens have been read."""
        return self._next == len(self._tokens)

    @property
    def here(self) -> int:
        """Offset of the next token in the program."""
        return self._stop if self.is_done else self._span(self.peek()).start

    def _span(self, token: Token) -> Span:
        return Span(self._offset + token.start, self._offset + token.end + 1)

    def since(self, begin: int) -> Span:
        """Return the span from the offset `begin` to the end of the last token read."""
        return Span(begin, self._span(self._tokens[self._next - 1]).stop)

    def peek(self) -> Token:
        """Return the next token without consuming it; there must be one."""
        return self._tokens[self._next]

    def peek_type(self) -> TokenType | None:
        """Return the type of the next token; None at the end."""
        return None if self.is_done else self.peek().token_type

    def take(self) -> Token:
        """Consume and return the next token."""
        self._next += 1
        return self._tokens[self._next - 1]

    def take_or(self, expected: str) -> Token:
        """Consume and return the next token; `expected` describes it in the error.

        Raises:
            StatementError: There is no token left.
        """
        if self.is_done:
            raise self.error_at_end(f"Expected {expected}.")
        return self.take()

    def back(self) -> None:
        """Undo the last `take`: the next token is again the one that was read last."""
        self._next -= 1

    def accept(self, kind: TokenType) -> bool:
        """Consume the next token if it has the given type; return whether it did."""
        if self.peek_type() != kind:
            return False
        self._next += 1
        return True

    def expect(self, kind: TokenType, expected: str) -> None:
        """Consume the next token, which must be of type `kind`.

        Raises:
            StatementError: It is not; the message describes the type as `expected`.
        """
        if not self.accept(kind):
            raise self.error(f"Expected {expected}{self._found()}")

    def separated(self, item: Callable[[], Any]) -> list[Any]:
        """Parse a list of comma-separated entries; a comma after the last one is allowed.

        Args:
            item: Function () that parses one entry and returns it.

        Returns:
            The parsed entries, at least one.
        """
        items = [item()]
        while self.accept(TokenType.COMMA):
            if self.is_done or self.peek().text.upper() in CLAUSES:
                break
            items.append(item())
        return items

    def name(self, expected: str) -> Word:
        """Parse a name: in quotes, or of letters, digits and `_ . / : -` without quotes.

        Args:
            expected: Description of the name, for the error.

        Raises:
            StatementError: The next token is not a name.
        """
        if self.is_done:
            raise self.error_at_end(f"Expected {expected}.")
        token = self.peek()
        begin = self._span(token).start
        if token.token_type in {TokenType.IDENTIFIER, TokenType.STRING}:
            return self._quoted_name(begin)
        found = _NAME.match(self.program, begin, self._stop)
        if token.text.upper() in CLAUSES:
            raise self.error(
                f"Expected {expected}; found {token.text!r}, which starts a clause. To use it as a "
                "name, put it in double quotes."
            )
        if found is None:
            raise self.error(f"Expected {expected}; found {token.text!r}.")
        while self._next < len(self._tokens) and self.here < found.end():
            self._next += 1
        return self._longer_name(found.group().split("."), begin)

    def _quoted_name(self, begin: int) -> Word:
        return self._longer_name([self.take().text], begin)

    def _longer_name(self, first: Sequence[str], begin: int) -> Word:
        """Finish parsing a name that has quoted parts, such as `sales."2024.q1"`; return all of it.

        Args:
            first: The parts that have been consumed, here `["sales"]`.
            begin: Offset in the program at which the name begins.
        """
        parts = [*first]
        while self.peek_type() == TokenType.DOT:
            self.take()
            parts.append(self.take_or("a name after '.'").text)
        return Word(".".join(parts), self.since(begin), tuple(parts))

    def _found(self) -> str:
        return "." if self.is_done else f"; found {self.peek().text!r}."

    def error(self, problem: str) -> StatementError:
        """Build an error that points at the next token."""
        if self.is_done:
            return self.error_at_end(problem)
        return self.error_of(self.peek(), problem)

    def error_of(self, token: Token, problem: str) -> StatementError:
        """Build an error that points at a token."""
        return StatementError(problem, self.program, self._span(token))

    def error_at_end(self, problem: str) -> StatementError:
        """Build an error that points just past the end of the statement."""
        return StatementError(problem, self.program, Span(self._stop, self._stop + 1))

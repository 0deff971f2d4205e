"""Parser of extended SQL: splits a program into statements. Pure; needs no database.

    SELECT name, salary FROM employee  TO TRAIN regressor.DNN  WITH a=1, b=[2]  INTO m  ;
    ---- for the database, as is ---  ------- read by `clauses.py` --------------------

sqlglot tokenizes the program in the database's own dialect, so that keywords inside comments,
strings, quoted names and subqueries are ignored. The extension starts at the first of these,
outside of parentheses:

* `TO TRAIN`, `TO PREDICT`, `TO EVALUATE` or `TO EXPLAIN`;
* one of these verbs alone, if it is followed by a name and one of the clauses WITH, COLUMN, LABEL,
  USING and INTO, or by a name with a dot at the end of the statement, which means that a clause is
  missing. (`SELECT a FROM t train` is an alias: neither a name nor a clause follows.)

Used by `execute.py`, the shell, the notebook and the server.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokens import Token, TokenType

from elasticdl.sql.clauses import CLAUSES, VERBS, parse_extension, parse_show
from elasticdl.sql.statements import Query, Span, Statement, StatementError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OPENING = {TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE}
_CLOSING = {TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE}
# sqlglot's message about an unclosed quote: the line, and the offset of its token. Tokenizing
# prefixes to find the position would take minutes for a few kilobytes of quotes.
_UNMATCHED = re.compile(r"Missing .* from \d+:(?P<offset>\d+)", re.DOTALL)
# First words of statements with rows; elsewhere TO is plain SQL (RENAME TO, GRANT ... TO).
_QUERIES = {"SELECT", "WITH", "FROM", "VALUES", "TABLE"}
# EXPLAIN begins a statement of the database, too.
_ONLY_VERBS = {*VERBS} - {"EXPLAIN"}
_LIKENESS = 0.75
_QUOTED = {TokenType.STRING, TokenType.IDENTIFIER, TokenType.HEREDOC_STRING}


def parse(program: str, dialect: str = "duckdb") -> list[Statement]:
    """Split a program into its statements, in order.

    Args:
        program: Statements, each ended by `;`, which is optional after the last one.
        dialect: Name of the database's dialect in sqlglot.

    Raises:
        StatementError: A statement of the extension is invalid; the message shows the position.

    Example:
        >>> [train] = parse("SELECT a, b FROM t TO TRAIN regressor.DNN LABEL b INTO m;")
        >>> train.select, train.model.text, train.label.text, train.into.text
        ('SELECT a, b FROM t', 'regressor.DNN', 'b', 'm')
    """
    return [_statement(program, tokens, stop) for tokens, stop in _split(program, dialect)]


def _split(program: str, dialect: str) -> Iterator[tuple[Sequence[Token], int]]:
    """Split a program; yield the tokens of each statement and the offset where its text ends."""
    statement: list[Token] = []
    for token in _tokenize(program, dialect):
        if token.token_type == TokenType.SEMICOLON:
            if statement:
                yield statement, token.start
            statement = []
        else:
            statement.append(token)
    if statement:
        yield statement, len(program)


def _tokenize(program: str, dialect: str) -> list[Token]:
    try:
        return list(Dialect.get_or_raise(dialect).tokenize(program))
    except TokenError as error:
        # sqlglot's message shows the part it could read; the token that starts after it never ends.
        raise StatementError(
            "Unterminated string, quoted name or comment. Add the closing quote or */.",
            program,
            _unclosed(program, dialect, error),
        ) from error


def _unclosed(program: str, dialect: str, error: TokenError) -> Span:
    """Find where an unterminated string, quoted name or comment begins.

    Args:
        program: The program.
        dialect: Name of the database's dialect in sqlglot.
        error: The tokenizer's error, whose cause may contain the position.

    Returns:
        The first character of the string, name or comment.
    """
    found = _UNMATCHED.match(str(error.__cause__))
    if found is not None:
        start = int(found["offset"])
        return Span(start, start + 1)
    # A comment after the last token and other comments: adding `*/` makes the program valid.
    try:
        tokens = Dialect.get_or_raise(dialect).tokenize(program + "*/")
    except TokenError:
        return Span(max(len(program) - 1, 0), len(program))
    start = program.find("/*", tokens[-1].end + 1 if tokens else 0)
    while (stop := program.find("*/", start)) >= 0 and program.find("/*", stop) >= 0:
        start = program.find("/*", stop)
    return Span(max(start, 0), max(start, 0) + 1)


def _statement(program: str, tokens: Sequence[Token], stop: int) -> Statement:
    start = tokens[0].start
    span = Span(start, start + len(program[start:stop].rstrip()))
    if tokens[0].text.upper() == "SHOW":
        shown = parse_show(program, span)
        if shown is not None:
            return shown
    index = 0 if _word(tokens, 0) in _ONLY_VERBS else _extension(tokens)
    if index is None:
        _check_verbs(program, tokens)
        return Query(program[span.start : span.stop], span)
    begin = tokens[index].start
    if index == 0:
        verb = _word(tokens, 1 if _word(tokens, 0) == "TO" else 0)
        raise StatementError(
            f"There is no SELECT before {tokens[0].text.upper()}. Expected SELECT ... TO {verb} "
            "...",
            program,
            Span(begin, tokens[0].end + 1),
        )
    select = program[start : tokens[index - 1].end + 1]
    return parse_extension(program, select, Span(begin, span.stop), span)


def _extension(tokens: Sequence[Token]) -> int | None:
    """Return the index of the extension's first token (`TO TRAIN` ...); None if there is none."""
    return next(
        (index for index, depth in _depths(tokens) if depth == 0 and _begins(tokens, index)), None
    )


def _depths(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Yield the index of each token that is not a bracket, and how many brackets enclose it.

    A token at depth 0 is outside of all subqueries and calls, where a clause such as TO TRAIN is.
    """
    depth = 0
    for index, token in enumerate(tokens):
        if token.token_type in _OPENING:
            depth += 1
        elif token.token_type in _CLOSING:
            depth -= 1
        else:
            yield index, depth


def _check_verbs(program: str, tokens: Sequence[Token]) -> None:
    """Raise a `StatementError` if a query has a misspelt verb, such as `TO TRIAN`."""
    if _word(tokens, 0) not in _QUERIES:
        return
    for index, depth in _depths(tokens):
        after_to = index > 0 and _word(tokens, index - 1) == "TO"
        near = difflib.get_close_matches(_word(tokens, index), VERBS, n=1, cutoff=_LIKENESS)
        if near and depth == 0 and (after_to or _is_used_as_verb(tokens, index)):
            raise StatementError(
                f"There is no {tokens[index].text}; did you mean {near[0]!r}?",
                program,
                Span(tokens[index].start, tokens[index].end + 1),
            )


def _begins(tokens: Sequence[Token], index: int) -> bool:
    word = _word(tokens, index)
    if word == "TO":
        return _word(tokens, index + 1) in VERBS
    return word in VERBS and _is_used_as_verb(tokens, index)


def _is_used_as_verb(tokens: Sequence[Token], index: int) -> bool:
    """Return whether the word at `index` is used as a verb (TRAIN, PREDICT, ...), not as a name.

    It is a verb if a name and a clause keyword follow, or a name with a dot at the statement's end.
    """
    after = index + 1
    if not _is_name(tokens, after):
        return False
    after += 1
    while _is_name(tokens, after + 1) and tokens[after].text in {".", "-", "/", ":"}:
        after += 2
    if after == len(tokens):
        # `ORDER BY train DESC` is plain SQL.
        return tokens[-2].text == "."
    # `JOIN predict p USING (id)` is plain SQL.
    parenthesis = after + 1 < len(tokens) and tokens[after + 1].token_type == TokenType.L_PAREN
    return _word(tokens, after) in CLAUSES and not parenthesis


def _word(tokens: Sequence[Token], index: int) -> str:
    """Return the token at an index in upper case; empty if it is in quotes or past the end."""
    if index >= len(tokens) or tokens[index].token_type in _QUOTED:
        return ""
    return tokens[index].text.upper()


def _is_name(tokens: Sequence[Token], index: int) -> bool:
    if index >= len(tokens):
        return False
    token = tokens[index]
    word = token.text.replace("_", "a")
    return token.token_type == TokenType.IDENTIFIER or (word.isalnum() and not word[0].isdigit())

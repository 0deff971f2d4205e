"""Parser of `--params`: Python literals by name, never code.

    hidden_units=[10, 100, 20, 5], learning_rate=0.01, activation="relu"

Values are literals: numbers, quoted strings, True, False, None, and lists, tuples and dicts of
them. Params may also be separated by `;`, as in later versions of the original ElasticDL project.
`check_params` checks the params against the arguments of the model's functions.

Callers: the entry points (command line, Python, SQL).
"""

from __future__ import annotations

import ast
import json
import keyword
from collections.abc import Iterator
from typing import Any

from elasticdl.dialects.params import check_params
from elasticdl.errors import UsageError
from elasticdl.syntax import literal_eval, parse_expression

__all__ = ["check_params", "parse_params"]

_CLOSING = {"(": ")", "[": "]", "{": "}"}
_WORDS = {
    "true": "True",
    "false": "False",
    "none": "None",
    "null": "None",
    "nil": "None",
    "yes": "True",
    "no": "False",
}
_LITERALS = "a number, a quoted string, True, False, None, or a list, tuple or dict of these"
_LITERAL_NODES = (
    ast.Constant,
    ast.Dict,
    ast.Expression,
    ast.List,
    ast.Load,
    ast.Name,
    ast.Tuple,
    ast.UnaryOp,
    ast.USub,
)
_SHOWN_WIDTH = 60


def parse_params(text: str) -> dict[str, Any]:
    """Parse a string such as `units=[10, 5], rate=0.01` to a dict of values by name.

    Raises:
        UsageError: The string is malformed; the message marks the position.

    Example:
        >>> parse_params("hidden_units=[10, 100, 20, 5], learning_rate=0.01")
        {'hidden_units': [10, 100, 20, 5], 'learning_rate': 0.01}
        >>> parse_params('name="a, b"; sizes={"x": (1, -2)}')
        {'name': 'a, b', 'sizes': {'x': (1, -2)}}
    """
    values: dict[str, Any] = {}
    for start, stop in _pieces(text):
        equals = text.find("=", start, stop)
        if equals < 0:
            raise _nameless(text, start, stop, last=next(reversed(values), None))
        name = text[start:equals].strip()
        if not name.isidentifier() or keyword.iskeyword(name):
            raise _refused(
                text,
                start,
                equals,
                f"{name!r} is not a name",
                "Expected NAME=VALUE, NAME=VALUE, ...",
            )
        if name in values:
            raise _refused(text, start, equals, f"{name} is given twice", "Leave one of them out.")
        values[name] = _literal(text, equals + 1, stop, name)
    return values


def _pieces(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each NAME=VALUE in the string, split at the `_separators`."""
    start = 0
    for position in [*_separators(text), len(text)]:
        if text[start:position].strip():
            yield start, position
        elif text[position : position + 1] == ",":
            raise _refused(text, position, position + 1, "nothing before this ','", "")
        start = position + 1


def _separators(text: str) -> Iterator[int]:
    """Yield the positions of `,` and `;` outside of brackets and quotes."""
    opened: list[int] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character in "\"'":
            position = _end_of_text(text, position)
        elif character in _CLOSING:
            opened.append(position)
        elif character in _CLOSING.values():
            if not opened or _CLOSING[text[opened.pop()]] != character:
                raise _refused(
                    text, position, position + 1, f"{character!r} has no opening bracket", ""
                )
        elif character == "#":
            raise _refused(text, position, position + 1, "'#' is not expected here", "")
        elif character in ",;" and not opened:
            yield position
        position += 1
    if opened:
        at, bracket = opened[-1], text[opened[-1]]
        way_out = f"Add the missing {_CLOSING[bracket]!r}."
        raise _refused(text, at, at + 1, f"{bracket!r} is not closed", way_out)


def _end_of_text(text: str, start: int) -> int:
    position = start + 1
    while position < len(text):
        if text[position] == "\\":
            position += 1
        elif text[position] == text[start]:
            return position
        position += 1
    raise _refused(text, start, start + 1, "unterminated string", "Add a quote.")


def _literal(text: str, start: int, stop: int, name: str) -> Any:
    source = text[start:stop].strip()
    at = start + len(text[start:stop]) - len(text[start:stop].lstrip())
    end = at + len(source)
    if not source:
        raise _refused(text, start - 1, start, f"{name} has no value", f"Give one:  {name}=1")
    try:
        value = literal_eval(source)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        bare = _bare_word(source)
        if bare is not None:
            raise _unquoted(text, at + bare[0], bare[1], name) from None
        problem = f"the value of {name} is not a literal"
        raise _refused(text, at, end, problem, f"Expected {_LITERALS}.") from None
    unknown = _unsupported_type(value)
    if unknown:
        problem = f"the value of {name} holds a {unknown}"
        raise _refused(text, at, end, problem, f"Expected {_LITERALS}.")
    return value


def _bare_word(source: str) -> tuple[int, str] | None:
    """Find the first word that the user forgot to quote, such as `relu` in `[relu, 3]`.

    The error message then suggests the quotes.

    Returns:
        Position and text of the word; None if there is none, or if quotes around such words would
        not turn the source into a literal.
    """
    try:
        nodes = list(ast.walk(parse_expression(source)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    names = [node for node in nodes if isinstance(node, ast.Name)]
    if not names or not all(isinstance(node, _LITERAL_NODES) for node in nodes):
        return None
    first = min(names, key=lambda node: node.col_offset)
    # ast counts bytes.
    return len(source.encode()[: first.col_offset].decode()), first.id


def _unquoted(text: str, at: int, word: str, name: str) -> UsageError:
    literal = _WORDS.get(word.lower())
    if literal:
        way_out = f"In Python this is {literal}."
    else:
        way_out = f'Expected a number, or a string in quotes: "{word}"'
        quoted = f'{text[:at]}"{word}"{text[at + len(word) :]}'
        # A shell has removed the user's quotes, unless they are within others.
        if "'" not in text and len(quoted) <= _SHOWN_WIDTH:
            way_out += f", such as --params='{quoted.strip()}'"
    return _refused(text, at, at + len(word), f"{word} is not a value of {name}", way_out)


def _unsupported_type(value: Any) -> str:
    """Return the name of a type within a value that JSON cannot store; empty if there is none."""
    if isinstance(value, (list, tuple)):
        return next((kind for item in value if (kind := _unsupported_type(item))), "")
    if isinstance(value, dict):
        return _unsupported_type([*value, *value.values()])
    if value is None or isinstance(value, (bool, int, float, str)):
        return ""
    return type(value).__name__


def _nameless(text: str, start: int, stop: int, last: str | None) -> UsageError:
    piece = text[start:stop].strip()
    way_out = "Expected NAME=VALUE, NAME=VALUE, ..."
    if piece.startswith("{") and last is None:
        way_out += _as_params(piece)
    elif last is not None:
        way_out += f" If {piece} belongs to {last}, use brackets:  {last}=[..., {piece}]"
    return _refused(text, start, stop, f"{piece} has no name", way_out)


def _as_params(source: str) -> str:
    """Return a phrase that shows a dict as params, to end an error; empty if it cannot."""
    try:
        values = literal_eval(source)
        named = ", ".join(
            f"{name}={json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
            for name, value in values.items()
            if name.isidentifier()
        )
    except (SyntaxError, ValueError, TypeError, AttributeError, MemoryError, RecursionError):
        return ""
    # Single quotes are those around the example.
    named = named if '"' in named else named.replace("'", '"')
    return f" For this dict: --params='{named}'" if named and "'" not in named else ""


def _refused(text: str, start: int, stop: int, problem: str, way_out: str) -> UsageError:
    """Return an error that shows the string, with a line of carets (`^`) under the faulty part.

    Args:
        text: The value of `--params`.
        start: Start of the faulty part.
        stop: End of the faulty part, exclusive.
        problem: The problem, as the beginning of a sentence.
        way_out: The remedy, as a sentence; empty if there is none.
    """
    start += len(text[start:stop]) - len(text[start:stop].lstrip())
    stop = max(start + len(text[start:stop].rstrip()), start + 1)
    # A window, so that the carets also stay under the faulty part of a long string.
    first = max(0, start - _SHOWN_WIDTH // 2) if len(text) > _SHOWN_WIDTH else 0
    shown = "".join(" " if c.isspace() else c for c in text[first : first + _SHOWN_WIDTH])
    carets = "^" * max(1, min(stop, first + len(shown)) - start)
    lines = [
        f"--params: {problem} (at position {start + 1}).",
        f"    {shown}",
        f"    {' ' * (start - first)}{carets}",
    ]
    return UsageError("\n".join([*lines, f"  {way_out}"] if way_out else lines))

"""Text for a terminal: what controls it is shown, not obeyed.

File names, option values and what libraries say may hold any character. An ESC sequence in one of
them could clear the screen, rename the window, or hide a line.

Callers: whatever of `cli/` prints a path, a value or an error.
"""

from __future__ import annotations

import re
from typing import Any

import click

# C0 without newline and tab, DEL and C1; marks that turn the direction of writing; surrogates,
# which stand for bytes of a file name that are no UTF-8.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return a text with its control characters as escapes; newlines and tabs stay.

    Example:
        >>> printable("a\\x1b[2Jb")
        'a\\\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def echo(text: Any, *, nl: bool = True, err: bool = False) -> None:
    """Print a text as `click.echo` does, its control characters as escapes."""
    click.echo(printable(str(text)), nl=nl, err=err)

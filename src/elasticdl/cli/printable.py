"""Strings for a terminal: control characters are shown, not executed.

File names, option values and messages of libraries may contain any character. An ESC sequence in
one of them could clear the screen, rename the window, or hide a line.

Callers: all of `cli/` that prints a path, a value or an error.
"""

from __future__ import annotations

import re
from typing import Any

import click

# C0 without newline and tab, DEL and C1; marks that change the direction of writing; surrogates,
# which represent bytes of a file name that are not UTF-8.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Escape the control characters of a string, except for newlines and tabs.

    Example:
        >>> printable("a\\x1b[2Jb")
        'a\\\\x1b[2Jb'
    """
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def echo(text: Any, *, nl: bool = True, err: bool = False) -> None:
    """Print a value as `click.echo` does, with control characters escaped."""
    click.echo(printable(str(text)), nl=nl, err=err)

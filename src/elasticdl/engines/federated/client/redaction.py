"""Redaction of error messages before they leave a party.

An error message often quotes the data that caused it, such as a name or a path with a patient's
number.
The message that is sent to the aggregator keeps the words that describe the problem, without the
data. When in doubt, a word is removed: the full message is in the party's own log.

Callers: `protocol/messages.py`, and `server/client_registry.py`.
"""

from __future__ import annotations

import re

MAX_CHARACTERS = 300
# The rest is ignored: it would be cut off anyway, and a printed array can have megabytes.
_MAX_READ = 2000

_DATA_FILES = (
    "arrow|avro|bin|bz2|csv|dat|db|dcm|feather|gz|h5|hdf5|ipynb|jpe?g|jsonl?|keras|log|mat|nii|npy|"
    "npz|parquet|pb|pickle|pkl|png|pt2?|pth|py|recordio|safetensors|sav|sqlite3?|tar|tfrecords?|"
    "tiff?|tsv|txt|xlsx?|xml|ya?ml|zip|zst"
)
# The order matters: a quotation may contain all the other patterns.
_RULES = (
    # A quotation ends at a mark that is not followed by a letter; an unclosed one ends with the
    # message. A mark after a letter is an apostrophe, unless it opens a bytes or raw literal.
    (
        re.compile(r"(?<![^\W_])(?:[bBrRuUfF]{1,2})?\"(?:[^\"\\]|\\.|\"(?=\w))*(?:\"|\\?$)"),
        "<text>",
    ),
    (re.compile(r"(?<![^\W_])(?:[bBrRuUfF]{1,2})?'(?:[^'\\]|\\.|'(?=\w))*(?:'|\\?$)"), "<text>"),
    (re.compile(r"`[^`]*(?:`|$)"), "<text>"),
    (re.compile(r"[“‘«„][^”’»]*(?:[”’»]|$)"), "<text>"),  # noqa: RUF001 - quotation marks
    (re.compile(r"\S*[\w.+-]@\w\S*"), "<address>"),
    # Any word with a slash in it.
    (re.compile(r"[^\s,;()\[\]{}<>]*[/\\][^\s,;()\[\]{}<>]*"), "<path>"),
    (re.compile(rf"[^\s,;:()\[\]{{}}<>]+\.(?:{_DATA_FILES})\b", re.IGNORECASE), "<path>"),
    # An array as NumPy prints it, a list, a shape: brackets with digits in them.
    (re.compile(r"[\[({][^\[\](){}]*\d[^\[\](){}]*[\])}]"), "<numbers>"),
    (re.compile(r"[\[({][\s,<>]*<numbers>[^\[\](){}]*(?:[\])}]|$)"), "<numbers>"),
    # The rest of a list that was cut off, or a list without brackets.
    (re.compile(r"[-+]?\d[\w.+-]*(?:[\s,;|]+(?:[-+]?\d[\w.+-]*|\.\.\.|nan|inf))+"), "<numbers>"),
    # Dates, and numbers that may identify a person or be a measurement; line numbers and counts
    # are shorter.
    (
        re.compile(r"\b\d+(?:[-:./]\d+)+\b|\b\d{5,}\b|\d*\.\d+|\b\d+e[-+]?\d+", re.IGNORECASE),
        "<number>",
    ),
)


def redacted(text: str) -> str:
    """Return the first line of an error without paths, data, quotations and long numbers.

    Args:
        text: The exception's message.

    Returns:
        At most `MAX_CHARACTERS` characters.

    Example:
        >>> redacted("could not convert string 'Ada Lovelace' in /data/ward3/ada.csv, line 7")
        'could not convert string <text> in <path>, line 7'
        >>> redacted("the parties' rows are [37.2, 38.9, 36.6]")
        "the parties' rows are <numbers>"
    """
    # After the first line there is usually a table, an array or source code.
    first = (text.strip().splitlines() or [""])[0]
    # Control characters could change what a terminal shows.
    words = "".join(c if c.isprintable() else " " for c in first[:_MAX_READ]).split()
    # The last word may be cut off, and a part of a name might not be recognised.
    line = " ".join(words if len(first) <= _MAX_READ else words[:-1])
    for pattern, instead in _RULES:
        before = None
        while before != line:
            # Nested arrays are replaced from the inside out.
            before, line = line, pattern.sub(instead, line)
    if len(line) > MAX_CHARACTERS:
        line = f"{line[: MAX_CHARACTERS - 2].rstrip()} …"
    return line

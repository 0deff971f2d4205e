"""Removes what a page must not show: passwords in addresses, and values with names of secrets.

Outputs are shared, and screens can be seen by others. Environment variables are never read. Pure.
Callers: `view.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from elasticdl.job import without_password

HIDDEN = "(not shown)"

_SECRET_NAME = re.compile(
    r"(?i)(pass(word|wd|phrase)|secret|token|credential|api_?key|private_?key|access_?key|auth)"
)
_SIGNATURE = re.compile(r"(?i)([?&][^=&\s]*(?:signature|sig|key|credential)[^=&\s]*=)[^&\s]*")
_MOST_CHARACTERS = 4_000


def redacted(value: Any) -> Any:
    """Return a JSON value with its secrets removed.

    Example:
        >>> redacted({"api_key": "k-1", "uri": "s3://me:pw@host/x", "seed": 3})
        {'api_key': '(not shown)', 'uri': 's3://me:***@host/x', 'seed': 3}
    """
    if isinstance(value, Mapping):
        return {
            str(key): HIDDEN
            if _SECRET_NAME.search(str(key)) and isinstance(item, str) and item
            else redacted(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [redacted(item) for item in value]
    return shown_text(value) if isinstance(value, str) else value


def shown_text(text: str) -> str:
    """Return a text without passwords, truncated to a readable length."""
    shown = _SIGNATURE.sub(r"\1***", without_password(text))
    # Bytes of a file that is not UTF-8 cannot be represented in JSON.
    shown = shown.encode(errors="replace").decode()
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[:_MOST_CHARACTERS]} ..."

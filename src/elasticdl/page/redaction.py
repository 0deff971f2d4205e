"""Removes secrets from page contents: passwords in addresses, values whose names suggest a secret.

Control characters, which could change what is displayed, are escaped.

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
_MAX_CHARACTERS = 4_000
_MAX_OF_A_NAME = 100
# C0 except newline and tab, DEL and C1; marks that change the writing direction; surrogates,
# which stand for bytes that are not UTF-8.
_CONTROL = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_CONTROLS = re.compile(_CONTROL)
# One quick search shows that a string contains none of these, which is true for most strings.
_NOTABLE = re.compile(f"{_CONTROL}|://|=")


def redacted(value: Any) -> Any:
    """Remove the secrets from a JSON value.

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
    r"""Mask passwords and escape control characters in a string, and truncate it.

    Example:
        >>> print(shown_text("a\x00b"))
        a\x00b
    """
    cut = text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]} ..."
    if not _NOTABLE.search(cut):
        return cut
    shown = _SIGNATURE.sub(r"\1***", without_password(cut))
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), shown)


def shown_name(name: str) -> str:
    """Mask and escape the name of a party, metric or job like `shown_text`, but cut it shorter."""
    return shown_text(name if len(name) <= _MAX_OF_A_NAME else f"{name[:_MAX_OF_A_NAME]} ...")

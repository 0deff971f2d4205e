"""Explains a `KeyError` of a callback that looks for a metric which the logs do not have.

Callers: `keras/hooks.py`, `torch/callbacks.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_VALIDATION = "val_"


def hint(error: Exception, logs: Any) -> str:
    """Return a line that lists the names in the logs if a callback looked for a missing one.

    The result is empty for other errors.

    Args:
        error: What the callback raised.
        logs: The logs that the callback got.

    Example:
        >>> print(hint(KeyError("lr"), {"loss": 0.5, "accuracy": 0.9}).strip())
        The logs have loss and accuracy.
    """
    if not isinstance(error, KeyError) or not isinstance(logs, Mapping) or len(error.args) != 1:
        return ""
    (name,) = error.args
    if not isinstance(name, str) or name in logs:
        return ""
    *most, last = map(str, logs) if logs else ("no values",)
    line = f"\n  The logs have {' and '.join(filter(None, [', '.join(most), last]))}."
    if f"{_VALIDATION}{name}" in logs:
        return f"{line} {name!r} is measured in validation."
    if name.startswith(_VALIDATION) and not any(each.startswith(_VALIDATION) for each in logs):
        return f"{line} There is no validation data, or no evaluation so far."
    return line

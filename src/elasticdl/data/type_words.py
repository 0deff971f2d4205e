"""Plain-English names of Arrow types, for messages to users who do not know these types.

Callers: `sql/`, `zoo/prebuilt/`, `prediction/input_columns.py`, `table.py`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# By the start of an Arrow type; the first match counts.
_WORDS = (
    ("lists", r"(large_|fixed_size_)?list"),
    ("whole numbers", r"u?int\d|decimal\d+\(\d+, 0\)"),
    ("numbers", r"float|double|halffloat|decimal"),
    ("true or false", r"bool"),
    ("text", r"(large_)?string"),
    ("timestamps", r"timestamp"),
    ("dates", r"date"),
    ("times of day", r"time"),
    ("durations", r"duration"),
    ("bytes", r"(large_|fixed_size_)?binary"),
    ("structs", r"struct"),
    ("maps", r"map"),
    ("values that are always NULL", r"null"),
    ("periods", r"extension<pandas\.period"),
    ("intervals", r"extension<pandas\.interval"),
)


def in_words(type_: pa.DataType | str) -> str:
    """Return the plain-English name of an Arrow type.

    Example:
        >>> import pyarrow as pa
        >>> [
        ...     in_words(each)
        ...     for each in ("int64", "double", "decimal128(9, 0)", pa.list_(pa.utf8()))
        ... ]
        ['whole numbers', 'numbers', 'whole numbers', 'lists']
    """
    found = str(type_)
    return next((words for words, pattern in _WORDS if re.match(pattern, found)), found)

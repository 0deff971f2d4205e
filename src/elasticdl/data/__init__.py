"""Reads records from files of many formats, decodes them by a schema, and makes batches of them.

Nothing here depends on a model.

`RecordWriter` and `Records` write and read record files in users' programs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.data.record_files import Records, RecordWriter

__all__ = ["RecordWriter", "Records"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'elasticdl.data' has no attribute {name!r}")
    # Not above: the files of this folder are imported one by one, each with what it needs.
    from elasticdl.data import record_files  # noqa: PLC0415

    return getattr(record_files, name)

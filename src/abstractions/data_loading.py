"""Old import path, kept for existing projects; `DataLoaderBase` is in `elasticdl.components`."""

from elasticdl.components import DataLoaderBase

__all__ = ["DataLoaderBase"]

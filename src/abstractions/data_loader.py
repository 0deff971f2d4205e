"""Import path of existing `abstractions` projects; re-exports names of `elasticdl.components`."""

from elasticdl.components import DataLoaderBase

__all__ = ["DataLoaderBase"]

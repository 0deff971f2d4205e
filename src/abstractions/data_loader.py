"""An old module name; see `elasticdl.components`."""

from elasticdl.components import DataLoaderBase

__all__ = ["DataLoaderBase"]

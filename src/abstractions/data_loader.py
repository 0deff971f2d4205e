"""Lets projects import `DataLoaderBase` from `abstractions.data_loader`, as they already do."""

from elasticdl.components import DataLoaderBase

__all__ = ["DataLoaderBase"]

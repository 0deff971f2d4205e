"""Lets projects import `ConfigStruct` from `abstractions.utils`, as they already do."""

from elasticdl.config_file import ConfigStruct

__all__ = ["ConfigStruct"]

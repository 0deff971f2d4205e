"""Compatibility module: re-exports names of `elasticdl.config_file`."""

from elasticdl.config_file import ConfigStruct

__all__ = ["ConfigStruct"]

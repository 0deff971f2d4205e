"""Compatibility module: re-exports names of `elasticdl.config`."""

from elasticdl.config import ConfigStruct

__all__ = ["ConfigStruct"]
